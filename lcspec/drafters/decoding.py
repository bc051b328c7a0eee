"""Drafting for several sequences with one model: the tokens that they need next are decoded in one batch.

A draft grows as a generator: it yields the tokens that it needs decoded, is sent their rows, and at last returns its
tree. So one level of all trees costs one decode, which reads the weights once.
"""

from __future__ import annotations

from typing import Generator, NamedTuple, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.errors import DecodeError
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama import Context
from lcspec.llama.batch import Batch, StateBatch
from lcspec.llama.step_time import token_seconds
from lcspec.spec.token_tree import TokenTree


class Wanted(NamedTuple):
    """Tokens to decode, each as (id, position, sequence id of the cache).

    `only_last`: only the last token's row is needed; `logits` False: not even that one. `states`: what goes in with
    each token of a head, float32 [n, width]; `layer`: which of a head's layers, of several.
    """

    tokens: Sequence[tuple[int, int, int]]
    only_last: bool = False
    logits: bool = True
    states: Sequence[NDArray[np.float32]] | None = None
    layer: int = 0


class Decoded(NamedTuple):
    """Rows float32 [n, n_vocab], how many seconds the decode took, and a head's own states float32 [n, width]. Rows and
    states are valid until the next decode."""

    rows: NDArray[np.float32]
    seconds: float
    states: NDArray[np.float32] | None = None


Growing = Generator[Wanted, Decoded, TokenTree]


def decode_together(context: Context, growing: Sequence[Growing]) -> list[TokenTree]:
    """Run all generators in `growing` to their ends; returns their trees in the same order.

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
        layer = next(iter(wanted.values())).layer
        for i, want in list(wanted.items()):
            if spans and (want.layer != layer or batch.n + len(want.tokens) > min(batch.n_max, context.n_batch)):
                continue  # it gets a decode of its own
            first = batch.n_outputs
            add(batch, want)
            spans[i] = first, batch.n_outputs
            del wanted[i]
        seconds = decode(context, layer)
        rows, own = context.logits(), context.row_states() if isinstance(batch, StateBatch) else None
        for i, (first, stop) in spans.items():
            go_on(i, Decoded(rows[first:stop], seconds, None if own is None else own[first:stop]))
    return [trees[i] for i in range(len(growing))]


def add(batch: Batch, want: Wanted) -> None:
    """Put the wanted tokens into a batch."""
    last = len(want.tokens) - 1
    for at, (token, position, seq) in enumerate(want.tokens):
        logits = want.logits and (at == last or not want.only_last)
        if want.states is None:
            batch.add(token, position, (seq,), logits=logits)
        else:
            assert isinstance(batch, StateBatch)
            batch.add_state(token, position, (seq,), want.states[at], logits=logits)


def decode(context: Context, layer: int) -> float:
    """Decode the batch through one of a head's layers; returns how many seconds it took."""
    if not layer:
        return context.decode()
    context.select_head(layer)
    try:
        return context.decode()
    finally:
        context.select_head(0)


def step_seconds(context: Context, pool: SequencePool, n_vocab: int, repeat: int) -> float:
    """Median seconds of `repeat` decodes of width 1 in `context`, at a short length, with a sequence id from `pool`.

    Raises:
        DecodeError: the cache has no room for the measurement.
    """
    seq = pool.take()
    try:
        return token_seconds(context, seq, range(n_vocab), repeat)
    finally:
        pool.give(seq)


def checked(context: Context, row: NDArray[np.float32]) -> NDArray[np.float32]:
    """`row`, float32 [n_vocab], of the context's logits.

    Raises:
        DecodeError: it has no largest number, because the file's weights are damaged (NaN, infinity).
    """
    if not np.isfinite(row.max()):
        name = context.model.options.path.name
        raise DecodeError(f"{name} computes NaN or infinity where numbers were expected: it is damaged; get it again")
    return row
