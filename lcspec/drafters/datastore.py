"""A datastore of tokenized texts in one memory-mapped file. It finds the longest suffix of a text that it contains.

    magic, version, position of the index | shard | shard | ... | index (JSON)
    a shard: its text reversed, as big-endian tokens (n x width bytes) | its suffix array (n x uint32)

The text is stored reversed, because the longest *suffix* of a text is then the longest prefix of the reversed text,
which one binary search finds. It is big-endian, so that comparing bytes compares tokens. A token outside every
vocabulary separates the texts. Each shard has a suffix array of its own: the shard's size bounds the memory for
building it, and a look-up searches one shard after the other.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import mmap
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Sequence

import numpy as np

from lcspec.drafters.suffix_array import suffix_array
from lcspec.errors import LcspecError

MAGIC = b"LCSPTEXT"
FORMAT = 1
HEADER = struct.Struct("<8sIIQQ")  # magic, format, reserved, offset and length of the index
# Tokens in a shard; sorting takes about 45 bytes for each.
SHARD_TOKENS = 8_000_000
# The longest suffix to look for, in tokens.
MAX_MATCH = 64
ALIGNMENT = 8


class DatastoreError(LcspecError):
    """A datastore is missing, damaged, not a datastore, or made for another vocabulary."""


@dataclass(frozen=True)
class StoreInfo:
    """A datastore's description. `vocabulary` is `Vocab.digest`; `source_bytes` counts the text as read."""

    vocabulary: str
    n_vocab: int
    model: str
    n_tokens: int
    n_files: int
    source_bytes: int


@dataclass(frozen=True)
class Match:
    """A match: its length in tokens, and for every occurrence the tokens that followed it."""

    length: int
    found: int
    continuations: list[tuple[int, ...]]


class DatastoreWriter:
    """Writes a datastore text by text; the file appears at `path` only when `close` succeeds."""

    def __init__(self, path: Path, vocabulary: str, n_vocab: int, model: str, shard_tokens: int = SHARD_TOKENS) -> None:
        """Create the file.

        Raises:
            DatastoreError: it cannot be written.
        """
        self.path = path
        self.n_files = 0
        self.n_tokens = 0
        self.source_bytes = 0
        self._vocabulary, self._n_vocab, self._model = vocabulary, n_vocab, model
        self._width = 2 if n_vocab < 2**16 else 4  # room for the vocabulary and the token that separates texts
        self._limit = shard_tokens
        self._pending: list[np.ndarray] = []
        self._held = 0
        self._shards: list[dict[str, int]] = []
        self._temporary = path.with_name(path.name + ".part")
        try:
            self._file: IO[bytes] = self._temporary.open("wb")
            self._file.write(bytes(HEADER.size))
        except OSError as error:
            raise DatastoreError(f"cannot write {path}: {error.strerror}") from error

    def add(self, tokens: Sequence[int], end_of_text: bool = True) -> None:
        """Append tokens; with `end_of_text` the next ones start another text."""
        own = np.asarray([*tokens, self._n_vocab] if end_of_text else tokens, dtype=np.uint32)
        while own.size:
            part, own = own[: self._limit - self._held], own[self._limit - self._held :]
            self._pending.append(part)
            self._held += part.size
            if self._held >= self._limit:
                self._flush()
        self.n_tokens += len(tokens)

    def close(self) -> StoreInfo:
        """Write the last shard and the index, and move the file to its place.

        Raises:
            DatastoreError: the disk is full or the file cannot be moved there.
        """
        info = StoreInfo(self._vocabulary, self._n_vocab, self._model, self.n_tokens, self.n_files, self.source_bytes)
        try:
            self._flush()
            index = {"byteorder": sys.byteorder, "width": self._width, "shards": self._shards, **vars(info)}
            data = json.dumps(index).encode()
            offset = self._file.tell()
            self._file.write(data)
            self._file.seek(0)
            self._file.write(HEADER.pack(MAGIC, FORMAT, 0, offset, len(data)))
            self._file.close()
            os.replace(self._temporary, self.path)
        except OSError as error:
            self.abandon()
            raise DatastoreError(f"cannot write {self.path}: {error.strerror}") from error
        return info

    def abandon(self) -> None:
        """Delete the unfinished file."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()

    def _flush(self) -> None:
        """Write the held tokens as a shard."""
        if not self._held:
            return
        text = np.concatenate(self._pending)[::-1]
        self._pending, self._held = [], 0
        order = suffix_array(text)
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))
        start = self._file.tell()
        self._file.write(text.astype(f">u{self._width}").tobytes())
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))
        self._shards.append({"n": int(text.size), "text": start, "order": self._file.tell()})
        self._file.write(order.tobytes())


class _Shard:
    """One shard of a mapped file."""

    def __init__(self, data: mmap.mmap, text: int, order: int, n: int, width: int) -> None:
        self.data, self.n, self.width, self.text = data, n, width, text
        self.end = text + n * width
        self.order = memoryview(data)[order : order + 4 * n].cast("I")

    def read(self, at: int, n: int) -> bytes:
        """The bytes of `n` tokens from position `at` on; fewer at the end of the shard."""
        start = self.text + at * self.width
        return self.data[start : min(start + n * self.width, self.end)]

    def longest(self, pattern: bytes) -> int:
        """Length in tokens of the longest prefix of `pattern` that occurs in the shard."""
        n = len(pattern) // self.width
        at = bisect.bisect_left(self.order, pattern, key=lambda p: self.read(p, n))
        near = [self.read(self.order[i], n) for i in (at - 1, at) if 0 <= i < self.n]
        return max((_common(found, pattern) // self.width for found in near), default=0)

    def places(self, prefix: bytes) -> range:
        """The range of `order` with the suffixes that start with `prefix`."""
        n = len(prefix) // self.width

        def key(p: int) -> bytes:
            return self.read(p, n)

        low = bisect.bisect_left(self.order, prefix, key=key)
        return range(low, bisect.bisect_right(self.order, prefix, lo=low, key=key))


def _common(a: bytes, b: bytes) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    differing = int.from_bytes(a[:n], "big") ^ int.from_bytes(b[:n], "big")
    return n - (differing.bit_length() + 7) // 8


class Datastore:
    """An open datastore. Any file content is safe to read: damaged parts match nothing."""

    def __init__(self, path: Path) -> None:
        """Map the file.

        Raises:
            DatastoreError: it cannot be read, is damaged, or is another kind of file.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: the file is empty
            reason = getattr(error, "strerror", None) or "it is empty"
            raise DatastoreError(f"cannot read the datastore {path}: {reason}") from error
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        advice = "make it again with `lcspec draft store`"
        data = self._data
        if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
            raise DatastoreError(f"{self.path} is not a datastore: make one with `lcspec draft store`")
        _, version, _, offset, length = HEADER.unpack(data[: HEADER.size])
        if version != FORMAT:
            raise DatastoreError(f"{self.path} was made by another version of lcspec: {advice}")
        if offset + length != len(data):
            raise DatastoreError(f"{self.path} is incomplete: {advice}")
        try:
            index: dict[str, Any] = json.loads(data[offset : offset + length])
            self.info = StoreInfo(**{k: index[k] for k in StoreInfo.__dataclass_fields__})
            width, byteorder, shards = int(index["width"]), index["byteorder"], index["shards"]
            places = [(int(s["text"]), int(s["order"]), int(s["n"])) for s in shards]
        except (ValueError, KeyError, TypeError) as error:
            raise DatastoreError(f"{self.path} is damaged: {advice}") from error
        sound = all(t > 0 and n > 0 and t + n * width <= o and o + 4 * n <= offset for t, o, n in places)
        if width not in (2, 4) or byteorder != sys.byteorder or not sound:
            raise DatastoreError(f"{self.path} is damaged or from another kind of machine: {advice}")
        self.width = width
        self._shards = [_Shard(data, t, o, n, width) for t, o, n in places]

    def lookup(
        self, text: Sequence[int], *, min_match: int, ahead: int, most: int, longest: int = MAX_MATCH
    ) -> Match | None:
        """Find the longest suffix of `text` in the store, and what followed it; None if there is no match.

        Args:
            text: token ids.
            min_match: the shortest match in tokens.
            ahead: the most tokens of a continuation.
            most: the most occurrences that are read; they are spread evenly over all.
            longest: the longest match in tokens.
        """
        tail = list(text[-min(longest, MAX_MATCH) :])[::-1]
        if not tail or not 0 <= min(tail) <= max(tail) < self.info.n_vocab:
            return None
        pattern = struct.pack(f">{len(tail)}{'H' if self.width == 2 else 'I'}", *tail)
        lengths = [shard.longest(pattern) for shard in self._shards]
        length = max(lengths, default=0)
        if length < max(1, min_match):
            return None
        prefix = pattern[: length * self.width]
        hits = [(s, s.places(prefix)) for s, n in zip(self._shards, lengths) if n == length]
        found = sum(len(places) for _, places in hits)
        stride = max(1, -(-found // most))
        continuations = [self._after(s, s.order[i], ahead) for s, places in hits for i in places[::stride]]
        return Match(length, found, [c for c in continuations if c])

    def _after(self, shard: _Shard, at: int, n: int) -> tuple[int, ...]:
        """The tokens that follow a match in the text; reversed, the match starts at position `at`."""
        first = max(0, at - n)
        data = shard.read(first, at - first) if at <= shard.n else b""
        tokens = struct.unpack(f">{len(data) // self.width}{'H' if self.width == 2 else 'I'}", data)[::-1]
        end = next((i for i, t in enumerate(tokens) if t >= self.info.n_vocab), len(tokens))
        return tokens[:end]

    def close(self) -> None:
        """Unmap the file. Idempotent."""
        for shard in getattr(self, "_shards", []):
            shard.order.release()
        self._shards = []
        with contextlib.suppress(BufferError):
            self._data.close()
