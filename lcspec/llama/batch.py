"""A llama_batch whose arrays live in numpy.

What one step looks like for a slot at position 7 whose pending token x has two drafted branches (main id 0, the
slot's leaf id 5; pos = number of tokens before it; a token belongs to every leaf below it):

    row      0        1       2       3       4
    token    x        a       b       c       d          x
    pos      7        8       9       8       9         / \\
    seq ids  {0,5}    {0}     {0}     {5}     {5}       a   c
    logits   1        1       1       1       1         b   d

"Shares a sequence id and has a smaller or equal position" is then exactly the ancestor relation of the tree, which
is how the library's attention mask becomes a tree mask. Several slots lie one after the other in the same batch.
"""

from __future__ import annotations

import ctypes
from typing import Sequence

import numpy as np

from lcspec.llama.lib import C


class Batch:
    """Room for `n_max` tokens with up to `n_seq` sequence ids each; filled with `add`, read by `Context.decode`."""

    def __init__(self, n_max: int, n_seq: int) -> None:
        self.n_max = n_max
        self.n_seq = n_seq
        self.n = 0
        self.n_outputs = 0
        self._token = np.zeros(n_max, dtype=np.int32)
        self._pos = np.zeros(n_max, dtype=np.int32)
        self._n_seq_id = np.zeros(n_max, dtype=np.int32)
        self._seq_id = np.zeros((n_max, n_seq), dtype=np.int32)
        self._logits = np.zeros(n_max, dtype=np.int8)
        # llama_batch wants a pointer per token: row i of _seq_id
        self._rows = (self._seq_id.ctypes.data + np.arange(n_max, dtype=np.uintp) * self._seq_id.strides[0]).astype(
            np.uintp
        )
        self.struct = C.llama_batch()
        self.struct.token = _pointer(self._token, ctypes.c_int32)
        self.struct.pos = _pointer(self._pos, ctypes.c_int32)
        self.struct.n_seq_id = _pointer(self._n_seq_id, ctypes.c_int32)
        self.struct.seq_id = ctypes.cast(self._rows.ctypes.data, type(self.struct.seq_id))
        self.struct.logits = _pointer(self._logits, ctypes.c_int8)

    def clear(self) -> None:
        """Start a new batch."""
        self.n = 0
        self.n_outputs = 0

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self.n_max - self.n

    @property
    def first_token(self) -> int:
        """The batch's first token id."""
        return int(self._token[0])

    def add(self, token: int, pos: int, seq_ids: Sequence[int], logits: bool) -> int:
        """Append one token; returns its output row (the index into `Context.logits`), or -1 without logits.

        Raises:
            IndexError: the batch is full (a bug of the caller, who plans the width).
        """
        i = self.n
        if i >= self.n_max:
            raise IndexError(f"batch is full ({self.n_max} tokens)")
        self._token[i] = token
        self._pos[i] = pos
        k = len(seq_ids)
        self._n_seq_id[i] = k
        if k == 1:
            self._seq_id[i, 0] = seq_ids[0]
        else:
            self._seq_id[i, :k] = seq_ids
        self._logits[i] = logits
        self.n = i + 1
        if not logits:
            return -1
        self.n_outputs += 1
        return self.n_outputs - 1

    def first_positions(self) -> dict[int, int]:
        """For each token's first sequence id, the smallest position it has in this batch."""
        ids, pos = self._seq_id[: self.n, 0], self._pos[: self.n]
        return {int(seq): int(pos[ids == seq].min()) for seq in np.unique(ids)}

    def add_run(self, tokens: Sequence[int], pos: int, seq_id: int) -> None:
        """Append consecutive tokens of one sequence, without logits: a prompt chunk."""
        i, k = self.n, len(tokens)
        if i + k > self.n_max:
            raise IndexError(f"batch is full ({self.n_max} tokens)")
        self._token[i : i + k] = tokens
        self._pos[i : i + k] = np.arange(pos, pos + k, dtype=np.int32)
        self._n_seq_id[i : i + k] = 1
        self._seq_id[i : i + k, 0] = seq_id
        self._logits[i : i + k] = 0
        self.n = i + k


def _pointer(array: np.ndarray, ctype: type) -> ctypes._Pointer:  # type: ignore[type-arg]
    return array.ctypes.data_as(ctypes.POINTER(ctype))
