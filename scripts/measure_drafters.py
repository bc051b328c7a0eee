"""Every drafter's figures on one target: what it drafts, what that costs, what it gains, and what `auto` makes of it.

    python scripts/measure_drafters.py TARGET.gguf --draft SMALL.gguf --heads TARGET.heads.gguf --store my.store \\
        --pruned TARGET-keep8.gguf --prompts prompts.jsonl --limit 18 -n 128 --out figures

All drafters are loaded beside one target and take turns on every prompt, as in `lcspec bench`, whose results.json and
report.html are written as well. A drafter's own figures come from a fixed number of drafted tokens a step (its default,
or --max-draft); what it is worth to `auto` comes from planning with it and without it, the free drafters (n-grams,
suffixes, lookahead) being there in both cases. Ctrl-C keeps the prompts that are finished.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import click

from lcspec.bench.builtin import builtin_prompts
from lcspec.bench.output import check_writable, write_text
from lcspec.bench.prompts import read_prompts, spread
from lcspec.bench.records import PromptResult
from lcspec.bench.runner import AUTO, PLAIN, Bench, BenchOptions
from lcspec.bench.stats import geometric_mean, median
from lcspec.commands.bench import Recorder
from lcspec.config import DrafterSpec, DraftFiles, ModelOptions, SpeculationParams, model_drafter
from lcspec.errors import LcspecError, UsageError
from lcspec.modelfiles.companions import sort_drafts
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import loading_line, open_session, parse_speculation

FREE = ("ngram", "suffix", "lookahead")
# Depths that the table shows.
DEPTHS = 6
TABLE, FIGURES = "drafters.md", "drafters.json"
HEAD = (
    "| drafter | accepted at depth 1, 2, ... | drafting, ms a step | tokens a step | over plain | over the best other "
    "| auto over auto without it |"
)


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Attributes:
        name: what users read.
        drafters: on its own, as `--speculate` takes it.
        more: the drafters that `auto` has with it, and those it has without it.
    """

    name: str
    drafters: str
    more: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def names(self) -> set[str]:
        """The drafters without their options."""
        return {spec.partition(":")[0] for spec in self.drafters.split(",")}


def entries(files: DraftFiles, drafts: int, pruned: bool, other: bool) -> list[Entry]:
    """The rows that these files make possible; `files.models` are the `drafts`, then the pruned one, then the other."""

    def added(name: str, drafter: str, drafters: str = "", base: str = "") -> Entry:
        without = (*FREE, *([base] if base else []))
        return Entry(name, drafters or drafter, ((*without, drafter), without))

    out = [Entry(name, name, (FREE, tuple(f for f in FREE if f != name))) for name in FREE]
    if drafts:
        out.append(added("model", "model"))
        # They stand in for the model, so `auto` gets them in its place.
        for name, options in (("vertical", "guesses=3:tail=0"), ("horizontal", "guesses=0:tail=3"), ("", "")):
            spec = f"cascade:{options}" if options else "cascade"
            out.append(Entry(f"cascade {name}".strip(), spec, ((*FREE, spec), (*FREE, "model"))))
    for i in range(1, drafts):
        before = [model_drafter(k) for k in range(i)]
        every = ",".join([*before, model_drafter(i)])
        out.append(Entry(f"{i + 1} drafts", every, ((*FREE, *every.split(",")), (*FREE, *before))))
    if pruned:
        out.append(added("pruned", model_drafter(drafts)))
    if other:
        out.append(added("translated", model_drafter(drafts + pruned)))
    out += [added(head, head) for head in ("mtp", "eagle") if head in files.drafters]
    if files.heads is not None:
        out += [added("medusa", "medusa"), added("blockwise", "blockwise")]
    if files.store is not None:
        out.append(added("store", "store"))
    return out


def planned(drafters: Sequence[str]) -> SpeculationParams:
    """`auto` among these drafters. Lookahead leaves the text to those who read it anyway, as in `auto` itself."""
    specs = [DrafterSpec.parse(text) for text in drafters]
    reads = any(spec.name in ("ngram", "suffix") for spec in specs)
    return SpeculationParams(
        tuple(
            DrafterSpec("lookahead", {"pool_from_answer": "0"}) if s.name == "lookahead" and reads else s for s in specs
        ),
        auto=True,
    )


def planned_name(drafters: Sequence[str]) -> str:
    """The strategy's name in the results: `auto free`, and what is there besides (+) or missing (-)."""
    more = [f"+{name}" for name in drafters if name not in FREE]
    less = [f"-{name}" for name in FREE if name not in drafters]
    return " ".join([AUTO, *(more + less or ["free"])])


def strategies(rows: Sequence[Entry], files: DraftFiles, max_draft: int | None) -> dict[str, SpeculationParams]:
    """Everything to run, plain decoding first, then `auto` with all that there is."""
    out = {PLAIN: SpeculationParams(), AUTO: parse_speculation(AUTO, files)}
    for row in rows:
        out[row.drafters] = parse_speculation(row.drafters, max_draft=max_draft)
    for row in rows:
        for drafters in row.more:
            out.setdefault(planned_name(drafters), planned(drafters))
    return out


# --- figures ----------------------------------------------------------------------------------------------------------


def rates(results: Sequence[PromptResult], strategy: str) -> list[float]:
    """Tokens a second of every prompt, each the median of its repeats."""
    return [median([run.tokens_per_second for run in r.of(strategy)]) for r in results]


def ratio(results: Sequence[PromptResult], strategy: str, reference: str) -> float:
    """Geometric mean over the prompts of one strategy's rate over another's."""
    return geometric_mean([a / b for a, b in zip(rates(results, strategy), rates(results, reference))])


def figures(row: Entry, rows: Sequence[Entry], results: Sequence[PromptResult]) -> dict[str, Any]:
    """A row's figures over `results`, every strategy having run on each of them."""
    runs = [run for r in results for run in r.of(row.drafters)]
    steps = [step for run in runs for step in run.steps]
    drafted, accepted = ([run.stats[key] for run in runs] for key in ("drafted_by_depth", "accepted_by_depth"))
    tested = [sum(x[d] for x in drafted if d < len(x)) for d in range(max(map(len, drafted), default=0))]
    right = [sum(x[d] for x in accepted if d < len(x)) for d in range(len(tested))]
    others = [o.drafters for o in rows if not row.names <= o.names]
    best = max(others, key=lambda name: ratio(results, name, PLAIN), default=PLAIN)
    with_it, without = map(planned_name, row.more)
    return {
        "drafter": row.name,
        "speculate": row.drafters,
        "drafted_by_depth": tested,
        "accepted_by_depth": right,
        "drafting_ms": 1000 * sum(s.draft for s in steps) / len(steps),
        "tokens_a_step": sum(s.emitted for s in steps) / len(steps),
        "tokens_per_second": median(rates(results, row.drafters)),
        "over_plain": ratio(results, row.drafters, PLAIN),
        "best_other": best,
        "over_best_other": ratio(results, row.drafters, best),
        "auto_over_plain": ratio(results, with_it, PLAIN),
        "auto_without_over_plain": ratio(results, without, PLAIN),
        "auto_over_auto_without": ratio(results, with_it, without),
        "auto_without": without,
    }


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    reached = list(zip(row["accepted_by_depth"], row["drafted_by_depth"]))[:DEPTHS]
    depths = " ".join(f"{100 * hits / n:.0f}" if n else "-" for hits, n in reached)
    return (
        f"| {row['drafter']} | {depths or '-'} | {row['drafting_ms']:.2f} | {row['tokens_a_step']:.2f} "
        f"| {row['over_plain']:.2f} | {row['over_best_other']:.2f} ({row['best_other']}) "
        f"| {row['auto_over_plain']:.2f} / {row['auto_without_over_plain']:.2f} = {row['auto_over_auto_without']:.3f} |"
    )


def table(found: Sequence[dict[str, Any]], prompts: int) -> str:
    """The figures as Markdown."""
    rule = "|" + "---|" * HEAD.count(" |")
    notes = (
        f"{prompts} prompts, geometric means. Accepted: percent of the nodes drafted at that depth. "
        "The last column is auto with the drafter over plain decoding, auto without it over plain decoding, and their "
        "ratio."
    )
    return "\n".join([notes, "", HEAD, rule, *map(line, found), ""])


class Figures(Recorder):
    """A benchmark's recorder that shows the table of drafters."""

    rows: Sequence[Entry] = ()

    def _show(self, summary: dict[str, Any], wanted: int) -> None:
        super()._show(summary, wanted)
        names = list(self.bench.options.strategies)
        results = [r for r in self.results if r.covers(names)]
        if not results:
            return
        found = [figures(row, self.rows, results) for row in self.rows]
        text = table(found, len(results))
        click.echo("\n" + text)
        if self.out is not None:
            write_text(self.out / FIGURES, json.dumps({"prompts": len(results), "drafters": found}, indent=1) + "\n")
            write_text(self.out / TABLE, text)


# --- command line -----------------------------------------------------------------------------------------------------

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("target", type=FILE)
@click.option("--draft", "drafts", type=FILE, multiple=True, help="Draft model; again for a second one.")
@click.option("--heads", type=FILE, help="Heads of the target, for medusa and blockwise.")
@click.option("--store", type=FILE, help="Datastore of text.")
@click.option("--pruned", type=FILE, help="A copy of the target with fewer layers (`lcspec draft prune`).")
@click.option("--other-vocabulary", "other", type=FILE, help="A draft model whose vocabulary is not the target's.")
@click.option("--only", multiple=True, help="Only drafters whose name contains this; may be given again.")
@click.option("--prompts", "prompt_file", type=FILE, help="JSON lines (default: the built-in prompts).")
@click.option("--limit", type=click.IntRange(1), help="Prompts at most, spread over the categories.")
@click.option("-n", "n", type=click.IntRange(2), default=128, show_default=True, help="Tokens in an answer.")
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Runs of each prompt.")
@click.option("--max-draft", type=click.IntRange(1), help="Drafted tokens a step where no planner decides.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--chat", is_flag=True, help="Treat prompts as a user's messages.")
@click.option("--ctx", type=click.IntRange(0), default=2048, show_default=True, help="Context in tokens.")
@click.option("--threads", "-t", type=click.IntRange(0), default=0, help="CPU threads (0: physical cores).")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for tables and raw results.")
def main(target: Path, drafts: tuple[Path, ...], only: tuple[str, ...], out: Path | None, **o: Any) -> None:
    """Measure every drafter on TARGET that the named files make possible."""
    try:
        raise SystemExit(measure(target, drafts, only, out, o))
    except LcspecError as error:
        click.echo(f"error: {error}", err=True)
        raise SystemExit(error.exit_code) from None


def measure(target: Path, drafts: tuple[Path, ...], only: tuple[str, ...], out: Path | None, o: dict[str, Any]) -> int:
    """Run everything; returns the exit code.

    Raises:
        LcspecError: a file or an option cannot be used.
    """
    extra = [path for path in (o["pruned"], o["other"]) if path is not None]
    files = sort_drafts(target, DraftFiles((*drafts, *extra), o["store"], o["heads"]))
    rows = entries(files, len(files.models) - len(extra), o["pruned"] is not None, o["other"] is not None)
    chosen = [row for row in rows if not only or any(name in row.name for name in only)]
    if not chosen:
        raise UsageError(f"no drafter is called {' or '.join(only)}; there are: {', '.join(r.name for r in rows)}")
    prompts = spread(read_prompts(o["prompt_file"]) if o["prompt_file"] else builtin_prompts(), o["limit"])
    if out is not None:
        check_writable(out)
    options = ModelOptions(target, ctx=o["ctx"], threads=o["threads"])
    sampling = SamplingParams(temperature=o["temperature"], seed=1)
    with open_session(options, files, loading_line(), history=False) as session:
        bench = Bench(
            session, BenchOptions(strategies(chosen, files, o["max_draft"]), sampling, o["n"], o["repeat"], o["chat"])
        )
        recorder = Figures(bench, out, exact=False, draft=files)
        recorder.rows = chosen
        return recorder.run(prompts)


if __name__ == "__main__":
    main()
