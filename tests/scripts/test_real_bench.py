"""The benchmark on a real model, with the bundled pair in its place."""

from __future__ import annotations

import importlib
import json
import math
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lcspec.config import ModelOptions
from lcspec.errors import UsageError
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.session import open_session

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))  # it is a script: it finds others beside it

pytestmark = pytest.mark.model
real_bench: Any = importlib.import_module("real_bench")
models: Any = importlib.import_module("real_models")
runs: Any = importlib.import_module("real_runs")
ending: Any = importlib.import_module("peers.ending")
peers: Any = importlib.import_module("peers.runners")
contenders: Any = importlib.import_module("peers.contenders")

TEXTS = {"81": "Hi! I'd like a large latte, please.", "111": "What do you do on weekends?", "112": "Do you have a dog?"}
QUICK = ["--variants", "shipped", "--temperatures", "0", "-n", "8", "--repeat", "1", "-t", "1", "--ctx", "256"]


@pytest.fixture
def question_file(tmp_path: Path) -> Path:
    """Three prompts of two kinds, as in Spec-Bench's question.jsonl."""
    path = tmp_path / "question.jsonl"
    rows = [{"question_id": int(i), "category": f"kind {i[:2]}", "turns": [t, "And?"]} for i, t in TEXTS.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def call(questions: Path, out: Path, *more: str) -> Any:
    """The command with the bundled target."""
    arguments = [str(questions), "--model", str(demo_path(DEMO_TARGET)), "--out", str(out), "--work", str(out / "work")]
    return CliRunner().invoke(real_bench.main, [*arguments, *QUICK, *more])


def found_in(out: Path) -> dict[str, Any]:
    """results.json."""
    data: dict[str, Any] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return data


@pytest.mark.slow
def test_two_prompts_go_through_every_strategy(question_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = call(question_file, out, "--limit", "2", "--exactness", "exact", "--draft", str(demo_path(DEMO_DRAFT)))
    assert result.exit_code == 0, result.output
    found = found_in(out)
    assert found["complete"] and found["categories"] == {"81": "kind 81", "111": "kind 11"}
    case = found["summary"]["shipped, exact, temperature 0"]
    assert list(case["all"]) == ["off", "ngram", "auto", "model", "auto, asked again"]
    assert case["exact"] and all(row["identical"] == row["prompts"] == 2 for row in case["all"].values())
    assert case["all"]["off"]["speedup"]["value"] == 1.0 and case["plain_ms"] > 0
    assert list(case["first_token_ms"]) == ["200"]  # 2000 tokens do not fit this context
    assert set(case["categories"]) == {"kind 81", "kind 11"}
    assert "auto, asked again" in (out / "table.md").read_text(encoding="utf-8")
    for name in ("categories.svg", "cases.svg"):
        picture = ElementTree.fromstring((out / name).read_text(encoding="utf-8"))
        assert picture.tag == "{http://www.w3.org/2000/svg}svg" and len(list(picture.iter())) > 20


@pytest.mark.slow
def test_a_call_goes_on_where_the_last_one_stopped(question_file: Path, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out"
    whole = runs.EndingBench.run_prompt
    ran: list[str] = []

    def interrupted_at_the_second(self, prompt, *more):
        ran.append(prompt.id)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return whole(self, prompt, *more)

    monkeypatch.setattr(runs.EndingBench, "run_prompt", interrupted_at_the_second)
    options = ("--limit", "2", "--exactness", "no-exact", "--strategies", "off;ngram")
    assert call(question_file, out, *options).exit_code == 130
    first = found_in(out)
    assert not first["complete"] and list(first["cases"]["shipped, no-exact, temperature 0"]["prompts"]) == ["81"]
    assert call(question_file, out, *options, "--minutes", "0.000001").exit_code == 0
    assert ran == ["81", "111"]  # no time, so nothing ran
    assert call(question_file, out, *options).exit_code == 0
    second = found_in(out)
    case = second["cases"]["shipped, no-exact, temperature 0"]
    assert second["complete"] and ran == ["81", "111", "111"] and case["parts"] == 2
    assert case["prompts"]["81"] == first["cases"]["shipped, no-exact, temperature 0"]["prompts"]["81"]
    result = call(question_file, out, *options, "--no-chat")
    assert result.exit_code == 2 and "another chat" in result.output


def test_mistakes_are_told_in_a_line(question_file: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (["--variants", "q9"], "'q9' is no variant"),
        (["--exactness", "perhaps"], "unknown exactness"),
        (["--temperatures", "warm"], "not a list of temperatures"),
        (["--kind", "poems"], "no prompt of the category or set poems"),
        (["--peers", str(tmp_path / "nothing")], "no finished build"),
    ):
        result = call(question_file, tmp_path / "out", *arguments)
        assert result.exit_code == 2 and message in result.output, result.output
        assert "Traceback" not in result.output


def test_prompts_to_tune_on_are_not_in_the_table(question_file: Path) -> None:
    table, tuning, categories = runs.chosen(question_file, (), 2, 3)
    assert [p.id for p in table] == ["81", "111"] and [p.id for p in tuning] == ["112"]
    assert list(categories) == ["81", "111"]


def test_answers_end_where_the_model_ends_them(question_file: Path) -> None:
    """The bundled pair's dialogue answers are short."""
    options = real_bench.BenchOptions({"off": real_bench.parse_speculation("off")}, greedy(), 200, 1, True)
    with open_session(ModelOptions(demo_path(DEMO_TARGET), ctx=256, threads=1), history=False) as session:
        bench = runs.EndingBench(session, options)
        bench.prepare()
        run = bench.answer(bench.fit(runs.Prompt("1", "a", "Hello, how are you doing today?"))[0], "off")
        assert run.error is None and 1 < len(run.ids) < 200
        # Without an end of its own the answer is not over there: it has all the tokens that it may have.
        bench.ends, bench.stop = False, ()
        assert (
            len(bench.answer(bench.fit(runs.Prompt("1", "a", "Hello, how are you doing today?"))[0], "off").ids) == 200
        )


def greedy() -> Any:
    """Temperature 0."""
    return real_bench.SamplingParams(temperature=0.0, seed=1)


def test_copies_cost_what_they_say_and_are_made_once(tmp_path: Path) -> None:
    target, draft = demo_path(DEMO_TARGET), demo_path(DEMO_DRAFT)
    wide = models.copy_of(target, "40m", tmp_path)
    made = wide.stat().st_mtime_ns
    assert models.copy_of(target, "40m", tmp_path) == wide and wide.stat().st_mtime_ns == made
    assert models.describe_file(wide)["parameters"] == pytest.approx(40e6, rel=0.1)
    small = models.draft_of(draft, "40m", tmp_path)
    assert models.describe_file(small)["parameters"] == pytest.approx(4e6, rel=0.1)
    assert models.draft_of(draft, "Q8_0", tmp_path) == draft and models.copy_of(target, "shipped", tmp_path) == target
    assert models.describe_file(models.copy_of(target, "Q4_0", tmp_path))["quantization"] == "Q4_0"
    with pytest.raises(UsageError):
        models.copy_of(target, "1m", tmp_path)
    assert not list(tmp_path.glob("*.part"))


def test_peers_may_end_their_answers(tmp_path: Path) -> None:
    job = ending.EndingJob(tmp_path, tmp_path / "m.gguf", None, 128, 2, 4096, temperature=0.8, seed=7)
    args = job.common_args(False)
    assert (
        "--ignore-eos" not in args and args[args.index("--temp") + 1] == "0.8" and args[args.index("--seed") + 1] == "7"
    )
    assert "--ignore-eos" in peers.Job(tmp_path, tmp_path / "m.gguf", None, 128, 2, 4096).common_args(False)


class Paced:
    """A runner with a rate of its own, which notes what it was asked."""

    def __init__(self, rate: float, asked: list[tuple[float, str]]) -> None:
        self.rate, self.asked = rate, asked

    def run(self, prompt: Any) -> Any:
        self.asked.append((self.rate, prompt.id))
        return ending.run_of(self.rate, 10, 10 / self.rate, 5, {"drafted": 4, "accepted": 1}, "text")

    def close(self) -> None:
        pass


def held_out(earlier: Any, asked: list[tuple[float, str]], budget: float | None) -> Any:
    """A peer with a slow and a fast setting beside plain decoding; two prompts, another to tune on."""
    rates = {"default": 10.0, "slow": 5.0, "fast": 20.0}
    peer = contenders.Contender(
        "peer", "program", "ngram", (contenders.Setting("slow"), contenders.Setting("fast")), False
    )
    prompts = [ending.Prompt(name, "kind", "text", 5) for name in ("tune", "one", "two")]
    return ending.HeldOut(
        [*contenders.lcspec_contenders("off")[:1], peer],
        prompts[:1],
        prompts[1:],
        lambda contender, setting: Paced(rates[setting.label], asked),
        earlier=earlier,
        repeat=1,
        budget=budget,
        report=lambda line: None,
        save=lambda measurement: None,
    )


def test_peers_are_tuned_on_prompts_of_their_own_and_go_on_later() -> None:
    asked: list[tuple[float, str]] = []
    begun = held_out(None, asked, 0.0)
    begun.run()
    assert asked == [] and not begun.complete  # no time, so nothing ran
    later = held_out(json.loads(json.dumps(begun.as_dict())), asked, None)
    later.run()
    assert later.complete and later.as_dict()["tuning_prompts"] == ["tune"]
    assert (20.0, "one") in asked and not {(5.0, "one"), (5.0, "two")} & set(asked)  # the faster setting alone
    row = later.as_dict()["contenders"][1]
    assert row["best"] == "fast" and set(row["runs"]) == {"one", "two"}
    count = len(asked)
    last = held_out(json.loads(json.dumps(later.as_dict())), asked, None)
    last.run()
    assert last.complete and len(asked) == count
    assert last.as_dict()["contenders"] == later.as_dict()["contenders"]


def test_the_comparison_with_peers_is_in_ratios() -> None:
    report: Any = importlib.import_module("real_report")
    done = held_out(None, [], None)
    done.run()
    plain, peer = report._peers(done.as_dict())
    assert plain["over_plain"] == 1.0 and math.isclose(peer["over_plain"], 2.0) and peer["behind"] is None
    assert peer["setting"] == "fast" and peer["prompts"] == 2
