"""llama.cpp's own speculative programs and lcspec on the same files, prompts and threads: one table with the ratios.

    python scripts/compare_peers.py build
    python scripts/compare_peers.py run TARGET.gguf --draft DRAFT.gguf --prompts prompts.jsonl --limit 18 --budget 60

`build` compiles llama.cpp's programs from the sources inside the sdist of the installed llama-cpp-python, so both sides
run the same kernels. `run` never computes in two programs at once: on every prompt the programs take turns, each with
the best setting of a small grid over its own options, found on the first few prompts. Rates are those of decoding, by
each program's own clock: neither loading nor the prompt counts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import click
from peers.build import BuildError, build, check_build, installed_version
from peers.contenders import DEFAULT_STRATEGIES, OURS, PEERS, Contender, lcspec_contenders
from peers.measure import Measurement
from peers.prompts import Prompt, PromptError, balanced, read_prompts
from peers.report import table
from peers.runners import Job, Lcspec, LcspecRunner, RunError, bench_plain, make_runner

WORK = Path(__file__).resolve().parents[1] / "work" / "peers"
# Positions beyond prompt and answer: programs overshoot by a draft.
SPARE = 24
# Cells that drafts, lookahead branches and parallel drafts may take for a moment.
CELLS = 512
# Load average beyond which a machine is not quiet.
BUSY = 0.8

work_option = click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    default=WORK,
    help="Folder of the build (default: work/peers).",
)


def say(line: str) -> None:
    """A line of progress, with the time."""
    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)


@click.group()
def main() -> None:
    """Compare lcspec with llama.cpp's own speculative programs."""


@main.command("build")
@work_option
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="An unpacked llama.cpp tree to use instead of downloading the sdist; it must be the installed version's.",
)
@click.option("--jobs", "-j", type=click.IntRange(1), default=os.cpu_count() or 1, help="Compilers at a time.")
def build_command(work: Path, source: Path | None, jobs: int) -> None:
    """Build the programs of llama.cpp that the comparison needs."""
    try:
        click.echo(f"built in {build(work, source, jobs, say)}")
    except (BuildError, OSError) as error:
        raise click.ClickException(str(error)) from error


@main.command("run")
@click.argument("target", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--draft", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The draft model.")
@click.option("--prompts", "prompt_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--category", "categories", multiple=True, help="Only prompts of this category; may be given again.")
@click.option("--limit", type=click.IntRange(1), help="Prompts at most, the categories taking turns.")
@click.option("--chat", is_flag=True, help="Put prompts into the target's chat template, for every program alike.")
@click.option("-n", "n", type=click.IntRange(8), default=128, show_default=True, help="Tokens to generate.")
@click.option(
    "--threads", "-t", type=click.IntRange(0), default=0, help="Threads for every program (0: what lcspec chooses)."
)
@click.option("--gpu-layers", type=int, help="Layers to offload, for every program alike.")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="Repetitions of every prompt.")
@click.option(
    "--bench-repeat", type=click.IntRange(0), default=5, show_default=True, help="Repetitions against llama-bench."
)
@click.option("--tune-prompts", type=click.IntRange(1), default=3, show_default=True, help="Prompts the grids run on.")
@click.option(
    "--strategies",
    default=DEFAULT_STRATEGIES,
    show_default=True,
    help="lcspec's, separated by ';'; @ gives a grid of draft lengths.",
)
@click.option(
    "--peer",
    "peer_names",
    multiple=True,
    help="Only peers whose name contains this; may be given again. 'none': no peers.",
)
@click.option("--reference", help="The strategy the ratios are for (default: auto if it ran, else the fastest).")
@click.option(
    "--slow-factor",
    type=float,
    default=4.0,
    show_default=True,
    help="Leave out peers this many times slower than plain.",
)
@click.option(
    "--budget", type=click.FloatRange(min=0, min_open=True), help="Minutes; fewer prompts rather than more time."
)
@click.option(
    "--timeout", type=float, default=900.0, show_default=True, help="Seconds after which a single run has failed."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.json and table.md.")
@work_option
def run_command(target: Path, draft: Path | None, out: Path | None, work: Path, **options: Any) -> None:
    """Run every program on the same prompts and print one table."""
    budget = None if options["budget"] is None else 60 * options["budget"]
    start = time.monotonic()
    try:
        binaries = check_build(work)
        prompts = read_prompts(options["prompt_file"], options["categories"])
        contenders = choose_contenders(options["strategies"], options["peer_names"], draft is not None)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
    except (BuildError, PromptError, ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error
    lcspec = Lcspec()
    results: dict[str, Any] = {}
    try:
        model = lcspec.ask(
            "load",
            target=str(target),
            draft=str(draft) if draft else None,
            threads=options["threads"],
            gpu_layers=options["gpu_layers"],
        )
        job = Job(binaries, target, draft, options["n"], model["threads"], 0, options["gpu_layers"], options["timeout"])
        prompts, dropped = prepare(lcspec, prompts, options["chat"], model["ctx_train"] - job.n - SPARE)
        prompts = balanced(prompts)[: options["limit"]]
        ctx = -(-(max(p.n_tokens for p in prompts) + job.n + CELLS) // 256) * 256
        job = dataclasses.replace(job, ctx=ctx)
        lcspec.ask("open", ctx=ctx)
        about = f"{len(prompts)} prompts ({dropped} do not fit)"
        say(f"{model['description']}, {job.threads} threads, {about}, context {ctx}")
        if os.getloadavg()[0] > BUSY:
            say(f"warning: the machine is busy (load {os.getloadavg()[0]:.1f}): the figures will mean little")
        results |= describe(target, draft, model, job, prompts, dropped, options)
        compare(lcspec, job, contenders, prompts, options, budget, start, results, out)
    except RunError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        results["interrupted"] = True
        say("interrupted: this is what there is")
    finally:
        lcspec.close()
    finish(results, options["reference"], out)
    if results.get("interrupted"):
        raise SystemExit(130)


def choose_contenders(strategies: str, peer_names: tuple[str, ...], draft: bool) -> list[Contender]:
    """lcspec's strategies and the peers asked for, without those that need a draft model when there is none.

    Raises:
        ValueError: a strategy is malformed, or no peer is called like that.
    """
    peers: list[Contender] = [p for p in PEERS if not peer_names or any(name in p.name for name in peer_names)]
    if not peers and peer_names != ("none",):
        raise ValueError(f"no peer is called {' or '.join(peer_names)}; there are: {', '.join(p.name for p in PEERS)}")
    everybody = [*lcspec_contenders(strategies), *peers]
    for contender in everybody:
        if contender.draft and not draft:
            say(f"leaving out {contender.name}: it needs a draft model (--draft)")
    return [contender for contender in everybody if draft or not contender.draft]


def prepare(lcspec: Lcspec, prompts: list[Prompt], chat: bool, room: int) -> tuple[list[Prompt], int]:
    """Prompts as every program gets them, without those longer than `room` tokens; and how many those are.

    Raises:
        RunError: none is left.
    """
    ready = lcspec.ask("prepare", texts=[prompt.text for prompt in prompts], chat=chat)
    kept = [
        dataclasses.replace(prompt, text=item["text"], n_tokens=item["tokens"])
        for prompt, item in zip(prompts, ready)
        if "error" not in item and 1 < item["tokens"] <= room
    ]
    if not kept:
        long = f"beside the tokens to generate, its context has room for {max(0, room)} tokens"
        why = next((item["error"] for item in ready if "error" in item), long)
        raise RunError(f"no prompt fits this model: {why}")
    return kept, len(prompts) - len(kept)


def describe(
    target: Path,
    draft: Path | None,
    model: dict[str, Any],
    job: Job,
    prompts: list[Prompt],
    dropped: int,
    options: dict[str, Any],
) -> dict[str, Any]:
    """What was compared, and where."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "llama_cpp_python": installed_version(),
        "machine": {"cpu": cpu_name(), "cpus": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()},
        "target": {"file": target.name, **model},
        "draft": draft.name if draft else None,
        "n": job.n,
        "threads": job.threads,
        "ctx": job.ctx,
        "chat": options["chat"],
        "dropped_prompts": dropped,
        "categories": {prompt.id: prompt.category for prompt in prompts},
        "prompt_tokens": {prompt.id: prompt.n_tokens for prompt in prompts},
        "contenders": [],
    }


def compare(
    lcspec: Lcspec,
    job: Job,
    contenders: list[Contender],
    prompts: list[Prompt],
    options: dict[str, Any],
    budget: float | None,
    start: float,
    results: dict[str, Any],
    out: Path | None,
) -> None:
    """Measure; `results` and the files grow as it goes."""

    def save(measurement: Measurement) -> None:
        results.update(measurement.as_dict())
        write(results, out)

    against_bench(lcspec, job, contenders[0], options["bench_repeat"], results)
    Measurement(
        contenders,
        prompts,
        lambda contender, setting: make_runner(lcspec, job, contender, setting),
        tune_prompts=options["tune_prompts"],
        repeat=options["repeat"],
        budget=None if budget is None else budget - (time.monotonic() - start),
        slow_factor=options["slow_factor"],
        report=say,
        save=save,
    ).run()


def against_bench(lcspec: Lcspec, job: Job, plain: Contender, repeat: int, results: dict[str, Any]) -> None:
    """Plain decoding from an empty context, in turns with llama-bench."""
    bench: dict[str, Any] = {"n": job.n, "lcspec": [], "llama-bench": []}
    results["bench"] = bench if repeat else None
    runner = LcspecRunner(lcspec, job, plain, plain.settings[0])
    try:
        if repeat:
            say(f"{OURS} off against llama-bench, {repeat} repetitions ...")
            runner.run_bare()
        for _ in range(repeat):
            bench["llama-bench"].append(bench_plain(job))
            bench["lcspec"].append(runner.run_bare().rate)
    except RunError as error:
        bench["error"] = str(error)
        say(f"  llama-bench: {error}")


def write(results: dict[str, Any], out: Path | None) -> None:
    """Put results.json into `out`, whole or not at all."""
    if out is None:
        return
    part = out / "results.json.part"
    part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    part.replace(out / "results.json")


def finish(results: dict[str, Any], reference: str | None, out: Path | None) -> None:
    """Print the table and write both files."""
    if not results.get("contenders"):
        raise click.ClickException("nothing was measured")
    text = table(results, reference)
    click.echo(text)
    if out is not None:
        write(results, out)
        (out / "table.md").write_text(text, encoding="utf-8")
        say(f"written: {out / 'results.json'}, {out / 'table.md'}")


@main.command("table")
@click.argument("results_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--reference", help="The strategy the ratios are for.")
def table_command(results_file: Path, reference: str | None) -> None:
    """Print the table of an earlier run again."""
    try:
        click.echo(table(json.loads(results_file.read_text(encoding="utf-8")), reference))
    except (ValueError, KeyError) as error:
        raise click.ClickException(f"{results_file} is not a results.json of this script") from error


def cpu_name() -> str:
    """The processor's name where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
