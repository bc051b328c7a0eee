"""Lookahead and Jacobi decoding on real models: the text is plain decoding's, the mask is the paper's, and nothing of a
window stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from lcspec.config import DrafterSpec
from lcspec.drafters import DrafterEnv
from lcspec.drafters.lookahead import LookaheadDrafter
from lcspec.engine.events import Finished, StepStats
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama import Context, Model
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session
from lcspec.spec.token_tree import TokenTree
from tests.cells import Cells, cache_on
from tests.markov import View
from tests.running import ROUNDS_ALIKE, SAMPLINGS, answer, options, prompts, request, side_by_side, speculation

pytestmark = [pytest.mark.model, pytest.mark.slow]

STRATEGIES = (
    "lookahead:w=4:n=4:g=4",
    "lookahead:w=15:n=5:g=15:pool_from_prompt",
    "jacobi:w=5",
    "lookahead:w=3:n=3:g=3,ngram:branch=2",
    "lookahead:w=3:n=3:g=3,model",
    "lookahead:w=3:n=3,jacobi:w=3,suffix",
    "lookahead",
    "lookahead,jacobi,ngram",
)
N = 32


@pytest.fixture(scope="module")
def wide_demo(demo: tuple[Path, Path]) -> Iterator[Session]:
    """The bundled pair with room for the widest window that is asked for here."""
    with open_session(options(demo[0], max_width=128), demo[1]) as session:
        yield session


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_exact_gives_the_same_bits(wide_demo: Session, strategy: str, sampling: SamplingParams) -> None:
    probes = 0
    for prompt in prompts(wide_demo, 1, 2):
        plain = answer(wide_demo.engine, request(prompt, "off", N, sampling=sampling, exact=True, logprobs=0))
        found = answer(wide_demo.engine, request(prompt, strategy, N, sampling=sampling, exact=True, logprobs=0))
        assert found.bits == plain.bits
        probes += found.finished.stats.probes
    assert probes > 0 or "lookahead:w" not in strategy


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_without_exact_texts_part_at_near_ties_only(wide_demo: Session, sampling: SamplingParams) -> None:
    engine, same = wide_demo.engine, 0
    for prompt in prompts(wide_demo, 1, 1):
        plain = answer(engine, request(prompt, "off", N, sampling=sampling, logprobs=5))
        for strategy in STRATEGIES:
            found = answer(engine, request(prompt, strategy, N, sampling=sampling, logprobs=5))
            part = next((i for i, (a, b) in enumerate(zip(found.infos, plain.infos)) if a.id != b.id), None)
            same += part is None
            if part is not None:
                # Up to there the rows are the same but for rounding.
                ours, theirs = dict(found.infos[part].top), dict(plain.infos[part].top)
                shared = ours.keys() & theirs.keys()
                assert len(shared) >= 3 and all(abs(ours[t] - theirs[t]) < 0.5 for t in shared)
    assert same >= len(STRATEGIES)


def test_probes_are_counted_as_probes_and_nowhere_else(wide_demo: Session) -> None:
    prompt = prompts(wide_demo, 0, 1)[0]
    found = answer(wide_demo.engine, request(prompt, "lookahead:w=6:n=4:g=6", 64))
    stats, steps = found.finished.stats, found.steps
    assert stats.probes == sum(s.probes for s in steps) > 0
    assert stats.drafted == sum(s.tree.n_drafted for s in steps) == sum(len(s.tree) - 1 for s in steps)
    assert all(s.width == len(s.tree) + s.probes for s in steps)
    assert stats.accepted > 0 and stats.target_steps < 64
    assert set(stats.by_drafter) == {"lookahead"}
    assert sum(w * n for w, n in stats.widths.items()) == stats.drafted + stats.target_steps
    plain = answer(wide_demo.engine, request(prompt, "ngram", 64))
    assert plain.finished.stats.probes == 0 and all(s.probes == 0 for s in plain.steps)


def test_a_window_that_does_not_fit_is_cut(demo: tuple[Path, Path]) -> None:
    with open_session(options(demo[0], max_width=24), None) as session:
        prompt = prompts(session, 0, 1)[0]
        plain = answer(session.engine, request(prompt, "off", 40, exact=True)).ids
        found = answer(session.engine, request(prompt, "lookahead:w=15:n=5:g=15", 40, exact=True))
        assert found.ids == plain and found.finished.stats.probes > 0
        assert all(s.width <= 24 for s in found.steps)


# --- sequence ids -----------------------------------------------------------------------------------------------------


def warm_tree(width: int, n: int) -> tuple[TokenTree, int]:
    """Drafts and a warm window with tokens that are all different: the tree, and how many of its nodes are drafts."""
    drafter, text = LookaheadDrafter(cast(DrafterEnv, None)), [7]
    view = cast(Any, View(text, [drafter], options=[DrafterSpec.parse(f"lookahead:w={width}:n={n}")]))
    drafter.begin(view, view.options[0])
    window = drafter._slots[1].window
    window.height = n - 1
    window.widen(width, 0, 7)
    window.columns = [[100 * (i + 1) + j for j in range(n - 1)] for i in range(width)]
    window.columns[0][0] = 7
    kept = TokenTree.root(7)
    for branch in (1, 2):
        node = 0
        for depth in range(n - 1):
            node = kept.add(node, 10 * branch + depth, 0.5)
    return kept.with_probes(drafter.window(view, kept, 1000, 60).tree), len(kept)


@pytest.mark.parametrize(("width", "n"), [(5, 4), (1, 3), (15, 5)])
def test_the_mask_is_the_paper_s_on_the_sequence_ids(width: int, n: int) -> None:
    tree, drafts = warm_tree(width, n)
    assert tree.probes == width * (n - 1) - 1
    pool = SequencePool(64)
    order = tree.batch_order()
    assert order[:drafts] == list(range(drafts)), "drafts first, so that a winner lies in the cache in text order"
    sets = cache_on(Cells(), pool).place(tree, order, 0)
    # What each probe may see, said as the paper says it: by level and column.
    trunk = [7, *(100 * (i + 1) for i in range(1, width))]
    for node in range(len(tree)):
        seen = [
            tree.tokens[v] for v in range(len(tree)) if sets[node][0] in sets[v] and tree.depths[v] <= tree.depths[node]
        ]
        token = tree.tokens[node]
        if node < drafts:
            assert all(t < 100 for t in seen)
        else:
            column, level = token // 100 - 1, token % 100
            expected = trunk[: column + 1] + [100 * (column + 1) + j for j in range(1, level + 1)]
            assert sorted(seen) == sorted(expected)
            assert tree.depths[node] == column + level
    assert pool.free == 64 - (width + 2)


def test_a_window_s_rows_are_those_of_decoding_each_column_alone(llama: Path) -> None:
    """The logits after every top, in one batch and column by column."""
    with Model.load(options(llama)) as model, Context(model) as context:
        pool = SequencePool(context.n_seq)
        drafter = LookaheadDrafter(cast(DrafterEnv, None))
        text = [5, 9, 17, 33]
        view = cast(Any, View(text, [drafter], options=[DrafterSpec.parse("lookahead:w=4:n=4")]))
        drafter.begin(view, view.options[0])
        drafter._slots[1].window.height = 3
        window = drafter.window(view, TokenTree.root(33), 100, 30)
        kept = TokenTree.chain(33, [40, 41])
        tree = kept.with_probes(window.tree)
        cache = SequenceCache(context.memory, pool)
        context.batch.add_run(text[:-1], 0, cache.main)
        context.decode()
        cache.length = 3
        context.batch.clear()
        order, rows = tree.batch_order(), {}
        sets = cache.place(tree, order, 3)
        for node in order:
            rows[node] = context.batch.add(tree.tokens[node], 3 + tree.depths[node], sets[node], logits=True)
        context.decode()
        together = context.logits().copy()
        cache.abandon()
        alone = pool.take()
        for node in range(len(tree)):
            spelled = text[:-1] + [tree.tokens[v] for v in tree.path_to(node)]
            context.batch.clear()
            for i, token in enumerate(spelled):
                context.batch.add(token, i, (alone,), logits=i + 1 == len(spelled))
            context.decode()
            np.testing.assert_allclose(context.logits()[0], together[rows[node]], atol=2e-2 if ROUNDS_ALIKE else 5e-2)
            context.memory.remove(alone, 0)


@pytest.mark.parametrize("strategy", ["lookahead:w=8:n=4:g=8", "lookahead:w=15:n=5,ngram:branch=3"])
def test_all_ids_come_back_after_a_cancel_in_mid_window(wide_demo: Session, strategy: str) -> None:
    engine = wide_demo.engine
    prompt = prompts(wide_demo, 0, 1)[0]
    answer(engine, request(prompt, "off", 4))
    free = engine.pool.free
    for stop in (1, 2, 3, 7):
        number, seen, reasons, least = engine.submit(request(prompt, strategy, 64)), 0, list[str](), free
        while engine.busy:
            for event in engine.step():
                if isinstance(event, StepStats):
                    seen += 1
                    least = min(least, engine.pool.free)
                    if seen == stop:
                        engine.cancel(number)
                elif isinstance(event, Finished):
                    reasons.append(event.reason)
        assert reasons == ["cancelled"] and seen == stop
        assert least < free or stop == 1, "the first step of a window is a trunk, which needs no further id"
        assert engine.pool.free == free
    again = answer(engine, request(prompt, "off", N, exact=True)).ids
    assert answer(engine, request(prompt, strategy, N, exact=True)).ids == again


def test_slots_share_the_leaf_ids(demo: tuple[Path, Path]) -> None:
    with open_session(options(demo[0], slots=3, max_width=128), None) as session:
        wanted = [request(p, "lookahead:w=15:n=4:g=15", 32) for p in prompts(session, 1, 2)]
        together = side_by_side(session.engine, wanted)
        alone = [answer(session.engine, w) for w in wanted]
        assert [len(a.ids) for a in together] == [32] * 3
        assert all(a.finished.stats.probes > 0 for a in together)
        assert sum(a.ids[:8] == b.ids[:8] for a, b in zip(together, alone)) >= 2


def test_models_without_trees_get_no_window(hybrid: Path) -> None:
    with open_session(options(hybrid), None) as session:
        prompt = session.prompt_ids("one two three one two three one two")
        plain = answer(session.engine, request(prompt, "off", 24)).ids
        for strategy in ("lookahead:w=4:n=3:pool_from_prompt", "jacobi:w=3"):
            found = answer(session.engine, request(prompt, strategy, 24))
            assert found.ids == plain and found.finished.stats.probes == 0


def test_a_window_is_a_named_strategy_s() -> None:
    assert speculation("auto").auto
    assert not speculation("lookahead").auto and not speculation("lookahead:w=4:n=3,jacobi:w=2").auto
