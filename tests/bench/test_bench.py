"""`lcspec bench` on the bundled pair, with very short answers."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any, Iterator

import pytest
from click.testing import CliRunner, Result

from lcspec.bench.prompts import Prompt
from lcspec.bench.records import STEP_COLUMNS
from lcspec.bench.runner import Bench, BenchOptions
from lcspec.cli import cli
from lcspec.config import BY_ROWS, DraftFiles, ModelOptions
from lcspec.drafters.eagle import EagleDrafter
from lcspec.errors import LcspecError, UsageError
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.profiles.cost_curve import CostCurve
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session, parse_speculation
from tests.running import own_cache
from tests.tiny_families import write_family
from tests.tiny_heads import write_eagle

pytestmark = pytest.mark.model

N = 10


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of these tests alone: the curve below is not kept for others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LCSPEC_CACHE_DIR", str(own_cache(tmp_path_factory.mktemp("bench"))))
        yield


@pytest.fixture(autouse=True)
def quick_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcspec.bench.runner.measure", lambda *a, **k: CostCurve.flat(0.001, 16))


def bench(*arguments: object) -> Result:
    """Run the command; expected errors come back as the result's exception."""
    common = ["bench", "--threads", "1", "--ctx", "512", "-n", str(N), "--repeat", "1"]
    return CliRunner().invoke(cli, [*common, *map(str, arguments)])


def prompts_file(folder: Path, *texts: str) -> Path:
    path = folder / "prompts.jsonl"
    lines = [{"id": str(i), "category": f"kind {i % 2}", "turns": [t]} for i, t in enumerate(texts)]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.fixture
def session() -> Iterator[Session]:
    with open_session(ModelOptions(demo_path(DEMO_TARGET), ctx=256, threads=1), demo_path(DEMO_DRAFT)) as opened:
        yield opened


def prepared(session: Session, *strategies: str, **changes: Any) -> Bench:
    chosen = {s: parse_speculation(s, Path("draft.gguf")) for s in strategies}
    made = Bench(session, BenchOptions(chosen, SamplingParams(temperature=0.0, seed=1), **{"n": N, **changes}))
    made.prepare()
    return made


def test_table_results_and_report(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    result = bench("--limit", 3, "--out", out)
    assert result.exit_code == 0, result.exception
    assert all(len(line) <= 100 for line in result.stdout.splitlines())
    assert "all (3 prompts, geometric means)" in result.stdout
    data = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert data["format"] == 1 and data["complete"] and len(data["prompts"]) == 3
    assert data["settings"]["strategies"] == ["off", "ngram", "model", "auto"]
    assert data["step_columns"] == list(STEP_COLUMNS)
    for prompt in data["prompts"]:
        assert {run["strategy"] for run in prompt["runs"]} == set(data["settings"]["strategies"])
        for run in prompt["runs"]:
            assert len(run["ids"]) == N
            assert sum(row[STEP_COLUMNS.index("emitted")] for row in run["steps"]) == N - 1
    assert [p["runs"][0]["strategy"] for p in data["prompts"]] == ["off", "ngram", "model"]  # rotated
    assert sorted(p.name for p in out.iterdir()) == ["report.html", "results.json"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)\s*=|url\(|@import", page)
    assert page.count("<svg") == page.count("</svg>") >= 4
    row = data["summary"]["overall"]["rows"][0]
    assert row["speedup"]["value"] == 1.0 and row["identical"] == 3 and row["acceptance"] is None


def test_seeded_chat_and_repeats(tmp_path: Path) -> None:
    file = prompts_file(tmp_path, "Hello, how are you?", "x = 1\ny = 2\n" * 200)
    result = bench("--prompts", file, "--chat", "--temperature", 0.7, "--strategies", "ngram:nodes=3; suffix", "--out",
                   tmp_path, "--repeat", 2)  # fmt: skip
    assert result.exit_code == 0, result.exception
    data = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert data["settings"]["strategies"] == ["off", "ngram:nodes=3", "suffix"]
    assert [bool(p["cut_characters"]) for p in data["prompts"]] == [False, True]
    assert "cut at the beginning" in result.stderr
    assert [len(p["runs"]) for p in data["prompts"]] == [6, 6]


def test_exact_keeps_every_text(tmp_path: Path) -> None:
    result = bench("--limit", 4, "--exact", "--strategies", "ngram;auto", "--out", tmp_path, "-n", 16)
    assert result.exit_code == 0, result.exception
    data = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert [row["identical"] for row in data["summary"]["overall"]["rows"]] == [4, 4, 4]
    machine = data["machine"]
    independent = machine["kv_type_v"] == "bf16" or machine["attention"] in BY_ROWS
    assert independent or data["curve"]["certified_widths"]


def test_errors_come_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, message in [
        (["--out", tmp_path / "file"], "output directory"),
        (["--out", tmp_path / "file" / "below"], "output directory"),
        (["--prompts", tmp_path / "file"], "empty"),
        (["--strategies", ";"], "no strategy"),
        (["--strategies", "nonsense"], "nonsense"),
        (["--strategies", "ngram:color=red"], "color"),
        (["-n", 510], "no room"),
    ]:
        error = bench(*arguments).exception
        assert isinstance(error, UsageError) and message in str(error), (arguments, error)
    target = demo_path(DEMO_TARGET)
    error = bench(target, "--strategies", "model").exception
    assert isinstance(error, LcspecError) and "--draft" in str(error)


def test_interrupt_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = Bench.run_prompt, []

    def run_prompt(self: Bench, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments)

    monkeypatch.setattr(Bench, "run_prompt", run_prompt)
    before = signal.getsignal(signal.SIGINT)
    result = bench("--limit", 5, "--strategies", "ngram", "--out", tmp_path)
    assert result.exit_code == 130 and signal.getsignal(signal.SIGINT) is before
    data = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert len(data["prompts"]) == 2 and not data["complete"]
    assert "2 prompts" in result.stdout and "interrupted: 2 of 5 prompts" in result.stderr
    assert "interrupted" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_output_directory_that_becomes_a_file_is_an_error_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, original = tmp_path / "out", Bench.run_prompt

    def run_prompt(self: Bench, *arguments: Any) -> Any:
        out.rmdir()
        out.touch()
        return original(self, *arguments)

    monkeypatch.setattr(Bench, "run_prompt", run_prompt)
    error = bench("--limit", 1, "--strategies", "off", "--out", out).exception
    assert isinstance(error, LcspecError) and "cannot write" in str(error)


def test_no_answer_is_known_from_an_earlier_one(session: Session) -> None:
    """The same prompt again must not be drafted from the memory of its own answer."""
    made = prepared(session, "off", "suffix", repeat=3)
    result = made.run_prompt(Prompt("1", "x", "Once upon a time there was a"), 0)
    assert not isinstance(result, str)
    drafted = [sum(s.drafted for s in run.steps) for run in result.of("suffix")]
    assert len(drafted) == 3 and len(set(drafted)) == 1


def test_heads_know_the_prompt_that_another_strategy_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")
    files = DraftFiles(eagle=write_eagle(tmp_path / "head.gguf"))
    text, told = "the cat and the dog and the rat and the cat and the dog", dict[str, int]()
    process = EagleDrafter.process

    def counting(self: EagleDrafter, sequence: Any, cells: Any, start: int, states: Any) -> None:
        strategy = ",".join(spec.name for spec in sequence.request.speculation.drafters)
        told[strategy] = told.get(strategy, 0) + max(0, min(sequence.n_prompt, start + len(states)) - start)
        process(self, sequence, cells, start, states)

    monkeypatch.setattr(EagleDrafter, "process", counting)
    with open_session(ModelOptions(target, ctx=256, threads=1), files, history=False) as session:
        strategies = {name: parse_speculation(name, files) for name in ("off", "ngram", "eagle")}
        made = Bench(session, BenchOptions(strategies, SamplingParams(temperature=0.0), n=8, repeat=2))
        made.prepare()
        prompt = session.prompt_ids(text)
        told.clear()
        assert not isinstance(made.run_prompt(Prompt("1", "x", text), 0), str)
    assert told["eagle"] >= 2 * (len(prompt) - 1)


def test_the_witness_sees_what_the_planner_cut(session: Session) -> None:
    made = prepared(session, "off", "auto", n=40, repeat=1)
    result = made.run_prompt(Prompt("1", "x", "one two three four one two three four one two three"), 0)
    assert not isinstance(result, str)
    run = result.of("auto")[0]
    assert all(s.matched >= s.accepted for s in run.steps)
    assert run.tokens == 39 and run.steps[-1].position < 39


def test_a_run_from_a_thread_leaves_signals_alone(session: Session) -> None:
    made, seen = prepared(session, "off", repeat=1), []
    thread = threading.Thread(target=lambda: seen.append(made.run_prompt(Prompt("1", "x", "hello there"), 0)))
    thread.start()
    thread.join()
    assert len(seen) == 1
