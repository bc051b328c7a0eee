"""Texts with the target's most probable next tokens, on disk: append-only files that survive a kill.

    features.f16   the inputs of the target's layers at every token, float16 [n, width]; none if width is 0
    tokens.i32     the tokens, prompts included
    ids.i32        the TOP most probable next tokens after each, int32 [n, TOP]; of prompts, zeros but for the last
    shares.f16     their probabilities, float16 [n, TOP]; zeros where nothing is to be learned
    texts.i32      (length, group) of every finished text; written last, so it says what of the others is valid

A group is a prompt's source. Groups that are a multiple of HOLD_OUT are for validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HOLD_OUT = 16
TOP = 16


@dataclass(frozen=True)
class Text:
    """One text: features float16 [n, width] (width 0: none), tokens int32 [n], ids int32 [n, TOP], shares float16
    [n, TOP]."""

    features: NDArray[np.float16]
    tokens: NDArray[np.int32]
    ids: NDArray[np.int32]
    shares: NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def first(self) -> int:
        """The first token after which there is something to learn; the length if there is none."""
        known = np.flatnonzero(self.shares[:, 0])
        return int(known[0]) if known.size else len(self)


@dataclass(frozen=True)
class TextSet:
    """Texts, and which of them are held out."""

    texts: Sequence[Text]
    held_out: Sequence[bool]

    def part(self, held_out: bool) -> list[int]:
        """Which texts with something to learn are for validation, or for training."""
        mine = [i for i, held in enumerate(self.held_out) if held == held_out]
        return [i for i in mine if self.texts[i].first < len(self.texts[i])]


class TextStore:
    """A folder with the files above. Features are mapped, never read as a whole."""

    def __init__(self, folder: Path, width: int) -> None:
        """Open or create; what a killed run left half-written is cut off."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.width = folder, width
        self._sizes = {"tokens.i32": 4, "ids.i32": 4 * TOP, "shares.f16": 2 * TOP}
        if width:
            self._sizes["features.f16"] = 2 * width
        index = self._path("texts.i32")
        known = np.fromfile(index, np.int32) if index.exists() else np.zeros(0, np.int32)
        self._texts = [(int(n), int(g)) for n, g in known[: len(known) // 2 * 2].reshape(-1, 2)]
        stored = min(self._rows(name) for name in self._sizes)
        while len(self) > stored:
            self._texts.pop()
        for name, size in {**self._sizes, "texts.i32": 0}.items():
            with self._path(name).open("ab") as file:
                file.truncate(len(self) * size if size else len(self._texts) * 8)

    def __len__(self) -> int:
        """Tokens of all texts."""
        return sum(n for n, _ in self._texts)

    @property
    def answers(self) -> int:
        """Finished texts."""
        return len(self._texts)

    def append(self, text: Text, group: int) -> None:
        """Add a text."""
        data: dict[str, NDArray[Any]] = {
            "tokens.i32": text.tokens.astype(np.int32),
            "ids.i32": text.ids.astype(np.int32),
            "shares.f16": text.shares.astype(np.float16),
            "features.f16": text.features.astype(np.float16),
        }
        for name in self._sizes:
            with self._path(name).open("ab") as file:
                file.write(data[name].tobytes())
        with self._path("texts.i32").open("ab") as file:
            file.write(np.array([len(text), group], np.int32).tobytes())
        self._texts.append((len(text), group))

    def open(self) -> Sequence[Text]:
        """All texts, mapped."""
        n = len(self)
        if not n:
            return []
        features = np.zeros((n, 0), np.float16)
        if self.width:
            features = np.memmap(self._path("features.f16"), np.float16, "r", shape=(n, self.width))
        tokens = np.fromfile(self._path("tokens.i32"), np.int32, n)
        ids = np.memmap(self._path("ids.i32"), np.int32, "r", shape=(n, TOP))
        shares = np.memmap(self._path("shares.f16"), np.float16, "r", shape=(n, TOP))
        ends = np.cumsum([length for length, _ in self._texts])
        parts = [slice(int(end) - length, int(end)) for end, (length, _) in zip(ends, self._texts)]
        return [Text(features[at], tokens[at], ids[at], shares[at]) for at in parts]

    def held_out(self) -> list[bool]:
        """Whether each text is for validation. Where no group or every group would be: every HOLD_OUT-th text."""
        marks = [group % HOLD_OUT == 0 for _, group in self._texts]
        if all(marks) or not any(marks):
            marks = [i % HOLD_OUT == HOLD_OUT - 1 for i in range(len(marks))]
            if marks and not any(marks):
                marks[-1] = True
        return marks

    def _path(self, name: str) -> Path:
        return self.folder / name

    def _rows(self, name: str) -> int:
        path = self._path(name)
        return path.stat().st_size // self._sizes[name] if path.exists() else 0
