"""How much slower than plain decoding a text may get: time that drafting must earn back.

Asking drafters and choosing among what they say takes Python's time, drafts that are refused take the target's. Every
text begins with a credit of a few steps and gets a small share of its time on top. What a planned step takes more than
its tokens would have taken plainly is paid from it, what it takes less is paid in. While nothing is left, steps are
plain and nobody is asked or told anything: the drafters catch up afterwards. So a text loses the credit and the share
at most, however useless drafts are for it.
"""

from __future__ import annotations

from dataclasses import dataclass

# Plain steps that the first text may lose, every later one at least, and any at most; more where a draft model is
# asked, whose drafts cost more before they show what they are worth.
CREDIT = 3.0
LEAST = 0.25
MOST = 5.0
MOST_COSTLY = 12.0
# Share of the time that is paid in.
SHARE = 0.005
# Planned steps in a row: the first one after a pause finds drafters that have yet to hear of its tokens.
ROUND = 8
# Plain steps in a row at most.
LONGEST = 256
# A step counts for so many plain ones at most: the machine may have been elsewhere.
OUTLIER = 4.0
# How fast the seconds beside the decode follow.
RATE = 0.1


@dataclass
class LossBudget:
    """The account of the text at hand, seconds.

    Attributes:
        balance: what may still be lost.
        costly: a drafter that runs a model is asked.
        pause: plain steps to go.
        bare: seconds besides its decode that a step takes which nobody plans.
        planning: seconds that a step takes more if it is planned.
    """

    balance: float = 0.0
    costly: bool = False
    pause: int = 0
    bare: float = 0.0
    planning: float = 0.0
    _bare_known: bool = False
    _round: int = 0
    _credit: float = CREDIT  # plain steps that the text at hand may begin with at least; 0: it has begun

    def takes(self) -> bool:
        """Whether this step is plain because nothing is left."""
        if self.pause == 0:
            return False
        self.pause -= 1
        self._round = 0
        return True

    def begin(self) -> None:
        """Another text."""
        self.pause, self._round = 0, 0
        self._credit = self._credit or LEAST

    def unplanned(self, decode: float, beside: float) -> None:
        """A plain step nobody planned took so many seconds, and so many besides its decode."""
        self.bare = self.bare + RATE * (beside - self.bare) if self._bare_known else beside
        self._bare_known = True
        self.balance += SHARE * decode

    def planned(self, tokens: int, decode: float, beside: float, plain: float) -> None:
        """A planned step emitted `tokens` in `decode` seconds and `beside` more; a plain decode takes `plain`."""
        more = max(0.0, beside - self.bare)
        step = plain + self.bare
        self._round += 1
        if self._round > 1:
            self.planning += RATE * (min(more, OUTLIER * self.planning or more) - self.planning)
        lost = min(decode + more - plain, OUTLIER * step) - (tokens - 1) * step
        if self._credit:
            self.balance, self._credit = max(self.balance, self._credit * step), 0.0
        self.balance = min(self.balance + SHARE * decode - lost, (MOST_COSTLY if self.costly else MOST) * step)
        if self.balance <= 0.0 and self._round >= ROUND:
            # Until a round is paid for again. What a step takes unplanned must be known to say what planning costs.
            need = ROUND * self.planning - self.balance
            self.pause = min(LONGEST if self._bare_known else 1, max(1, int(need / (SHARE * step))))
