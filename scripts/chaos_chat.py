"""Kill -9 of `lcspec chat` while an answer is written, again and again on the same file of conversations.

    python scripts/chaos_chat.py --kills 100

Every round starts the chat in a pseudo-terminal on a tiny model that counts for some seconds, asks for that in a new
conversation, and kills the chat, and nothing else, at a random moment. Afterwards the file must be whole, every earlier
conversation as it was, the question there (if it was asked a while ago), and what is there of the answer must be a
beginning of the answer. The engine's process must end by itself. At last `lcspec chat --resume` must show the latest
conversation. Nothing of the user's is read or written. Ends with code 1 if anything is wrong.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lcspec.tui.store import Store
from scripts.chaos_store import STREAMED_SECONDS, damage, tell
from scripts.pseudo_terminal import Terminal, chatting
from tests import tiny_gguf as tiny
from tests.reciter import marker, write_reciter

QUESTION = f"Count: {marker(0)}"
WORDS = [f"{i},\n" if i % 20 == 0 else f"{i}, " for i in range(1, 1200)]
ANSWER = "".join(WORDS)
HOW = ["--threads", "1", "--temp", "0", "-n", "2000", "--ctx", "2048"]
# Seconds within which the engine's process must have ended.
END_SECONDS = 15.0


@dataclass
class Ledger:
    """What is known to be on disk."""

    texts: dict[str, list[str]] = field(default_factory=dict)  # by conversation
    cut: int = 0  # kills that left a part of an answer


def texts_in(data: Path) -> dict[str, list[str]]:
    """The texts of every conversation in a data directory.

    Raises:
        click.ClickException: the store has something to report.
    """
    with Store(data / "chats.db") as store:
        if store.problem is not None:
            raise click.ClickException(f"the store reports {store.problem.kind}: {store.problem.message}")
        return {s.info.id: [m.text for m in store.load(s.info.id).branch] for s in store.chats()}


def children(pid: int) -> list[int]:
    """The processes that a process has started, as far as the system tells."""
    if shutil.which("ps") is None:
        return []
    found = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in found.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def runs(pid: int) -> bool:
    """Whether a process is there, and not just waits to be noticed."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def killed(model: Path, data: Path, after: float) -> list[int]:
    """Ask, and kill the chat so many seconds after it began to answer; returns the processes that it leaves."""
    terminal = Terminal([str(model), *HOW], data)
    try:
        terminal.ready()
        terminal.type(QUESTION + "\r")
        terminal.wait_for("answering")
        time.sleep(after)
        left = children(terminal.process.pid)
    finally:
        terminal.kill()
    return left


def wrong_after(data: Path, ledger: Ledger, after: float, left: list[int]) -> list[str]:
    """What a kill has done."""
    wrong, found = [], texts_in(data)
    for chat, texts in ledger.texts.items():
        if found.get(chat) != texts:
            wrong.append(f"an earlier conversation was {texts!r:.80} and is {found.get(chat)!r:.80}")
    new = [texts for chat, texts in found.items() if chat not in ledger.texts and texts]
    if after > STREAMED_SECONDS and (len(new) != 1 or len(new[0]) != 2 or not new[0][1]):
        wrong.append(f"after {after:.1f} s there is {new!r:.80}")
    for texts in new:
        if texts[0] != QUESTION or not ANSWER.startswith("".join(texts[1:])):
            wrong.append(f"what was kept is not what was said: {texts!r:.200}")
        ledger.cut += 0 < sum(map(len, texts[1:])) < len(ANSWER)
    ledger.texts = found
    wrong += damage(data / "chats.db")
    end = time.monotonic() + END_SECONDS
    while any(map(runs, left)):
        if time.monotonic() > end:
            return [*wrong, "the engine's process lives on"]
        time.sleep(0.05)
    return wrong


def run(data: Path, kills: int, seed: int, longest: float = 4.0) -> list[str]:
    """So many kills in one data directory; what was wrong."""
    rng, ledger = random.Random(seed), Ledger()
    model = data / "counts.gguf"
    write_reciter(model, [[(word, False) for word in WORDS]], chat_template=tiny.CHATML_TEMPLATE)
    for i in range(kills):
        after = rng.uniform(0.0, longest)
        wrong = wrong_after(data, ledger, after, killed(model, data, after))
        if wrong:
            return [f"kill {i + 1} (seed {seed}): {line}" for line in wrong]
    if not ledger.cut:
        return ["no kill fell into an answer"]
    with chatting([str(model), "--resume", *HOW], data) as terminal:
        terminal.wait_for(QUESTION)
    return []


@click.command()
@click.option("--kills", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(kills: int, seed: int) -> None:
    """Kill the chat."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"LCSPEC_CACHE_DIR": f"{folder}/cache", "XDG_CONFIG_HOME": f"{folder}/config"}
        wrong = run(Path(folder), kills, seed)
    tell(kills, wrong)


if __name__ == "__main__":
    main()
