"""Text files attached to a message: finding their paths in what was typed, pasted or dragged in, reading them, and
putting them into the prompt."""

from __future__ import annotations

import codecs
import itertools
import os
import re
import shlex
import stat
import urllib.parse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence, Sized

from lcspec.errors import LcspecError
from lcspec.modelfiles.gguf_header import format_size
from lcspec.paths import printable

MAX_BYTES = 1 << 20
MAX_PASTE = 1 << 16  # characters; no terminal drags in more paths than that

_LANGUAGES = {
    ".py": "python", ".pyi": "python", ".js": "javascript", ".ts": "typescript", ".tsx": "tsx", ".rs": "rust",
    ".go": "go", ".c": "c", ".h": "c", ".cc": "cpp", ".cpp": "cpp", ".hpp": "cpp", ".java": "java", ".rb": "ruby",
    ".sh": "bash", ".html": "html", ".css": "css", ".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml",
    ".md": "markdown", ".sql": "sql", ".xml": "xml", ".diff": "diff", ".patch": "diff", ".lua": "lua", ".cs": "csharp",
    ".swift": "swift", ".kt": "kotlin", ".php": "php", ".tex": "latex", ".ini": "ini", ".csv": "csv",
}  # fmt: skip


class AttachmentError(LcspecError):
    """A file cannot be attached; the message says why and what to do."""


@dataclass(frozen=True)
class Attachment:
    """A text file as it was when it was attached.

    Attributes:
        name: the file's name, for people and for the model; one line.
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
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Attachment:
        """The opposite of `as_dict`; missing or wrong entries become empty."""

        def text(key: str) -> str:
            value = data.get(key)
            return printable(value, keep_lines=True) if isinstance(value, str) else ""

        size = data.get("n_bytes")
        n_bytes = size if isinstance(size, int) and not isinstance(size, bool) else len(text("text").encode())
        return cls(text("name"), text("path"), text("text"), n_bytes, text("encoding") or "utf-8")


# --- paths ------------------------------------------------------------------------------------------------------------


def file_command(line: str) -> list[Path] | None:
    """The paths of a `/file PATH...` line (quoted, with escaped spaces, ~, or file:// URLs); None if it is none.

    An unquoted path with spaces is understood if it exists as it stands.
    """
    match = re.fullmatch(r"\s*/file(?:\s+(.*?))?\s*", line, re.DOTALL)
    if match is None:
        return None
    rest = match.group(1) or ""
    if not rest:
        return []
    whole = _path(rest)
    if whole is not None and _exists(whole):
        return [whole]
    words = _words(rest)
    found = [_path(word) for word in words] if words else [whole]
    return [path for path in found if path is not None] or [Path(rest)]


def pasted_paths(text: str, base: Path | None = None) -> list[Path]:
    """Paths that a terminal pastes when files are dragged in; empty if the text is anything but paths of files.

    Every word must be the absolute path (or file:// URL, or ~/path) of an existing file or directory, else the paste is
    ordinary text; with `base`, relative paths count too. One path may stand on a line of its own unquoted.
    """
    text = text.strip()
    if not text or len(text) > MAX_PASTE:
        return []
    whole = _absolute(text, base) if "\n" not in text else None
    if whole is not None:
        return [whole]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for parts in (lines, _words(text) or []):
        found = [path for part in parts if (path := _absolute(part, base)) is not None]
        if found and len(found) == len(parts):
            return list(dict.fromkeys(found))
    return []


def _absolute(word: str, base: Path | None) -> Path | None:
    """The existing file that a word names, or None."""
    path = _path(word)
    if path is None:
        return None
    if not path.is_absolute():
        if base is None:
            return None
        path = base / path
    return path if _exists(path) else None


def _path(word: str) -> Path | None:
    """A word as a path: file:// URLs decoded, ~ expanded."""
    if word.lower().startswith("file://"):
        try:
            url = urllib.parse.urlsplit(word)
        except ValueError:
            return None
        if url.netloc not in ("", "localhost", os.uname().nodename):
            return None
        # '?' and '#' end a URL's path, but many terminals paste them unescaped
        rest = "".join(mark + part for mark, part in (("?", url.query), ("#", url.fragment)) if part)
        word = os.fsdecode(urllib.parse.unquote_to_bytes(url.path + rest))
    elif word.startswith("~"):
        try:
            word = os.path.expanduser(word)
        except ValueError:  # no user has such a name
            return None
    return Path(word) if word and "\0" not in word else None


def _words(text: str) -> list[str] | None:
    """Words as a shell reads them (quotes, backslashes), or None if they are not well formed."""
    try:
        return shlex.split(text)
    except ValueError:
        return None


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (OSError, ValueError):  # also names that are too long, half characters
        return False
    return True


# --- reading ----------------------------------------------------------------------------------------------------------


def read_attachment(path: Path, max_bytes: int = MAX_BYTES) -> Attachment:
    """Read a text file.

    Raises:
        AttachmentError: it is missing, a directory, not readable, too large, or not text.
    """
    shown = printable(path)
    try:
        # without waiting for the writer of a pipe
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise AttachmentError(f"{shown} is not a regular file: only files with text can be attached")
            if status.st_size <= max_bytes:
                data = file.read(max_bytes + 1)  # some files (in /proc) are longer than they say
            if status.st_size > max_bytes or len(data) > max_bytes:
                size = format_size(max(status.st_size, max_bytes + 1))
                raise AttachmentError(f"{shown} is too large to attach ({size}): paste the part that matters")
    except IsADirectoryError:
        raise AttachmentError(f"{shown} is a directory: attach the files in it one by one") from None
    except FileNotFoundError:
        raise AttachmentError(f"there is no file {shown}: check the path") from None
    except PermissionError:
        raise AttachmentError(f"{shown} may not be read: check its permissions") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AttachmentError(f"{shown} cannot be read: {reason}") from None
    text, encoding = _decode(data, shown)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    absolute = printable(os.path.abspath(path))
    return Attachment(printable(path.name) or absolute, absolute, text, len(data), encoding)


def pasted_attachment(text: str, taken: Sequence[str] = (), max_bytes: int = MAX_BYTES) -> Attachment:
    """A long paste as if it were a file, under a name that is not among `taken`.

    Raises:
        AttachmentError: it is too large.
    """
    text = printable(text.replace("\r\n", "\n").replace("\r", "\n"), keep_lines=True)
    n_bytes = len(text.encode("utf-8", "replace"))
    if n_bytes > max_bytes:
        size, most = format_size(n_bytes), format_size(max_bytes)
        raise AttachmentError(f"the paste is too large ({size}, at most {most}): paste the part that matters")
    names = itertools.chain(["pasted.txt"], (f"pasted-{i}.txt" for i in itertools.count(2)))
    return Attachment(next(name for name in names if name not in taken), "", text, n_bytes)


_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What text files have besides printable characters: tab, line ends, form feed, escape (logs with colours), backspace.
_CONTROLS = frozenset(b"\t\n\r\f\x1b\b")


def _decode(data: bytes, shown: str) -> tuple[str, str]:
    """Text and encoding of a file's bytes: by its mark, else UTF-8, else Latin-1 if it looks like text.

    Raises:
        AttachmentError: it is not text.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return data.decode(encoding).replace("\0", "\N{REPLACEMENT CHARACTER}"), encoding
            except UnicodeDecodeError:
                break
    controls = sum(byte < 32 and byte not in _CONTROLS for byte in data)
    if b"\0" in data or controls > len(data) // 100:
        raise AttachmentError(f"{shown} is not text: only text files can be attached")
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError as error:
        # one bad byte in a long UTF-8 text is damage, not another encoding
        repaired = data.decode("utf-8", "replace")
        bad = repaired.count("\N{REPLACEMENT CHARACTER}")
        if sum(byte >= 0x80 for byte in data) > 8 * bad:
            return repaired, "utf-8 (damaged)"
        if any(0x80 <= byte < 0xA0 for byte in data[error.start :]):
            return data.decode("cp1252", "replace"), "cp1252"
        return data.decode("latin-1"), "latin-1"


# --- the prompt -------------------------------------------------------------------------------------------------------


def fenced(attachment: Attachment) -> str:
    """The file as the model gets it: its name, then its text in a fence longer than any in it."""
    longest = max((len(run) for run in re.findall(r"^ {0,3}(`{3,})", attachment.text, re.MULTILINE)), default=2)
    fence = "`" * (longest + 1)
    language = _LANGUAGES.get(os.path.splitext(attachment.name)[1].lower(), "")
    text = attachment.text if attachment.text.endswith("\n") or not attachment.text else attachment.text + "\n"
    return f"File: {attachment.name}\n{fence}{language}\n{text}{fence}"


def compose(text: str, attachments: Sequence[Attachment]) -> str:
    """The message as the model gets it: each file in a fence of its own under its name, then the text."""
    return "\n\n".join([*(fenced(a) for a in attachments), *([text] if text or not attachments else [])])


def count_tokens(attachment: Attachment, tokenize: Callable[[str], Sized]) -> int:
    """Tokens that the file adds to a message, with its fence and name, to within a token or two where texts join.

    `tokenize` gives the ids of a text without special tokens: `lambda text: vocab.tokenize(text, special=False)`.

    Raises:
        TokenizeError: the vocabulary has no tokens for some of it (whatever `tokenize` raises).
    """
    return len(tokenize(fenced(attachment) + "\n\n"))
