"""Choosing a step's width: which of the nodes and columns on offer go in, when every row has its price."""

from __future__ import annotations

from typing import Callable, NamedTuple, Sequence

from lcspec.planner.worth import Costs

# Stands for a column of probes in `Item.node`.
COLUMN = 0

Considered = list[tuple[int, float, float]]


class Item(NamedTuple):
    """What may go into a step, in the order of its worth (parents before their children): the worth is *minus* the
    tokens a row is expected to bring; `node` is a drafted node of the proposal's tree, or COLUMN for one of probes."""

    worth: float
    rows: int
    proposal: int
    node: int


class Step(NamedTuple):
    """A step without what is on offer: `base` rows for pending tokens, `need` rows and `tokens` that are there in any
    case, `room` more rows that may be taken, and the seconds that drafting took."""

    base: int
    need: int
    tokens: float
    room: int
    drafting: float


def choose(
    pool: Sequence[Item], step: Step, costs: Costs, beside: Callable[[Item], float] | None = None
) -> tuple[list[Item], Considered]:
    """The beginning of `pool` with the most tokens a second, and (nodes, tokens, seconds) of all beginnings.

    The seconds are those of the whole step, drafting included: what that took is spent however little of it is kept,
    but where it was much, a step that makes more of it is the better one. Only never at a worse rate than that of going
    on without: drafts that were dearer than what they can bring are not made up for by verifying more of them.

    Args:
        pool: descending in worth.
        step: what they are added to.
        costs: need -> (seconds, width).
        beside: told of every item that is added, in order; the seconds that all of them cost beside their rows.
    """
    base, need, tokens, room, drafting = step
    if need not in costs:
        return [], []
    taken, wide = list[Item](), need
    considered = [(need - base, tokens, drafting + costs[need][0])]
    least = tokens / costs[need][0]
    for item in pool:
        if wide - need + item.rows <= room and wide + item.rows in costs:
            taken.append(item)
            wide, tokens = wide + item.rows, tokens - item.worth * item.rows
            more = beside(item) if beside is not None else 0.0
            considered.append((wide - base, tokens, drafting + costs[wide][0] + more))
    price = max(least, max(tokens / seconds for _, tokens, seconds in considered))
    best = max(range(len(considered)), key=lambda n: considered[n][1] - price * considered[n][2])
    chosen, used = taken[:best], base + considered[best][0]
    # Rows that the step has anyway, because a wider one is cheaper, go to the columns that come next.
    for item in taken[best:]:
        if item.node == COLUMN and used + item.rows <= costs[used][1]:
            chosen.append(item)
            used += item.rows
    return chosen, considered
