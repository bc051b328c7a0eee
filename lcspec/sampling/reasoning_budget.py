"""How many tokens a model may reason for: after that the end of its reasoning is all that may come next.

As llama.cpp does it: tokens are counted from the opening tag on; when they are used up (and no character is unfinished)
the closing tag's tokens are the only ones allowed, one after the other; another opening tag begins a new count. It
follows the emitted text alone, as a grammar does, so speculation changes nothing.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ReasoningTags:
    """What stands around reasoning: the text of both tags as bytes, and the tokens that write the closing one."""

    opening: bytes
    closing: bytes
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class ReasoningBudget:
    """A limit for the reasoning in one text.

    Attributes:
        limit: tokens, at least 1, for each stretch of reasoning.
        tags: what may stand around it.
        opened: the tags that the prompt has opened already.
        piece: the bytes of a token, control tokens spelled out.
        n_tokens: size of the vocabulary.
    """

    limit: int
    tags: tuple[ReasoningTags, ...]
    piece: Callable[[int], bytes] = field(compare=False)
    n_tokens: int = 0
    opened: ReasoningTags | None = None

    def start(self) -> BudgetedReasoning:
        """For one text."""
        return BudgetedReasoning(self)


class BudgetedReasoning:
    """One text on its way: counts, and says what may come next (see lcspec.sampling.grammar.Constraint)."""

    def __init__(self, budget: ReasoningBudget) -> None:
        self._budget = budget
        self._within = budget.opened  # the tags it stands between
        self._left = budget.limit
        self._due: tuple[int, ...] = ()  # tokens that must come now
        self._tail = b""  # of the text, as long as a tag that may be beginning

    @property
    def free(self) -> bool:
        """Whether every token may come next."""
        return not self._due

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may come next, bool [n_tokens]; at least one."""
        mask = np.full(self._budget.n_tokens, self.free)
        mask[list(self._due[:1])] = True
        return mask

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        return self.free or token == self._due[0]

    def accept(self, token: int) -> None:
        """Go on past `token`."""
        if self._due:
            self._due = self._due[1:]
            if not self._due:
                self._within, self._tail = None, b""
            return
        text = self._tail + self._budget.piece(token)
        if self._within is None:
            begun = _first(text, [tags.opening for tags in self._budget.tags])
            if begun is None:
                self._tail = text[-max((len(tags.opening) for tags in self._budget.tags), default=1) :]
                return
            self._within, self._left, self._tail = self._budget.tags[begun], self._budget.limit, b""
            return
        if self._within.closing in text:
            self._within, self._tail = None, b""
            return
        self._tail = text[-len(self._within.closing) :]
        self._left -= 1
        if self._left <= 0 and not _unfinished(text):
            self._due = self._within.tokens

    def fork(self) -> BudgetedReasoning:
        """One that goes on by itself from here."""
        return copy.copy(self)

    def forced(self) -> bytes:
        """Nothing: the tokens that are due are control tokens, which cannot be told by their text."""
        return b""


def _first(text: bytes, tags: Sequence[bytes]) -> int | None:
    found = [(text.find(tag), i) for i, tag in enumerate(tags) if tag in text]
    return min(found)[1] if found else None


def _unfinished(text: bytes) -> bool:
    """Whether the last character lacks some of its bytes."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return length > back
    return False
