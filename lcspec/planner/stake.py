"""What chains of drafts cost beside their width where a memory cannot be taken back (see lcspec.profiles.stake)."""

from __future__ import annotations

from lcspec.profiles.stake import Costs, Stake

# How fast the running share of accepted tokens follows, and where it begins.
RATE = 0.02
FIRST_SHARE = 0.7


class Hold:
    """The running share of tested tokens that were accepted, for what has to be decided before there is a draft."""

    def __init__(self) -> None:
        self.share = FIRST_SHARE

    def saw(self, tested: int, accepted: int) -> None:
        """Of a draft that was verified `tested` tokens were looked at and `accepted` were right."""
        for i in range(tested):
            self.share += RATE * ((i < accepted) - self.share)

    def table(self, stake: Stake, costs: Costs, base: int) -> dict[int, tuple[float, int]]:
        """`costs` with what chains of such tokens cost beside their width."""
        out, reach = dict(costs), list[float]()
        for need in sorted(n for n in costs if n > base):
            reach.append(self.share ** (need - base))
            seconds, width = costs[need]
            out[need] = seconds + stake.seconds(costs, base, 1, reach), width
        return out
