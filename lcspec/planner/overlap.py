"""Whether draft models go on while the target decodes (see lcspec.drafters.ahead).

That saves the time of the levels that are ready when they are wanted. It costs what the target's decode takes longer
because of it, and what is waited for the other thread at its end. Where the two share cores or a memory bus, it costs
more than it saves. All of it is measured, step by step, and put on a balance. At 0 drafting ahead rests, until a share
of every step has paid for another trial: it loses at most the credit and that share.
"""

from __future__ import annotations

from dataclasses import dataclass

from lcspec.planner.loss_budget import SHARE

# The most that may be lost at a time, and what there is of it at the start of a session: eight steps later is enough.
CREDIT, START = 2.0, 1.961
# One step of so many shows what a decode takes by itself, as those at the start do.
EVERY = 32


@dataclass
class Overlap:
    """The balance.

    Attributes:
        running: draft models go on during the current step's decode.
        saved, waited, slower: seconds of the current step: of levels that were ready, of waiting for the other thread
            after the decode, and of the decode beyond what it takes by itself.
        balance: what may still be lost, in plain steps.
        rests: nothing is drafted ahead until `balance` has grown to the credit.
    """

    running: bool = False
    saved: float = 0.0
    waited: float = 0.0
    slower: float = 0.0
    balance: float = START
    rests: bool = True
    _steps: int = 0

    def start(self) -> bool:
        """A step is decoded now: whether draft models go on meanwhile."""
        self._steps += 1
        self.running = not self.rests and self._steps % EVERY > 0
        return self.running

    def finish(self, plain: float) -> None:
        """The step is over; a plain decode takes `plain` seconds."""
        if self.running:
            self.balance = min(CREDIT, self.balance + (self.saved - self.waited - self.slower) / plain)
            self.rests = self.balance <= 0.0
        elif self.rests:
            self.balance += SHARE
            self.rests = self.balance < CREDIT
        self.running, self.saved, self.waited, self.slower = False, 0.0, 0.0, 0.0
