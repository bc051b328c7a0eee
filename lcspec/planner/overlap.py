"""Whether draft models go on while the target decodes (see lcspec.drafters.ahead).

That saves the time of the levels that are ready when they are wanted. It costs what the target's decode takes longer
because of it, and what is waited for the other thread at its end. Where the two share cores or a memory bus, it costs
more than it saves. All of it is measured, step by step, and put on a balance in seconds. At 0 drafting ahead rests,
until a share of the time has paid for another trial: it loses at most the credit and that share.
"""

from __future__ import annotations

from dataclasses import dataclass

from lcspec.planner.loss_budget import SHARE

# The most that may be lost at a time, in plain steps.
CREDIT = 2.0
# Steps at the start of a session, and one step of so many, in which nothing is drafted ahead: they show what a decode
# takes by itself.
FIRST = 8
EVERY = 32


@dataclass
class Overlap:
    """The balance.

    Attributes:
        running: draft models go on during the current step's decode.
        saved, waited, slower: seconds of the current step: of levels that were ready, of waiting for the other thread
            after the decode, and of the decode beyond what it takes by itself.
        balance: what may still be lost, seconds.
        rests: nothing is drafted ahead until `balance` has grown to the credit.
    """

    running: bool = False
    saved: float = 0.0
    waited: float = 0.0
    slower: float = 0.0
    balance: float = 0.0
    rests: bool = True
    _steps: int = 0

    def start(self) -> bool:
        """A step is decoded now: whether draft models go on meanwhile."""
        self._steps += 1
        self.running = not self.rests and self._steps % EVERY > 0
        return self.running

    def finish(self, decode: float, plain: float) -> None:
        """The step is over; its decode took `decode` seconds, and a plain one takes `plain`."""
        credit = CREDIT * plain
        if self._steps == FIRST:
            self.rests, self.balance = False, credit
        if self.running:
            self.balance = min(credit, self.balance + self.saved - self.waited - self.slower)
            self.rests = self.balance <= 0.0
        elif self.rests and self._steps > FIRST:
            self.balance += SHARE * decode
            self.rests = self.balance < credit
        self.running, self.saved, self.waited, self.slower = False, 0.0, 0.0, 0.0
