"""What a long conversation takes in memory beside the model: the chat with 1 000 messages, all of them looked at.

    python scripts/chat_memory.py --messages 1000

Peaks are compared: of a process that only loads the bundled model and answers once, and of the chat and its engine's
process together, on the same model, where the chat opens the conversation and pages through it to its beginning.
Nothing of the user's is read or written. Memory does not depend on how busy the machine is.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from lcspec.answers.text import Piece
from lcspec.config import ModelOptions
from lcspec.engine.request import Request
from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import open_session, parse_speculation
from lcspec.tui.app import ChatApp, ChatOptions
from lcspec.tui.screens.chat import ChatScreen

SIZE = (120, 40)
QUESTION = "Question {i}: how do I find the largest number of a list, and what happens if the list is empty?"
ANSWER = """Like this (answer {i}):

```python
def largest_{i}(numbers: list[float]) -> float:
    \"\"\"The largest of `numbers`; ValueError if there is none.\"\"\"
    if not numbers:
        raise ValueError("no numbers")
    best = numbers[0]
    for number in numbers[1:]:
        if number > best:
            best = number
    return best
```

- It looks at **every** number once, so it takes as long as the list is.
- An empty list has no largest number: then it raises `ValueError`, and the caller decides what to do.
- `max(numbers)` does the same; `max(numbers, default={i})` gives {i} for an empty list.

| numbers | largest |
|---|---|
| 1, 2, {i} | {i} |
| none | an error |
"""


def peak_bytes() -> int:
    """The most memory that this program ever had, and the largest of those it has started."""
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others kilobytes
    started = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    status = Path("/proc/self/status")  # getrusage also counts what the process had before it became this program
    if status.exists():
        lines = status.read_text().splitlines()
        return started + next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return started + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def engine() -> None:
    """The model alone: loaded, and one answer."""
    with open_session(ModelOptions(demo_path(DEMO_TARGET), threads=1)) as session:
        ids, stop = session.chat_ids([{"role": "user", "content": "Hello"}])
        list(session.engine.run(Request(ids, SamplingParams(temperature=0.0), parse_speculation("off", None), 8, stop)))


async def chat(folder: Path, n_messages: int) -> None:
    """The chat with a conversation of so many messages, from the last to the first."""
    overrides = {"drafters": "off", "threads": 1}
    app = ChatApp(ChatOptions(model=demo_path(DEMO_TARGET), overrides=overrides, store=folder / "chats.db"))
    async with app.run_test(size=SIZE) as pilot:
        while not (isinstance(app.screen, ChatScreen) and app.screen.is_mounted and app.screen.prompt.has_focus):
            await pilot.pause(0.02)
        screen = app.screen
        for i in range(n_messages // 2):
            user = screen.chat.add_user(QUESTION.format(i=i))
            stored = screen.chat.begin_answer(parent=user.id)
            # in pieces, each by a drafter or the model, as answers are kept
            words = ANSWER.format(i=i).split(" ")
            stored.append([Piece(f"{word} ", "ngram" if n % 3 else None) for n, word in enumerate(words)], len(words))
            stored.finish("done", stop_reason="stop", tokens=len(words))
        app.store.flush()
        kept = screen.chat.id
        await screen.action_new_chat()
        await screen.open(app.store.load(kept))
        for _ in range(20 * n_messages):
            await pilot.pause()
            if screen.transcript.first == 0 and screen.transcript.scroll_y == 0:
                break
            screen.transcript.scroll_page_up(animate=False)
        else:
            raise click.ClickException("the beginning was never reached")
    app.shut_down()


def peak_of(what: str, n_messages: int, cache: Path) -> int:
    """Bytes at the peak of a process of its own that does `what`: engine or chat. `cache`: what is known of the
    machine.
    """
    with tempfile.TemporaryDirectory() as name:
        own = {"HOME": name, "XDG_CONFIG_HOME": f"{name}/config"}
        own |= {"LCSPEC_DATA_DIR": f"{name}/data"}
        own |= {"LCSPEC_CACHE_DIR": str(cache)}
        command = [sys.executable, __file__, "--messages", str(n_messages), "--child", what]
        done = subprocess.run(command, env={**os.environ, **own}, cwd=name, capture_output=True, text=True)
        if done.returncode:
            raise click.ClickException(f"{what} failed: {done.stderr[-2000:]}")
        return int(done.stdout.splitlines()[-1])


def measure(n_messages: int, cache: Path) -> dict[str, Any]:
    """Megabytes of both processes, and what the chat takes beside the model; `cache`: as for peak_of."""
    # The first one measures the machine, which takes more memory than either.
    _, alone, together = (peak_of(what, n_messages, cache) for what in ("engine", "engine", "chat"))
    return {
        "messages": n_messages,
        "engine_mb": round(alone / 1e6, 1),
        "chat_mb": round(together / 1e6, 1),
        "beside_the_model_mb": round((together - alone) / 1e6, 1),
    }


@click.command()
@click.option("--messages", default=1000, show_default=True)
@click.option("--child", type=click.Choice(["engine", "chat"]), hidden=True)
def main(messages: int, child: str | None) -> None:
    """Measure, and print one JSON object."""
    if child is None:
        with tempfile.TemporaryDirectory() as cache:
            click.echo(json.dumps(measure(messages, Path(cache)), indent=2))
        return
    if child == "engine":
        engine()
    else:
        asyncio.run(chat(Path.cwd(), messages))
    click.echo(peak_bytes())


if __name__ == "__main__":
    main()
