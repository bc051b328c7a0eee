"""Sliding windows: whatever came before, in whatever order, an answer is the one that a new context gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lcspec.config import ModelOptions
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama import Context, Model
from lcspec.modelfiles.windows import window_cache
from lcspec.session import Session, open_session
from lcspec.spec.token_tree import TokenTree
from tests import tiny_gguf as tiny
from tests.running import Answer, answer, options, request, side_by_side
from tests.tiny_families import write_family
from tests.tiny_windows import write_gemma3, write_gpt_oss

pytestmark = pytest.mark.model


def in_family(name: str) -> Callable[..., Path]:
    """What writes a model of a family with a window of some size."""

    def write(path: Path, window: int = 16) -> Path:
        return write_family(name, path, **{"attention.sliding_window": window})

    return write


FAMILIES: dict[str, Callable[..., Path]] = {
    "gemma3": write_gemma3,
    # All experts work: where two are within 1e-4, the order of a sum decides, and a logit differs by 0.5.
    "gpt-oss": partial(write_gpt_oss, used=4),
    "cohere2": partial(tiny.write_sliding_window, n_head=2, n_head_kv=1),
}
# Layers that read another one's cache, and heads of another size; layers that only draft.
OTHERS = {"gemma4": in_family("gemma4"), "step35": in_family("step35")}
WINDOWS = (3, 16, 50)
TEXT = "the cat and the dog and the cat and the "
CTX = 512


def whole(session: Session) -> ModelOptions:
    """Options for a context whose windows lose nothing."""
    return replace(session.engine.options, full_windows=True)


def check(context: Context, prompt: Sequence[int], found: Answer) -> None:
    """Every token is what a context that holds nothing else finds most probable, but for near ties."""
    tokens = [*prompt, *found.ids]
    judged = reading(context, tokens, 32)[len(prompt) - 1 : -1]
    gap = float((judged.max(axis=1) - judged[np.arange(len(found.ids)), found.ids]).max(initial=0.0))
    if gap >= 0.05:  # more than another reading differs by is no rounding
        other = reading(context, tokens, 64)[len(prompt) - 1 : -1]
        assert gap < 2 * np.abs(judged - other).max(), f"a token is {gap:.3g} below the best"


def reading(context: Context, tokens: Sequence[int], piece: int) -> NDArray[np.float32]:
    """Logits behind every token, read in pieces of so many."""
    rows = []
    context.memory.clear()
    for start in range(0, len(tokens), piece):
        context.batch.clear()
        for i, token in enumerate(tokens[start : start + piece]):
            context.batch.add(token, start + i, (0,), logits=True)
        context.decode()
        rows.append(context.logits().copy())
    return np.concatenate(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_request_again_on_two_slots(family: str, tmp_path: Path) -> None:
    """The second slot's answer lies on cells that the first one's text needs again afterwards."""
    with open_session(options(FAMILIES[family](tmp_path / "m.gguf"), slots=2)) as session:
        prompt = session.prompt_ids(TEXT * 5)
        side_by_side(session.engine, [request(prompt, "off", 60), request(prompt[:30], "off", 60)])
        with Context(session.model, whole(session)) as alone:
            for _ in range(4):
                found = answer(session.engine, request(prompt, "off", 60))
                assert found.started.reused > 0
                check(alone, prompt, found)


# A text is a number of tokens of one of two long texts; then comes an answer of so many tokens, drafted so.
ASKED = st.tuples(
    st.integers(0, 1), st.integers(1, 400), st.integers(1, 40), st.sampled_from(["off", "ngram:branch=3:min_n=1"])
)
ORDER = st.lists(st.lists(ASKED, min_size=1, max_size=3), min_size=2, max_size=5)


CASES = [
    *((family, window, "library") for family in FAMILIES for window in WINDOWS),
    ("gemma3", 16, "products"),
    *((family, 16, "library") for family in OTHERS),
]


@pytest.mark.parametrize("family, window, attention", CASES)
def test_any_order_of_requests(
    family: str, window: int, attention: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = (FAMILIES | OTHERS)[family](tmp_path_factory.mktemp("windows") / "m.gguf", window=window)
    with open_session(
        options(path, slots=3, ctx=CTX, batch=40, max_width=16, kv_type="f32", attention=attention)
    ) as session:
        engine, alone = session.engine, Context(session.model, whole(session))
        texts = [session.prompt_ids(TEXT * 12), session.prompt_ids("a dog in the hat; " * 20)]

        @settings(
            derandomize=True,
            deadline=None,
            max_examples=12,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @given(ORDER)
        def run(order: list[list[tuple[int, int, int, str]]]) -> None:
            for together in order:
                asked = [request(texts[t][:n], how, k) for t, n, k, how in together]
                for wanted, found in zip(asked, side_by_side(engine, asked)):
                    check(alone, wanted.prompt, found)

        with alone:
            run()


def test_a_state_that_is_loaded_does_not_take_the_cells_that_are_then_shared(tmp_path: Path) -> None:
    """Loading takes cells outside other sequences' windows: what was to be shared after it had lost its beginning."""
    words = [
        "the",
        "cat",
        "and",
        "a",
        "dog",
        "in",
        "that",
        "hat",
        "ran",
        "over",
        "two",
        "old",
        "red",
        "roads",
        "to",
        "see",
        "my",
        "house",
    ]
    path = write_family("gemma2", tmp_path / "m.gguf")
    asked = [
        [(1, 42, 17, "auto"), (1, 941, 51, "ngram:branch=3:min_n=1:nodes=12")],
        [(1, 598, 58, "off"), (0, 289, 9, "off")],
        [(1, 932, 35, "off"), (1, 102, 47, "off"), (1, 484, 36, "off")],
    ]
    with (
        open_session(options(path, slots=3, ctx=1500, batch=40, max_width=16, kv_type="f32")) as session,
        Context(session.model, whole(session)) as alone,
    ):
        texts = [session.prompt_ids(" ".join(np.random.default_rng(seed).choice(words, 500))) for seed in (0, 1)]
        for together in asked:
            wanted = [request(texts[t][:n], how, k, draft=None) for t, n, k, how in together]
            for one, found in zip(wanted, side_by_side(session.engine, wanted)):
                check(alone, one.prompt, found)


def test_what_is_left_is_reused(tmp_path: Path) -> None:
    """Alone nobody takes cells away, so far more than a window is taken back without reading anything again."""
    with open_session(options(write_gemma3(tmp_path / "m.gguf"))) as session:
        prompt = session.prompt_ids(TEXT * 5)
        answer(session.engine, request(prompt, "off", 60))
        found = answer(session.engine, request([*prompt[:20], 7, 8], "off", 40))
        assert found.started.reused == 20
        with Context(session.model, whole(session)) as alone:
            check(alone, [*prompt[:20], 7, 8], found)


def test_long_answers_and_shared_beginnings_in_the_small_cache(tmp_path: Path) -> None:
    """Far more tokens than it has cells, and all that the engine does with them."""
    with open_session(
        options(write_gemma3(tmp_path / "m.gguf"), slots=2, ctx=1024, batch=40, max_width=16, full_windows=False)
    ) as session:
        engine, text = session.engine, session.prompt_ids(TEXT * 24)
        assert 0 < engine.context.memory.slack < 200
        tree = "ngram:branch=3:min_n=1:nodes=12"
        with Context(session.model, whole(session)) as alone:
            # Long answers with trees; beginnings that are shared, restored from a checkpoint, and shorter than before.
            for asked in (
                [(30, 900), (30, 900)],
                [(600, 300), (600, 300)],
                [(300, 200), (900, 60)],
                [(90, 400)],
                [(320, 300), (95, 300)],
            ):
                wanted = [request(text[:n], tree, k) for n, k in asked]
                for one, found in zip(wanted, side_by_side(engine, wanted)):
                    assert found.error is None
                    check(alone, one.prompt, found)


def test_an_exact_request_gets_a_full_cache(tmp_path: Path) -> None:
    """In a small one the order of a text's cells follows from its drafts, and the bits from the order."""
    with open_session(
        options(write_gemma3(tmp_path / "m.gguf"), ctx=1024, batch=40, max_width=16, full_windows=False)
    ) as session:
        engine, prompt = session.engine, session.prompt_ids(TEXT * 5)
        assert engine.context.memory.slack > 0
        found = [
            answer(engine, request(prompt, how, 300, exact=True, logprobs=0))
            for how in ("off", "ngram:min_n=1:nodes=8", "off")
        ]
        assert found[0].bits == found[1].bits == found[2].bits


def decode(context: Context, cache: SequenceCache, *trees: TokenTree) -> None:
    """Decode trees one after the other and accept nothing but their roots."""
    for tree in trees:
        batch, order, base = context.batch, tree.batch_order(), cache.length
        batch.clear()
        sets = cache.place(tree, order, base)
        for node in order:
            batch.add(tree.tokens[node], base + tree.depths[node], sets[node], logits=True)
        context.decode()
        cache.commit([])


@pytest.mark.parametrize("full", [True, False])
def test_a_leaf_follows_a_text_whose_beginning_others_have_overwritten(full: bool, tmp_path: Path) -> None:
    """A cell that a leaf holds as well is not overwritten, but later ones are, and the text loses all before them."""
    made = options(write_gemma3(tmp_path / "m.gguf"), slots=3, ctx=1024, max_width=16, kv_type="f32", full_windows=full)
    with (
        Model.load(made) as model,
        Context(model) as context,
        Context(model, replace(made, full_windows=True)) as alone,
    ):
        pool = SequencePool(context.n_seq)
        text, long, other = (SequenceCache(context.memory, pool) for _ in range(3))
        fork = TokenTree.root(65)
        fork.add(0, 66)
        fork.add(0, 67)
        # Cells before those of `text` are used and freed, so that the library goes on to its cells from there.
        decode(context, long, *(TokenTree.root(80 + i % 9) for i in range(100)))
        decode(context, text, *(TokenTree.root(70 + i % 9) for i in range(20)), fork)
        decode(context, text, *(TokenTree.root(70 + i % 7) for i in range(60)))
        long.truncate(1)
        decode(context, other, *(TokenTree.root(80 + i % 9) for i in range(150)))
        assert context.memory.start(text.main) > 0 and context.memory.holds(text.main, text.length)
        decode(context, text, fork)
        tokens = [*(70 + i % 9 for i in range(20)), 65, *(70 + i % 7 for i in range(60)), 65]
        assert np.abs(context.logits()[0] - last_row(alone, tokens)).max() < 0.01


def last_row(context: Context, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits behind a text, read in a context that holds nothing else."""
    context.memory.clear()
    for start in range(0, len(tokens), 32):
        piece = tokens[start : start + 32]
        context.batch.clear()
        for i, token in enumerate(piece):
            context.batch.add(token, start + i, (0,), logits=i == len(piece) - 1)
        context.decode()
    return context.logits()[0]


@contextmanager
def small_cache(tmp_path: Path) -> Iterator[tuple[Context, SequencePool, Context]]:
    """A context whose windows have 512 cells, its sequence ids, and a context that loses nothing."""
    path = write_gemma3(tmp_path / "m.gguf")
    made = options(path, slots=2, ctx=1024, batch=40, max_width=16, kv_type="f32", full_windows=False)
    with (
        Model.load(made) as model,
        Context(model) as context,
        Context(model, replace(made, slots=1, full_windows=True)) as alone,
    ):
        own = window_cache(model.header, made, context.n_ctx)
        assert own is not None and own.cells == 512 and context.memory.slack > 0
        yield context, SequencePool(context.n_seq), alone


def words(start: int, stop: int) -> list[int]:
    """The tokens of a text at the positions [start, stop)."""
    return [70 + i * i % 23 for i in range(start, stop)]


def test_a_shared_beginning_does_not_fill_the_small_cache(tmp_path: Path) -> None:
    """The library overwrites no cell that two texts hold: one of them lets go of what none of its tokens sees.

    Both go on from there: a cell of its own, once overwritten, would have taken the text's earlier ones along.
    """
    with small_cache(tmp_path) as (context, pool, alone):
        one, two = SequenceCache(context.memory, pool), SequenceCache(context.memory, pool)
        decode(context, one, *map(TokenTree.root, words(0, 495)))
        two.share(one, 495)
        for i in range(100):
            decode(context, one, TokenTree.root(80 + i % 9))
            decode(context, two, TokenTree.root(80 + i % 11))
        found = context.logits()[0]
        assert np.abs(found - last_row(alone, [*words(0, 495), *(80 + i % 11 for i in range(100))])).max() < 0.01


def test_leaves_that_are_not_used_again_do_not_fill_the_small_cache(tmp_path: Path) -> None:
    """Trees with fewer and fewer leaves: every one leaves two leaf ids behind, with cells of its own time."""
    with small_cache(tmp_path) as (context, pool, alone):
        cache, tokens = SequenceCache(context.memory, pool), list[int]()
        for leaves in range(17, 1, -2):
            tree = TokenTree.root(65)
            for i in range(leaves):
                tree.add(0, 70 + i)
            more = words(len(tokens), len(tokens) + 75)
            decode(context, cache, *map(TokenTree.root, more), tree)
            tokens += [*more, 65]
        decode(context, cache, TokenTree.root(66))
        assert np.abs(context.logits()[0] - last_row(alone, [*tokens, 66])).max() < 0.01
