"""Several sequences' drafts from one model: whatever they want decoded next goes into one batch.

A draft grows as a generator. It yields the tokens that it wants decoded and is sent their rows, until it returns its
tree. So a level of everybody's tree costs one decode, whose weights are read once.
"""

from __future__ import annotations

from typing import Generator, NamedTuple, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.llama import Context
from lcspec.spec.token_tree import TokenTree


class Wanted(NamedTuple):
    """Tokens to decode: (id, position, sequence id of the cache).

    `only_last`: rows of the others are not wanted; `logits` False: nor that of the last.
    """

    tokens: Sequence[tuple[int, int, int]]
    only_last: bool = False
    logits: bool = True


class Decoded(NamedTuple):
    """Rows float32 [n, n_vocab], valid until the next decode, and the seconds of the decode."""

    rows: NDArray[np.float32]
    seconds: float


Growing = Generator[Wanted, Decoded, TokenTree]


def decode_together(context: Context, growing: Sequence[Growing]) -> list[TokenTree]:
    """Drive all of `growing` to their ends; their trees, in the same order.

    Raises:
        DecodeError: the library failed.
    """
    trees: dict[int, TokenTree] = {}
    wanted: dict[int, Wanted] = {}

    def go_on(i: int, decoded: Decoded | None) -> None:
        try:
            wanted[i] = next(growing[i]) if decoded is None else growing[i].send(decoded)
        except StopIteration as end:
            trees[i] = end.value

    for i in range(len(growing)):
        go_on(i, None)
    batch = context.batch
    while wanted:
        batch.clear()
        spans: dict[int, tuple[int, int]] = {}
        for i, want in list(wanted.items()):
            if spans and batch.n + len(want.tokens) > min(batch.n_max, context.n_batch):
                continue  # in a decode of its own
            first, last = batch.n_outputs, len(want.tokens) - 1
            for at, (token, position, seq) in enumerate(want.tokens):
                logits = want.logits and (at == last or not want.only_last)
                batch.add(token, position, (seq,), logits=logits)
            spans[i] = first, batch.n_outputs
            del wanted[i]
        seconds = context.decode()
        rows = context.logits()
        for i, (first, stop) in spans.items():
            go_on(i, Decoded(rows[first:stop], seconds))
    return [trees[i] for i in range(len(growing))]
