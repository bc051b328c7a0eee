"""A context's memory made of Python objects: what sequence ids do to cells, without a model."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama import Branching, Context
from lcspec.llama.memory import Memory


@dataclass(eq=False)
class Cell:
    """One position of the KV cache."""

    pos: int
    ids: set[int]
    token: int


@dataclass
class Cells:
    """A Memory as far as sequence ids go: `copy`, `remove`, and what a decode adds."""

    cells: list[Cell] = field(default_factory=list)
    window = slack = max_chain = 0
    branching: Branching = Branching.TREE
    redecodes = streams = False

    def holds(self, seq: int, length: int) -> bool:
        return True

    def copy(self, src: int, dst: int, start: int, stop: int) -> None:
        assert src != dst
        for cell in self.cells:
            if src in cell.ids and start <= cell.pos and (stop < 0 or cell.pos < stop):
                cell.ids.add(dst)

    def copy_stream(self, src: int, dst: int) -> None:
        self.cells += [Cell(cell.pos, {dst}, cell.token) for cell in self.cells if src in cell.ids]

    def remove(self, seq: int, start: int, stop: int = -1) -> bool:
        for cell in self.cells:
            if start <= cell.pos and (stop < 0 or cell.pos < stop):
                cell.ids = cell.ids - {seq} if seq >= 0 else set()  # the library: below 0 is everybody
        self.cells = [cell for cell in self.cells if cell.ids]
        return True

    def full_size(self, seq: int) -> int:
        return len(self.of(seq))

    def state(self, seq: int) -> bytearray:
        return bytearray(pickle.dumps([(cell.pos, cell.token) for cell in self.of(seq)]))

    def set_state(self, seq: int, data: bytearray) -> bool:
        self.remove(seq, 0)
        self.cells += [Cell(pos, {seq}, token) for pos, token in pickle.loads(bytes(data))]
        return True

    def of(self, seq: int) -> list[Cell]:
        return sorted((cell for cell in self.cells if seq in cell.ids), key=lambda cell: cell.pos)

    def visible(self, seq: int, pos: int) -> list[int]:
        """Tokens that a token at `pos` whose first id is `seq` attends to, in text order."""
        seen = [cell for cell in self.of(seq) if cell.pos <= pos]
        assert [cell.pos for cell in seen] == list(range(pos + 1)), "a hole, or two tokens at one position"
        return [cell.token for cell in seen]

    def decode(self, rows: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """Add (token, pos, ids) rows; every id's positions must go on where they ended, as the library demands."""
        for seq in {seq for _, _, ids in rows for seq in ids}:
            added = sorted({pos for _, pos, ids in rows if seq in ids})
            start = self.of(seq)[-1].pos + 1 if self.of(seq) else 0
            assert added == list(range(start, start + len(added)))
        for token, pos, ids in rows:
            assert len(set(ids)) == len(ids) > 0
            self.cells.append(Cell(pos, set(ids), token))


def context_on(cells: Cells, **more: object) -> Context:
    """What has these cells for a memory, and nothing else but `more`."""
    return cast(Context, SimpleNamespace(memory=cells, **more))


def cache_on(cells: Cells, pool: SequencePool) -> SequenceCache:
    return SequenceCache(cast(Memory, cells), pool)
