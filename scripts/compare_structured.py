"""`lcspec serve` and llama-server side by side on chat answers: plain, under a JSON schema, and forced tool calls.

    python scripts/compare_structured.py TARGET.gguf --server build/bin/llama-server --out results/

`scripts/compare_peers.py build` builds that llama-server. For each number of streams all servers are started and given
one request of each kind. Then they take turns: on every kind and round the same new questions, one server at a time,
while the others are idle. Rounds go on while there is time for them (--minutes), at least two. lcspec runs with its
defaults, llama-server in several settings, of which its best counts, by the median for each kind and number of streams.

Answers end where the model ends them. Rates are tokens of answers a second over all streams, prompts included, by the
client's clock. Texts need not be the same, so answers a second are told too, and how many follow their schema.

Where the model's own template knows no tools, lcspec describes them in the prompt and llama-server leaves them out:
with --template (Qwen-Qwen2.5-7B-Instruct.jinja among llama.cpp's models/templates, say) both read the same prompt.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from servers.cases_table import markdown
from servers.load import Load, LoadError, run
from servers.output import finish, say
from servers.start import Contender, Setup, running
from servers.workload import CASES, Asked, requests

from lcspec.llama.threads import default_threads

BUSY = 0.8
CHAT = "/v1/chat/completions"
LEAST_ROUNDS, MOST_ROUNDS = 2, 7


def contenders() -> list[Contender]:
    """lcspec as it is, and llama-server's settings that may be its best without a draft model."""
    ngram = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "7")
    plain = Contender("llama-server", False)
    return [
        Contender("lcspec", True),
        plain,
        replace(plain, name="llama-server, -fa off", args=("-fa", "off")),
        replace(plain, name="llama-server, ngram", args=ngram),
    ]


@click.command()
@click.argument("target", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--server", "binary", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="llama-server.")
@click.option(
    "--template", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Chat template for both."
)
@click.option("--streams", default="1,2,4,8", show_default=True)
@click.option("--cases", default=",".join(CASES), show_default=True)
@click.option("--minutes", type=click.FloatRange(min=0), default=8.0, show_default=True, help="Of the whole run.")
@click.option(
    "--requests", "per_stream", type=click.IntRange(1), default=2, show_default=True, help="A stream and run."
)
@click.option("-n", "n", type=click.IntRange(2), default=160, show_default=True, help="Tokens of an answer at most.")
@click.option("--ctx", type=int, default=1024, show_default=True, help="Tokens of a slot.")
@click.option("--threads", type=int, default=0, help="0: what lcspec chooses, for both.")
@click.option("--only", multiple=True, help="Only contenders whose name contains this.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds of a run at most.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path))
def main(
    target: Path, binary: Path | None, template: Path | None, streams: str, cases: str, out: Path | None, **o: Any
) -> None:
    """Compare servers on structured answers."""
    levels = [int(s) for s in streams.split(",")]
    kinds = [case for case in cases.split(",") if case in CASES]
    setup = Setup(binary, target, None, o["threads"] or default_threads(), o["ctx"])
    given = ("--chat-template-file", str(template)) if template else ()
    everybody = [replace(c, args=(*c.args, *given)) for c in contenders()]
    who = [c for c in everybody if (c.ours or binary) and (not o["only"] or any(part in c.name for part in o["only"]))]
    if os.getloadavg()[0] > BUSY:
        say(f"warning: the machine is busy (load {os.getloadavg()[0]:.1f}): the figures will mean little")
    results: dict[str, Any] = {"target": target.name, "threads": setup.threads, "n": o["n"], "runs": []}
    results["template"] = template.name if template else None
    start = time.monotonic()
    try:
        for i, level in enumerate(levels):
            until = start + 60 * o["minutes"] * (i + 1) / len(levels)
            one_level(level, kinds, who, setup, until, o, results)
    except ValueError as error:
        raise click.ClickException(f"{error}: ask for fewer with --requests") from error
    except KeyboardInterrupt:
        say("interrupted: this is what there is")
    results["minutes"] = (time.monotonic() - start) / 60
    finish(out, "structured", results, markdown(results))


def one_level(
    streams: int, cases: list[str], who: list[Contender], setup: Setup, until: float, o: dict[str, Any],
    results: dict[str, Any],
) -> None:  # fmt: skip
    """Start everybody, and let them take turns until the time is over."""
    count = max(4, streams * o["per_stream"])
    asked = {case: requests(case, count * MOST_ROUNDS + 1, o["n"]) for case in cases}
    with contextlib.ExitStack() as stack:
        ports: dict[str, int] = {}
        for contender in who:
            try:
                ports[contender.name] = stack.enter_context(running(contender, setup, streams))
                # One request of each kind first: what is made at first use is not what is measured.
                for case in cases:
                    run("127.0.0.1", ports[contender.name], [asked[case][-1].body], 1, o["timeout"], CHAT)
            except LoadError as error:
                ports.pop(contender.name, None)
                say(f"{contender.name}, {streams} streams: {error}")
                results["runs"].append({"name": contender.name, "streams": streams, "error": str(error)})
        longest = 0.0
        for round_ in range(MOST_ROUNDS):
            begun = time.monotonic()
            if round_ >= LEAST_ROUNDS and begun + longest > until:
                break
            for case in cases:
                batch = asked[case][round_ * count : (round_ + 1) * count]
                for contender in who if round_ % 2 == 0 else who[::-1]:
                    if contender.name in ports:
                        note(contender, ports[contender.name], streams, case, round_, batch, o["timeout"], results)
            longest = max(longest, time.monotonic() - begun)


def note(
    contender: Contender, port: int, streams: int, case: str, round_: int, asked: list[Asked], timeout: float,
    results: dict[str, Any],
) -> None:  # fmt: skip
    """Put the load on a server, note what came."""
    row: dict[str, Any] = {"name": contender.name, "ours": contender.ours, "streams": streams, "case": case}
    try:
        load: Load = run("127.0.0.1", port, [a.body for a in asked], streams, timeout, CHAT)
    except LoadError as error:
        say(f"{contender.name}, {case}, {streams} streams: {error}")
        results["runs"].append({**row, "error": str(error)})
        return
    say(f"{contender.name}, {case}, {streams} streams, round {round_ + 1}: {load.rate:.1f} tokens/s")
    results["runs"].append(
        {
            **row,
            "round": round_ + 1,
            "rate": load.rate,
            "answers": len(asked) / load.seconds,
            "tokens": sum(a.tokens for a in load.answers),
            "read": sum(a.read for a in load.answers),
            "first": [a.first for a in load.answers],
            "whole": sum(a.end != "length" for a in load.answers),
            "held": sum(question.held_by(a) for question, a in zip(asked, load.answers)),
            "asked": len(asked),
            "drafted": sum(a.drafted for a in load.answers),
            "accepted": sum(a.accepted for a in load.answers),
            "texts": [a.text for a in load.answers] if round_ == 0 else None,
        }
    )


if __name__ == "__main__":
    main()
