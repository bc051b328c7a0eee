"""The benchmark in virtual time: the target takes what its curve says, and a draft model what it is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

ROOT = Path(__file__).resolve().parents[2]


def test_decodes_take_what_they_are_told_to(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """10 ms a decode whatever its width, 1 ms a step of the draft model, and nothing else: rates follow exactly."""
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"category": "any", "turns": ["Once upon a time"]}) + "\n")
    command = [sys.executable, "scripts/simulate_speed.py", "--curve", "flat:10", "--draft-ms", "1", "--", str(demo[0])]
    command += ["--draft", str(demo[1]), "--prompts", str(tmp_path / "prompts.jsonl"), "-n", "24", "--repeat", "1"]
    command += ["--strategies", "model", "--out", str(tmp_path / "out")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (prompt,) = json.loads((tmp_path / "out" / "results.json").read_text())["prompts"]
    off, drafted = ({run["strategy"]: run["stats"] for run in prompt["runs"]}[name] for name in ("off", "model"))
    assert off["tokens_per_second"] == pytest.approx(100.0) and off["draft_seconds"] == 0.0
    steps = drafted["target_steps"]
    assert drafted["accepted"] > 0 and drafted["target_seconds"] == pytest.approx(0.010 * steps)
    assert 0.002 * steps < drafted["draft_seconds"] <= 0.006 * steps, "five levels, and a token that was missed"
