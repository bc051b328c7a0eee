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
from dataclasses import dataclass
from typing import Any, Sequence, cast

import numpy as np
from numpy.typing import NDArray

from lcspec.llama.lib import C
from lcspec.llama.planes import Run

ID_BYTES = 4


@dataclass(slots=True)
class SeqSets:
    """The sequence ids of a tree's nodes. The ids below a node are neighbours in one list, so a node needs two numbers.

    Attributes:
        ids: the id of every leaf.
        first: where each node's ids begin in it.
        count: how many they are.
    """

    ids: list[int]
    first: list[int]
    count: list[int]

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, node: int) -> list[int]:
        """The ids of `node`."""
        start = self.first[node]
        return self.ids[start : start + self.count[node]]


class Batch:
    """Room for `n_max` tokens with up to `n_seq` sequence ids each; filled with `add` and its kin, read by
    `Context.decode`.
    """

    def __init__(self, n_max: int, n_seq: int) -> None:
        self.n_max = n_max
        self.n_seq = n_seq
        self.n = 0
        self.n_outputs = 0
        self._token = np.zeros(n_max, dtype=np.int32)
        self._pos = np.zeros(n_max, dtype=np.int32)
        self._n_seq_id = np.zeros(n_max, dtype=np.int32)
        self._logits = np.zeros(n_max, dtype=np.int8)
        # llama_batch wants a pointer per token: into the ids, which several tokens may share
        self._ids = np.zeros(n_max * n_seq, dtype=np.int32)
        self._n_ids = 0
        self._ids_at = self._ids.ctypes.data
        self._ids_of = np.full(n_max, self._ids_at, dtype=np.uintp)
        # Single numbers are set through views: that takes a third of the time that numpy needs.
        arrays = (self._token, self._pos, self._n_seq_id, self._ids, self._ids_of, self._logits)
        self._views: tuple[memoryview[int], ...] = tuple(memoryview(cast(Any, array)) for array in arrays)
        self.struct = C.llama_batch()
        self.struct.token = _pointer(self._token, ctypes.c_int32)
        self.struct.pos = _pointer(self._pos, ctypes.c_int32)
        self.struct.n_seq_id = _pointer(self._n_seq_id, ctypes.c_int32)
        self.struct.seq_id = ctypes.cast(self._ids_of.ctypes.data, type(self.struct.seq_id))
        self.struct.logits = _pointer(self._logits, ctypes.c_int8)

    def clear(self) -> None:
        """Start a new batch."""
        self.n = 0
        self.n_outputs = 0
        self._n_ids = 0

    @property
    def first_token(self) -> int:
        """The batch's first token id."""
        return int(self._token[0])

    def add(self, token: int, pos: int, seq_ids: Sequence[int], logits: bool) -> int:
        """Append one token; returns its output row (the index into `Context.logits`), or -1 without logits.

        Raises:
            IndexError: the batch is full (a bug of the caller, who plans the width).
        """
        i, start, k = self.n, self._n_ids, len(seq_ids)
        if i >= self.n_max:
            raise IndexError(f"batch is full ({self.n_max} tokens)")
        tokens, positions, counts, ids, ids_of, wanted = self._views
        tokens[i], positions[i], counts[i], wanted[i] = token, pos, k, logits
        ids_of[i] = self._ids_at + start * ID_BYTES
        for at, seq in enumerate(seq_ids, start):
            ids[at] = seq
        self._n_ids = start + k
        self.n = i + 1
        if not logits:
            return -1
        self.n_outputs += 1
        return self.n_outputs - 1

    def add_nodes(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sets: SeqSets,
        order: Sequence[int],
        logits: Sequence[bool],
    ) -> list[int]:
        """Append the nodes of a tree as `add` would one by one; `order` says which node each token is.

        Returns:
            The output row of each token, -1 without logits.

        Raises:
            IndexError: as `add` does.
        """
        i = self._take(len(tokens))
        end = self.n
        self._token[i:end] = tokens
        self._pos[i:end] = positions
        self._n_seq_id[i:end] = [sets.count[node] for node in order]
        first = np.array([sets.first[node] for node in order], dtype=np.uintp)
        self._ids_of[i:end] = first * ID_BYTES + self._keep(sets.ids)
        self._logits[i:end] = logits
        rows, row = [], self.n_outputs
        for wanted in logits:
            rows.append(row if wanted else -1)
            row += wanted
        self.n_outputs = row
        return rows

    def add_run(self, tokens: Sequence[int], pos: int, seq_id: int) -> None:
        """Append consecutive tokens of one sequence, without logits: a prompt chunk.

        Raises:
            IndexError: as `add` does.
        """
        i = self._take(len(tokens))
        end = self.n
        self._token[i:end] = tokens
        self._pos[i:end] = np.arange(pos, pos + end - i, dtype=np.int32)
        self._n_seq_id[i:end] = 1
        self._ids_of[i:end] = self._keep((seq_id,))
        self._logits[i:end] = 0

    def runs(self) -> list[Run]:
        """The stretches of tokens that have the same first sequence id."""
        ids, pos = self._ids[(self._ids_of[: self.n] - self._ids_at) // ID_BYTES], self._pos[: self.n]
        ends = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), self.n]
        found = []
        for start, stop in zip(ends, ends[1:] if self.n else []):
            wanted = self._logits[start:stop]
            first = int(pos[start:stop].min())
            found.append(Run(int(ids[start]), start, stop, first, int(wanted.sum()), bool(wanted[:-1].any())))
        return found

    def part(self, start: int, stop: int) -> Any:
        """The rows [start, stop) as a llama_batch; valid as long as this batch is as it is."""
        part = C.llama_batch()
        part.n_tokens = stop - start
        part.token = _pointer(self._token[start:], ctypes.c_int32)
        part.pos = _pointer(self._pos[start:], ctypes.c_int32)
        part.n_seq_id = _pointer(self._n_seq_id[start:], ctypes.c_int32)
        part.seq_id = ctypes.cast(self._ids_of[start:].ctypes.data, type(part.seq_id))
        part.logits = _pointer(self._logits[start:], ctypes.c_int8)
        return part

    def _take(self, k: int) -> int:
        """Make room for `k` more tokens; returns where."""
        i = self.n
        if i + k > self.n_max:
            raise IndexError(f"batch is full ({self.n_max} tokens)")
        self.n = i + k
        return i

    def _keep(self, seq_ids: Sequence[int]) -> int:
        """Put ids where the library finds them; returns their address."""
        start = self._n_ids
        end = self._n_ids = start + len(seq_ids)
        self._ids[start:end] = seq_ids
        return self._ids_at + start * ID_BYTES


class StateBatch(Batch):
    """A batch whose tokens come with a hidden state each, for heads on a target's states."""

    def __init__(self, n_max: int, n_seq: int, width: int, *, tokens: bool = True) -> None:
        """States are float32 [width]; without `tokens` there is nothing else (see Context.encode)."""
        super().__init__(n_max, n_seq)
        self._states = np.zeros((n_max, width), dtype=np.float32)
        self.struct.embd = _pointer(self._states, ctypes.c_float)
        if not tokens:
            self.struct.token = None

    def add_state(self, token: int, pos: int, seq_ids: Sequence[int], state: NDArray[np.float32], logits: bool) -> int:
        """`add` with a state float32 [width]."""
        row = self.add(token, pos, seq_ids, logits)
        self._states[self.n - 1] = state
        return row

    def add_state_run(self, tokens: Sequence[int], pos: int, seq_id: int, run: NDArray[np.float32]) -> None:
        """`add_run` with states float32 [len(tokens), width]."""
        start = self.n
        self.add_run(tokens, pos, seq_id)
        self._states[start : self.n] = run


def _pointer(array: np.ndarray, ctype: type) -> ctypes._Pointer:  # type: ignore[type-arg]
    return array.ctypes.data_as(ctypes.POINTER(ctype))
