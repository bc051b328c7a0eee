"""The script that measures every drafter: its table and files, on tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lcspec.bench.runner import Bench, Interrupted
from scripts.measure_drafters import main

pytestmark = pytest.mark.model

COMMON = ["--limit", "2", "-n", "8", "--threads", "1", "--ctx", "256"]


def test_every_drafter_that_the_files_make_possible_is_measured(
    llama: Path, llama_draft: Path, other_vocabulary: Path, tmp_path: Path
) -> None:
    files = ["--draft", llama_draft, "--draft", llama, "--pruned", llama_draft, "--other-vocabulary", other_vocabulary]
    result = CliRunner().invoke(main, [str(llama), *map(str, files), *COMMON, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "drafters.json").read_text(encoding="utf-8"))
    rows = {row["drafter"]: row for row in found["drafters"]}
    assert list(rows) == [
        *("ngram", "suffix", "lookahead", "model", "cascade vertical", "cascade horizontal", "cascade"),
        *("2 drafts", "pruned", "translated"),
    ]
    assert found["prompts"] == 2
    for row in rows.values():
        assert all(a <= n for a, n in zip(row["accepted_by_depth"], row["drafted_by_depth"], strict=True))
        assert row["tokens_a_step"] >= 1 and row["over_plain"] > 0 and row["auto_over_auto_without"] > 0
        assert row["drafter"] in result.output
    assert rows["model"]["accepted_by_depth"][0] > 0 and rows["model"]["drafting_ms"] > 0
    assert rows["2 drafts"]["speculate"] == "model,model2" and rows["pruned"]["speculate"] == "model3"
    assert rows["ngram"]["auto_without"] == "auto -ngram" and rows["2 drafts"]["auto_without"] == "auto +model"
    assert "model2" not in rows["model"]["best_other"] and "cascade" not in rows["cascade vertical"]["best_other"]
    table = (tmp_path / "drafters.md").read_text(encoding="utf-8")
    assert table.count("\n|") == 2 + len(rows) and len({line.count("|") for line in table.splitlines()[2:]}) == 1
    assert (tmp_path / "results.json").exists() and (tmp_path / "report.html").exists()


def test_what_is_finished_when_somebody_interrupts_is_kept(llama: Path, tmp_path: Path, monkeypatch) -> None:
    whole = Bench.run_prompt

    def second_is_interrupted(self, prompt, index, *more):
        if index == 1:
            raise Interrupted
        return whole(self, prompt, index, *more)

    monkeypatch.setattr(Bench, "run_prompt", second_is_interrupted)
    result = CliRunner().invoke(main, [str(llama), "--only", "ngram", *COMMON, "--out", str(tmp_path)])
    assert result.exit_code == 130
    found = json.loads((tmp_path / "drafters.json").read_text(encoding="utf-8"))
    assert found["prompts"] == 1 and [row["drafter"] for row in found["drafters"]] == ["ngram"]


def test_mistakes_are_told_in_a_line(llama: Path, llama_draft: Path) -> None:
    result = CliRunner().invoke(main, [str(llama), "--only", "nobody", *COMMON])
    assert result.exit_code == 2 and "error: no drafter is called nobody" in result.output
    result = CliRunner().invoke(main, [str(llama), *["--draft", str(llama_draft)] * 5, *COMMON])
    assert result.exit_code == 2 and "at most 4 draft models" in result.output
