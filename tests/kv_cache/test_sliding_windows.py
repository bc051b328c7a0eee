"""Sliding windows: whatever came before, in whatever order, an answer is the one that a new context gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lcspec.llama import Context
from lcspec.session import open_session
from tests import tiny_gguf as tiny
from tests.running import Answer, answer, options, request, side_by_side
from tests.tiny_windows import write_gemma3, write_gpt_oss

pytestmark = pytest.mark.model

FAMILIES: dict[str, Callable[..., Path]] = {
    "gemma3": write_gemma3,
    "gpt-oss": write_gpt_oss,
    "cohere2": tiny.write_sliding_window,
}
WINDOWS = (3, 16, 50)
TEXT = "the cat and the dog and the cat and the "
CTX = 512


def check(context: Context, prompt: Sequence[int], found: Answer) -> None:
    """Every token is what a context that holds nothing else finds most probable, but for near ties."""
    tokens = [*prompt, *found.ids]
    rows = []
    context.clear()
    for start in range(0, len(tokens), 64):
        context.batch.clear()
        for i, token in enumerate(tokens[start : start + 64]):
            context.batch.add(token, start + i, (0,), logits=True)
        context.decode()
        rows.append(context.logits().copy())
    judged = np.concatenate(rows)[len(prompt) - 1 : -1]
    gaps = judged.max(axis=1) - judged[np.arange(len(found.ids)), found.ids]
    assert gaps.max(initial=0.0) < 0.05, f"token {int(gaps.argmax())} of {len(found.ids)}"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_request_again_on_two_slots(family: str, tmp_path: Path) -> None:
    """The second slot's answer lies on cells that the first one's text needs again afterwards."""
    with open_session(options(FAMILIES[family](tmp_path / "m.gguf"), slots=2)) as session:
        prompt = session.prompt_ids(TEXT * 5)
        side_by_side(session.engine, [request(prompt, "off", 60), request(prompt[:30], "off", 60)])
        with Context(session.model, session.engine.options) as alone:
            for _ in range(4):
                found = answer(session.engine, request(prompt, "off", 60))
                assert found.started.reused > 0
                check(alone, prompt, found)


# A text is a number of tokens of one of two long texts; then comes an answer of so many tokens, drafted so.
ASKED = st.tuples(
    st.integers(0, 1), st.integers(1, 120), st.integers(1, 25), st.sampled_from(["off", "ngram:branch=3:min_n=1"])
)
ORDER = st.lists(st.tuples(st.booleans(), ASKED, ASKED), min_size=2, max_size=5)


CASES = [(family, window, "library") for family in FAMILIES for window in WINDOWS] + [("gemma3", 16, "products")]


@pytest.mark.parametrize("family, window, attention", CASES)
def test_any_order_of_requests(
    family: str, window: int, attention: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = FAMILIES[family](tmp_path_factory.mktemp("windows") / "m.gguf", window=window)
    with open_session(options(path, slots=2, ctx=CTX, attention=attention)) as session:
        engine, alone = session.engine, Context(session.model, session.engine.options)
        texts = [session.prompt_ids(TEXT * 12), session.prompt_ids("a dog in the hat; " * 20)]

        @settings(
            derandomize=True,
            deadline=None,
            max_examples=25,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @given(ORDER)
        def run(order: list[tuple[bool, tuple[int, int, int, str], tuple[int, int, int, str]]]) -> None:
            for together, one, other in order:
                asked = [request(texts[t][:n], how, k) for t, n, k, how in (one, other)[: 1 + together]]
                for wanted, found in zip(asked, side_by_side(engine, asked)):
                    check(alone, wanted.prompt, found)

        with alone:
            run()


def test_what_is_left_is_reused(tmp_path: Path) -> None:
    """Alone nobody takes cells away, so far more than a window is taken back without reading anything again."""
    with open_session(options(write_gemma3(tmp_path / "m.gguf"))) as session:
        prompt = session.prompt_ids(TEXT * 5)
        answer(session.engine, request(prompt, "off", 60))
        found = answer(session.engine, request([*prompt[:20], 7, 8], "off", 40))
        assert found.started.reused == 20
        with Context(session.model, session.engine.options) as alone:
            check(alone, [*prompt[:20], 7, 8], found)
