"""`lcspec draft store`: read text files, tokenize them and make a datastore for the `store` drafter."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence

import click

from lcspec.config import ModelOptions
from lcspec.drafters.datastore import MAGIC, DatastoreError, DatastoreWriter, StoreInfo
from lcspec.errors import TokenizeError, UsageError
from lcspec.modelfiles.gguf_header import format_size
from lcspec.session import ModelPair, loading_line

if TYPE_CHECKING:
    from lcspec.llama import Vocab

# Characters that are tokenized at once, so that a large file never is in memory as a whole.
PIECE = 1 << 20
LINE = 1 << 16
# What is looked at to tell binary files.
HEAD = 1 << 13

Progress = Callable[[int], None]


@dataclass
class Skipped:
    """Files that were left out, by reason."""

    binary: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    not_in_vocabulary: list[str] = field(default_factory=list)


def run(files: Sequence[Path], model: Path | None, out: Path, as_json: bool) -> None:
    """Make the datastore and say what is in it.

    Raises:
        LcspecError: there is no text, the model cannot be read, or the store cannot be written.
    """
    check_out(out)
    paths = list(dict.fromkeys(text_files(files)))
    if not paths:
        raise UsageError("there is no file to read: name text files or directories with some")
    from lcspec.llama import load_vocab

    pair = ModelPair.resolve(model)
    loading = loading_line()
    options = ModelOptions(pair.target)
    skipped = Skipped()
    progress = None if loading is None else (lambda f: loading(pair.target.name, f))
    with load_vocab(options, progress) as vocab:
        total = sum(_size(p) for p in paths)
        hidden = as_json or not sys.stderr.isatty()
        with click.progressbar(length=total, label="reading", file=sys.stderr, hidden=hidden) as bar:
            info = build(vocab, paths, out, skipped, bar.update)
    report(info, out, skipped, as_json)


def build(vocab: Vocab, paths: Sequence[Path], out: Path, skipped: Skipped, progress: Progress) -> StoreInfo:
    """Write the store at `out` from the text files in `paths`; `progress` is told of every piece's bytes.

    Raises:
        DatastoreError: it cannot be written, or there was no text at all.
    """
    writer = DatastoreWriter(out, vocab.digest, vocab.n_tokens, vocab.path.name)
    try:
        for path in paths:
            _read(vocab, path, writer, skipped, progress)
        if not writer.n_tokens:
            raise DatastoreError("none of the files has any text: name text files (UTF-8) or directories with some")
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def _read(vocab: Vocab, path: Path, writer: DatastoreWriter, skipped: Skipped, progress: Progress) -> None:
    """Add one file. What comes before a byte that is no text is kept."""
    some = False
    try:
        for piece in pieces(path):
            tokens = vocab.tokenize(piece, special=False, parse_special=False)
            writer.add(tokens, end_of_text=False)
            size = len(piece.encode())
            writer.source_bytes += size
            progress(size)
            some = some or bool(tokens)
    except UnicodeDecodeError:
        skipped.binary.append(str(path))
    except OSError:
        skipped.unreadable.append(str(path))
    except TokenizeError:
        skipped.not_in_vocabulary.append(str(path))
    if some:
        writer.add([])
        writer.n_files += 1


def pieces(path: Path) -> Iterator[str]:
    """A text file in pieces that end with a line where lines are not endless.

    Raises:
        UnicodeDecodeError: it is binary.
        OSError: it cannot be read.
    """
    with path.open("rb") as raw:
        head = raw.read(HEAD)
    if b"\0" in head:
        raise UnicodeDecodeError("utf-8", head, 0, 1, "binary")
    with path.open(encoding="utf-8") as file:
        while piece := file.read(PIECE):
            yield piece + file.readline(LINE)


def text_files(named: Sequence[Path]) -> Iterator[Path]:
    """The named files, and all files below named directories but hidden ones, in a fixed order.

    Raises:
        UsageError: a path does not exist.
    """
    for path in named:
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(f for f in folders if not f.startswith("."))
                for name in sorted(names):
                    if not name.startswith(".") and (Path(folder) / name).is_file():
                        yield Path(folder) / name
        elif path.exists():
            yield path
        else:
            raise UsageError(f"there is no file or directory {path}")


def check_out(out: Path) -> None:
    """Refuse to write over anything but a datastore.

    Raises:
        UsageError: `out` is something else or its folder does not exist.
    """
    if not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} does not exist: create it first")
    if out.is_dir():
        raise UsageError(f"{out} is a directory: give the name of a file to write")
    if out.exists():
        with out.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise UsageError(f"{out} exists and is no datastore: give another name")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def report(info: StoreInfo, out: Path, skipped: Skipped, as_json: bool) -> None:
    """Say what was made."""
    if as_json:
        told: dict[str, Any] = {
            "store": str(out),
            "bytes": out.stat().st_size,
            **asdict(info),
            "skipped": asdict(skipped),
        }
        click.echo(json.dumps(told))
        return
    click.echo(
        f"{out}: {info.n_tokens} tokens of {info.n_files} files ({format_size(info.source_bytes)} of text) for the "
        f"vocabulary of {info.model}, {format_size(out.stat().st_size)}"
    )
    reasons = {"binary or not UTF-8": skipped.binary, "unreadable": skipped.unreadable}
    reasons["not expressible in this vocabulary"] = skipped.not_in_vocabulary
    for reason, names in reasons.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            click.echo(f"skipped, {reason}: {', '.join(names[:3])}{more}", err=True)
    click.echo(f"Use it with --store {out}.")
