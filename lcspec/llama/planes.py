"""Planes: the states that recurrent layers keep of a sequence's latest tokens, to take some of these back.

The library has one cell for every sequence id, with its planes. Sequences with unequal numbers of tokens it evaluates
one computation after the other, within one decode. A computation with several sequences first brings their cells side
by side. Of a cell that gives way for this it moves the state, but not the planes, and does not say so: taken back
later, the sequence has the planes of another one. A computation with a single sequence moves nothing.

So a batch with drafts is decoded in pieces, and sequences whose planes may be lost take nothing back.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np
from numpy.typing import NDArray

# Architectures whose states the library (0.3.36) mixes up if a computation has several sequences, and the most rows
# that each of them may have then. Of PLaMo 2 the place is multiplied by their number, and beyond the last cell the
# process ends. RWKV in Qwen's layers keeps the last row of every sequence, and takes those behind the first one's.
MIXED_UP = {"plamo2": 0, "arwkv7": 1, "rwkv6qwen2": 1}


class Run(NamedTuple):
    """The rows [start, stop) of a batch, all of one sequence, the first at position `pos`.

    `outputs`: how many of them have logits; `drafts`: one before the last row has, so some may be taken back.
    """

    seq: int
    start: int
    stop: int
    pos: int
    outputs: int
    drafts: bool

    @property
    def tokens(self) -> int:
        """How many rows."""
        return self.stop - self.start


class Outputs(NamedTuple):
    """What a piece's decode left: logits float32 [n_outputs, n_vocab], states by layer float32 [n_tokens, width]."""

    logits: NDArray[np.float32]
    states: dict[int, NDArray[np.float32]]

    @staticmethod
    def joined(parts: Sequence[Outputs]) -> Outputs:
        """Those of all pieces as if they had been one."""
        states = {layer: np.concatenate([part.states[layer] for part in parts]) for layer in parts[0].states}
        return Outputs(np.concatenate([part.logits for part in parts]), states)


class Planes:
    """Which sequences have planes, and since which position."""

    def __init__(self, room: int, streams: bool = False, rows: int | None = None) -> None:
        """`room`: rows that the library evaluates in one computation; `streams`: as for Context; `rows`: the most of
        each sequence where a computation has several (see MIXED_UP)."""
        self._room, self._rows = room, rows
        self._streams = streams
        self._since: dict[int, int] = {}

    def pieces(self, runs: list[Run], apart: bool) -> list[list[Run]]:
        """Cut a batch into pieces to decode one after the other, so that no draft loses its planes.

        Everything before the first draft, then the first drafts if all have the same length, then one run each.
        `apart`: there is nothing to lose.
        """
        if self._rows is not None:
            return _narrow(runs, self._rows)
        if apart or len(runs) < 3 or not any(run.drafts for run in runs) or self._together(runs) or not _distinct(runs):
            return [runs]
        first = next(i for i, run in enumerate(runs) if run.drafts)
        stop = first + 1
        while stop < len(runs) and self._together(runs[first : stop + 1]):
            stop += 1
        before = [runs[:first]] if first else []
        return [*before, runs[first:stop], *([run] for run in runs[stop:])]

    def decoded(self, runs: list[Run], apart: bool) -> None:
        """A piece has been decoded; `apart`: one sequence after the other, as many rows at a time as there is room."""
        if apart and len(runs) > 1 and _distinct(runs):
            for run in runs:
                self.decoded([run], apart)
            return
        # Two sequences: every computation that moves cells has both of them.
        kept = self._together(runs) or (len(runs) <= 2 and not apart)
        if len(runs) > 1:
            self.clear()
        for run in runs:
            self.drop(run.seq)
        if kept and _distinct(runs):
            self._since.update((run.seq, run.pos) for run in runs)

    def reach(self, seq: int, length: int) -> bool:
        """Whether there is a plane for the first `length` tokens of `seq`, as far as is known here."""
        since = self._since.get(seq)
        return since is not None and since < length

    def drop(self, seq: int) -> None:
        """The planes of `seq` have been used, or are another text's."""
        self._since.pop(seq, None)

    def clear(self) -> None:
        """Nobody has planes."""
        self._since = {}

    def _together(self, runs: list[Run]) -> bool:
        """Whether the library evaluates all of them in one computation."""
        tokens = runs[0].tokens if runs else 0
        # Of sequences with caches of their own it takes those together whose ids follow each other.
        near = not self._streams or all(b.seq == a.seq + 1 for a, b in zip(runs, runs[1:]))
        return near and tokens * len(runs) <= self._room and all(run.tokens == tokens for run in runs)


def _narrow(runs: list[Run], rows: int) -> list[list[Run]]:
    """Pieces of one run, or of several with at most `rows` rows each."""
    pieces = list[list[Run]]()
    for run in runs:
        joined = [*pieces[-1], run] if pieces else []
        if joined and max(one.tokens for one in joined) <= rows and _distinct(joined):
            pieces[-1] = joined
        else:
            pieces.append([run])
    return pieces


def _distinct(runs: list[Run]) -> bool:
    return len({run.seq for run in runs}) == len(runs)
