"""One seed, one text: alone, among four others, with speculation off and on.

The server is exact, so texts and log-probabilities are the same to the bit. Only where batches of different width round
differently (a GPU) nearly tied choices may fall either way: where texts part, the two tokens' scores (with the very
noise of that position) must be nearly equal.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from lcspec.sampling.parameters import gumbel_noise
from tests.running import ROUNDS_ALIKE
from tests.server.running import CHAT, CODE, MODEL

pytestmark = pytest.mark.server

# Scores closer than this are tied: logits of the bundled target differ by this much between widths.
TIE = 0.5
TEMPERATURE = 0.9
SEED = 11
PROMPTS = (CHAT, CODE, "I would like a large coffee with milk, please.")
OTHERS = ("Can you tell me where the station is?", "import os\n", "Tom has 3 apples and buys 4 more.", "Good morning!")
# The whole distribution, so that no candidate appears or disappears with a small change.
OPEN = {"top_k": 0, "min_p": 0.0, "ignore_eos": True}


def say(client: openai.OpenAI, prompt: str, temperature: float, **speculation: Any) -> Any:
    """One request, with log-probabilities."""
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        seed=SEED,
        temperature=temperature,
        top_p=1,
        max_tokens=48,
        logprobs=True,
        top_logprobs=3,
        extra_body={**OPEN, "speculation": speculation},
    )


def among_others(client: openai.OpenAI, prompt: str, temperature: float, **speculation: Any) -> Any:
    """The same, while four others run all the time."""
    stop = threading.Event()

    def run(other: str, seed: int) -> int:
        n = 0
        while not stop.is_set():
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": other}],
                seed=seed,
                max_tokens=48,
                extra_body={"ignore_eos": True},
            )
            n += 1
        return n

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(run, other, i) for i, other in enumerate(OTHERS)]
        try:
            got = say(client, prompt, temperature, **speculation)
        finally:
            stop.set()
        assert sum(r.result() for r in running) >= 4
    return got


def check_same(client: openai.OpenAI, a: Any, b: Any, temperature: float) -> None:
    """Equal texts, or a near tie where they part and the build rounds that way."""
    if ROUNDS_ALIKE:
        assert a.choices[0].message.content == b.choices[0].message.content
        assert a.choices[0].logprobs == b.choices[0].logprobs
        return
    left, right = a.choices[0].logprobs.content, b.choices[0].logprobs.content
    i = next((i for i, (x, y) in enumerate(zip(left, right)) if x.token != y.token), None)
    if i is None:
        assert a.choices[0].message.content == b.choices[0].message.content
        return
    # One is ahead by a little in the one run and behind by a little in the other, so the winners' scores are close.
    assert abs(score(client, a, i, temperature) - score(client, b, i, temperature)) < TIE


def score(client: openai.OpenAI, answer: Any, i: int, temperature: float) -> float:
    """What decided for the i-th token: its log-probability and the noise of its position."""
    chosen = answer.choices[0].logprobs.content[i]
    if temperature == 0:
        return float(chosen.logprob)
    got = client.post("/../tokenize", body={"content": chosen.token}, cast_to=dict[str, Any])
    (number,) = got["tokens"]
    noise = float(gumbel_noise(SEED, answer.usage.prompt_tokens + i, [number])[0])
    return float(chosen.logprob) / temperature + noise


@pytest.mark.parametrize("temperature", [0.0, TEMPERATURE])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_alone_and_among_others_with_and_without(client: openai.OpenAI, prompt: str, temperature: float) -> None:
    alone = say(client, prompt, temperature, off=True)
    for other in (
        say(client, prompt, temperature),
        say(client, prompt, temperature, drafters="ngram,model"),
        among_others(client, prompt, temperature, off=True),
        among_others(client, prompt, temperature),
        among_others(client, prompt, temperature, drafters="ngram,model"),
    ):
        check_same(client, alone, other, temperature)


@pytest.mark.parametrize("temperature", [0.0, TEMPERATURE])
def test_exact_requests_are_the_same_to_the_bit(client: openai.OpenAI, temperature: float) -> None:
    for prompt in PROMPTS[:1]:
        alone = say(client, prompt, temperature, off=True, exact=True)
        for other in (
            say(client, prompt, temperature, exact=True),
            among_others(client, prompt, temperature, exact=True),
            among_others(client, prompt, temperature, drafters="ngram,model", exact=True),
        ):
            assert other.choices[0].logprobs == alone.choices[0].logprobs
            assert other.choices[0].message.content == alone.choices[0].message.content
