"""What the chat's interface costs: key press to echo while a model decodes, tokens per second, opening a long chat.

    python scripts/chat_latency.py                       # a scaled-cost 1b target, written to work/ once
    python scripts/chat_latency.py --model MODEL.gguf --draft DRAFT.gguf

Run it on an idle machine. The first two run `lcspec chat` in a pseudo-terminal, as a user's terminal would; the third
runs the application without one. Nothing of the user's is read or written.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from pseudo_terminal import COLUMNS, LCSPEC, ROWS, chatting
from scale_model import scale_model

from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.tui.store import Message, Store

PROMPT = "Write a python function to find the maximum of a list of numbers."
# Letters that no answer has, so that an echo is told from the answer.
LETTERS = [chr(c) for c in range(0x410, 0x450)]


def last_answer(data: Path) -> Message:
    """The newest answer in a data directory."""
    with Store(data / "chats.db") as store:
        latest = store.latest()
        assert latest is not None, "nothing was saved"
        return store.load(latest.id).branch[-1]


def echo(arguments: list[str], data: Path, keys: int) -> dict[str, Any]:
    """Milliseconds from a key press to its echo while the model answers."""
    times: list[float] = []
    with chatting(arguments, data) as terminal:
        terminal.type(PROMPT + "\r")
        terminal.wait_for("answering")
        rng = random.Random(1)
        for letter in LETTERS[:keys]:
            time.sleep(rng.uniform(0.05, 0.15))
            start, pressed = len(terminal.output), time.monotonic()
            terminal.type(letter)
            times.append((terminal.wait_for(letter, start) - pressed) * 1e3)
        ended = time.time()
    answer = last_answer(data)
    times.sort()
    return {
        "keys": len(times),
        "median_ms": round(statistics.median(times), 1),
        "p95_ms": round(times[int(0.95 * (len(times) - 1))], 1),
        "worst_ms": round(times[-1], 1),
        "answering_all_the_time": answer.stop_reason == "cancelled" or answer.updated >= ended,
    }


def plain_rate(arguments: list[str], n: int) -> float:
    """Tokens a second of the same request in `lcspec generate`."""
    done = subprocess.run(
        [*LCSPEC, "generate", *arguments, "--chat", "-p", PROMPT, "-n", str(n), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout)["stats"]["tokens_per_second"])


def chat_rate(arguments: list[str], data: Path, n: int) -> tuple[float, int]:
    """Tokens a second, and tokens, of the request in the chat."""
    with chatting([*arguments, "-n", str(n)], data) as terminal:
        terminal.type(PROMPT + "\r")
        terminal.wait_for("seed 1")
    answer = last_answer(data)
    return float(answer.stats["tokens_per_second"]), answer.tokens or 0


def cost(arguments: list[str], folder: Path, n: int, repeat: int) -> dict[str, Any]:
    """Tokens a second without and with the interface, in turn."""
    without, within, tokens = [], [], 0
    for i in range(repeat):
        without.append(plain_rate(arguments, n))
        rate, tokens = chat_rate(arguments, folder / f"cost{i}", n)
        within.append(rate)
    a, b = statistics.median(without), statistics.median(within)
    return {
        "tokens": tokens,
        "generate_tokens_per_second": [round(x, 2) for x in without],
        "chat_tokens_per_second": [round(x, 2) for x in within],
        "interface_cost": round(1 - b / a, 4),
    }


async def heartbeat(pauses: list[float], every: float = 0.005) -> None:
    """Note, in milliseconds, how much later than wanted the event loop comes round."""
    while True:
        start = time.perf_counter()
        await asyncio.sleep(every)
        pauses.append((time.perf_counter() - start - every) * 1e3)


async def opening(data: Path, n_messages: int) -> dict[str, Any]:
    """Seconds to open a conversation of many messages; milliseconds of a page up in it, and of the longest times in
    which the interface could not have taken a key."""
    from lcspec.answers.text import Piece
    from lcspec.tui.app import ChatApp, ChatOptions
    from lcspec.tui.screens.chat import ChatScreen

    options = ChatOptions(model=demo_path(DEMO_TARGET), overrides={"drafters": "off"}, store=data / "long.db")
    app = ChatApp(options)
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        while not (isinstance(app.screen, ChatScreen) and app.screen.is_mounted and app.screen.prompt.has_focus):
            await pilot.pause(0.02)
        screen = app.screen
        for i in range(n_messages // 2):
            user = screen.chat.add_user(f"Question {i}: how do I write it?")
            stored = screen.chat.begin_answer(parent=user.id)
            text = f"Like this ({i}):\n\n```python\ndef f(x):\n    return x + {i}\n```\n\n- one\n- **two**\n"
            stored.append([Piece(text, None)], 30)
            stored.finish("done", stop_reason="stop", tokens=30)
        app.store.flush()
        chat = screen.chat.id
        await screen.action_new_chat()
        await pilot.pause()
        start = time.perf_counter()
        await screen.open(app.store.load(chat))
        await pilot.pause()
        opened = time.perf_counter() - start
        pages, processor = [], []
        pauses: list[float] = []
        watch = asyncio.create_task(heartbeat(pauses))
        for _ in range(40):
            start, work = time.perf_counter(), time.thread_time()
            screen.transcript.scroll_page_up(animate=False)
            await pilot.pause()
            pages.append((time.perf_counter() - start) * 1e3)
            processor.append((time.thread_time() - work) * 1e3)
        watch.cancel()
        widgets = len(screen.transcript.views)
    app.shut_down()
    return {
        "messages": n_messages,
        "open_seconds": round(opened, 3),
        "page_up_median_ms": round(statistics.median(pages), 1),
        "page_up_worst_ms": round(max(pages), 1),
        "page_up_processor_median_ms": round(statistics.median(processor), 1),
        "longest_pauses_ms": [round(p, 1) for p in sorted(pauses)[-5:]],
        "messages_that_are_widgets_after_40_pages": widgets,
    }


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="Target (default: a scaled-cost 1b one).")
@click.option("--draft", type=click.Path(path_type=Path), help="Draft model.")
@click.option("--speculate", default="auto", show_default=True)
@click.option("--threads", default=0, help="CPU threads (0: physical cores).")
@click.option("--keys", type=click.IntRange(2, len(LETTERS)), default=48, show_default=True)
@click.option("-n", "n_tokens", default=400, show_default=True, help="Tokens of an answer.")
@click.option("--repeat", default=3, show_default=True)
@click.option("--messages", default=500, show_default=True)
@click.option("--only", type=click.Choice(["echo", "cost", "open"]), multiple=True)
def main(
    model: Path | None,
    draft: Path | None,
    speculate: str,
    threads: int,
    keys: int,
    n_tokens: int,
    repeat: int,
    messages: int,
    only: tuple[str, ...],
) -> None:
    """Measure, and print one JSON object."""
    if model is None:
        model = Path("work/demo-target-1b-q4_0.gguf")
        if not model.exists():
            model.parent.mkdir(exist_ok=True)
            click.echo(f"writing {model} ...", err=True)
            scale_model(demo_path(DEMO_TARGET), model, "1b", "Q4_0")
    arguments = [str(model), "--temp", "0", "--seed", "1", "--speculate", speculate, "--threads", str(threads)]
    arguments += ["--draft", str(draft)] if draft is not None else []
    wanted = only or ("echo", "cost", "open")
    found: dict[str, Any] = {"model": str(model), "speculate": speculate}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
        os.environ["LCSPEC_DATA_DIR"] = str(folder / "data")
        if "echo" in wanted:
            found["echo"] = echo(arguments, folder / "echo", keys)
        if "cost" in wanted:
            found["cost"] = cost(arguments, folder, n_tokens, repeat)
        if "open" in wanted:
            found["open"] = asyncio.run(opening(folder, messages))
    click.echo(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
