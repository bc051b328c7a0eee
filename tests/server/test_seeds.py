"""The seed decides the text: 200 requests alone, and again from 16 clients at once, give the same ids.

Log-probabilities are compared as well: a change in the logits shows there long before another token is chosen.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from lcspec.server.lifecycle import Background
from tests.running import ROUNDS_ALIKE
from tests.server.running import CHAT, CODE, WAIT, background, lines_of

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.skipif(not ROUNDS_ALIKE, reason="needs exact texts")]

N, CLIENTS = 200, 16
PROMPTS = (CHAT, CODE, "I would like a large coffee with milk, please.", "import os\n", "Tom has 3 apples and buys 4.")
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 1.2, "top_p": 0.9},
    {"temperature": 0.8, "repeat_penalty": 1.2, "dry_multiplier": 0.8},
    {"temperature": 1.0, "top_k": 0, "min_p": 0.02},
    {"temperature": 0.9, "grammar": 'root ::= ([a-z]+ " ")+'},
)
DRAFTING: tuple[dict[str, Any], ...] = ({}, {"off": True}, {"drafters": "ngram,model"}, {"drafters": "suffix"})


def asked(number: int) -> dict[str, Any]:
    """The body of a request; `number` decides what is in it."""
    return {
        "prompt": PROMPTS[number % len(PROMPTS)] * (1 + number % 3),
        "seed": number,
        "max_tokens": 6 + number % 9,
        "ignore_eos": True,
        "logprobs": 1,
        "stream": number % 2 == 1,
        **SAMPLINGS[number % len(SAMPLINGS)],
    }


def answer(http: httpx.Client, number: int, speculation: dict[str, Any]) -> list[tuple[str, float]]:
    """Tokens and their log-probabilities, streamed or not."""
    body = {**asked(number), "speculation": speculation}
    if not body["stream"]:
        found = http.post("/v1/completions", json=body)
        assert found.status_code == 200, found.text
        return _scores(found.json())
    with http.stream("POST", "/v1/completions", json=body) as stream:
        assert stream.status_code == 200
        events = [line[6:] for line in lines_of(stream) if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return list(itertools.chain.from_iterable(_scores(json.loads(event)) for event in events))


def _scores(part: dict[str, Any]) -> list[tuple[str, float]]:
    scores = (choice["logprobs"] for choice in part["choices"])
    return [pair for s in scores if s for pair in zip(s["tokens"], s["token_logprobs"])]


@pytest.fixture(scope="module")
def crowded() -> Iterator[Background]:
    """Slots for four of sixteen, so that requests wait, share cells and follow each other in every order."""
    with background(slots=4, queue=CLIENTS) as running:
        yield running


def test_200_requests_alone_and_from_16_clients(crowded: Background) -> None:
    with httpx.Client(base_url=crowded.url, timeout=WAIT) as http:
        alone = [answer(http, number, {"off": True}) for number in range(N)]
    assert all(len(alone[number]) == asked(number)["max_tokens"] for number in range(N))

    def client(first: int) -> dict[int, list[tuple[str, float]]]:
        with httpx.Client(base_url=crowded.url, timeout=WAIT) as http:
            mine = range(first, N, CLIENTS)
            return {number: answer(http, number, DRAFTING[number // 7 % len(DRAFTING)]) for number in mine}

    with ThreadPoolExecutor(CLIENTS) as pool:
        beside = {number: found for part in pool.map(client, range(CLIENTS)) for number, found in part.items()}
    assert [number for number in range(N) if beside[number] != alone[number]] == []
