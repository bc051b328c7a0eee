"""The text drafters of other programs, as far as their idea goes, for `scripts/compare_text_drafters.py`.

llama.cpp's `ngram-map-k4v` (the m tokens that mostly followed an n-gram) and `ngram-mod` (one table of n-grams for all
texts, read again for every drafted token), and the frequency-weighted suffix trees of SuffixDecoding (Oliaro et al.
2024, arXiv:2411.04975) as Arctic Inference uses them. All find what theirs find; none is as fast.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import Any

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget
from lcspec.spec.token_tree import TokenTree

# Calibration tells matches apart up to this length.
MAX_FEATURE = 15


class Peer:
    """A drafter without options that keeps nothing of a sequence that it is not told to."""

    default_nodes, default_branch = 8, 1
    costly = wants_hidden = wants_rows = False

    def __init__(self, name: str) -> None:
        self.name = name

    def begin(self, view: Any, spec: DrafterSpec) -> None:
        """A text starts."""

    def observe(self, view: Any, tree: TokenTree, verdict: Any) -> None:
        """The text has grown."""

    def end(self, view: Any) -> None:
        """The text is over."""


class NgramMap(Peer):
    """`ngram-map-k4v`: of at most four different m-grams after the last n tokens the most frequent, if it occurred at
    least twice as often as the others together, no further than it was accepted the last time."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__(f"k4v {n}/{m}")
        self.n, self.m = n, m

    def begin(self, view: Any, spec: DrafterSpec) -> None:
        """Index the prompt."""
        self.values: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
        self.accepted: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self.read = 0
        self.drafted: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._read(view)

    def _read(self, view: Any) -> None:
        text, n, m = view.tokens, self.n, self.m
        for i in range(self.read, len(text) - n - m):
            values = self.values.setdefault(tuple(text[i : i + n]), {})
            value = tuple(text[i + n : i + n + m])
            if value in values or len(values) < 4:
                values[value] = values.get(value, 0) + 1
        self.read = max(self.read, len(text) - n - m)

    def draft(self, view: Any, budget: Budget) -> TokenTree:
        """A chain."""
        key = tuple(view.tokens[-self.n :])
        self.drafted, values = None, self.values.get(key, {})
        if not values:
            return TokenTree.root(view.tokens[-1])
        value = max(values, key=lambda v: values[v])
        others = sum(values.values()) - values[value]
        if others and values[value] < 2 * others:
            return TokenTree.root(view.tokens[-1])
        self.drafted = key, value
        tree, node = TokenTree.root(view.tokens[-1]), 0
        for token in value[: min(self.accepted.get(self.drafted, self.m), budget.nodes, budget.depth)]:
            share = values[value] / (values[value] + others + 1)
            node = tree.add(node, token, share, budget.source, min(values[value], 3))
        return tree

    def observe(self, view: Any, tree: TokenTree, verdict: Any) -> None:
        """Note how many of its tokens were accepted."""
        if self.drafted is not None and tree.n_drafted:
            self.accepted[self.drafted] = len(verdict.tokens) - 1
        self._read(view)


class NgramMod(Peer):
    """`ngram-mod`: what followed each n-gram the last time, in any text; forgotten when five drafts in turn failed."""

    def __init__(self, n: int) -> None:
        super().__init__(f"mod {n}")
        self.n = n
        self.after: dict[tuple[int, ...], int] = {}
        self.low = 0

    def begin(self, view: Any, spec: DrafterSpec) -> None:
        """Index the prompt."""
        self.read, self.drafted = 0, 0
        self._read(view.tokens)

    def _read(self, text: Sequence[int]) -> None:
        n = self.n
        for i in range(self.read, len(text) - n):
            self.after[tuple(text[i : i + n])] = text[i + n]
        self.read = max(self.read, len(text) - n)

    def draft(self, view: Any, budget: Budget) -> TokenTree:
        """A chain."""
        if self.read + 32 < len(view.tokens):
            self._read(view.tokens)
        tree, node, last = TokenTree.root(view.tokens[-1]), 0, tuple(view.tokens[-self.n :])
        while tree.n_drafted < min(budget.nodes, budget.depth) and last in self.after:
            token = self.after[last]
            node, last = tree.add(node, token, 0.5, budget.source), (*last[1:], token)
        self.drafted = tree.n_drafted
        return tree

    def observe(self, view: Any, tree: TokenTree, verdict: Any) -> None:
        """Forget everything if five drafts in turn were hardly accepted."""
        if self.drafted and tree.n_drafted:
            self.low = self.low + 1 if len(verdict.tokens) - 1 < 0.25 * tree.n_drafted else 0
            if self.low >= 5:
                self.after, self.low, self.read = {}, 0, 0


class _Occurrences:
    """Where every token occurs in a set of texts, as (text, next position); enough to find what a suffix tree finds."""

    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        self.after: dict[int, list[tuple[int, int]]] = {}

    def add(self, number: int, tokens: Sequence[int]) -> None:
        """Append to a text."""
        text = self.texts[number]
        for token in tokens:
            text.append(token)
            self.after.setdefault(token, []).append((number, len(text)))

    def matches(self, pattern: Sequence[int]) -> list[tuple[int, list[tuple[int, int]]]]:
        """(length, places) for every set of places at which so many of the last tokens occurred, shortest first; each
        with the greatest length that has this set."""
        places, length = self.after.get(pattern[-1], []), 1
        out = []
        while places:
            more = [
                (number, at)
                for number, at in places
                if length < len(pattern) and at > length and self.texts[number][at - length - 1] == pattern[-length - 1]
            ]
            if len(more) < len(places):
                out.append((length, places))
            places, length = more, length + 1
        return out


class SuffixTrees(Peer):
    """Two suffix trees, one of the text and one of all answers. Of the drafts of every length of match the one with the
    greatest sum of probabilities counts; a draft is as long as its match at most, and its tokens 10 % probable."""

    DEPTH, LEAST = 64, 0.1

    def __init__(self, tree: bool) -> None:
        super().__init__("suffix trees, trees" if tree else "suffix trees, chains")
        self.tree, self.answers = tree, _Occurrences()

    def begin(self, view: Any, spec: DrafterSpec) -> None:
        """Index the prompt."""
        self.own, self.read = _Occurrences(), 0
        self.own.texts.append([])
        self.answers.texts.append([])
        self._read(view)

    def _read(self, view: Any) -> None:
        self.own.add(0, view.tokens[self.read :])
        self.answers.add(-1 % len(self.answers.texts), view.tokens[max(self.read, view.n_prompt) :])
        self.read = len(view.tokens)

    def draft(self, view: Any, budget: Budget) -> TokenTree:
        """The best draft of the two trees."""
        best, best_score = TokenTree.root(view.tokens[-1]), 0.0
        pattern = view.tokens[-self.DEPTH :]
        for index in (self.own, self.answers):
            score, draft = 0.0, best
            for length, places in index.matches(pattern):
                found = self._grown(TokenTree.root(view.tokens[-1]), index, places, length, budget)
                if (new := float(sum(found.path_probs()[1:]))) >= score and found.n_drafted:
                    score, draft = new, found
            if score > best_score:
                best_score, best = score, draft
        return best

    def _grown(
        self, out: TokenTree, index: _Occurrences, places: list[tuple[int, int]], length: int, budget: Budget
    ) -> TokenTree:
        nodes, ties = min(length, budget.nodes, budget.depth), itertools.count()
        heap: list[tuple[float, int, int, int, float, list[tuple[int, int]]]] = []
        branch = budget.branch if self.tree else 1

        def look_below(node: int, here: list[tuple[int, int]], reach: float) -> None:
            after: dict[int, list[tuple[int, int]]] = {}
            for number, at in here:
                if at < len(index.texts[number]):
                    after.setdefault(index.texts[number][at], []).append((number, at + 1))
            for token, there in sorted(after.items(), key=lambda item: -len(item[1]))[:branch]:
                share = len(there) / len(here)
                if reach * share >= self.LEAST:
                    heapq.heappush(heap, (-reach * share, next(ties), node, token, share, there))

        look_below(0, places, 1.0)
        while heap and out.n_drafted < nodes:
            reach, _, node, token, share, there = heapq.heappop(heap)
            look_below(out.add(node, token, share, budget.source, min(length, MAX_FEATURE)), there, -reach)
        return out

    def observe(self, view: Any, tree: TokenTree, verdict: Any) -> None:
        """Index the emitted tokens."""
        self._read(view)
