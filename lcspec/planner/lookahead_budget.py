"""Rows for the windows of lookahead and Jacobi decoding.

Only a named strategy has windows: a window costs a few rows in every step and pays where rows are nearly free. In
`auto` it brought 0.5 % beside other drafters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from lcspec.drafters.base import probing
from lcspec.planner.base import Proposal

if TYPE_CHECKING:
    from lcspec.kv_cache.sequence_pool import SequencePool


def reserved(p: Proposal) -> int:
    """The rows that the user's parameters ask for, at most half of the step."""
    rows = sum(d.reserved_rows(p.sequence) for d in probing(p.sequence.drafters)) if p.limits.leaves > 1 else 0
    return min(rows, max(p.limits.nodes // 2, p.limits.nodes - p.tree.n_drafted))


def feed(proposals: Sequence[Proposal], room: int, pool: SequencePool) -> None:
    """Fill the windows, within `probe_rows`, the step's `room` in rows, and the leaf ids that are left."""
    if not any(probing(p.sequence.drafters) for p in proposals):
        return
    free = pool.free
    owned = []
    for p in proposals:
        assert p.kept is not None
        spare = p.sequence.cache.max_leaves - 1 - pool.free - (len(p.kept.leaves()) - 1)
        owned.append(max(0, spare))
        free += min(0, spare)
    for p, own in zip(proposals, owned):
        assert p.kept is not None
        for drafter in probing(p.sequence.drafters):
            leaves = min(own + max(0, free), p.limits.depth) if p.limits.leaves > 1 else 0
            window = drafter.window(p.sequence, p.kept, min(room, p.probe_rows), leaves)
            if not window.ask and not window.drafted:
                continue
            p.windows.append(window)
            room -= window.tree.n_drafted
            used = len(window.tree.leaves())
            free -= max(0, used - own)
            own = max(0, own - used)
