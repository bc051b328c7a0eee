"""The target's states of a stretch of a text, as a head's rows need them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.float32]
# Rows of the smallest buffer.
SMALLEST = 16


class KnownStates:
    """States of consecutive tokens. Every step adds some, so they lie in a buffer that doubles when it is full."""

    def __init__(self, begin: int, states: States) -> None:
        """`begin`: position of the first; `states`: float32 [n, width], copied."""
        self.begin = begin
        self._first, self._n = 0, len(states)  # rows of the buffer
        self._buffer = np.array(states, np.float32)

    def __len__(self) -> int:
        return self._n

    @property
    def end(self) -> int:
        """One past the last position whose state is known."""
        return self.begin + self._n

    @property
    def rows(self) -> States:
        """All states, float32 [n, width]; a view, valid until the next change."""
        return self._buffer[self._first : self._first + self._n]

    def before(self, start: int, stop: int) -> States:
        """The states to read with the tokens in [start, stop), those of the token before each: a view of
        float32 [stop - start, width]."""
        return self.rows[start - 1 - self.begin : stop - 1 - self.begin]

    def append(self, states: States) -> None:
        """Add the states from `end` on, float32 [n, width]."""
        end = self._first + self._n
        if end + len(states) > len(self._buffer):
            grown = np.empty((max(SMALLEST, 2 * (self._n + len(states))), states.shape[1]), np.float32)
            grown[: self._n] = self.rows
            self._buffer, self._first, end = grown, 0, self._n
        self._buffer[end : end + len(states)] = states
        self._n += len(states)

    def drop(self, n: int) -> None:
        """Drop the first `n`."""
        self.begin, self._first, self._n = self.begin + n, self._first + n, self._n - n
