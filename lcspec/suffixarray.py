"""Suffix arrays of token sequences, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def suffix_array(tokens: NDArray[np.integer]) -> NDArray[np.uint32]:
    """The start of every suffix of `tokens`, uint32 [n], in lexicographic order; a suffix sorts before its extensions.

    Prefix doubling (Manber and Myers 1990) that only looks at suffixes which are not in their final place yet
    (Larsson and Sadakane 1999). About 30 bytes of working memory a token.
    """
    n = len(tokens)
    order = np.argsort(tokens, kind="stable").astype(np.uint32)
    first = np.concatenate([[True], tokens[order[1:]] != tokens[order[:-1]]]) if n else np.zeros(0, dtype=bool)
    # The rank of a suffix is where its group of still equal suffixes begins in `order`.
    starts = np.maximum.accumulate(np.where(first, np.arange(n, dtype=np.int64), 0))
    rank = np.empty(n, dtype=np.int64)
    rank[order] = starts
    open_ = _not_alone(np.arange(n, dtype=np.int64), first)
    step = 1
    while open_.size:
        suffixes = order[open_].astype(np.int64)
        beyond = suffixes + step
        key = rank[suffixes] * (n + 1)
        inside = beyond < n
        key[inside] += rank[beyond[inside]] + 1  # a suffix that ends first is the smaller one
        del beyond, inside
        by_key = np.argsort(key, kind="stable")
        key, suffixes = key[by_key], suffixes[by_key]
        order[open_] = suffixes
        first = np.concatenate([[True], key[1:] != key[:-1]])
        rank[suffixes] = np.maximum.accumulate(np.where(first, open_, 0))
        open_ = _not_alone(open_, first)
        step *= 2
    return order


def _not_alone(places: NDArray[np.int64], first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The `places` whose group has more than one member; `first` marks where groups begin."""
    if not places.size:
        return places
    last = np.concatenate([first[1:], [True]])
    together: NDArray[np.int64] = places[~(first & last)]
    return together
