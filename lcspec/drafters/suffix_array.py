"""Suffix arrays of token sequences, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def suffix_array(tokens: NDArray[np.integer]) -> NDArray[np.uint32]:
    """The start of every suffix of `tokens`, uint32 [n], in lexicographic order; a suffix sorts before its extensions.

    Prefix doubling (Manber and Myers 1990) that only sorts suffixes which are not in their final place yet
    (Larsson and Sadakane 1999). It needs about 45 bytes of working memory per token; at most 2^31 tokens.
    """
    n = len(tokens)
    order = np.argsort(tokens, kind="stable").astype(np.uint32)
    if n < 2:
        return order
    sorted_ = tokens[order]
    first = np.concatenate([[True], sorted_[1:] != sorted_[:-1]])
    del sorted_
    open_ = np.arange(n, dtype=np.uint32)
    # The rank of a suffix is the start in `order` of its group, the suffixes that are still equal.
    rank = np.empty(n, dtype=np.uint32)
    rank[order] = np.maximum.accumulate(np.where(first, open_, np.uint32(0)))
    open_ = open_[_together(first)]
    step = 1
    while open_.size:
        suffixes = order[open_]
        key = rank[suffixes].astype(np.int64)
        key *= n + 1
        inside = suffixes < n - step
        # A suffix that ends here is the smaller one: its key is 0, that of the others their rank plus 1.
        key[inside] += rank[suffixes[inside] + np.uint32(step)]
        key += inside
        by_key = np.argsort(key, kind="stable")
        key, suffixes = key[by_key], suffixes[by_key]
        del by_key, inside
        order[open_] = suffixes
        first = np.concatenate([[True], key[1:] != key[:-1]])
        del key
        rank[suffixes] = np.maximum.accumulate(np.where(first, open_, np.uint32(0)))
        open_ = open_[_together(first)]
        step *= 2
    return order


def _together(first: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which members share their group with others; `first` marks where groups start."""
    alone: NDArray[np.bool_] = first & np.concatenate([first[1:], [True]])
    return ~alone
