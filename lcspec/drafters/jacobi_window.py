"""The window of lookahead decoding: guesses for the next positions, refined by Jacobi iterations, and their n-grams.

Fu et al. 2024 (arXiv:2402.02057). Pure Python: the target's choices come in as token ids. docs/lookahead.md has a
picture.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Callable, Sequence

from lcspec.spec.token_tree import TokenTree

Gram = tuple[int, ...]
Guess = Callable[[int], int]  # the token to start with at a position of the text

# Keys that a pool holds; the least recently used ones are dropped.
MAX_KEYS = 20_000


class NgramPool:
    """N-grams by their first token, at most `per_key` for each; the least recently used are dropped."""

    def __init__(self, per_key: int, max_keys: int = MAX_KEYS) -> None:
        self.per_key = per_key
        self.max_keys = max_keys
        self._grams: OrderedDict[int, OrderedDict[Gram, None]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._grams.values()))

    def add(self, key: int, gram: Gram) -> bool:
        """Add the fact that `gram` may follow `key`; returns whether it is new."""
        grams = self._grams.setdefault(key, OrderedDict())
        self._grams.move_to_end(key)
        if gram in grams:
            grams.move_to_end(gram)
            return False
        grams[gram] = None
        if len(grams) > self.per_key:
            grams.popitem(last=False)
        if len(self._grams) > self.max_keys:
            self._grams.popitem(last=False)
        return True

    def add_text(self, tokens: Sequence[int], n: int) -> None:
        """Add every run of `n` tokens of a text."""
        for i in range(len(tokens) - n + 1):
            self.add(tokens[i], tuple(tokens[i + 1 : i + n]))

    def after(self, key: int) -> list[Gram]:
        """The n-grams that may follow `key`, the most recently used first."""
        return list(reversed(self._grams.get(key, OrderedDict())))

    def used(self, key: int, tokens: Sequence[int]) -> None:
        """`tokens` followed `key`: the n-grams that are their beginning have been used."""
        grams = self._grams.get(key)
        if not grams or not tokens:
            return
        self._grams.move_to_end(key)
        for gram in [g for g in grams if g[0] == tokens[0]]:
            if gram == tuple(tokens[: len(gram)]):
                grams.move_to_end(gram)


class JacobiWindow:
    """Columns of guesses: column i starts at the i-th position after the pending token's and is `height` tokens high.

    The first tokens of the columns are *level 0*; together they are the trunk, whose first token is the pending one.
    Evaluating a column gives one more token for its top; the target chooses it from the text, the trunk up to the
    column's start, and the column itself. Columns lower than n - 1 tokens grow (warm-up, n - 2 steps). After that, each
    new top completes an n-gram, and the bottom of the column, one position of the text, is dropped.
    """

    def __init__(self, n: int, guess: Guess) -> None:
        """Collect n-grams of `n` >= 3 tokens; `guess` gives the tokens to start with."""
        self.n = n
        self.guess = guess
        self.at = 0  # position of the pending token
        self.height = 1
        self.columns: list[list[int]] = []
        self._known: dict[int, int] = {}  # the latest guess for a position

    @property
    def warm(self) -> bool:
        """Whether an evaluated column completes an n-gram."""
        return self.height == self.n - 1

    def columns_for(self, rows: int, width: int) -> int:
        """How many columns to evaluate with `rows` probes, if `width` columns are wanted once the window is warm.

        During warm-up every step drops a column, so there are as many more columns, of one row each.
        """
        return max(0, min(width + self.n - 1 - self.height, (rows + 1) // self.height))

    def widen(self, width: int, at: int, pending: int) -> None:
        """Extend the window to at least `width` columns, with the pending token at position `at`.

        A new column takes the latest guesses for its positions from other columns, or else from `guess`.
        """
        self.at = at
        while len(self.columns) < width:
            start = at + len(self.columns)
            self.columns.append([self._guessed(position) for position in range(start, start + self.height)])
        self.columns[0][0] = pending

    def _guessed(self, position: int) -> int:
        if position not in self._known:
            self._known[position] = self.guess(position)
        return self._known[position]

    def tree(self, width: int) -> tuple[TokenTree, list[int]]:
        """The probes for the first `width` columns, and the top node of each column.

        Columns that agree from the trunk on share their nodes: equal tokens after an equal past are one row.
        """
        tree = TokenTree.root(self.columns[0][0])
        tree.add_path(0, [column[0] for column in self.columns[1:width]])
        trunk = range(len(tree))
        return tree, [tree.add_path(node, column[1:]) for node, column in zip(trunk, self.columns[:width])]

    def advance(self, tops: Sequence[int], emitted: Sequence[int]) -> list[tuple[int, Gram]]:
        """Advance by the `emitted` tokens. `tops`: the new tops of the first columns; empty if none was evaluated.

        Returns:
            The n-grams that this step completed: (first token, the others).
        """
        grams: list[tuple[int, Gram]] = []
        grown = min(self.height + bool(len(tops)), self.n - 1)
        by_start: dict[int, list[int]] = {}
        for i, column in enumerate(self.columns):
            start = self.at + i
            if i < len(tops):
                column = [*column, tops[i]]
                if len(column) == self.n:
                    grams.append((column[0], tuple(column[1:])))
                    column, start = column[1:], start + 1
            self._known.update(enumerate(column, start))
            if len(column) == grown:
                by_start.setdefault(start, column)
        self.at += len(emitted)
        self.height, self.columns = grown, []
        while self.at + len(self.columns) in by_start:
            self.columns.append(by_start[self.at + len(self.columns)])
        if self.columns:
            self.columns[0][0] = emitted[-1]
        self._known = {p: t for p, t in self._known.items() if p > self.at}
        return grams
