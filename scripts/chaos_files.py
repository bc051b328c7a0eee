"""Damaged files: every file that lcspec reads, with bytes changed, and what becomes of it.

    python scripts/chaos_files.py --files 100000 [--kind gguf --kind settings ...] [--seed 1]

A child process reads one damaged file after another. Refusing it with a message is right, reading it is right; what is
wrong is another exception, a dead process, more than 10 seconds, or more memory than four times the file's size above
what the process had before. Ends with code 1 if anything was wrong; `--keep` keeps those files.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lcspec.errors import LcspecError
from scripts.chaos_kinds import KINDS, Kind

LIMIT_SECONDS = 10.0
TIMES_SIZE = 4
# What an allocator and Python's own caches may add, whatever the file's size.
SLACK = 8 << 20
RESTART_AFTER = 2000  # files


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged(data: bytes, rng: random.Random, text: bool) -> bytes:
    """A copy with one to four changes: bits, bytes, numbers, pieces cut out, doubled or moved, and the end cut off."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        rng.choice(_TEXT_CHANGES if text and rng.random() < 0.5 else _CHANGES)(out, rng)
    return bytes(out)


def _place(out: bytearray, rng: random.Random) -> int:
    """Mostly near the beginning, where headers are."""
    size = max(1, len(out))
    return rng.randrange(min(size, rng.choice((16, 64, 512, 4096, size))))


def _bit(out: bytearray, rng: random.Random) -> None:
    if out:
        out[_place(out, rng)] ^= 1 << rng.randrange(8)


def _bytes(out: bytearray, rng: random.Random) -> None:
    at = _place(out, rng)
    out[at : at + rng.randint(1, 8)] = rng.randbytes(rng.randint(1, 8))


def _number(out: bytearray, rng: random.Random) -> None:
    """A length or count that is far too large, negative or zero."""
    at, width = _place(out, rng), rng.choice((4, 8))
    value = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1, rng.getrandbits(64)))
    out[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")


def _cut(out: bytearray, rng: random.Random) -> None:
    del out[_place(out, rng) :]


def _remove(out: bytearray, rng: random.Random) -> None:
    at = _place(out, rng)
    del out[at : at + rng.randint(1, 256)]


def _double(out: bytearray, rng: random.Random) -> None:
    at = _place(out, rng)
    piece = out[at : at + rng.randint(1, 256)]
    out[at:at] = piece * rng.choice((1, 2, 50))


def _swap(out: bytearray, rng: random.Random) -> None:
    a, b, n = _place(out, rng), _place(out, rng), rng.randint(1, 32)
    out[a : a + n], out[b : b + n] = out[b : b + n], out[a : a + n]


def _token(out: bytearray, rng: random.Random) -> None:
    """Something that a text format might stumble over."""
    at = _place(out, rng)
    out[at:at] = rng.choice(_TOKENS)


def _digits(out: bytearray, rng: random.Random) -> None:
    digits = [i for i, byte in enumerate(out) if 48 <= byte <= 57]
    if digits:
        at = rng.choice(digits)
        out[at : at + 1] = rng.choice((b"-1", b"1e400", b"NaN", b"null", b"9" * 400, b"0.5", b'"7"', b"[]", b"{}"))


_TOKENS = (
    b"[" * 3000,
    b"{",
    b"}",
    b'"',
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\x00",
    b"\r",
    b"=",
    b"'''",
)
_CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _bit,
    _bytes,
    _number,
    _cut,
    _remove,
    _double,
    _swap,
)
_TEXT_CHANGES = (_token, _digits, _remove, _double, _swap)


# --- the child --------------------------------------------------------------------------------------------------------


def child(kind: Kind) -> None:
    """Read the files whose names come on standard input; a line of JSON for each."""
    for name in sys.stdin:
        path = Path(name.rstrip("\n"))
        before, wrong = _reset_peak(), None
        try:
            kind.read(path)
            outcome = "read"
        except LcspecError as error:
            outcome = "refused"
            if not str(error).strip() or "\n" in str(error).strip():
                wrong = f"a message of no line or several: {error!r}"
        except Exception:
            outcome, wrong = "error", traceback.format_exc()
        print(json.dumps({"outcome": outcome, "wrong": wrong, "grew": _peak() - before}), flush=True)


def _reset_peak() -> int:
    """Begin anew with the peak of resident memory, where the system can; bytes held now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()
    return _status("VmRSS")


def _peak() -> int:
    try:
        return _status("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(name)


class Child:
    """A process that reads files."""

    def __init__(self, kind: str) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--child", kind]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def read(self, path: Path, size: int) -> tuple[str, str | None]:
        """The outcome, and what was wrong if anything."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], LIMIT_SECONDS)[0]:
            self.end()
            return "hang", f"no answer within {LIMIT_SECONDS:g} s"
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.errors.seek(0)
            return "died", f"the process ended with {code}: {self.errors.read()[-500:].decode(errors='replace')}"
        found = json.loads(line)
        if found["wrong"] is None and found["grew"] > TIMES_SIZE * size + SLACK:
            return "memory", f"{found['grew']} bytes for a file of {size}"
        return found["outcome"], found["wrong"]

    def end(self) -> None:
        """Stop it."""
        self.process.kill()
        self.process.wait()
        self.errors.close()


# --- all of them ------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the files of one kind."""

    outcomes: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0


def run(name: str, files: int, seed: int, folder: Path, keep: Path | None = None) -> Tally:
    """Damage and read so many files of one kind."""
    kind, tally = KINDS[name], Tally()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        seeds = [path.read_bytes() for path in kind.seeds(Path(work))]
        reader = Child(name)
        try:
            for i, data in enumerate(_files(seeds, files, seed, kind.text)):
                path = Path(work) / kind.file_name
                path.write_bytes(data)
                began = time.monotonic()
                outcome, wrong = reader.read(path, len(data))
                if i % RESTART_AFTER:  # the first file also waits for the process to start
                    tally.slowest = max(tally.slowest, time.monotonic() - began)
                tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + 1
                if wrong is not None:
                    tally.wrong.append(f"{name} {i} (seed {seed}): {wrong}")
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"{name}-{seed}-{i}-{kind.file_name}").write_bytes(data)
                if outcome in ("hang", "died") or i % RESTART_AFTER == RESTART_AFTER - 1:
                    reader.end()
                    reader = Child(name)
        finally:
            reader.end()
    return tally


def _files(seeds: list[bytes], files: int, seed: int, text: bool) -> Iterator[bytes]:
    rng = random.Random(seed)
    for _ in range(files):
        yield damaged(rng.choice(seeds), rng, text)


@click.command()
@click.option("--files", type=click.IntRange(1), default=2000, show_default=True, help="Of all kinds together.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(sorted(KINDS)), help="Only these (repeatable).")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the files that something was wrong with.")
@click.option("--child", "child_kind", hidden=True, type=click.Choice(sorted(KINDS)))
def main(files: int, kinds: tuple[str, ...], seed: int, keep: Path | None, child_kind: str | None) -> None:
    """Read damaged files."""
    if child_kind is not None:
        child(KINDS[child_kind])
        return
    names = kinds or tuple(sorted(KINDS))
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LCSPEC_CACHE_DIR"] = folder
        for name in names:
            tally = run(name, -(-files // len(names)), seed, Path(folder), keep)
            counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(tally.outcomes.items()))
            click.echo(f"{name:12} {counts}; slowest {tally.slowest:.2f} s; {len(tally.wrong)} wrong")
            for line in tally.wrong[:5]:
                click.echo(f"  {line}")
            wrong += len(tally.wrong)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
