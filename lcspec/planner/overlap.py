"""Whether draft models go on while the target decodes (see lcspec.drafters.ahead).

Drafting ahead saves the time of the levels that are ready when they are wanted. It has two costs: the target's decode
takes longer, and at its end the target waits for the draft's thread. If the two share cores or a memory bus, it costs
more than it saves. Each step is measured, and its savings and costs go into a balance. At 0 nothing is drafted ahead
until a share of every step has paid for another trial. So at most that share is lost, the first trial, and a part of
what was gained before.
"""

from __future__ import annotations

from dataclasses import dataclass

from lcspec.planner.loss_budget import SHARE

# What a trial may lose, and the most of what was gained that may be lost again, in plain steps. A draft that finds
# nothing costs a tenth of a step, and several in a row are no sign that drafting ahead does not pay.
CREDIT, KEPT = 2.0, 10.0
# In one of so many steps nothing is drafted ahead, which shows what a decode takes by itself, as the first steps do.
EVERY = 32


@dataclass
class Overlap:
    """The balance.

    Attributes:
        running: draft models go on during the current step's decode.
        gained: seconds of the current step: those that ready levels saved, less those of waiting for the draft's thread
            after the decode, and those by which the decode was longer than by itself.
        balance: what may still be lost, in plain steps.
        pauses: nothing is drafted ahead until `balance` has grown to the credit.
    """

    running: bool = False
    gained: float = 0.0
    balance: float = CREDIT - 7.5 * SHARE  # it is first tried after eight steps
    pauses: bool = True
    _steps: int = 0

    def start(self) -> bool:
        """A step begins to decode; returns whether draft models go on drafting meanwhile."""
        self._steps += 1
        self.running = not self.pauses and self._steps % EVERY > 0
        return self.running

    def finish(self, plain: float) -> None:
        """The step is over; a plain decode takes `plain` seconds."""
        if self.running:
            self.balance = min(KEPT, self.balance + self.gained / plain)
            self.pauses = self.balance <= 0.0
        elif self.pauses:
            self.balance += SHARE
            self.pauses = self.balance < CREDIT
        self.running, self.gained = False, 0.0
