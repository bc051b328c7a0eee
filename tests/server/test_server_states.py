"""A server of several models whose clients ask, read, hang up, load and unload in any order.

Hypothesis chooses what happens next (a state machine), and shrinks what fails to the fewest steps.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from lcspec.server.lifecycle import Background
from tests import tiny_gguf as tiny
from tests.running import until
from tests.server.running import HELLO, WAIT, lines_of, several

pytestmark = [pytest.mark.server, pytest.mark.slow]

MODELS = ("red", "blue")
SEEDS = (1, 2)
WHICH = st.integers(0, 3)  # of the streams there are: how far they are is another time every time
EXAMPLES = 100 if os.environ.get("LCSPEC_EXPLORE") else 5
TOKENS = 24
# What no client should send, with the status that says so.
WRONG: tuple[tuple[dict[str, Any], int], ...] = (
    ({"model": "green", "messages": HELLO}, 404),
    ({"model": "red", "messages": "hello"}, 400),
    ({"model": "red", "messages": HELLO, "max_tokens": "many"}, 400),
    ({"model": "red", "messages": HELLO, "grammar": "root ::= nowhere"}, 400),
    ({"model": "blue", "messages": [{"role": "user", "content": "the cat " * 400}]}, 400),
)


@dataclass
class Stream:
    """An answer that is being read."""

    stack: contextlib.ExitStack
    lines: Iterator[str]
    model: str
    whole: str
    text: str = ""

    def read(self, n: int) -> bool:
        """Read up to `n` events; returns whether there are more."""
        for _, line in zip(range(n), self.lines):
            if line == "data: [DONE]":
                return False
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                self.text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        assert self.whole.startswith(self.text), self
        return True


class Clients(RuleBasedStateMachine):
    """Two slots for each of two models, of which both may be loaded."""

    server: Background
    texts: dict[tuple[str, int], str]

    @initialize()
    def start(self) -> None:
        self.http = httpx.Client(base_url=self.server.url, timeout=WAIT)
        self.streams: list[Stream] = []

    @rule(model=st.sampled_from(MODELS), seed=st.sampled_from(SEEDS), length=st.sampled_from((TOKENS, 1)))
    def ask(self, model: str, seed: int, length: int) -> None:
        # Streams that nobody reads may hold both slots: then this waits for ever.
        if sum(stream.model == model for stream in self.streams) < 2:
            answer = self.http.post("/v1/chat/completions", json=asked(model, seed, max_tokens=length))
            assert answer.status_code == 200, answer.text
            text = answer.json()["choices"][0]["message"]["content"]
            assert text == self.texts[model, seed] if length == TOKENS else self.texts[model, seed].startswith(text)

    @rule(model=st.sampled_from(MODELS), seed=st.sampled_from(SEEDS))
    def begin(self, model: str, seed: int) -> None:
        if len(self.streams) == 4:
            return
        stack = contextlib.ExitStack()
        sent = self.http.stream("POST", "/v1/chat/completions", json=asked(model, seed, stream=True))
        answer = stack.enter_context(sent)
        assert answer.status_code == 200
        self.streams.append(Stream(stack, lines_of(answer), model, self.texts[model, seed]))

    @rule(number=WHICH, n=st.integers(1, 6))
    def read(self, number: int, n: int) -> None:
        if self.streams:
            stream = self.streams[number % len(self.streams)]
            if not stream.read(n):
                self.end(stream)

    def end(self, stream: Stream) -> None:
        assert stream.text == stream.whole
        stream.stack.close()
        self.streams.remove(stream)

    @rule(number=WHICH)
    def hang_up(self, number: int) -> None:
        if self.streams:
            stream = self.streams.pop(number % len(self.streams))
            stream.stack.close()

    @rule(wrong=st.sampled_from(WRONG))
    def send_nonsense(self, wrong: tuple[dict[str, Any], int]) -> None:
        body, status = wrong
        answer = self.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == status and answer.json()["error"]["message"], answer.text

    @rule()
    def name_a_broken_model(self) -> None:
        answer = self.http.post("/v1/chat/completions", json=asked("broken", 1))
        assert answer.status_code in (400, 500, 503) and "broken" in answer.json()["error"]["message"], answer.text

    @rule(model=st.sampled_from(MODELS), load=st.booleans())
    def load_or_unload(self, model: str, load: bool) -> None:
        if self.streams:  # it would wait for their ends
            return
        answer = self.http.post(f"/models/{'load' if load else 'unload'}", json={"model": model})
        assert answer.status_code in (200, 400), answer.text

    @invariant()
    def it_is_well(self) -> None:
        if hasattr(self, "http"):
            health = self.http.get("/health")
            assert health.status_code == 200 and health.json()["status"] == "ok"

    def teardown(self) -> None:
        if not hasattr(self, "http"):
            return
        for stream in list(self.streams):
            while stream.read(8):
                pass
            self.end(stream)

        def health() -> dict[str, Any]:
            return self.http.get("/health").json()  # type: ignore[no-any-return]

        until(lambda: not (now := health())["running"] and not now["waiting"], health)
        self.http.close()


def asked(model: str, seed: int, **more: Any) -> dict[str, Any]:
    """A request's body."""
    usual = {"messages": HELLO, "max_tokens": TOKENS, "temperature": 0.8, "seed": seed, "ignore_eos": True}
    return {"model": model, **usual, **more}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[type[Clients]]:
    for seed, model in enumerate(MODELS):
        tiny.write_llama(tmp_path / f"{model}.gguf", seed=seed, chat_template=tiny.CHATML_TEMPLATE)
    tiny.write_llama(tmp_path / "broken.gguf", chat_template=tiny.CHATML_TEMPLATE, extra={"block_count": 3})
    with several(tmp_path) as server:
        texts = {}
        for model in MODELS:
            for seed in SEEDS:
                answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked(model, seed), timeout=WAIT)
                texts[model, seed] = answer.json()["choices"][0]["message"]["content"]
        yield type("Clients", (Clients,), {"server": server, "texts": texts})


def test_clients_in_any_order(machine: type[Clients]) -> None:
    few = settings(
        max_examples=EXAMPLES, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(machine, settings=few)
