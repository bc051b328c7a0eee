"""A head is left out where its chains cannot pay on this machine, because it reads states at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcspec.config import DraftFiles, SpeculationParams
from lcspec.engine.learned import BESIDE, meet
from lcspec.modelfiles.companions import held_out_acceptance, sort_drafts
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.record import DrafterRecord
from lcspec.planner.worth import could_pay
from lcspec.profiles.cost_curve import CostCurve
from lcspec.session import open_session, parse_speculation
from tests.running import GREEDY, answer, options, request
from tests.tiny_families import write_family
from tests.tiny_heads import write_eagle

RIGHT = (0.75, 0.75, 0.75)  # 2.73 tokens a step with chains of three


def costs(*seconds: float) -> dict[int, tuple[float, int]]:
    return {n: (value, n) for n, value in enumerate(seconds, start=1)}


def test_what_could_pay() -> None:
    assert could_pay(costs(1.0, 1.0, 1.0, 1.0), RIGHT, level=0.0)
    assert could_pay(costs(1.0, 1.0, 1.0, 1.0), RIGHT, level=0.12)
    assert not could_pay(costs(1.0, 1.0, 1.0, 1.0), RIGHT, level=0.13)
    assert not could_pay(costs(1.0, 2.0, 3.0, 4.0), RIGHT, level=0.0)
    assert could_pay(costs(1.0, 2.0, 3.0, 1.4), RIGHT, level=0.0)  # four rows at once are cheaper than three here
    assert not could_pay(costs(1.0, 2.0, 3.0), RIGHT, level=0.0)  # and four that nobody measured count for nothing
    assert could_pay({}, RIGHT, level=0.0)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family("llama", tmp_path_factory.mktemp("hopeless") / "llama.gguf")


def test_a_level_takes_more_than_its_decode() -> None:
    class Timed:
        name, costly = "eagle", True

        def step_seconds(self, repeat: int) -> float:
            return 0.001

    planner = AutoPlanner(CostCurve.flat(0.01, 8))
    meet(planner, [Timed()])  # type: ignore[list-item]
    assert planner.costly.level_seconds("eagle") == pytest.approx(0.001 + BESIDE)


@pytest.mark.model
def test_the_planner_is_given_a_head_only_where_that_could_pay(target: Path, tmp_path: Path) -> None:
    said, silent = (tmp_path / name for name in ("said.gguf", "silent.gguf"))
    write_eagle(said, **{"lcspec.eagle.acceptance": list(RIGHT)})
    write_eagle(silent)
    assert held_out_acceptance(said) == RIGHT and held_out_acceptance(silent) == ()

    def drafters(head: Path, curve: CostCurve, text: str = "auto") -> list[str]:
        files = sort_drafts(target, DraftFiles((head,)))
        with open_session(options(target, ctx=128), files, history=False) as session:
            planner = AutoPlanner(curve)
            planner.costly.records["eagle"] = DrafterRecord(level_seconds=0.001)
            session.engine.drafting.plan_with(planner)
            found = session.engine.prepare(parse_speculation(text, files))
            assert isinstance(found, SpeculationParams)
            ids = answer(session.engine, request(session.prompt_ids("the cat"), "off", 8, sampling=GREEDY)).ids
            assert len(ids) == 8
            return [spec.name for spec in found.drafters]

    flat, steep = CostCurve.flat(0.01, 8), CostCurve({n: {0: 0.01 * n} for n in range(1, 9)})
    assert drafters(said, flat) == ["suffix", "eagle"]
    assert drafters(said, steep) == ["suffix"]
    assert drafters(silent, steep) == ["suffix", "eagle"]
    assert drafters(said, steep, "eagle") == ["eagle"]
