"""Where the last tokens of a text occurred before: the index that text is copied from with.

Every place is linked to the one before it where the same token (or pair of tokens) ends, as compressors link what they
copy from (the hash chains of Deflate, RFC 1951). A token more is an entry in a table and one in a list.
"""

from __future__ import annotations

from collections.abc import Sequence

# After every text of an index that holds several; no token.
END = -1


# Where the last tokens occurred: how many of them, the position of what followed, and the text. No class: a draft makes
# hundreds.
Place = tuple[int, int, list[int]]


class TextIndex:
    """A text that grows, or several with END after each."""

    def __init__(self, n: int) -> None:
        """Find matches of at least `n` tokens, 1 or 2."""
        self.n = n
        self.tokens: list[int] = []
        self._newest: dict[int | tuple[int, int], int] = {}
        self._before = [0]  # by place; 0: there is none

    def extend(self, tokens: Sequence[int]) -> None:
        """Append `tokens`."""
        text, newest, before = self.tokens, self._newest, self._before
        last = text[-1] if text else END
        for at, token in enumerate(tokens, start=len(text) + 1):
            key = token if self.n == 1 else (last, token)
            before.append(newest.get(key, 0))
            newest[key] = at
            last = token
        text.extend(tokens)

    def places(self, tail: Sequence[int], most: int, least: int = 1, below: int = 0) -> list[Place]:
        """Where the end of `tail` occurs, at least `least` and n tokens of it: the newest `most`, newest first.

        `below`: the first place that does not count; 0: all do.
        """
        text, before, longest = self.tokens, self._before, len(tail)
        found: list[Place] = []
        if longest < self.n:
            return found
        at = self._newest.get(tail[-1] if self.n == 1 else (tail[-2], tail[-1]), 0)
        if below and at >= below:
            at = before[at]
        while at and most:
            length, top = self.n, min(longest, at)
            while length < top and text[at - length - 1] == tail[-length - 1]:
                length += 1
            if length >= least:
                found.append((length, at, text))
                most -= 1
            at = before[at]
        return found
