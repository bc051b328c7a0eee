"""What drafts are worth in tokens: the arithmetic behind asking a drafter that costs time.

`costs` is CostCurve.effective: need -> (seconds, width). `price` is what a second is worth in tokens.
"""

from __future__ import annotations

import bisect
import operator
from typing import Mapping, Sequence

Costs = Mapping[int, tuple[float, int]]

# Longest draft that is considered when it is decided whether to ask a costly drafter at all.
LOOKAHEAD = 16
# What a step gains without asking (tokens): asking is judged apart below, between and above these.
GAIN_BUCKETS = (0.25, 1.0)
# So many slots and more are one case.
MANY = 8


def value(costs: Costs, ranked: Sequence[float], base: int, price: float) -> float:
    """Tokens gained over drafting nothing, net of the target's time; `ranked`: acceptance, descending."""
    narrowest = costs[base][0]
    best = total = 0.0
    for n, p in enumerate(ranked, start=base + 1):
        cost = costs.get(n)
        if cost is None:
            break
        total += p
        gained = total - price * (cost[0] - narrowest)
        if gained > best:
            best = gained
    return best


def least_row(costs: Costs, base: int) -> float:
    """Seconds of a row where rows are cheapest: on average over the first four drafted nodes, or as many more as there
    may be. The first one is left out, for it may take a step to another kind of kernel."""
    first = costs.get(base + 1)
    if first is None:
        return 0.0
    return min((costs[n][0] - first[0]) / (n - base - 1) for n in costs if n > base + 4) if base + 5 in costs else 0.0


def fastest(costs: Costs, ranked: Sequence[float], base: int, spent: float = 0.0) -> tuple[float, float]:
    """Tokens and seconds of the best width, `spent` seconds of drafting included; `ranked`: acceptance, descending."""
    tokens = float(base)
    best = tokens, costs[base][0] + spent
    top = tokens / best[1]
    for n, p in enumerate(ranked, start=base + 1):
        cost = costs.get(n)
        if cost is None:
            break
        tokens += p
        seconds = cost[0] + spent
        if tokens > top * seconds:
            top, best = tokens / seconds, (tokens, seconds)
    return best


def rate(costs: Costs, ranked: Sequence[float], base: int, spent: float = 0.0) -> float:
    """Tokens a second of the best width: see `fastest`."""
    tokens, seconds = fastest(costs, ranked, base, spent)
    return tokens / seconds


def promises(
    costs: Costs, ranked: Sequence[float], ahead: float, hope: float, level: float, base: int, levels: int = 0
) -> bool:
    """Whether drafting on from a node reached with probability `ahead`, after so many `levels` of it, promises a better
    rate than stopping.

    The continuation is imagined as a chain, a level of which costs `level` seconds, accepted at the rate `hope`, or at
    that of the levels so far if this is higher: what a drafter is sure of tends to go on, and `hope` may be another
    text's. Several levels are looked at because one more node may not pay where four more (the next cheap width) would.
    """
    spent = levels * level
    now = rate(costs, ranked, base, spent)
    hope, probs = max(hope, ahead ** (1 / levels) if levels else 0.0), list(ranked)
    for n in range(1, LOOKAHEAD + 1):
        ahead *= hope
        if ahead < now * level and ahead < 0.01:
            return False
        bisect.insort(probs, ahead, key=operator.neg)
        if rate(costs, probs, base, spent + n * level) > now:
            return True
    return False


def bucket(now: float, alone: bool, slots: int = 1) -> int:
    """The case a gain is filed under: what the step gains without asking, whether another costly drafter was asked
    before, and how many slots share the width, many being alike.
    """
    cases = len(GAIN_BUCKETS) + 1
    return sum(now >= edge for edge in GAIN_BUCKETS) + cases * (not alone) + 2 * cases * (min(slots, MANY) - 1)
