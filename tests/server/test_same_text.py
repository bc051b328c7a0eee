"""One seed, one text: alone, among four others, with speculation off and on.

Batches of different width round differently, so where two choices are nearly tied they may fall either way. That is
checked: where texts part, the two tokens' scores (with the very noise of that position) must be nearly equal. With
`exact` there is no such excuse.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from lcspec.sampling import gumbel_noise
from tests.server.running import CHAT, CODE, MODEL

# Scores closer than this are tied: logits of the bundled target differ by this much between widths.
TIE = 0.5
TEMPERATURE = 0.9
SEED = 11
PROMPTS = (CHAT, CODE, "I would like a large coffee with milk, please.")
OTHERS = ("Can you tell me where the station is?", "import os\n", "Tom has 3 apples and buys 4 more.", "Good morning!")
# The whole distribution, so that no candidate appears or disappears with a small change.
OPEN = {"top_k": 0, "min_p": 0.0, "ignore_eos": True}


def say(client: openai.OpenAI, prompt: str, temperature: float, **speculation: Any) -> Any:
    """One request, with the most probable tokens."""
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        seed=SEED,
        temperature=temperature,
        top_p=1,
        max_tokens=60,
        logprobs=True,
        top_logprobs=20,
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
    """Equal texts, or a near tie where they part."""
    left, right = a.choices[0].logprobs.content, b.choices[0].logprobs.content
    i = next((i for i, (x, y) in enumerate(zip(left, right)) if x.token != y.token), None)
    if i is None:
        assert a.choices[0].message.content == b.choices[0].message.content
        return
    values = {top.token: top.logprob for top in left[i].top_logprobs}
    assert right[i].token in values, "the texts part at a token that was not among the 20 most probable ones"
    mine, other = (
        score(client, a, i, left[i].token, values, temperature),
        score(client, a, i, right[i].token, values, temperature),
    )
    assert abs(mine - other) < TIE


def score(
    client: openai.OpenAI, answer: Any, i: int, token: str, values: dict[str, float], temperature: float
) -> float:
    """What decides the choice of the i-th token: its log-probability and the noise of the position."""
    if temperature == 0:
        return values[token]
    got = client.post("/../tokenize", body={"content": token, "parse_special": True}, cast_to=dict[str, Any])
    (number,) = got["tokens"]
    noise = float(gumbel_noise(SEED, answer.usage.prompt_tokens + i, [number])[0])
    return values[token] / temperature + noise


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
    for prompt in PROMPTS[:2]:
        alone = say(client, prompt, temperature, off=True, exact=True)
        for other in (
            say(client, prompt, temperature, exact=True),
            among_others(client, prompt, temperature, exact=True),
            among_others(client, prompt, temperature, drafters="ngram,model", exact=True),
        ):
            assert other.choices[0].logprobs == alone.choices[0].logprobs
            assert other.choices[0].message.content == alone.choices[0].message.content
