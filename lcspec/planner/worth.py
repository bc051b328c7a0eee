"""What drafts are worth: tokens per second of a step with some of them, drafted already or only imagined.

`costs` is CostCurve.effective: need -> (seconds, width). `price` is the worth of a second, in tokens.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from typing import Iterable, NamedTuple, Sequence

from lcspec.profiles.stake import Costs
from lcspec.spec.token_tree import TokenTree

# How much faster than plain decoding a head's chains must be, if as often right as on texts like those it was trained
# on, to be asked at all. On other texts they are right less often: with a promise of 1.7 `auto` was as fast with
# SmolLM2's head as without, with 1.9 and 2.3 it was 1.3 times as fast (docs/eagle.md).
PROMISE = 1.8


def least_row(costs: Costs, base: int) -> float:
    """Seconds of a row where rows are cheapest: the least average over at least four drafted nodes. The first node is
    left out, because a step with it may use other kernels."""
    first = costs.get(base + 1)
    if first is None:
        return 0.0
    return min((costs[n][0] - first[0]) / (n - base - 1) for n in costs if n > base + 4) if base + 5 in costs else 0.0


def rate(costs: Costs, ranked: Sequence[float], base: int, spent: float = 0.0) -> float:
    """Tokens per second of the best width, `spent` seconds of drafting included; `ranked`: acceptance, descending."""
    tokens = float(base)
    top = tokens / (costs[base][0] + spent)
    for n, p in enumerate(ranked, start=base + 1):
        cost = costs.get(n)
        if cost is None:
            break
        tokens += p
        seconds = cost[0] + spent
        if tokens > top * seconds:
            top = tokens / seconds
    return top


def imagined(
    costs: Costs,
    known: Sequence[float],
    chain: Iterable[float],
    level: float,
    base: int,
    spent: float = 0.0,
    enough: float = math.inf,
) -> float:
    """Tokens per second of the best width, with a chain of the best length added to the drafts `known`, after `spent`
    seconds of drafting; or of the first chain that has more than `enough`.

    `known`: acceptance, descending; `chain`: the tokens that its nodes bring, each of which takes `level` seconds.
    """
    best, probs = rate(costs, known, base, spent), list(known)
    tokens = list(itertools.accumulate(probs, initial=float(base)))  # by the number of nodes
    for n, more in enumerate(chain, start=1):
        if best > enough:
            break
        at = bisect.bisect_right(probs, -more, key=operator.neg)
        probs.insert(at, more)
        tokens[at:] = itertools.accumulate(probs[at:], initial=tokens[at])
        # Fewer nodes bring what they brought before, in no less time.
        wider = [i for i in range(at + 1, len(tokens)) if base + i in costs]
        best = max([best, *(tokens[i] / (costs[base + i][0] + spent + n * level) for i in wider)])
    return best


def could_pay(costs: Costs, chances: Sequence[float], level: float, promise: float = PROMISE) -> bool:
    """Whether chains that are right as often as `chances`, by depth, would keep `promise` at some length; a token of
    them takes `level` seconds, and so does reading what the text became. Yes, where nothing is known."""
    if 1 not in costs or not chances:
        return True
    return imagined(costs, [], itertools.accumulate(chances, operator.mul), level, 1, level) > promise / costs[1][0]


class Item(NamedTuple):
    """A drafted node that competes for a row. Items sort by worth, parents before their children.

    `worth`: *minus* the tokens it is expected to bring; `proposal`, `node`: the tree, and the node in it."""

    worth: float
    proposal: int
    node: int


def choose(
    pool: Sequence[Item], costs: Costs, base: int, need: int, tokens: float, drafting: float, beside: Iterable[float]
) -> tuple[int, list[tuple[int, float, float]]]:
    """How many of the first items of `pool` to take, and (nodes, tokens, seconds) of every number that was compared.

    It maximises tokens per second of the whole step, drafting included: that time is spent however few drafts are
    kept, so after expensive drafting a wider step can be the best.

    Args:
        pool: descending in expected tokens.
        costs: need -> (seconds, width).
        base, need, tokens: rows for pending tokens; rows and tokens that are certain.
        drafting: seconds that drafting took.
        beside: for each item the seconds that it and those before it cost beside their rows.
    """
    if need not in costs:
        return 0, []
    considered = [(need - base, tokens, drafting + costs[need][0])]
    for wide, item, more in zip(itertools.count(need + 1), pool, beside):
        if wide not in costs:
            break
        tokens -= item.worth
        considered.append((wide - base, tokens, drafting + costs[wide][0] + more))
    rates = [tokens / seconds for _, tokens, seconds in considered]
    return rates.index(max(rates)), considered


def chain_worth(costs: Costs, probs: Sequence[float], base: int) -> tuple[float, float]:
    """By which chains are compared where only one can be verified: the rate of the best width, then all tokens."""
    return rate(costs, probs, base), sum(probs)


def best_chain(tree: TokenTree, reach: Sequence[float], costs: Costs, base: int) -> list[int]:
    """The nodes of the path of `tree` that is worth most; `reach`: acceptance by node."""
    paths = [tree.path_to(leaf)[1:] for leaf in tree.leaves()]
    return max(paths, key=lambda path: chain_worth(costs, [reach[v] for v in path], base)) if paths[1:] else paths[0]
