"""Choosing a step's width: which of the drafted nodes go in, when every row has its price."""

from __future__ import annotations

from typing import Callable, NamedTuple, Sequence

from lcspec.planner.worth import Costs

Considered = list[tuple[int, float, float]]


class Item(NamedTuple):
    """A node that may go into a step, in the order of its worth (parents before their children): *minus* the tokens
    it is expected to bring, and the node `node` of the tree of proposal `proposal`."""

    worth: float
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
) -> tuple[int, Considered]:
    """How many of the first of `pool` make the most tokens a second, and (nodes, tokens, seconds) of all beginnings.

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
        return 0, []
    considered = [(need - base, tokens, drafting + costs[need][0])]
    price = tokens / costs[need][0]
    for wide, item in enumerate(pool[: max(0, room)], start=need + 1):
        if wide not in costs:
            break
        tokens -= item.worth
        more = beside(item) if beside is not None else 0.0
        considered.append((wide - base, tokens, drafting + costs[wide][0] + more))
    price = max(price, max(tokens / seconds for _, tokens, seconds in considered))
    return max(range(len(considered)), key=lambda n: considered[n][1] - price * considered[n][2]), considered
