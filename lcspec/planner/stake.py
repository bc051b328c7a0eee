"""What drafts cost beside their rows where the memory cannot be rolled back for free (see lcspec.profiles.stake)."""

from __future__ import annotations

from lcspec.profiles.stake import Costs, Stake

# Weight of a new observation in the running share of accepted tokens, and the share at the start.
RATE = 0.02
FIRST_SHARE = 0.7


class AcceptedShare:
    """The running share of tested tokens that were accepted, for decisions that fall before there is a draft."""

    def __init__(self) -> None:
        self.share = FIRST_SHARE

    def saw(self, tested: int, accepted: int) -> None:
        """In a verified draft, `tested` tokens were compared with the target's and `accepted` were right."""
        for i in range(tested):
            self.share += RATE * ((i < accepted) - self.share)

    def table(self, stake: Stake, costs: Costs, base: int) -> dict[int, tuple[float, int]]:
        """`costs` plus what a chain of such tokens costs beside its rows."""
        out, reach = dict(costs), list[float]()
        for need in sorted(n for n in costs if n > base):
            reach.append(self.share ** (need - base))
            seconds, width = costs[need]
            out[need] = seconds + stake.seconds(costs, base, 1, reach), width
        return out
