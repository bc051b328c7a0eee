"""lcspec on a real model: SmolLM2-135M-Instruct as shipped, requantized, and at the cost of larger models.

    python scripts/real_bench.py PROMPTS.jsonl --out work/real/results --minutes 10 --variants shipped --limit 28
    python scripts/real_bench.py PROMPTS.jsonl --out work/real/results --limit 60 --peers work/peers

PROMPTS.jsonl is Spec-Bench's question.jsonl, or a file in the format of `lcspec bench`; its first turns are asked in
the model's chat template, and answers end where the model ends them. Nothing that earlier texts taught is used, but in
the row that asks again. Every call goes on from the results that the last one left, so `--minutes` at a time will do.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from peers.build import BuildError, check_build
from peers.ending import EndingJob, HeldOut, everybody, make_runner
from real_models import EXACTNESS, Case, cases_of, copy_of, draft_of
from real_report import finish, resumed
from real_runs import AGAIN, EndingBench, chosen, condensed, first_tokens

from lcspec.bench.machine import describe_file, describe_machine, load_average
from lcspec.bench.output import check_writable, write_results
from lcspec.bench.prompts import Prompt
from lcspec.bench.runner import AUTO, PLAIN, BenchOptions
from lcspec.config import DraftFiles, ModelOptions
from lcspec.errors import LcspecError, UsageError
from lcspec.modelfiles.companions import sort_drafts
from lcspec.modelfiles.starter import download_starter
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import open_session, parse_speculation

WORK = Path(__file__).resolve().parents[1] / "work"
LENGTHS = (200, 2000)
# Load average beyond which a machine is not quiet.
BUSY = 0.8
# Answers shorter than this tell nothing about a peer's rate.
LEAST_ANSWER = 16
SEED = 1


@dataclass
class RealBench:
    """The whole benchmark, and its results as they grow.

    Attributes:
        source: the model as shipped.
        prompts: in the order in which they run.
        tuning: prompts for the settings of peers alone.
        o: the command's options.
        results: what goes into results.json.
        deadline: on the monotonic clock; inf: none.
    """

    source: Path
    prompts: Sequence[Prompt]
    tuning: Sequence[Prompt]
    o: Mapping[str, Any]
    results: dict[str, Any]
    deadline: float

    @property
    def strategies(self) -> list[str]:
        """As the user named them, plain decoding first."""
        named = [part.strip() for part in self.o["strategies"].split(";") if part.strip() not in ("", PLAIN)]
        return list(dict.fromkeys([PLAIN, *named, *sort_drafts(self.source, DraftFiles.of(self.o["draft"])).drafters]))

    def run(self, cases: Sequence[Case]) -> None:
        """What is missing of the cases; with a time limit every one of them gets the same share of what is left."""
        missing = [case for case in cases if not self.finished(case)]
        for number, case in enumerate(missing):
            now = time.monotonic()
            if now >= self.deadline:
                break
            until = now + (self.deadline - now) / (len(missing) - number)
            say(f"{case.name} ...")
            try:
                self._run_case(case, until)
            except LcspecError as error:
                self.results["left_out"][case.name] = str(error)
                say(f"  left out: {error}")
        self.results["complete"] = all(self.finished(case) for case in cases)
        self.save()

    def peers_in(self, case: Case) -> bool:
        """Whether peers take part: they know no exactness, so once for every file and temperature."""
        return self.o["peers"] is not None and case.exactness == self.o["exactness"].split(",")[0].strip()

    def finished(self, case: Case) -> bool:
        """Whether nothing of a case is missing."""
        found = self.results["cases"].get(case.name)
        return (
            found is not None
            and all(prompt.id in found["prompts"] for prompt in self.prompts)
            and (found["first_token"] is not None or not case.first)
            and (bool(found["peers"] and found["peers"]["complete"]) or not self.peers_in(case))
        )

    def _run_case(self, case: Case, until: float) -> None:
        folder = self.o["work"] / "models"
        target, draft = copy_of(self.source, case.variant, folder), draft_of(self.o["draft"], case.variant, folder)
        exact = EXACTNESS[case.exactness]
        options = ModelOptions(target, ctx=self.o["ctx"], threads=self.o["threads"], exact=exact)
        files = sort_drafts(target, DraftFiles.of(draft))
        named = {name: parse_speculation(name, files, exact=bool(exact)) for name in self.strategies}
        if self.o["again"] and AUTO in named:
            named[AGAIN] = named[AUTO]
        sampling = SamplingParams(temperature=case.temperature, seed=SEED)
        with open_session(options, files, history=False) as session:
            empty = {"prompts": {}, "first_token": None, "peers": None, "parts": 0}
            found = self.results["cases"].setdefault(case.name, empty)
            if found.get("all_exact", session.engine.exact.all_exact) != session.engine.exact.all_exact:
                raise UsageError("the default was another attention in the part before: name exact or no-exact")
            self.results["machine"] = describe_machine(session)
            found |= {
                "all_exact": session.engine.exact.all_exact,
                "model": describe_file(target),
                "parts": found["parts"] + 1,
                "load_average": load_average(),
            }
            found["draft"] = describe_file(draft) if draft else None
            if case.first and found["first_token"] is None:
                texts = [prompt.text for prompt in self.prompts]
                found["first_token"] = first_tokens(session, texts, LENGTHS, self.o["repeat"], bool(exact))
            bench = EndingBench(session, BenchOptions(named, sampling, self.o["n"], self.o["repeat"], self.o["chat"]))
            bench.prepare()
            self._run_prompts(bench, found["prompts"], until)
            if self.peers_in(case) and all(prompt.id in found["prompts"] for prompt in self.prompts):
                self._run_peers(case, bench, found, target, draft, until)
        self.save()

    def _run_prompts(self, bench: EndingBench, found: dict[str, Any], until: float) -> None:
        longest = 0.0
        for index, prompt in enumerate(self.prompts):
            start = time.monotonic()
            if prompt.id in found:
                continue
            if start + longest > until:
                return
            found[prompt.id] = condensed(bench.run_prompt(prompt, index))
            longest = max(longest, time.monotonic() - start)
            self.save()

    def _run_peers(
        self, case: Case, bench: EndingBench, found: dict[str, Any], target: Path, draft: Path | None, until: float
    ) -> None:
        """llama.cpp's programs beside lcspec, tuned on prompts of their own."""
        plain = {name: entry["runs"][PLAIN] for name, entry in found["prompts"].items() if "runs" in entry}
        telling = [p for p in self.prompts if p.id in plain and plain[p.id][0]["tokens"] >= LEAST_ANSWER]
        ids: dict[str, tuple[int, ...]] = {}
        ready: dict[str, Any] = {}
        for prompt in [*self.tuning, *telling]:
            made = bench.peer_prompt(prompt)
            if made is not None:
                ready[prompt.id], ids[prompt.id] = made
        context = bench.session.engine.context
        where = (self.o["peers"] / "build" / "bin", target, draft, self.o["n"], context.n_threads, context.n_ctx)
        job = EndingJob(*where, temperature=case.temperature, seed=SEED)

        def keep(measurement: Any) -> None:
            found["peers"] = measurement.as_dict()
            self.save()

        HeldOut(
            everybody(self.strategies, draft),
            [ready[prompt.id] for prompt in self.tuning if prompt.id in ready],
            [ready[prompt.id] for prompt in telling if prompt.id in ready],
            lambda contender, setting: make_runner(
                job, lambda prompt, strategy: bench.peer_run(ids[prompt.id], strategy), contender, setting
            ),
            earlier=found["peers"],
            repeat=self.o["repeat"],
            budget=None if math.isinf(until) else until - time.monotonic(),
            report=lambda line: say(f"  {line}"),
            save=keep,
        ).run()

    def save(self) -> None:
        """Write results.json."""
        write_results(self.o["out"], self.results)


def say(line: str) -> None:
    """A line of progress, with the time."""
    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)


@click.command()
@click.argument("prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=WORK / "real" / "results")
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), default=WORK / "real", help="For copies.")
@click.option("--model", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Instead of SmolLM2.")
@click.option(
    "--draft",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A draft model or an EAGLE-3 head for it.",
)
@click.option("--variants", default="shipped,Q8_0,Q4_K_M,Q4_0,0.5b,1b", show_default=True)
@click.option("--exactness", default="default,no-exact", show_default=True, help="Of default, exact and no-exact.")
@click.option("--temperatures", default="0,0.8", show_default=True)
@click.option("--strategies", default="off;ngram;auto", show_default=True, help="As for lcspec bench.")
@click.option("--again/--no-again", default=True, show_default=True, help="A row for auto on a repeated question.")
@click.option("--chat/--no-chat", default=True, show_default=True, help="Ask in the model's chat template.")
@click.option("-n", type=click.IntRange(2), default=128, show_default=True, help="The most tokens of an answer.")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="Repetitions of every answer.")
@click.option("--kind", "kinds", multiple=True, help="Only this category or set; may be given again.")
@click.option("--limit", type=click.IntRange(1), help="Prompts at most, spread over the categories.")
@click.option("--ctx", type=click.IntRange(0), default=0, help="Context (0: as lcspec chooses).")
@click.option("--threads", "-t", type=click.IntRange(0), default=0, help="Threads (0: as lcspec chooses).")
@click.option("--peers", type=click.Path(file_okay=False, path_type=Path), help="Folder of compare_peers.py build.")
@click.option("--tune-prompts", type=click.IntRange(1), default=3, show_default=True, help="For peers' settings.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Stop then; the next call goes on.")
def main(prompts: Path, **o: Any) -> None:
    """Measure what is missing in OUT's results.json, then write table.md and the charts beside it."""
    start = time.monotonic()
    try:
        if o["peers"] is not None:
            check_build(o["peers"])
        run(prompts, o, math.inf if o["minutes"] is None else start + 60 * o["minutes"])
    except (LcspecError, BuildError) as error:
        click.echo(f"error: {error}", err=True)
        raise SystemExit(getattr(error, "exit_code", 2)) from None


def run(prompts: Path, o: Mapping[str, Any], deadline: float) -> None:
    """The command; `deadline` on the monotonic clock.

    Raises:
        LcspecError: with a message for the user.
    """
    cases = cases_of(*(_listed(o[name]) for name in ("variants", "exactness")), _numbers(o["temperatures"]))
    table_, tuning, categories = chosen(prompts, o["kinds"], o["limit"], o["tune_prompts"])
    if o["peers"] is not None and not tuning:
        raise UsageError("no prompt is left to tune the peers on: give a --limit below the number of prompts")
    check_writable(o["out"])
    source = o["model"] or download_starter()
    texts = json.dumps([[p.id, p.text] for p in [*table_, *tuning]])
    settings = {
        "model": source.name,
        "model_bytes": source.stat().st_size,
        "draft": o["draft"].name if o["draft"] else None,
        "prompts": f"{len(table_)}, {hashlib.sha256(texts.encode()).hexdigest()[:16]}",
        **{name: o[name] for name in ("strategies", "again", "chat", "n", "repeat", "ctx", "threads")},
    }
    results = resumed(o["out"] / "results.json", settings) | {"categories": categories}
    if (load_average() or 0.0) > BUSY:
        say(f"warning: the machine is busy (load {load_average():.1f}): the figures will mean little")
    interrupted = False
    try:
        RealBench(source, table_, tuning, o, results, deadline).run(cases)
    except KeyboardInterrupt:
        interrupted = True
    click.echo(finish(results, o["out"]))
    say("complete" if results["complete"] else "there is more to measure: the same command goes on from here")
    if interrupted:
        raise SystemExit(130)


def _listed(text: str) -> list[str]:
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise UsageError("an option names nothing: see --help")
    return found


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in _listed(text)]
    except ValueError as error:
        raise UsageError(f"{text!r} is not a list of temperatures such as 0,0.8") from error


if __name__ == "__main__":
    main()
