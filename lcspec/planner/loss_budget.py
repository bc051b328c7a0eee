"""How much slower than plain decoding a text may get.

Asking drafters and choosing among their nodes takes Python's time; refused drafts take the target's. Every text starts
with a credit, and every step adds 0.5 % of a plain one. A planned step that takes longer than its tokens would have
taken plainly is charged for the difference; one that takes less adds it. While the balance is below 0 steps are plain,
and no drafter is asked or observes anything: the drafters catch up later. So a text loses at most the credit, the share
and one step, however useless its drafts are. Now and then drafters are asked what they would say, which may end the
pause (see shadow.py). Where drafts must be right more often than such a look asks for, a text begins with a pause.

Texts that run side by side share a balance. It outlives them, and there is one for every number of them: Python's time
differs with it.
"""

from __future__ import annotations

from dataclasses import dataclass

# In plain steps: the credit of the first text, and the most that a later one may lose.
CREDIT, MOST = 3.0, 5.0
# The most while a draft model is asked, whose drafts cost more before they show what they are worth.
MOST_COSTLY = 12.0
# Share of a plain step that every step adds to the balance.
SHARE = 0.005
# The least balance, so the longest pause is 256 steps: what a disturbed moment cost must not end drafting for a text.
LEAST = -256 * SHARE
# Weight of a new step in the running average of Python's time.
RATE = 0.1


@dataclass
class LossBudget:
    """The balance of the current text.

    Attributes:
        balance: what the text may still lose, in plain steps.
        costly: whether a drafter that runs a model is asked.
        bare: Python's seconds in a step that is not planned; None: not known, so the next step is not.
    """

    balance: float = CREDIT
    costly: bool = False
    bare: float | None = None

    @property
    def pauses(self) -> bool:
        """Whether the next step is plain."""
        return self.balance < 0.0 or self.bare is None

    def begin(self, looks: bool = False) -> None:
        """Another text starts, or this one has come to a part that is easy to guess. `looks`: it pauses until a look
        has shown that it is (see shadow.py)."""
        self.balance = LEAST if looks else max(self.balance, 0.0)

    def unplanned(self, beside: float) -> None:
        """A step that was not planned took `beside` seconds in Python."""
        self.bare = beside if self.bare is None else self.bare + RATE * (beside - self.bare)
        self.balance += SHARE

    def planning(self, beside: float, plain: float) -> float:
        """By how much `beside` seconds in Python exceed those of a step that is not planned, in plain steps."""
        bare = self.bare or 0.0
        return max(0.0, beside - bare) / (plain + bare)

    def planned(self, tokens: float, decode: float, beside: float, plain: float) -> None:
        """A planned step emitted `tokens` a text in `decode` + `beside` seconds; a plain decode takes `plain`."""
        lost = self.planning(beside, plain) + (decode - plain) / (plain + (self.bare or 0.0)) - (tokens - 1.0)
        self.balance = min(max(self.balance + SHARE - lost, LEAST), MOST_COSTLY if self.costly else MOST)
