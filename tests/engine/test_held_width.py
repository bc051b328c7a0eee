"""Steps that all have one width, as on a GPU: the same bits, whether padded, filled up or plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lcspec.llama import can_fuse_row_by_row
from lcspec.planner.auto import AutoPlanner
from lcspec.profiles import kernels
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.price import Price
from lcspec.session import open_session
from tests.running import SEEDED, answer, at_price, options, request, side_by_side
from tests.tiny_families import write_family

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not can_fuse_row_by_row(), reason="this library cannot multiply row by row"),
]

HELD = 8
TEXT = "the cat and the dog and the cat and the rat and the cat and the dog and the "
N = 40


class Replaying(AutoPlanner):
    """On a machine on which eight rows in every step cost what one row costs, and now and then twice that.

    Attributes:
        widths: of all decodes, in tokens.
    """

    def __init__(self) -> None:
        curve = CostCurve({n: {0: 0.1 if n == 1 else 0.2} for n in range(1, 17)})
        curve.held = CostCurve({1: {0: 0.1}, HELD: {0: 0.1}})
        super().__init__(curve)
        self.widths: list[int] = []

    def timed(self, width: int, context: int, seconds: float) -> None:
        self.widths.append(width)
        again = self.widths[-3:] == [width] * 3
        super().timed(width, context, 0.1 if again or width == 1 else 0.2)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen35", "lfm2"])
def test_held_steps_have_the_bits_of_plain_ones(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "prices", at_price(Price(1, 1, 1, None, 0)))
    path = write_family(family, tmp_path / f"{family}.gguf")
    with open_session(options(path, exact=True, attention="measured", rollback=16, kv_type="f16")) as session:
        engine = session.engine
        assert engine.exact.independent
        prompt = session.prompt_ids(TEXT)
        plain = answer(engine, request(prompt, "off", N, sampling=SEEDED, logprobs=0))
        engine.drafting.plan_with(planner := Replaying())
        guess = tuple(token if i % 9 else 5 for i, token in enumerate(plain.ids, start=1))
        held = answer(
            engine,
            request(prompt, "auto", N, sampling=SEEDED, logprobs=0, draft=None, has_prediction=True, prediction=guess),
        )
        assert held.bits == plain.bits
        assert planner.hold.width == HELD
        assert held.steps[-1].plan.held and held.finished.stats.drafted > held.finished.stats.accepted > 0
        # What fills a step up is no draft, and does not stay in the cache.
        assert held.finished.stats.drafted < len(held.steps) * (HELD - 1)
        assert answer(engine, request(prompt, "off", N, sampling=SEEDED, logprobs=0)).bits == plain.bits


def test_all_decodes_have_the_width_and_as_many_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for family in ("llama", "qwen35"):
        with open_session(options(write_family(family, tmp_path / f"{family}.gguf"), rollback=16)) as session:
            engine, decoded = session.engine, list[tuple[int, int]]()
            engine.drafting.plan_with(planner := Replaying())
            decode = engine.context.decode

            def counted(**named: Any) -> float:
                decoded.append((engine.context.batch.n, engine.context.batch.n_outputs))
                return decode(**named)

            prompt = session.prompt_ids(TEXT)
            guess = tuple(answer(engine, request(prompt, "off", N)).ids)
            monkeypatch.setattr(engine.context, "decode", counted)
            answer(engine, request(prompt, "auto", N, draft=None, has_prediction=True, prediction=guess))
            assert planner.hold.width == HELD and decoded[-3:] == [(HELD, HELD)] * 3, family


def test_a_text_that_ends_at_the_context(tmp_path: Path) -> None:
    for family in ("llama", "qwen35"):
        path = write_family(family, tmp_path / f"{family}.gguf")
        with open_session(options(path, rollback=16, ctx=96)) as session:
            session.engine.drafting.plan_with(Replaying())
            prompt = session.prompt_ids(TEXT)
            guess = tuple(answer(session.engine, request(prompt, "off", None)).ids)
            found = answer(
                session.engine, request(prompt, "auto", None, draft=None, has_prediction=True, prediction=guess)
            )
            assert len(found.ids) == session.engine.context.n_ctx - len(prompt), found.error


def test_two_hybrids_side_by_side_keep_no_width(tmp_path: Path) -> None:
    """Their drafts are decoded apart, so no step is as wide as the one before."""
    with open_session(options(write_family("qwen35", tmp_path / "a.gguf"), rollback=16, slots=2)) as session:
        planner = Replaying()
        planner.in_turn = True
        session.engine.drafting.plan_with(planner)
        prompts = [session.prompt_ids(TEXT), session.prompt_ids(TEXT[8:])]
        for found in side_by_side(session.engine, [request(p, "auto", N, draft=None) for p in prompts]):
            assert len(found.ids) == N
            assert not any(step.plan.held for step in found.steps[2:-8])
