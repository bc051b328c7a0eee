"""Assemble the prompts of docs/performance-scaled.md: six kinds of text in one JSON-lines file.

Word problems, code, code editing and unseen text come from a prompt collection given as an argument (JSON lines with
`id`, `set`, `category`, `turns`; its licences apply, the result is not for redistribution). Dialogue and repetitive
text are written here.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

DIALOGUE = [
    "Hi! I'd like to order a large latte with oat milk, please.",
    "Hello, how are you doing today?",
    "I love hiking with my dog. What do you like to do on weekends?",
    "Can I get two cappuccinos and a muffin to go?",
    "What kind of music do you listen to?",
    "I just moved to a new town and I don't know anyone yet.",
    "Do you have any iced drinks without caffeine?",
    "My sister is a nurse and works at night. What do you do for a living?",
    "Could you change my order to a small one, please?",
    "I have three cats and a turtle. Do you have pets?",
]

# (set, category) in the collection -> the kind of text it stands for here.
KINDS = {
    ("gsm8k", "math"): "word problems",
    ("humaneval", "code"): "code",
    ("refactor_benchmark", "code_edit"): "code editing",
    ("spec_bench", "summarization"): "unseen text",
}


def repetitive(i: int) -> str:
    """A text whose continuation is easy to guess from itself."""
    items = ["apples", "pears", "plums", "figs", "nuts"]
    rows = [f"{n:03d}, item {items[n % 5]}, price {(n * 7 + i) % 10}.50, in stock: yes" for n in range(1, 13)]
    return f"Table {i}\n" + "\n".join(rows) + "\n013, item"


@click.command()
@click.argument("collection", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--per-kind", default=10, show_default=True)
def main(collection: Path, out: Path, per_kind: int) -> None:
    """Write OUT from COLLECTION."""
    rows = [json.loads(line) for line in collection.read_text(encoding="utf-8").split("\n") if line.strip()]
    result = []
    for (set_name, category), kind in KINDS.items():
        found = [r for r in rows if r["set"] == set_name and r["category"] == category]
        for r in found[:: max(1, len(found) // per_kind)][:per_kind]:
            result.append({"id": r["id"], "category": kind, "turns": r["turns"][:1]})
    for i in range(per_kind):
        result.append({"id": f"dialogue/{i}", "category": "dialogue", "turns": [DIALOGUE[i % len(DIALOGUE)]]})
        result.append({"id": f"repetitive/{i}", "category": "repetitive text", "turns": [repetitive(i)]})
    out.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in result), encoding="utf-8")
    click.echo(f"{len(result)} prompts in {out}")


if __name__ == "__main__":
    main()
