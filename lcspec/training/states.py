"""Hidden states of the target's own outputs, on disk: append-only files that survive being killed.

    states.f16    the state each generated token was chosen from, float16 [n, n_embd]
    tokens.i32    the tokens
    answers.i32   (length, group) of every finished answer; written last, so it says what of the others is valid

Head k (from 1) learns tokens[i + k] from states[i]: tokens[i] itself is the pending token. Answers whose `group` is a
multiple of HOLD_OUT are for validation; a group is a prompt, so that no prompt is on both sides.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HOLD_OUT = 16
# Labels that are no reduced ids: there is no such token, or the reduced vocabulary does not have it.
NONE = -1
OUTSIDE = -2


class StateStore:
    """A folder with the three files. Memory use is bounded: states are mapped, never read as a whole."""

    def __init__(self, folder: Path, n_embd: int) -> None:
        """Open or create; what a killed run left half-written is cut off."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.n_embd = n_embd
        answers = np.fromfile(self._path("answers.i32"), np.int32) if self._path("answers.i32").exists() else None
        self._answers: list[tuple[int, int]] = []
        if answers is not None:
            self._answers = [(int(n), int(g)) for n, g in answers[: len(answers) // 2 * 2].reshape(-1, 2)]
        # A kill between two writes leaves an answer more in one file than in another.
        stored = min(self._rows("states.f16", 2 * n_embd), self._rows("tokens.i32", 4))
        while self.positions > stored:
            self._answers.pop()
        for name, size in (("states.f16", 2 * n_embd), ("tokens.i32", 4)):
            with self._path(name).open("ab") as file:
                file.truncate(self.positions * size)
        with self._path("answers.i32").open("ab") as file:
            file.truncate(len(self._answers) * 8)
        self._count = sum(n for n, _ in self._answers)

    @property
    def positions(self) -> int:
        """Positions of all finished answers."""
        return sum(n for n, _ in self._answers)

    @property
    def answers(self) -> int:
        """Finished answers."""
        return len(self._answers)

    def append(self, states: NDArray[np.float16], tokens: NDArray[np.int32], group: int) -> None:
        """Add an answer: states [n, n_embd], tokens [n]."""
        for name, data in (("states.f16", states.astype(np.float16)), ("tokens.i32", tokens.astype(np.int32))):
            with self._path(name).open("ab") as file:
                file.write(data.tobytes())
        with self._path("answers.i32").open("ab") as file:
            file.write(np.array([len(tokens), group], dtype=np.int32).tobytes())
        self._answers.append((len(tokens), group))
        self._count += len(tokens)

    def __len__(self) -> int:
        return self._count

    def states(self) -> NDArray[np.float16]:
        """All states, float16 [n, n_embd], mapped."""
        if not self._count:
            return np.zeros((0, self.n_embd), dtype=np.float16)
        return np.memmap(self._path("states.f16"), np.float16, "r", shape=(self._count, self.n_embd))

    def tokens(self) -> NDArray[np.int32]:
        """All tokens, int32 [n]."""
        return np.fromfile(self._path("tokens.i32"), np.int32, self._count)

    def lengths(self) -> NDArray[np.int64]:
        """Length of every answer."""
        return np.array([n for n, _ in self._answers], dtype=np.int64)

    def held_out(self) -> NDArray[np.bool_]:
        """Whether each position is for validation, bool [n]."""
        marks = np.array([group % HOLD_OUT == 0 for _, group in self._answers], dtype=np.bool_)
        return np.repeat(marks, self.lengths())

    def _path(self, name: str) -> Path:
        return self.folder / name

    def _rows(self, name: str, size: int) -> int:
        path = self._path(name)
        return path.stat().st_size // size if path.exists() else 0


def labels(tokens: NDArray[np.int32], lengths: NDArray[np.int64], heads: int) -> NDArray[np.int32]:
    """What each head should say, int32 [heads, n]: the token `k` after the pending one, NONE past the answer's end."""
    ends = np.repeat(np.cumsum(lengths), lengths)
    index = np.arange(len(tokens))
    out = np.full((heads, len(tokens)), NONE, dtype=np.int32)
    for k in range(1, heads + 1):
        inside = index + k < ends
        out[k - 1, inside] = tokens[index[inside] + k]
    return out
