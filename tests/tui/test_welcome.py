"""What is said while a model loads and when it is ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcspec.config import DrafterSpec, DraftFiles, SpeculationParams
from lcspec.profiles.cost_curve import CostCurve
from lcspec.tui.bridge import decisions
from lcspec.tui.source import Loaded, Progress

from .conftest import Start

pytestmark = pytest.mark.tui

AUTO = SpeculationParams((DrafterSpec("ngram"),), auto=True)


@pytest.mark.parametrize(
    ("name", "draft", "heading"),
    [
        ("SmolLM2.Q4_1", None, "SmolLM2.Q4_1"),
        ("mine", None, "mine, Q4_1"),
        ("mine", Path("small-q8_0.gguf"), "mine + small-q8_0, Q4_1"),
    ],
)
def test_the_heading_names_a_quantization_once(name: str, draft: Path | None, heading: str) -> None:
    files = DraftFiles((draft,) if draft is not None else ())
    assert Loaded(Path(f"{name}.gguf"), files, name, "Q4_1", 2048, 1).heading == heading


def said(curve: CostCurve | None, settled: SpeculationParams = AUTO, draft_seconds: float = 0.0) -> str:
    return " ".join(decisions(AUTO, settled, curve, draft_seconds))


def test_a_newcomer_is_told_what_to_expect() -> None:
    cheap = CostCurve({n: {0: 1.0 + 0.1 * (n - 1)} for n in range(1, 9)})
    assert "expected to pay here: about 2.0x where 7 of 10 guesses are right" in said(cheap)
    dear = CostCurve({n: {0: float(n)} for n in range(1, 9)})
    assert "not expected to pay here: it will write plainly" in said(dear)
    hardly = CostCurve({n: {0: 1.0 + 0.7 * (n - 1)} for n in range(1, 9)})
    assert "may pay here where a text repeats itself" in said(hardly) and "1.0x" not in said(hardly)
    slow_draft = said(cheap, draft_seconds=0.9)
    assert "may pay here where a text repeats itself" in slow_draft


def test_other_cases() -> None:
    plain = SpeculationParams()
    assert "switched off" in " ".join(decisions(plain, plain, None))
    assert "does not work with this kind of model" in said(None, plain)
    fixed = SpeculationParams((DrafterSpec("ngram"), DrafterSpec("model")))
    assert "ngram, model in every step" in " ".join(decisions(fixed, fixed, None))
    busy = CostCurve({1: {0: 1.0}, 2: {0: 1.1}}, unsteady=(1,), retaken=(1,))
    assert "disturbed" in said(busy)


async def test_measuring_is_shown_as_it_goes_on(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))
    seen: list[tuple[str, float]] = []
    real = Progress.__call__

    def note(self: Progress, what: str, fraction: float) -> bool:
        seen.append((what, fraction))
        return real(self, what, fraction)

    monkeypatch.setattr(Progress, "__call__", note)
    async with start() as driver:
        await driver.ready()
    measuring = [fraction for what, fraction in seen if what.startswith("measuring how fast")]
    assert len(measuring) > 10 and measuring == sorted(measuring) and measuring[0] < 0.2 and measuring[-1] <= 1.0
