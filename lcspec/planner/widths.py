"""Choosing a step's width: how many of the drafted nodes go in, given the price of every row."""

from __future__ import annotations

from typing import Callable, NamedTuple, Sequence

from lcspec.planner.worth import Costs

Considered = list[tuple[int, float, float]]


class Item(NamedTuple):
    """A drafted node that competes for a row. Items sort by worth, parents before their children.

    `worth`: *minus* the tokens it is expected to bring; `proposal`, `node`: the tree, and the node in it."""

    worth: float
    proposal: int
    node: int


class Step(NamedTuple):
    """A step before drafts are chosen: `base` rows for pending tokens, `need` rows and `tokens` that are certain,
    `room` for further rows, and the seconds that drafting took."""

    base: int
    need: int
    tokens: float
    room: int
    drafting: float


def choose(
    pool: Sequence[Item], step: Step, costs: Costs, beside: Callable[[Item], float] | None = None
) -> tuple[int, Considered]:
    """How many of the first items of `pool` to take, and (nodes, tokens, seconds) of every number that was compared.

    It maximises tokens per second of the whole step, drafting included: that time is spent however few drafts are
    kept, so after expensive drafting a wider step can be the best. But no step is chosen whose further nodes have a
    worse rate than going on without: verifying more drafts does not make up for drafts that were too expensive.

    Args:
        pool: descending in expected tokens.
        step: what they are added to.
        costs: need -> (seconds, width).
        beside: called with every item that is added, in order; returns the seconds that all of them so far cost
            beside their rows.
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
    price = max([price, *[tokens / seconds for _, tokens, seconds in considered]])
    gains = [tokens - price * seconds for _, tokens, seconds in considered]
    return gains.index(max(gains)), considered
