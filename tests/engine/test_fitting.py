"""Room for windows of probes in a named strategy's steps, and what is said when there is too little."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lcspec.config import DEFAULT_MAX_WIDTH, MAX_WIDTH, DrafterSpec
from lcspec.drafters.base import create
from lcspec.drafters.lookahead import LookaheadDrafter
from lcspec.engine.fitting import feed
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.loading import model_options, narrow_windows
from lcspec.planner.base import Limits, Proposal
from lcspec.planner.fixed import FixedPlanner
from lcspec.session import parse_speculation
from lcspec.spec.token_tree import TokenTree
from tests.markov import View

ENV = cast(Any, SimpleNamespace(target=SimpleNamespace(n_vocab=1 << 16)))


def view_of(specs: str, text: list[int], number: int = 1, drafters: list[Any] | None = None) -> Any:
    options = [DrafterSpec.parse(part) for part in specs.split(",")]
    drafters = drafters or [create(spec.name, ENV) for spec in options]
    view = View(list(text), drafters, number, options=options)
    for drafter, spec in zip(drafters, options):
        drafter.begin(cast(Any, view), spec)
    return view


def test_several_slots_share_rows_and_ids() -> None:
    planner, pool = FixedPlanner(), SequencePool(12)
    drafter = LookaheadDrafter(ENV)
    proposals = []
    for number in range(3):
        view = view_of("lookahead:n=4", [1, 2], number, [drafter])
        view.cache.max_leaves = 1 + pool.free
        proposals.append(Proposal(view, TokenTree.root(2), Limits(29, 64, 13)))
    planner.select(proposals, 3, 2)
    probes = feed(proposals, 29, pool)
    assert sum(own.rows for own in probes) <= 29
    assert 0 < sum(len(own.evaluated.leaves()) for own in probes) <= 12 + 3


def test_the_user_s_width_takes_half_of_a_narrow_step_at_most() -> None:
    view = view_of("lookahead:w=10:n=4:g=9:pool_from_prompt", [2, 1, 2, 3, 2, 4, 2, 5, 2, 6, 7, 8, 2])
    for nodes in (0, 5, 12, 60):
        p = FixedPlanner().propose([view], [Limits(nodes, 64, 64)], 0)[0]
        FixedPlanner().select([p], 1, 0)
        assert p.probe_rows + cast(TokenTree, p.kept).n_drafted <= nodes
        assert p.probe_rows == min(29, max(nodes // 2, nodes - p.tree.n_drafted))


def test_a_window_is_a_named_strategy_s_and_not_auto_s() -> None:
    assert "lookahead" not in [spec.name for spec in parse_speculation("auto").drafters]
    named = parse_speculation("lookahead,ngram")
    assert not named.auto and [spec.name for spec in named.drafters] == ["lookahead", "ngram"]


@pytest.mark.parametrize(
    ("speculate", "width", "said"),
    [
        ("auto", 2, 0),
        ("ngram,model", 2, 0),
        ("lookahead:w=4:n=4", 64, 0),
        ("lookahead", 64, 1),  # 15 columns of 4 rows are more than half of a step
        ("lookahead:w=60:n=9", 64, 1),
        ("lookahead:w=60:n=9", 959, 0),
        ("jacobi:w=60,lookahead:w=60:n=9", 32, 2),
    ],
)
def test_a_window_that_gets_fewer_rows_than_it_asks_for_is_told(speculate: str, width: int, said: int) -> None:
    lines = narrow_windows(speculate, width)
    assert len(lines) == said
    for line in lines:
        enough = int(line.split("--max-width ")[1].split()[0])
        assert width < enough <= MAX_WIDTH
        assert len(narrow_windows(speculate, enough)) < said


def test_the_widest_step_can_be_chosen(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"ctx": 64, "threads": 1, "gpu_layers": 0, "kv_type": "f16", "speculate": "lookahead:w=60:n=9"}
    assert model_options(tmp_path, given, exact=None).max_width == DEFAULT_MAX_WIDTH
    assert "needs 479 rows in a step and gets 31" in capsys.readouterr().err
    assert model_options(tmp_path, {**given, "max_width": 960}, exact=None).max_width == 960
    assert capsys.readouterr().err == ""
