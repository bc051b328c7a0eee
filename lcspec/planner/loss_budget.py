"""How much slower than plain decoding a text may get.

Asking drafters and choosing among their nodes takes Python's time; refused drafts take the target's. Every text starts
with a credit, and every step adds 0.5 % of a plain one. A planned step that takes longer than its tokens would have
taken plainly is charged for the difference; one that takes less adds it. At a balance of 0 steps are plain, and no
drafter is asked or observes anything: the drafters catch up later. So a text loses at most the credit and the share,
however useless its drafts are. Now and then drafters are asked what they would say, which may end the pause (see
shadow.py).

Texts that run side by side share a balance. It outlives them, and there is one for every number of them: Python's time
differs with it.
"""

from __future__ import annotations

from dataclasses import dataclass

# Credits in plain steps: of the first text, the most of any later text, and the most while a draft model is asked,
# whose drafts cost more before they show what they are worth.
CREDIT = 3.0
MOST = 5.0
MOST_COSTLY = 12.0
# Share of a plain step that every step adds to the balance.
SHARE = 0.005
# Planned steps in a row: the first one after a pause also catches up on the tokens that the drafters have missed.
ROUND = 2
# The longest pause, in plain steps: what a disturbed moment cost must not end drafting for the rest of a text.
LONGEST = 256
# A planned step is charged at most this many plain ones: the machine may have been busy elsewhere.
OUTLIER = 4.0
# Weight of a new step in the running averages of Python's time.
RATE = 0.1


@dataclass
class LossBudget:
    """The balance of the current text.

    Attributes:
        balance: what the text may still lose, in plain steps.
        costly: whether a drafter that runs a model is asked.
        pause: plain steps to go.
        bare: Python's seconds in a step that is not planned; None: not known, so the next step is not.
        planning: Python's further seconds in a step that is planned.
    """

    balance: float = CREDIT
    costly: bool = False
    pause: int = 0
    bare: float | None = None
    planning: float = 0.0
    _round: int = 0

    def takes(self) -> bool:
        """Whether this step is plain because the balance is used up."""
        if self.pause == 0 and self.bare is not None:
            return False
        self.pause = max(0, self.pause - 1)
        self._round = 0
        return True

    def begin(self) -> None:
        """Another text starts."""
        self.pause = self._round = 0
        self.balance = max(self.balance, 0.0)

    def unplanned(self, beside: float) -> None:
        """A step that was not planned took `beside` seconds in Python."""
        self.bare = beside if self.bare is None else self.bare + RATE * (beside - self.bare)
        self.balance += SHARE

    def looked(self, beside: float, plain: float) -> float:
        """The same of a step in which drafters were asked for nothing but what they would say; returns which share of
        a step that took."""
        bare = self.bare or 0.0
        share = max(0.0, beside - bare) / (plain + bare)
        self.balance += SHARE - share
        return share

    def planned(self, tokens: float, decode: float, beside: float, plain: float) -> None:
        """A planned step emitted `tokens` a text in `decode` + `beside` seconds; a plain decode takes `plain`."""
        bare = self.bare or 0.0
        more, step = max(0.0, beside - bare), plain + bare
        self._round += 1
        if self._round > 1:
            self.planning += RATE * (min(more, step) - self.planning)
        lost = min((decode + more - plain) / step, OUTLIER) - (tokens - 1)
        self.balance = min(self.balance + SHARE - lost, MOST_COSTLY if self.costly else MOST)
        if self.balance <= 0.0 and self._round >= ROUND:
            # Pause until a round is paid for.
            self.pause = min(LONGEST, max(1, int((ROUND * self.planning / step - self.balance) / SHARE)))
