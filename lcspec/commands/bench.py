"""`lcspec bench`: strategies side by side, as a table, results.json and report.html."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Sequence

import click

from lcspec.bench.builtin import builtin_prompts
from lcspec.bench.machine import describe_file, describe_machine, describe_target, load_average
from lcspec.bench.output import REPORT, check_writable, write_results, write_text
from lcspec.bench.prompts import Prompt, read_prompts, spread
from lcspec.bench.records import STEP_COLUMNS, PromptResult
from lcspec.bench.report import report_html
from lcspec.bench.runner import AUTO, PLAIN, Bench, BenchOptions, Interrupted, default_strategies
from lcspec.bench.summary import Summary
from lcspec.bench.table import counted, summary_text
from lcspec.commands.generate import show_heads_note
from lcspec.commands.progress import progress_bar
from lcspec.config import DraftFiles, SpeculationParams, rollback_for
from lcspec.errors import UsageError
from lcspec.loading import model_options, narrow_windows
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import ModelPair, loading_line, open_session, parse_speculation

FORMAT = 1
NOTES = (
    "Every answer has the same length: end-of-text tokens are ignored.",
    "Speed-ups are over plain decoding of the same prompt in the same run; times are those of decode steps, not of "
    "the prompt.",
    "Only the first turn of a prompt is used.",
    "Drafters that remember earlier answers start every answer without memory.",
)


def run(**o: Any) -> int:
    """Run the command with the options of `cli.bench`; returns the exit code.

    Raises:
        LcspecError: with a message for the user.
    """
    from lcspec.llama import log_to_stderr

    log_to_stderr(o["verbose"])
    prompts = spread(read_prompts(o["prompts"]) if o["prompts"] is not None else builtin_prompts(), o["limit"])
    pair = ModelPair.resolve(o["model"], o["draft"], o["store"], o["heads"])
    sampling = SamplingParams(temperature=o["temperature"], seed=o["seed"])
    named = strategy_names(o["strategies"])
    for name in named:  # an unknown option should not wait for a large model to load
        parse_speculation(name, pair.draft)
    show_heads_note(o["heads"], pair.target)
    if o["out"] is not None:
        check_writable(o["out"])
    rollback = max(rollback_for(name, None) for name in named or (AUTO,))
    options = model_options(pair.target, o, exact=o["exact"], rollback=rollback)
    with open_session(options, pair.draft, loading_line(), history=not o["no_history"]) as session:
        strategies: dict[str, SpeculationParams] = {
            name: parse_speculation(name, pair.draft, exact=bool(o["exact"]))
            for name in named or default_strategies(session)
        }
        for line in dict.fromkeys(line for name in named for line in narrow_windows(name, options.max_width)):
            click.echo(line, err=True)
        bench = Bench(session, BenchOptions(strategies, sampling, o["n"], o["repeat"], o["chat"]))
        recorder = Recorder(bench, o["out"], exact=session.engine.exact.all_exact, draft=pair.draft)
        return recorder.run(prompts)


def strategy_names(values: Sequence[str]) -> list[str]:
    """`--strategies`, repeated or separated by semicolons, each once and `off` first; empty: the default.

    Raises:
        UsageError: only separators were given.
    """
    names = [" ".join(part.split()) for value in values for part in value.split(";") if part.strip()]
    if values and not names:
        raise UsageError("--strategies names no strategy: write for example --strategies 'off;ngram;auto'")
    plain = ("off", "none")
    return list(dict.fromkeys([PLAIN, *(n for n in names if n not in plain)])) if names else []


class Recorder:
    """Runs the prompts, keeps the results and shows them."""

    def __init__(self, bench: Bench, out: Path | None, *, exact: bool, draft: DraftFiles) -> None:
        self.bench = bench
        self.out = out
        self.exact = exact
        self.draft = draft
        self.results: list[PromptResult] = []
        self.skipped: list[dict[str, str]] = []
        self.interrupted = False
        self._machine: dict[str, Any] = {}

    def run(self, prompts: Sequence[Prompt]) -> int:
        """Everything from the warm-up to the table; returns the exit code."""
        bench, previous = self.bench, signal.getsignal(signal.SIGINT)
        self._warm_up()
        self._machine = describe_machine(bench.session)
        bench.stopped = lambda: self.interrupted
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            self._run_prompts(prompts)
        except (Interrupted, KeyboardInterrupt):
            self.interrupted = True
        finally:
            signal.signal(signal.SIGINT, previous)
        self._machine["load_average_after"] = load_average()
        summary = Summary(self.results, list(bench.options.strategies), bench.curve, bench.widths).as_dict()
        self._show(summary, len(prompts))
        if self.out is not None:
            results = self.as_dict(summary, len(prompts))
            write_results(self.out, results)
            write_text(self.out / REPORT, report_html(results))
            click.echo(f"written: {self.out}", err=True)
        if self.interrupted:
            return 130
        return 0 if summary["overall"] is not None else 1

    def _warm_up(self) -> None:
        with progress_bar("warm-up and T(n)") as progress:
            self.bench.prepare(progress)

    def _run_prompts(self, prompts: Sequence[Prompt]) -> None:
        options = self.bench.options
        total = len(prompts) * options.repeat * len(options.strategies)
        with click.progressbar(length=total, label="running", file=sys.stderr, hidden=_quiet(), show_pos=True) as bar:
            for index, prompt in enumerate(prompts):
                if self.interrupted:
                    raise Interrupted
                result = self.bench.run_prompt(prompt, index, lambda: bar.update(1))
                if isinstance(result, str):
                    self.skipped.append({"id": prompt.id, "reason": result})
                    continue
                self.results.append(result)
                if self.out is not None:
                    write_results(self.out, self.as_dict(None, len(prompts)))

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        """Stop after the step at hand; a second Ctrl-C stops at once."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def _show(self, summary: dict[str, Any], wanted: int) -> None:
        click.echo(summary_text(summary))
        cut = sum(1 for r in self.results if r.cut_characters)
        notes = [f"{counted(cut)} cut at the beginning to fit the context"] if cut else []
        notes += [f"skipped {s['id']}: {s['reason']}" for s in self.skipped]
        notes += [
            f"{r.prompt.id}, {run.strategy}: {run.error}"
            for r in self.results
            for run in r.runs
            if run.error is not None
        ]
        if self.interrupted:
            notes.append(f"interrupted: {len(self.results)} of {counted(wanted)}")
        for note in notes:
            click.echo(note, err=True)

    def as_dict(self, summary: dict[str, Any] | None, wanted: int) -> dict[str, Any]:
        """results.json; `summary` is missing while prompts are still running."""
        bench, options = self.bench, self.bench.options
        done = len(self.results) + len(self.skipped)
        return {
            "format": FORMAT,
            "command": "lcspec bench",
            "complete": summary is not None and not self.interrupted and done == wanted,
            "notes": list(NOTES),
            "settings": {
                "strategies": list(options.strategies),
                "n": options.n,
                "repeat": options.repeat,
                "temperature": options.sampling.temperature,
                "seed": options.sampling.seed,
                "chat": options.chat,
                "exact": self.exact,
                "prompts": wanted,
            },
            "machine": self._machine,
            "model": describe_target(bench.session.model),
            "draft": [describe_file(p) for p in self.draft.models] or None,
            "store": str(self.draft.store) if self.draft.store is not None else None,
            "curve": {
                **bench.curve.as_dict(),
                "measured_earlier": bench.curve_stored,
                "certified_widths": sorted(bench.widths) if bench.widths is not None else None,
            },
            "step_columns": list(STEP_COLUMNS),
            "prompts": [r.as_dict() for r in self.results],
            "skipped": self.skipped,
            "summary": summary,
        }


def _quiet() -> bool:
    return not sys.stderr.isatty()
