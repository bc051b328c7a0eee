"""Exactness: the same bits with speculation and without, so that drafts cannot change the text.

Kernels sum in another order at other widths, so widths fall into *classes* that agree only among themselves; which
ones is measured, not assumed. Best is a context that is *independent*: a token's row has the same bits at
every width, beside every other request and whatever pieces the prompt was read in. Then an exact request differs from
others in nothing but this: cells freed below others are parked (lcspec.kv_cache.parking), because attention sums run
over cells.

Where a context is not independent, an exact request decodes every step of its answer in one class:

- a step narrower than the class's next width is padded with throwaway tokens on a scratch sequence;
- prompts are evaluated in blocks of PROMPT_BLOCK tokens, the last one padded, whatever the chunk size;
- an accepted path that does not lie in the cache in text order is decoded again with the next step, because
  attention sums run over cells and scattered cells would change the bits;
- cells are reused between requests only where they were computed the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from lcspec.config import ModelOptions

if TYPE_CHECKING:
    from lcspec.llama import Context

PROMPT_BLOCK = 32
TRUSTED_POSITIONS = 300
# Why something is not exact.
DEPENDS = "on this machine a token's bits depend on how many are decoded at once"


@dataclass(frozen=True)
class Certificate:
    """Which widths give the same bits, for one model on one machine.

    Attributes:
        classes: widths grouped by identical logits.
        positions: text positions that were compared.
        trees: tree-decoded rows equal path-by-path rows within the chosen class.
        repeatable: the same decode twice gives the same bits; without that nothing can be certified.
        independent: a row has the same bits at every width, beside other requests and after any pieces of the prompt.
    """

    classes: tuple[tuple[int, ...], ...]
    positions: int
    trees: bool
    repeatable: bool
    independent: bool = False

    @property
    def widths(self) -> frozenset[int]:
        """The class that exact requests use: the one with most narrow widths, which speculate best.

        Chosen without looking at a clock, so that it is the same in every session.
        """

        if self.independent:
            return frozenset(w for group in self.classes for w in group)

        def rank(group: tuple[int, ...]) -> tuple[int, int, int]:
            return sum(w <= 8 for w in group), len(group), -min(group)

        chosen: tuple[int, ...] = max(self.classes, key=rank)
        best = frozenset(chosen)
        # Width 1 has kernels of its own; a short look that saw no difference is not enough to trust it.
        return best - {1} if self.positions < TRUSTED_POSITIONS and len(best) > 1 else best

    @property
    def prompt_in_class(self) -> bool:
        """Whether prompt blocks give the same bits as decode steps."""
        return PROMPT_BLOCK in self.widths

    def pad(self, n: int) -> int:
        """The class's narrowest width that takes `n` tokens."""
        return min((w for w in self.widths if w >= n), default=n)

    def as_dict(self) -> dict[str, Any]:
        """For the cache file and `verify --json`."""
        return {
            "classes": [list(c) for c in self.classes],
            "positions": self.positions,
            "trees": self.trees,
            "repeatable": self.repeatable,
            "independent": self.independent,
        }

    @classmethod
    def from_dict(cls, data: Any) -> Certificate:
        """Read `as_dict`'s form.

        Raises:
            ValueError: it is not that.
        """
        try:
            classes = tuple(tuple(int(w) for w in c) for c in data["classes"])
            flags = [bool(data[name]) for name in ("trees", "repeatable", "independent")]
            out = cls(classes, int(data["positions"]), *flags)
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a certificate: {error}") from error
        if not classes or not all(classes) or any(w < 1 for c in classes for w in c):
            raise ValueError("not a certificate: bad widths")
        return out


class Kernels(NamedTuple):
    """`options` with cache types and attention decided, and `exact` True or False.

    `certificate`: where rows are the same whatever else is in a batch. `beyond`: as for Price.
    """

    options: ModelOptions
    certificate: Certificate | None = None
    beyond: int | None = None

    def with_options(self, options: ModelOptions) -> Kernels:
        """The same decisions for a context of other options."""
        ours = self.options
        decided = replace(
            options, attention=ours.attention, kv_type_v=ours.kv_type_v, exact=ours.exact, streams=ours.streams
        )
        return self._replace(options=decided)


class ScratchPad:
    """Fills batches up with throwaway tokens on a sequence of its own."""

    def __init__(self, context: Context, seq: int) -> None:
        self.context = context
        self.seq = seq
        self._used = False

    def fill(self, width: int) -> None:
        """Pad the batch to `width` tokens.

        Padding asks for logits where all other tokens do: the end of the network runs over the output rows alone, so
        that *their* number must be the width, too.
        """
        batch = self.context.batch
        self._used = 0 < batch.n < width
        if self._used:
            token, outputs = batch.first_token, batch.n_outputs == batch.n
            for pos in range(width - batch.n):
                batch.add(token, pos, (self.seq,), logits=outputs)

    def drop(self) -> None:
        """Remove the padding's cells."""
        if self._used:
            self.context.memory.remove(self.seq, 0)
            self._used = False


def in_order(order: Sequence[int], path: Sequence[int]) -> int:
    """How many accepted nodes lie in the cache in text order: those that came first in the batch."""
    n = 0
    while n < len(path) and order[n + 1] == path[n]:
        n += 1
    return n
