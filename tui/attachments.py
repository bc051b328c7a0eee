"""Text files attached to a message: finding their paths in what was typed, pasted or dragged in, reading them, and
putting them into the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence, Sized

from lcspec.errors import LcspecError

MAX_BYTES = 1 << 20


class AttachmentError(LcspecError):
    """A file cannot be attached; the message says why and what to do."""


@dataclass(frozen=True)
class Attachment:
    """A text file as it was when it was attached.

    Attributes:
        name: the file's name, for people and for the model.
        path: where it was read from (absolute), for people.
        text: its text; line ends are \\n.
        n_bytes: its size on disk.
        encoding: how it was decoded, e.g. "utf-8".
    """

    name: str
    path: str
    text: str
    n_bytes: int
    encoding: str = "utf-8"

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it back."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Attachment:
        """The opposite of `as_dict`; missing or wrong entries become empty."""
        raise NotImplementedError


def file_command(line: str) -> list[Path] | None:
    """The paths of a `/file PATH...` line (quoted, with escaped spaces, ~, or file:// URLs); None if it is none."""
    raise NotImplementedError


def pasted_paths(text: str, base: Path | None = None) -> list[Path]:
    """Paths that a terminal pastes when files are dragged in; empty if the text is anything but paths of files.

    Every word must name an existing file, else the paste is ordinary text. Relative paths count from `base`.
    """
    raise NotImplementedError


def read_attachment(path: Path, max_bytes: int = MAX_BYTES) -> Attachment:
    """Read a text file.

    Raises:
        AttachmentError: it is missing, a directory, not readable, too large, or not text.
    """
    raise NotImplementedError


def compose(text: str, attachments: Sequence[Attachment]) -> str:
    """The message as the model gets it: each file in a fence of its own under its name, then the text."""
    raise NotImplementedError


def count_tokens(attachment: Attachment, tokenize: Callable[[str], Sized]) -> int:
    """Tokens that the file adds to a message, with its fence and name; `tokenize` as `vocab.tokenize`.

    Raises:
        TokenizeError: the vocabulary has no tokens for some of it (whatever `tokenize` raises).
    """
    raise NotImplementedError
