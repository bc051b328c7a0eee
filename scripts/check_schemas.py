"""Many JSON schemas, several temperatures, with and without speculation: does every finished answer validate?

    python scripts/check_schemas.py [MODEL.gguf] [--draft DRAFT.gguf] [-n 150] [--out results.json]

The schemas are those of the tests (tests/sampling/test_structured.py): of the kind that the JSON Schema test suite has,
and pydantic models with recursion, unions, enums and code in strings. Each is asked for at every temperature, by itself
and with every strategy; with --exact's kernels the texts must be identical. Ends with code 1 if anything was wrong.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lcspec.config import ModelOptions
from lcspec.engine.events import Finished, Tokens
from lcspec.engine.request import Request
from lcspec.errors import LcspecError
from lcspec.llama.grammar import compile_grammar
from lcspec.sampling.json_schema import schema_to_lark
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import ModelPair, Session, open_session, parse_speculation
from tests.sampling.test_structured import SCHEMAS, validate

ASKED = "Answer in JSON that follows this schema, with made-up content about a small town: "
SHOWN = 600  # characters of the schema in the prompt


def one(session: Session, prompt: tuple[int, ...], sampling: SamplingParams, strategy: str, n: int) -> tuple[str, str]:
    """An answer's text and the reason of its end."""
    speculation = parse_speculation(strategy, draft=None, exact=True)
    text, reason = "", ""
    for event in session.engine.run(Request(prompt, sampling, speculation, max_tokens=n)):
        if isinstance(event, Tokens):
            text += event.text
        elif isinstance(event, Finished):
            reason = event.reason
    return text, reason


def check(session: Session, name: str, temperature: float, strategies: list[str], n: int, seed: int) -> dict[str, Any]:
    """One schema at one temperature: how it ended, and what was wrong."""
    message = ASKED + json.dumps(SCHEMAS[name])[:SHOWN]
    prompt = tuple(session.chat_ids([{"role": "user", "content": message}])[0])
    grammar = compile_grammar(session.model.vocab, schema_to_lark(SCHEMAS[name]))
    sampling = SamplingParams(temperature, seed=seed, grammar=grammar)
    row: dict[str, Any] = {"schema": name, "temperature": temperature, "wrong": []}
    try:
        plain, row["end"] = one(session, prompt, sampling, "off", n)
        row["text"] = plain
        if row["end"] == "stop":
            validate(name, plain)
        for strategy in strategies:
            text, end = one(session, prompt, sampling, strategy, n)
            if (text, end) != (plain, row["end"]):
                row["wrong"].append(f"{strategy}: another text: {text[:200]!r}")
    except LcspecError as error:
        row["wrong"].append(f"failed: {error}")
    except Exception as error:  # jsonschema's, pydantic's and json's: what they say is the result
        row["wrong"].append(f"not valid: {type(error).__name__} {str(error)[:200]}")
    return row


@click.command()
@click.argument("model", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--temperatures", default="0,0.8,1.5", show_default=True)
@click.option("--strategies", default="auto ngram:min_n=1", show_default=True, help="Separated by spaces.")
@click.option("-n", "n", type=click.IntRange(1), default=150, show_default=True, help="Tokens of an answer at most.")
@click.option("--ctx", type=int, default=1024, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--only", multiple=True, help="Only schemas whose name contains this.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path))
def main(model: Path | None, temperatures: str, strategies: str, out: Path | None, **o: Any) -> None:
    """Check schemas."""
    path = ModelPair.resolve(model, ()).target
    names = [name for name in SCHEMAS if not o["only"] or any(part in name for part in o["only"])]
    heats = [float(t) for t in temperatures.split(",")]
    rows, start = list[dict[str, Any]](), time.monotonic()
    with open_session(ModelOptions(path, ctx=o["ctx"], threads=o["threads"], exact=True)) as session:
        for i, name in enumerate(names):
            for heat in heats:
                rows.append(check(session, name, heat, strategies.split(), o["n"], o["seed"]))
                for line in rows[-1]["wrong"]:
                    click.echo(f"{name} at {heat}: {line}")
            click.echo(f"{i + 1}/{len(names)} {name}, {time.monotonic() - start:.0f} s", err=True)
    wrong = sum(bool(row["wrong"]) for row in rows)
    ends = Counter(row.get("end", "failed") for row in rows)
    click.echo(
        f"{path.name}: {len(names)} schemas at temperatures {temperatures}, off and {strategies}: {len(rows)} cases, "
        f"{ends['stop']} finished, {len(rows) - ends['stop']} cut at {o['n']} tokens; {wrong} wrong"
    )
    if out is not None:
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
