"""How wide a window of probes rides along in a step, 0 included, and making room for it.

Probes bring n-grams for later steps, so their worth is an investment. What a window of W columns brings grows with
log(1 + W) (the scaling law of Fu et al. 2024, section 4), so a step that feeds W columns is worth

    a * log(1 + W) tokens,    a = (tokens gained - tokens' worth of time spent on verifying) / sum of log(1 + W) fed

with both sums running and forgetting, over what was really fed and really gained: only accepted tokens that no other
drafter had proposed count, only those of n-grams that the window brought lately, and a cautious guess fills in until
there are figures. That is the measured hit rate of the pool, per unit of effort.

The W-th column adds a * log((W + 1) / W) for its n - 1 rows. Per row that is a number like a draft node's P(v), so
columns and nodes compete for the same width in the planner's formula: the price of a row is what T(n) says here. Where
T is steep nothing is fed; where it is flat the rows that the least likely drafts would take are; and rows that a step
has anyway, because a wider step is cheaper than a narrower one, are filled for the price of the bookkeeping alone.

Where the figures say no, the window is tried now and then for a few steps in a row within 0.3 % of the decode time,
provided that it would pay if the text were as good as texts get.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Mapping, NamedTuple, Sequence

from lcspec.drafters.base import ProbingDrafter, probing
from lcspec.planner.base import Proposal

if TYPE_CHECKING:
    from lcspec.kv_cache.sequence_cache import SequencePool

# The guess before there are figures: tokens gained by that much effort (a window of 15 columns is an effort of 2.8).
FIRST_GAIN = 0.8
FIRST_EFFORT = 6.0
# Effort that is remembered: some 200 steps of a wide window.
MEMORY = 500.0
# A window's worth on a text as good as texts get.
HOPE = 0.4
# Share of the decode time for trying, and the steps that a trial takes (the first few only warm the window up).
TRIAL_SHARE = 0.003
TRIAL_STEPS = 12
# Seconds a column costs besides the width: moving a sequence id along, and the argmax of its row.
COLUMN_SECONDS = 60e-6
# No wider window is ever planned.
MAX_COLUMNS = 48


@dataclass
class Yield:
    """What feeding a drafter's window has brought."""

    gain: float = 0.0
    effort: float = 0.0

    @property
    def worth(self) -> float:
        """`a` of the module docstring: tokens per unit of effort."""
        return max(0.0, self.gain + FIRST_GAIN) / (self.effort + FIRST_EFFORT)

    def fed(self, columns: int) -> None:
        """A step evaluated that many columns."""
        added = math.log1p(columns)
        keep = max(0.0, 1.0 - added / MEMORY)
        self.gain *= keep
        self.effort = self.effort * keep + added

    def gained(self, tokens: float) -> None:
        """Verifying its n-grams gained `tokens`, net of the time that took."""
        self.gain += tokens


class Offer(NamedTuple):
    """One more column for a proposal's window: what it promises, and the rows it takes."""

    proposal: int
    tokens: float
    rows: int


def marginal(worth: float, column: int) -> float:
    """Tokens that the `column`-th column adds, column >= 1."""
    return worth * math.log((column + 1) / column)


@dataclass
class LookaheadBudget:
    """Sizes the windows of an engine's requests."""

    yields: dict[str, Yield] = field(default_factory=dict)
    credit: float = 0.0  # seconds saved up for trials
    trial_left: int = 0  # steps of the trial under way
    trial_columns: int = 0

    def of(self, drafter: ProbingDrafter) -> Yield:
        """The drafter's figures."""
        return self.yields.setdefault(drafter.name, Yield())

    def offers(
        self, proposals: Sequence[Proposal], costs: Mapping[int, tuple[float, int]], base: int, price: float
    ) -> list[Offer]:
        """The columns that the proposals' drafters could use, the first ones of each first.

        Args:
            proposals: of all slots.
            costs: seconds by need, as CostCurve.effective gives them.
            base: width of the step without drafts and probes.
            price: tokens that a second is worth.
        """
        out: list[Offer] = []
        for i, p in enumerate(proposals):
            for drafter in probing(p.sequence.drafters):
                rows, most = room_for(p, drafter)
                worth = self.of(drafter).worth
                if most and self._trying(most, rows, worth, costs, base, price):
                    worth, most = HOPE, min(most, self.trial_columns)
                for column in range(1, most + 1):
                    tokens = marginal(worth, column) - price * COLUMN_SECONDS
                    if tokens <= 0.0:
                        break
                    out.append(Offer(i, tokens, rows - (column == 1)))
        return out

    def _trying(
        self, most: int, rows: int, worth: float, costs: Mapping[int, tuple[float, int]], base: int, price: float
    ) -> bool:
        """Whether this step belongs to a trial; begins one when the credit allows."""
        if self.trial_left > 0:
            self.trial_left -= 1
            return True
        best, columns, seconds = 0.0, 0, 0.0
        for column in range(1, most + 1):
            need = base + column * rows - 1
            if need not in costs:
                break
            extra = costs[need][0] - costs[base][0] + column * COLUMN_SECONDS
            if marginal_sum(worth, column) > price * extra:
                return False  # it pays as it is
            net = marginal_sum(HOPE, column) - price * extra
            if net > best:
                best, columns, seconds = net, column, extra
        if not columns or self.credit < TRIAL_STEPS * seconds:
            return False
        self.trial_left, self.trial_columns = TRIAL_STEPS - 1, columns
        self.credit -= TRIAL_STEPS * seconds
        return True

    def timed(self, seconds: float) -> None:
        """A decode took `seconds`."""
        self.credit = min(self.credit + TRIAL_SHARE * seconds, 200 * seconds)

    def learn(self, proposal: Proposal, saved: Callable[[int], float], price: float) -> None:
        """Learn what the step's window and the n-grams of earlier ones came to.

        Args:
            proposal: after the step.
            saved: the seconds that the step would have taken less with so many nodes fewer.
            price: tokens that a second is worth.
        """
        kept = proposal.kept
        for drafter in probing(proposal.sequence.drafters):
            if not drafter.column_rows(proposal.sequence):
                continue
            told = drafter.feeding(proposal.sequence)
            bit, mine = proposal.sequence.bit_of(drafter), 0
            if kept is not None:
                mine = sum(source == bit for source in kept.sources[1:])
            figures = self.of(drafter)
            if told.columns:
                figures.fed(told.columns)
            if mine:
                figures.gained(told.gained - price * saved(mine))


def marginal_sum(worth: float, columns: int) -> float:
    """Tokens that a window of `columns` is worth."""
    return worth * math.log1p(columns)


def room_for(p: Proposal, drafter: ProbingDrafter) -> tuple[int, int]:
    """(rows a column takes, columns at most) for a drafter whose window the planner sizes; columns 0 if none can be."""
    rows = drafter.column_rows(p.sequence)
    if not rows or p.limits.leaves < 2 or p.limits.depth <= rows:
        return rows, 0
    return rows, min(MAX_COLUMNS, p.limits.leaves - 1, p.limits.depth, (p.limits.nodes + 1) // rows)


def reserved(p: Proposal) -> int:
    """Rows that the user's own widths ask for, half of the step at most."""
    rows = sum(d.reserved_rows(p.sequence) for d in probing(p.sequence.drafters)) if p.limits.leaves > 1 else 0
    return min(rows, max(p.limits.nodes // 2, p.limits.nodes - p.tree.n_drafted))


def feed(proposals: Sequence[Proposal], room: int, pool: SequencePool) -> None:
    """Let the drafters say what they want evaluated, within `probe_rows`, the step's `room` and the leaf ids left."""
    free = pool.free
    owned = []
    for p in proposals:
        assert p.kept is not None
        spare = p.sequence.cache.max_leaves - 1 - pool.free - (len(p.kept.leaves()) - 1)
        owned.append(max(0, spare))
        free += min(0, spare)
    for p, own in zip(proposals, owned):
        assert p.kept is not None
        for drafter in probing(p.sequence.drafters):
            leaves = min(own + max(0, free), p.limits.depth) if p.limits.leaves > 1 else 0
            window = drafter.window(p.sequence, p.kept, min(room, p.probe_rows), leaves)
            if not window.ask and not window.drafted:
                continue
            p.windows.append(window)
            room -= window.tree.n_drafted
            used = len(window.tree.leaves())
            free -= max(0, used - own)
            own = max(0, own - used)
