"""The largest of a long row, without sorting it (numpy only).

A vocabulary has up to 260 000 tokens, of which a sampler or a drafter looks at 40. To sort those apart takes longer
than a small model's decode does (1.5 ms of 152 000, measured); the two passes over the row below take 0.07 ms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# So many are looked for one after the other.
FEW = 6
# Columns whose maxima are compared at most, and rows of them at least where there are fewer.
COLUMNS = 512
ROWS = 8


def contenders(values: NDArray[np.float32], n: int) -> NDArray[np.intp]:
    """Where the `n` largest of `values` are, ascending; with them all that equal the last of those, and some others.

    Each of n columns of the row holds a value that is no smaller than the n-th largest of the columns' maxima, so at
    least n values are, and what is smaller is not among the n largest.

    Args:
        values: float32 [k]; no NaN.
        n: how many, at least 1.
    """
    columns = max(min(COLUMNS, values.size // ROWS), 2 * n)
    rows = values.size // columns
    if rows < 2:
        return np.arange(values.size)
    maxima = values[: rows * columns].reshape(rows, columns).max(axis=0)
    maxima.partition(columns - n)
    found: NDArray[np.intp] = (values >= maxima[columns - n]).nonzero()[0]
    return found


def largest(values: NDArray[np.float32], n: int) -> NDArray[np.intp]:
    """Where the `n` largest of `values` are, or all if they are fewer: the largest first, equal ones in order."""
    n = min(n, values.size)
    if n == 1:
        return np.array([values.argmax()], dtype=np.intp)
    among = contenders(values, n)
    rest = values[among]
    if n <= FEW:  # one after the other: several times faster than sorting apart
        found: list[int] = []
        while len(found) < n and rest[at := int(rest.argmax())] > -np.inf:
            found.append(at)
            rest[at] = -np.inf
        if len(found) == n:
            return among[found]
        rest = values[among]
    return among[np.argsort(-rest, kind="stable")[:n]]
