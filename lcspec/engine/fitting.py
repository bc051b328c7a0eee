"""What of the drafts and windows fits into a step: the planner plans every sequence as if the step were its own.

Windows of lookahead and Jacobi decoding get what the drafts leave. Only a named strategy has windows: a window costs a
few rows in every step and pays where rows are nearly free. In `auto` it brought 0.5 % beside other drafters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, NamedTuple, Sequence

from lcspec.drafters.base import Window, probing
from lcspec.planner.base import Proposal
from lcspec.spec import cutting
from lcspec.spec.token_tree import TokenTree

if TYPE_CHECKING:
    from lcspec.kv_cache.sequence_pool import SequencePool


class Probes(NamedTuple):
    """The drafts that a sequence keeps, and the `windows` of its drafters, whose probes are evaluated after them."""

    kept: TokenTree
    windows: tuple[Window, ...] = ()

    @property
    def rows(self) -> int:
        """Number of probes in the step's batch."""
        return sum([window.tree.n_drafted for window in self.windows])

    @property
    def evaluated(self) -> TokenTree:
        """The tree that goes into the batch."""
        return self.kept.with_probes(*(window.tree for window in self.windows)) if self.windows else self.kept

    def asked(self) -> Iterator[tuple[Window, list[int]]]:
        """Yield every window with the nodes of `evaluated` whose argmax of the target it reads."""
        shift = len(self.kept) - 1
        for window in self.windows:
            yield window, [node + shift if node else 0 for node in window.ask] + list(window.drafted)
            shift += window.tree.n_drafted

    @property
    def mute(self) -> frozenset[int]:
        """Nodes of `evaluated` whose logits are not read."""
        probes = range(len(self.kept), len(self.kept) + self.rows)
        return frozenset(probes).difference(*(nodes for _, nodes in self.asked()))


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
        kept = p.kept = cutting.best(cutting.with_leaves(p.kept, leaves), room)
        room -= kept.n_drafted
        free = min(free, leaves - len(kept.leaves()))


def feed(proposals: Sequence[Proposal], room: int, pool: SequencePool) -> list[Probes]:
    """The filled windows of every proposal, within `probe_rows`, the step's `room` in rows, and the leaf ids that are
    left."""
    kept = [p.kept for p in proposals if p.kept is not None]
    if not any(probing(p.sequence.drafters) for p in proposals):
        return [Probes(tree) for tree in kept]
    free, owned, found = pool.free, [], []
    for p, tree in zip(proposals, kept):
        spare = p.sequence.cache.max_leaves - 1 - pool.free - (len(tree.leaves()) - 1)
        owned.append(max(0, spare))
        free += min(0, spare)
    for p, tree, own in zip(proposals, kept, owned):
        windows = list[Window]()
        for drafter in probing(p.sequence.drafters):
            leaves = min(own + max(0, free), p.limits.depth) if p.limits.leaves > 1 else 0
            window = drafter.window(p.sequence, tree, min(room, p.probe_rows), leaves)
            if not window.ask and not window.drafted:
                continue
            windows.append(window)
            room -= window.tree.n_drafted
            used = len(window.tree.leaves())
            free -= max(0, used - own)
            own = max(0, own - used)
        found.append(Probes(tree, tuple(windows)))
    return found
