"""`lcspec serve` and llama-server side by side: the same model, prompts and threads, one table with the ratios.

    python scripts/compare_server.py TARGET.gguf --draft DRAFT.gguf --server build/bin/llama-server \\
        --prompts prompts.jsonl --streams 1,2,4,8 -n 96 --out results/

`scripts/compare_peers.py build` builds a llama-server from the sources of the installed library, so that both sides run
the same kernels. Only one server runs at a time, a fresh process for every run, so that nothing carries over (prompt
caches, earlier answers); contenders take turns on every level and round. A run works through the same requests with
1, 2, 4 or 8 streams; its rate counts everything, prompts included, by the client's clock. A target with layers for
multi-token prediction inside is also run with these, llama-server with drafts of one to four tokens. `--paired` has all
servers up at once instead and sends each request to each of them in turn: one stream, and figures that what else the
machine does moves little.

`--against DIR` compares with another lcspec as well, from a checkout: `git worktree add ../before COMMIT`.

With `--predict N` the first N prompts of --predict-category are also run with `prediction`: the text expected is the
plain answer with a share of its words changed (`--predict-errors`), as an edit changes a file. Needs no llama-server.
"""

from __future__ import annotations

import os
import random
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from peers.prompts import PromptError, balanced, read_prompts
from servers.load import Answer, Load, LoadError, run
from servers.output import finish, say
from servers.paired import paired, paired_table
from servers.start import Contender, Setup, peak_memory, running
from servers.table import markdown, prediction_lines

from lcspec.config import DraftFiles
from lcspec.errors import LcspecError
from lcspec.llama.threads import default_threads
from lcspec.modelfiles.companions import sort_drafts

BUSY = 0.8
# llama-server's draft lengths to try with a target's layers for multi-token prediction.
MTP_SIZES = (1, 2, 3, 4)


def contenders(
    binary: bool, draft: bool, draft_sizes: tuple[int, ...], mtp: bool = False, before: Path | None = None
) -> list[Contender]:
    """Everybody who takes part: lcspec's strategies, those of another lcspec (`before`), and llama-server plain, with
    n-grams, with a draft model, and with the target's own layers for multi-token prediction (`mtp`)."""
    ours = [("off", False), ("ngram", False), ("auto", draft)] + [("model", True)] * draft + [("mtp", False)] * mtp
    found = [
        Contender(f"lcspec {name if name != 'model' else 'draft'}", True, ("--speculate", name), draft=needs)
        for name, needs in ours
    ]
    if before is not None:
        found += [replace(c, name=c.name.replace("lcspec", "before"), tree=before.resolve()) for c in found]
    if binary:
        ngram = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "7")
        drafts = {n: ("--spec-type", "draft-simple", "--spec-draft-n-max", str(n)) for n in draft_sizes * draft}
        theirs = [Contender("llama-server plain", False), Contender("llama-server ngram", False, ngram)]
        theirs += [Contender(f"llama-server draft {n}", False, args, draft=True) for n, args in drafts.items()]
        heads = {n: ("--spec-type", "draft-mtp", "--spec-draft-n-max", str(n)) for n in MTP_SIZES * mtp}
        theirs += [Contender(f"llama-server mtp {n}", False, args) for n, args in heads.items()]
        # Ours measures which attention is faster; theirs is tried with both.
        found += theirs + [replace(c, name=f"{c.name}, -fa off", args=(*c.args, "-fa", "off")) for c in theirs]
    return found


@click.command()
@click.argument("target", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--draft", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--server", "binary", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="llama-server.")
@click.option(
    "--against", "before", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another lcspec's tree."
)
@click.option("--prompts", "prompt_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--category", "categories", multiple=True)
@click.option("--longest", type=int, default=2000, show_default=True, help="Characters of a prompt at most.")
@click.option("--requests", type=click.IntRange(1), default=16, show_default=True, help="Requests of a run.")
@click.option("--streams", default="1,2,4,8", show_default=True)
@click.option("--slots", type=click.IntRange(0), default=0, help="Of every server (0: as many as streams).")
@click.option("-n", "n", type=click.IntRange(2), default=96, show_default=True, help="Tokens of an answer on average.")
@click.option("--ctx", type=int, default=1024, show_default=True, help="Tokens of a slot.")
@click.option("--threads", type=int, default=0, help="0: what lcspec chooses, for both.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--paired", is_flag=True, help="All servers up at once, each request to each of them in turn.")
@click.option("--only", multiple=True, help="Only contenders whose name contains this.")
@click.option("--draft-sizes", default="2,3,5", show_default=True, help="llama-server's draft lengths to try.")
@click.option("--predict", "n_predict", type=click.IntRange(0), default=0, help="Prompts to run with `prediction`.")
@click.option("--predict-category", default="code_edit", show_default=True)
@click.option("--predict-errors", type=float, default=0.05, show_default=True, help="Share of words changed.")
@click.option("--timeout", type=float, default=1800.0, show_default=True, help="Seconds of a run at most.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path))
def main(target: Path, draft: Path | None, binary: Path | None, prompt_file: Path, out: Path | None, **o: Any) -> None:
    """Compare servers."""
    threads = o["threads"] or default_threads()
    setup = Setup(binary, target.resolve(), draft.resolve() if draft else None, threads, o["ctx"])
    levels = [int(s) for s in o["streams"].split(",") if s]
    sizes = tuple(int(s) for s in o["draft_sizes"].split(",") if s)
    try:
        mtp = sort_drafts(target, DraftFiles()).mtp == target
        prompts = [p for p in read_prompts(prompt_file, o["categories"]) if len(p.text) <= o["longest"]]
        edits = read_prompts(prompt_file, (o["predict_category"],)) if o["n_predict"] else []
    except (PromptError, LcspecError) as error:
        raise click.ClickException(str(error)) from error
    everybody = contenders(binary is not None, draft is not None, sizes, mtp, o["before"])
    who = [c for c in everybody if _wanted(c.name, o["only"])]
    texts = [p.text for p in balanced(prompts)[: o["requests"]]]
    if os.getloadavg()[0] > BUSY:
        say(f"warning: the machine is busy (load {os.getloadavg()[0]:.1f}): the figures will mean little")
    results: dict[str, Any] = {"target": target.name, "threads": threads, "n": o["n"], "requests": len(texts)}
    results["runs"] = []
    try:
        if o["paired"]:
            bodies = [body_of(text, n) for text, n in zip(texts, lengths(o["n"], len(texts)))]
            results["paired"] = paired(who, setup, o["slots"] or 1, bodies, o["timeout"])
            return finish(out, "servers", results, paired_table(results["paired"]))
        for round_ in range(o["rounds"] if levels else 0):
            for streams in levels:
                for contender in who if round_ % 2 == 0 else who[::-1]:
                    one_run(contender, setup, streams, texts, o, round_, results)
        if o["n_predict"]:
            results["prediction"] = predict(setup, [p.text for p in edits if len(p.text) <= o["longest"]], o)
    except KeyboardInterrupt:
        say("interrupted: this is what there is")
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    finish(out, "servers", results, markdown(results) + prediction_lines(results.get("prediction")))


def _wanted(name: str, only: tuple[str, ...]) -> bool:
    return not only or any(part in name for part in only)


def body_of(text: str, n: int, **more: Any) -> dict[str, Any]:
    """A request both servers understand in the same way."""
    fixed = {"max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True, "cache_prompt": False}
    return {"prompt": text, **fixed, **more}


def lengths(n: int, count: int) -> list[int]:
    """Tokens of every answer: from half of `n` to one and a half times, so that streams do not keep step."""
    rng = random.Random(1)
    return [rng.randint(max(1, n // 2), n + n // 2) for _ in range(count)]


def one_run(
    contender: Contender, setup: Setup, streams: int, texts: list[str], o: dict[str, Any], round_: int,
    results: dict[str, Any],
) -> None:  # fmt: skip
    """Start the server, put the load on it, note what came."""
    label = f"{contender.name}, {streams} streams, round {round_ + 1}"
    try:
        with running(contender, setup, o["slots"] or streams) as port:
            # A request of its own first: what is made at first use is not what is measured.
            run("127.0.0.1", port, [body_of("Hello", 8)], 1, o["timeout"])
            bodies = [body_of(text, n) for text, n in zip(texts, lengths(o["n"], len(texts)))]
            load: Load = run("127.0.0.1", port, bodies, streams, o["timeout"])
            memory = peak_memory(os.getpid())
    except LoadError as error:
        say(f"{label}: {error}")
        results["runs"].append({"name": contender.name, "streams": streams, "error": str(error)})
        return
    after = statistics.median([(a.tokens - 1) / (a.seconds - a.first) for a in load.answers if a.tokens > 1])
    say(f"{label}: {load.rate:.1f} tokens/s, first text {load.first(0.5):.3f} s, then {after:.1f} tokens/s a stream")
    results["runs"].append(
        {
            "name": contender.name,
            "ours": contender.is_this,
            "streams": streams,
            "rate": load.rate,
            "first": [a.first for a in load.answers],
            "after_first": after,
            "memory": memory,
            "drafted": sum(a.drafted for a in load.answers),
            "accepted": sum(a.accepted for a in load.answers),
            "texts": [a.text for a in load.answers] if round_ == 0 else None,
        }
    )


def predict(setup: Setup, texts: list[str], o: dict[str, Any]) -> list[dict[str, Any]]:
    """Every prompt plain and with an expected text, in turns on one stream; fresh servers, so nothing is remembered."""
    rows = []
    rng = random.Random(1)
    plain = Contender("plain", True, ("--speculate", "off"))
    for text in texts[: o["n_predict"]]:
        try:
            runs: dict[str, list[Answer]] = {"plain": [], "prediction": []}
            expected = ""
            for _ in range(o["rounds"]):
                with running(plain, setup, 1) as port:
                    runs["plain"].append(_single(port, body_of(text, o["n"]), o["timeout"]))
                    expected = expected or changed(runs["plain"][0].text, o["predict_errors"], rng)
                    more = {"prediction": {"type": "content", "content": expected}}
                    runs["prediction"].append(_single(port, body_of(text, o["n"], **more), o["timeout"]))
        except LoadError as error:
            say(f"prediction: {error}")
            continue
        rates = {k: statistics.median(a.tokens / (a.seconds - a.first) for a in v) for k, v in runs.items()}
        last = runs["prediction"][-1]
        rows.append(
            {
                "plain": rates["plain"],
                "prediction": rates["prediction"],
                "drafted": last.drafted,
                "accepted": last.accepted,
                "tokens_per_step": last.tokens / last.steps if last.steps else 0.0,
                "same_text": last.text == runs["plain"][-1].text,
            }
        )
        say(f"prediction: {rates['prediction'] / rates['plain']:.2f}x plain, accepted {last.accepted}/{last.drafted}")
    return rows


def _single(port: int, body: dict[str, Any], timeout: float) -> Answer:
    run("127.0.0.1", port, [body_of("Hello", 8)], 1, timeout)
    return run("127.0.0.1", port, [body], 1, timeout).answers[0]


def changed(text: str, share: float, rng: random.Random) -> str:
    """`text` with a share of its words replaced, as before an edit."""
    parts = re.split(r"(\W+)", text)
    return "".join("other" if part.isalnum() and rng.random() < share else part for part in parts)


if __name__ == "__main__":
    main()
