"""Kill -9 of the chat's store while it writes, again and again on the same file: nothing acknowledged may be lost.

    python scripts/chaos_store.py --kills 100

A child writes messages and streams answers. It prints a number when the store has said that everything up to there is
on disk (`Store.flush`). It is killed at a random moment; then the file is opened as the chat opens it, checked by
SQLite, and everything that was acknowledged in this and every earlier round must be there, in order. Ends with code 1
if anything is missing.
"""

from __future__ import annotations

import random
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lcspec.answers.text import Piece
from lcspec.tui.store import Store

WAIT = 60.0
# Streamed text is on disk after half a second by itself; a busy machine gets this much.
STREAMED_SECONDS = 2.5


def write(path: Path, first: int) -> None:
    """The child: chats of messages `first`, `first + 1`, ...; each line is what is now on disk."""
    store = Store(path)
    number = first
    while True:
        chat = store.create(title=f"chat {number}")
        print(f"chat {number} {chat.id}", flush=True)
        for _ in range(5):
            chat.add_user(f"question {number}")
            answer = chat.begin_answer(model="m")
            for i in range(10):
                answer.append([Piece(f"{number}.{i} ", "ngram" if i % 2 else None)], 1)
                print(f"said {number}.{i} {time.time()}", flush=True)
                time.sleep(0.001 * (number % 3))
            answer.finish(stop_reason="stop")
            if store.flush(WAIT):
                print(f"kept {number} {chat.id}", flush=True)
            number += 1


@dataclass
class Ledger:
    """What the child was told is safe: chat id -> numbers of its messages."""

    kept: dict[str, list[int]] = field(default_factory=dict)
    said: list[tuple[str, float]] = field(default_factory=list)  # of the round at hand
    last: int = 0

    def note(self, line: str) -> None:
        """A line of the child's."""
        word, what, rest = line.split()
        if word == "kept":
            self.kept.setdefault(rest, []).append(int(what))
        elif word == "said":
            self.said.append((what, float(rest)))
        if word != "said":
            self.last = max(self.last, int(what))


def round_of(path: Path, ledger: Ledger, seconds: float) -> float:
    """Let the child write for so long, kill it, and note what it said; returns the time of death."""
    command = [sys.executable, str(Path(__file__).resolve()), "--write", str(path), "--first", str(ledger.last + 1)]
    ledger.said.clear()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ledger.note(child.stdout.readline())  # it runs
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and select.select([child.stdout], [], [], left)[0]:
            line = child.stdout.readline()
            if not line:
                raise SystemExit("the child ended by itself")
            ledger.note(line)
        child.send_signal(signal.SIGKILL)
        killed = time.time()
        for line in child.stdout.read().splitlines():
            if line.count(" ") == 2:  # the last one may be cut off
                ledger.note(line)
    return killed


def missing(path: Path, ledger: Ledger, killed: float) -> list[str]:
    """What is wrong with the file."""
    with Store(path) as store:
        if store.problem is not None:
            return [f"the store reports {store.problem.kind}: {store.problem.message}"]
        wrong = []
        for chat_id, numbers in ledger.kept.items():
            branch = store.load(chat_id).branch
            asked = [m.text for m in branch if m.role == "user"]
            answers = [m.text for m in branch if m.role != "user"]
            for number in numbers:
                if f"question {number}" not in asked:
                    wrong.append(f"question {number} is gone")
                if "".join(f"{number}.{i} " for i in range(10)) not in answers:
                    wrong.append(f"answer {number} is gone or not whole")
            if asked != sorted(asked, key=lambda text: int(text.split()[1])):
                wrong.append(f"the questions of {chat_id} are out of order")
        texts = [m.text for s in store.chats() for m in store.load(s.info.id).branch]
        there = {word for text in texts for word in text.split()}
        wrong += [
            f"{w} was streamed and is gone" for w, t in ledger.said if t < killed - STREAMED_SECONDS and w not in there
        ]
    return wrong + damage(path)


def damage(path: Path) -> list[str]:
    """What SQLite has to say of the file."""
    with sqlite3.connect(path) as connection:
        whole = connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return [] if whole else ["SQLite says that the file is damaged"]


def tell(kills: int, wrong: list[str]) -> NoReturn:
    """Say what was wrong after so many kills, and end with code 1 if anything was."""
    for line in wrong:
        click.echo(line)
    click.echo(f"{kills} kills, {len(wrong)} wrong")
    sys.exit(1 if wrong else 0)


def run(path: Path, kills: int, seed: int, longest: float = 0.4) -> list[str]:
    """So many kills on one file; what was wrong."""
    rng, ledger = random.Random(seed), Ledger()
    for i in range(kills):
        killed = round_of(path, ledger, rng.uniform(0.0, longest))
        wrong = missing(path, ledger, killed)
        if wrong:
            return [f"kill {i + 1} (seed {seed}): {line}" for line in wrong]
    if not ledger.kept:
        return ["nothing was acknowledged: no round was long enough"]
    return []


@click.command()
@click.option("--kills", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--write", "path", hidden=True, type=click.Path(path_type=Path))
@click.option("--first", hidden=True, type=int, default=1)
def main(kills: int, seed: int, path: Path | None, first: int) -> None:
    """Kill the store's writer."""
    if path is not None:
        write(path, first)
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(Path(folder) / "chats.db", kills, seed)
    tell(kills, wrong)


if __name__ == "__main__":
    main()
