"""Conversations of twenty turns with tools, with the chat templates of a folder: every client, streamed and whole.

    python scripts/tool_conversations.py llama.cpp/models/templates [--only qwen] [--client OpenAIChat]

As tests/server/test_tool_conversations.py, which has templates of its own: a model recites what one of the template's
family would write, a real client reads it, sends back what the tools gave, and the answer must be what was written.
Ends with code 1 if one was not.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx

from lcspec.answers.formats import format_of
from lcspec.answers.openings import opened_by
from lcspec.server.lifecycle import Background
from tests.reciter import marker
from tests.server.running import HELLO, MODEL, WAIT
from tests.server.talks import TALKS
from tests.server.test_tool_conversations import hold, reciting
from tests.tool_answers import TOOLS, turns


def prompt_of(server: Background) -> str:
    """What the template makes of a question."""
    tools = [{"type": "function", "function": tool} for tool in TOOLS]
    body = {"messages": [HELLO[0] | {"content": marker(0)}], "tools": tools}
    got = httpx.post(f"{server.url}/apply-template", json=body, timeout=WAIT)
    return str(got.json()["prompt"])


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", default="", help="Templates with this in their name.")
@click.option("--client", default="", help="One of the clients.")
def main(folder: Path, only: str, client: str) -> None:
    """Hold the conversations."""
    wrong = 0
    for path in sorted(path for path in folder.glob("*.jinja") if only in path.name):
        text = path.read_text(encoding="utf-8")
        form = format_of(text)
        with tempfile.TemporaryDirectory() as place:
            with reciting(form, text, Path(place)) as server:
                prompt = prompt_of(server)
            tags = opened_by(form, prompt)
            closed = any(prompt.rstrip().endswith(t.end.strip()) for t in form.reasoning)
            with reciting(form, text, Path(place), tags, not closed) as server:
                for kind in TALKS:
                    if client and kind.__name__ != client:
                        continue
                    prompted = ", opened" if tags else ", closed" if closed else ""
                    said = f"{path.stem} ({form.name}{prompted}) {kind.__name__}"
                    try:
                        answers = hold(kind(server.url, MODEL, TOOLS), turns(form, not closed))
                    except Exception as error:
                        wrong += 1
                        click.echo(f"{said}: {type(error).__name__} {str(error)[:1500]}")
                        if not isinstance(error, AssertionError):
                            click.echo("".join(traceback.format_tb(error.__traceback__)[-2:]))
                        continue
                    pairs = [(a.cached, b.prompt) for b, a in zip(answers, answers[1:]) if a.cached is not None]
                    kept = sum(cached for cached, _ in pairs) / max(1, sum(prompt for _, prompt in pairs))
                    reused = f", {kept:.0%} of earlier prompts reused" if pairs else ""
                    click.echo(f"{said}: {len(answers)} turns{reused}")
    click.echo(f"{wrong} conversations went wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
