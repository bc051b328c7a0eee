"""The comparison script's readers of other programs' output, its grids, prompts and tables; no program is started."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from scripts.peers.build import library_options
from scripts.peers.contenders import OURS, PEERS, PLAIN, Contender, Setting, lcspec_contenders
from scripts.peers.measure import Measurement, geometric_mean
from scripts.peers.outputs import (
    OutputError,
    Run,
    completion_of,
    parse_bench,
    parse_example,
    parse_server,
    reason_of,
    same_text,
)
from scripts.peers.prompts import Prompt, PromptError, balanced, read_prompts
from scripts.peers.report import table
from scripts.peers.runners import RunError

PROMPT = "Once upon a time"
STDOUT = f"\n\n<s> {PROMPT}, there was\x1b[0;96m a girl\x1b[0m.\n\n"
STDERR = """\
0.00.412.101 I encoded    5 tokens in    0.012 seconds, speed:  416.667 t/s
0.00.412.102 I decoded  129 tokens in    2.000 seconds, speed:   64.500 t/s
0.00.412.103 I
0.00.412.104 I n_draft      = 5
0.00.412.105 I n_predict    = 129
0.00.412.106 I n_drafted    = 80
0.00.412.107 I n_accept     = 40
0.00.412.108 I accept       = 50.000%
"""


# ---------------------------------------------------------------- output


def test_example_output() -> None:
    run = parse_example(STDOUT, STDERR, PROMPT, free=0)
    assert (run.tokens, run.seconds, run.rate, run.reported) == (129, 2.0, 64.5, 64.5)
    assert (run.n_prompt, run.drafted, run.accepted) == (5, 80, 40)
    assert run.text == ", there was a girl."


def test_a_token_from_the_prompt_is_not_a_decode_step() -> None:
    run = parse_example(STDOUT, STDERR, PROMPT, free=1)
    assert (run.tokens, run.rate, run.reported) == (128, 64.0, 64.5)


def test_statistics_are_found_in_either_stream_and_in_colour() -> None:
    log = f"\x1b[32m{STDERR}\x1b[0m"
    assert parse_example(STDOUT + log, "", PROMPT, free=0).tokens == 129


@pytest.mark.parametrize(
    ("log", "telling"),
    [
        ("", "nothing"),
        ("warming up\nerror: invalid argument: --draft\nusage", "invalid argument"),
        ("decoded    1 tokens in    0.000 seconds, speed:  inf t/s\nencoded 5 tokens in 0.1 seconds", "only 1 tokens"),
    ],
)
def test_missing_statistics_say_why(log: str, telling: str) -> None:
    with pytest.raises(OutputError, match=telling):
        parse_example("", log, PROMPT, free=1)


def test_server_timings_leave_the_first_token_out() -> None:
    timings = {"prompt_n": 7, "cache_n": 2, "predicted_n": 129, "predicted_ms": 2000.0, "predicted_per_second": 64.0}
    run = parse_server({"content": "text", "timings": {**timings, "draft_n": 10, "draft_n_accepted": 4}})
    assert (run.tokens, run.rate, run.n_prompt, run.drafted, run.accepted) == (128, 64.0, 9, 10, 4)
    assert parse_server({"timings": timings}).drafted == 0


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"error": {"message": "too long"}},
        {"error": "too long"},
        {"timings": {"predicted_ms": 0, "predicted_n": 1}},
        {"timings": {"predicted_ms": 3.0, "predicted_n": 1, "prompt_n": 1, "predicted_per_second": 0.0}},
    ],
)
def test_server_without_a_result(answer: dict[str, Any]) -> None:
    with pytest.raises(OutputError):
        parse_server(answer)


def test_bench_output() -> None:
    tests = [{"n_prompt": 0, "n_gen": 128, "samples_ts": [10.0, 30.0, 20.0]}]
    assert parse_bench("ggml: something\n" + json.dumps(tests)) == 20.0
    for bad in ("", "[", json.dumps([{"n_gen": 0, "samples_ts": [1.0]}])):
        with pytest.raises(OutputError):
            parse_bench(bad)


def test_completion_after_the_echoed_prompt() -> None:
    assert completion_of("\n\nab cd\n\nencoded  3 tokens", "ab") == " cd"
    assert completion_of("nothing like it", "ab") == ""


def test_same_text() -> None:
    assert same_text("one two", "one two three")
    assert not same_text("one two", "one tow three")
    assert not same_text("", "one")


def test_the_reason_is_the_first_telling_line() -> None:
    assert reason_of("loading\n\x1b[31merror: no such model\x1b[0m\nbye") == "error: no such model"
    assert reason_of("terminate called after throwing a 'std::runtime_error'\n  what():  no") == "what():  no"
    assert reason_of("loading\nbye\n") == "bye"
    assert reason_of("") == "it printed nothing"


# ---------------------------------------------------------------- who takes part


def test_strategies() -> None:
    off, auto, ngram, both = lcspec_contenders("auto; ngram:min_n=2@3|5 ;ngram,model")
    assert (off.name, off.method, off.settings[0].max_draft) == (PLAIN, "plain", None)
    assert (auto.method, auto.draft) == ("auto", False)
    assert (ngram.strategy, ngram.method) == ("ngram:min_n=2", "ngram")
    assert [s.max_draft for s in ngram.settings] == [3, 5]
    assert (both.method, both.draft, both.settings) == ("mixed", True, (Setting("default"),))


@pytest.mark.parametrize("text", ["", "ngram;;auto", "ngram@x", "ngram@3|", "ngram@3; ngram@5"])
def test_malformed_strategies(text: str) -> None:
    with pytest.raises(ValueError):
        lcspec_contenders(text)


def test_peers_are_distinct_and_settings_too() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert len({setting.label for setting in peer.settings}) == len(peer.settings)
        if peer.method == "model":
            assert peer.draft


# ---------------------------------------------------------------- prompts


def test_prompt_formats(tmp_path: Path) -> None:
    rows = [{"id": "a", "set": "s", "turns": ["x", "y"]}, {"question_id": 7, "category": "c", "turns": ["z"]}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in rows))
    assert read_prompts(path) == [Prompt("a", "s", "x"), Prompt("7", "c", "z")]
    assert [p.id for p in read_prompts(path, ("c",))] == ["7"]
    with pytest.raises(PromptError, match="holds no prompts of d"):
        read_prompts(path, ("d",))


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"id": 1}', '{"id": 1, "turns": []}', '"x"'])
def test_bad_prompt_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(PromptError):
        read_prompts(path)
    with pytest.raises(PromptError):
        read_prompts(tmp_path / "missing")


def test_categories_take_turns() -> None:
    prompts = [Prompt(str(i), category, "") for i, category in enumerate("aaabbc")]
    assert [p.category for p in balanced(prompts)] == ["a", "b", "c", "a", "b", "a"]


# ---------------------------------------------------------------- building


def test_library_options(tmp_path: Path) -> None:
    (tmp_path / "ggml").mkdir()
    (tmp_path / "ggml" / "CMakeLists.txt").write_text(
        'option(GGML_OPENMP "use" ON)\n    option(GGML_CUDA "use" OFF)\noption(GGML_BUILD_TESTS "x" OFF)\n'
    )
    config = 'set(GGML_OPENMP "OFF")\nset(GGML_CUDA "ON")\nset(GGML_BUILD_TESTS "ON")\nset(GGML_COMMIT "1")\n'
    config += 'set(GGML_NEW "ON")\n'
    assert library_options(tmp_path, config) == {"GGML_OPENMP": "OFF", "GGML_CUDA": "ON"}


# ---------------------------------------------------------------- measuring and the table

RATES = {PLAIN: 10.0, f"{OURS} ngram": 20.0, "fast": 16.0, "slow": 1.0}


class FakeRunner:
    """Answers with a fixed rate; a setting labelled `bad` fails, `worse` is half as fast."""

    def __init__(self, contender: Contender, setting: Setting) -> None:
        self.name, self.label = contender.name, setting.label

    def run(self, prompt: Prompt) -> Run:
        if self.label == "bad" or (self.name, prompt.id) == ("fast", "p1"):
            raise RunError("out of luck")
        if (self.name, prompt.id) == ("slow", "ctrl-c"):
            raise KeyboardInterrupt
        rate = RATES[self.name] / (2 if self.label == "worse" else 1)
        return Run(rate, 100, 100 / rate, rate, 5, 10, 5, f"text of {prompt.id}")

    def close(self) -> None:
        pass


def measurement(prompts: list[Prompt], saved: list[dict[str, Any]], **options: Any) -> Measurement:
    contenders = [
        *lcspec_contenders("ngram"),
        Contender("fast", "llama-x", "ngram", (Setting("worse"), Setting("good"), Setting("bad"))),
        Contender("slow", "llama-y", "lookahead"),
        Contender("broken", "llama-z", "model", (Setting("bad"),)),
    ]
    arguments: dict[str, Any] = {"tune_prompts": 1, "repeat": 2, "budget": None, "slow_factor": 4.0, **options}
    return Measurement(
        contenders, prompts, FakeRunner, report=lambda _: None, save=lambda m: saved.append(m.as_dict()), **arguments
    )


def results_of(m: Measurement, prompts: list[Prompt]) -> dict[str, Any]:
    out: dict[str, Any] = json.loads(json.dumps(m.as_dict()))
    about = {"n": 100, "threads": 2, "prompt_tokens": {p.id: 5 for p in prompts}}
    return {**out, **about, "categories": {p.id: p.category for p in prompts}}


def test_measurement_picks_the_best_setting_and_reports_failures() -> None:
    prompts = [Prompt(f"p{i}", "ab"[i % 2], "text") for i in range(3)]
    saved: list[dict[str, Any]] = []
    m = measurement(prompts, saved)
    m.run()
    entries = {entry.contender.name: entry for entry in m.entries}
    fast = entries["fast"]
    assert fast.best == Setting("good")
    assert fast.rates() == {"p0": 16.0, "p2": 16.0}
    assert set(fast.failures) == {"bad", "p1"}
    assert [len(runs) for runs in entries[PLAIN].runs.values()] == [2, 2, 2]
    assert entries["slow"].out and entries["slow"].rates() == {"p0": 1.0}
    assert entries["broken"].best is None and "out of luck" in entries["broken"].note
    assert saved[-1]["prompts_done"] == ["p0", "p1", "p2"]

    text = table(results_of(m, prompts))
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    summary = next(line for line in text.splitlines() if line.startswith("| fast"))
    assert [cell.strip() for cell in summary.split("|")[2:-1]] == [
        "good", "2", "16.0", "1.60", "1.25", "1.25", "0.50", "2/2", "",
    ]  # fmt: skip
    assert "slower than plain" in text and "broken (bad): out of luck" in text and "fast (bad; p1): out of luck" in text
    assert "a (2)" in lines["t/s, x"] and "16.0 x1.25" in lines["fast"]


def test_a_program_whose_decodes_fail_is_no_fast_program() -> None:
    class Failing(FakeRunner):
        def run(self, prompt: Prompt) -> Run:
            run = super().run(prompt)
            silent = self.name == "fast" and prompt.id == "p2"
            return Run(1300.0, 96, 96 / 1300, 1300.0, 5, 672, 0, "<s><s><s>") if silent else run

    prompts = [Prompt(f"p{i}", "a", "text") for i in range(3)]
    contenders = [*lcspec_contenders("ngram"), Contender("fast", "llama-x", "ngram", (Setting("good"),))]
    m = Measurement(
        contenders, prompts, Failing, tune_prompts=1, repeat=1, budget=None, slow_factor=4.0,
        report=lambda _: None, save=lambda _: None,
    )  # fmt: skip
    m.run()
    assert set(m.entries[2].rates()) == {"p0"} and "decodes" in m.entries[2].failures["p2"]


def test_an_interrupted_measurement_keeps_what_it_has() -> None:
    prompts = [Prompt("p0", "a", "text"), Prompt("ctrl-c", "a", "text")]
    saved: list[dict[str, Any]] = []
    m = measurement(prompts, saved, slow_factor=100.0)
    with pytest.raises(KeyboardInterrupt):
        m.run()
    assert saved[-1]["prompts_done"] == ["p0"]
    assert "slow" in table(results_of(m, prompts))
    early = measurement([Prompt("ctrl-c", "a", "text")], saved)
    with pytest.raises(KeyboardInterrupt):
        early.run()
    assert "fast" in table(results_of(early, prompts))


def test_the_budget_means_fewer_prompts() -> None:
    prompts = [Prompt(f"q{i}", "a", "text") for i in range(50)]
    m = measurement(prompts, [], budget=1e-9)
    m.run()
    assert len(m.done) == 1


def test_table_without_our_results() -> None:
    assert "nothing to compare" in table({"contenders": [], "categories": {}})


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(geometric_mean([]))
