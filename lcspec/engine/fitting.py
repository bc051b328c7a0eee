"""What of the drafts and windows fits into a step: the planner plans every sequence as if the step were its own.

Windows of lookahead and Jacobi decoding get what the drafts leave. Only a named strategy has windows: a window costs a
few rows in every step and pays where rows are nearly free. In `auto` it brought 0.5 % beside other drafters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from lcspec.drafters.base import probing
from lcspec.planner.base import Proposal
from lcspec.spec import cutting

if TYPE_CHECKING:
    from lcspec.kv_cache.sequence_pool import SequencePool


def fit(proposals: Sequence[Proposal], room: int, ids: SequencePool) -> None:
    """Cut what does not fit into the step.

    Args:
        proposals: after `select`.
        room: rows that the step has for drafts.
        ids: the pool of sequence ids that all trees share.
    """
    free = ids.free
    for p in proposals:
        assert p.kept is not None
        leaves = p.sequence.cache.max_leaves - ids.free + free
        kept = p.kept = cutting.with_leaves(cutting.best(p.kept, room), leaves)
        room -= kept.n_drafted
        free = min(free, leaves - len(kept.leaves()))


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
