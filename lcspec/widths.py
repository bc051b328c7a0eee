"""Choosing a step's width: which of the nodes and columns on offer go in, when every row has its price."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from lcspec.worth import Costs

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
    case, `room` more rows that may be taken."""

    base: int
    need: int
    tokens: float
    room: int


def choose(pool: Sequence[Item], step: Step, costs: Costs) -> tuple[list[Item], Considered]:
    """The beginning of `pool` with the most tokens a second, and (nodes, tokens, seconds) of all beginnings.

    Args:
        pool: descending in worth.
        step: what they are added to.
        costs: need -> (seconds, width).
    """
    base, need, tokens, room = step
    if need not in costs:
        return [], []
    taken, wide = list[Item](), need
    considered = [(need - base, tokens, costs[need][0])]
    for item in pool:
        if wide - need + item.rows <= room and wide + item.rows in costs:
            taken.append(item)
            wide, tokens = wide + item.rows, tokens - item.worth * item.rows
            considered.append((wide - base, tokens, costs[wide][0]))
    best = max(range(len(considered)), key=lambda n: considered[n][1] / considered[n][2])
    chosen, used = taken[:best], base + considered[best][0]
    # Rows that the step has anyway, because a wider one is cheaper, go to the columns that come next.
    for item in taken[best:]:
        if item.node == COLUMN and used + item.rows <= costs[used][1]:
            chosen.append(item)
            used += item.rows
    return chosen, considered
