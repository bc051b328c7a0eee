"""Prompt lookup: find where the text's last n tokens occurred before, and propose what followed there.

Saxena 2023 ("Prompt Lookup Decoding"); Yang et al. 2023 (LLMA, arXiv:2304.04487). The longest match is tried first.
With `branch` > 1, different continuations of it and of shorter matches are merged into a tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Sequence

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

MAX_N = 4
MIN_N = 2
# The most occurrences of an n-gram that are used, newest first.
LOOK_BACK = 16


@dataclass
class _Index:
    """Positions after every n-gram of a growing text: `after[n][gram]` lists them, oldest first."""

    min_n: int
    max_n: int
    tokens: list[int] = field(default_factory=list)
    after: dict[int, dict[tuple[int, ...], list[int]]] = field(default_factory=dict)

    def extend(self, tokens: list[int]) -> None:
        """Append `tokens` and index the n-grams they complete."""
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for n in range(self.min_n, self.max_n + 1):
                if n <= end:
                    gram = tuple(self.tokens[end - n : end])
                    self.after.setdefault(n, {}).setdefault(gram, []).append(end)

    def occurrences(self, n: int) -> list[int]:
        """Earlier positions that follow the text's last `n` tokens, newest first."""
        end = len(self.tokens)
        if n > end:
            return []
        found = self.after.get(n, {}).get(tuple(self.tokens[end - n : end]), [])
        return [at for at in found[-LOOK_BACK - 1 :][::-1] if at < end]


@register("ngram")
class NgramDrafter(Drafter):
    """Drafts from the request's own prompt and answer; takes microseconds."""

    name = "ngram"
    default_nodes = 3

    def __init__(self, env: DrafterEnv) -> None:
        self._slots: dict[int, _Index] = {}

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Index the prompt. Options: `max_n` and `min_n`, the longest and shortest match."""
        spec.check_keys({"max_n", "min_n", "branch", "nodes"})
        min_n = spec.integer("min_n", MIN_N, 1, 16)
        index = _Index(min_n, spec.integer("max_n", max(MAX_N, min_n), min_n, 16))
        index.extend(list(sequence.tokens))
        self._slots[sequence.id] = index

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """Continuations of the longest match; a continuation's estimate is its share of the occurrences."""
        index = self._slots[sequence.id]
        tree = TokenTree.root(sequence.tokens[-1])
        for n in range(index.max_n, index.min_n - 1, -1):
            places = index.occurrences(n)
            if not places:
                continue
            self._add(tree, index.tokens, places, budget, n)
            if budget.branch == 1 or tree.n_drafted >= budget.nodes:
                break
        return tree

    def continuation(self, sequence: SequenceView, more: Sequence[int], limit: int) -> tuple[list[int], int]:
        """At most `limit` tokens that may follow the text plus `more`, and the length of the match they come from;
        ([], 0) without a match. It copies what followed the latest longest match. Where the copy reaches the end of
        the text it copies itself, so that a short period is repeated.
        """
        index = self._slots[sequence.id]
        known = len(index.tokens)
        end = known + len(more)
        tail = [*index.tokens[-index.max_n :], *more][-index.max_n :]
        for n in range(min(index.max_n, len(tail)), index.min_n - 1, -1):
            found = index.after.get(n, {}).get(tuple(tail[-n:]), [])
            at = next((p for p in reversed(found[-2:]) if p < end), None)
            if at is not None:
                out: list[int] = []
                for i in range(at, at + limit):
                    out.append(index.tokens[i] if i < known else more[i - known] if i < end else out[i - end])
                return out, n
        return [], 0

    def _add(self, tree: TokenTree, tokens: list[int], places: list[int], budget: Budget, n: int) -> None:
        """Follow all occurrences together, the most frequent (then newest) continuation first. An occurrence that
        reaches the end of the text continues with what was drafted, so that a short period is repeated.

        A chain ends where fewer than half of the occurrences agree, because it has no alternative there.
        """
        known, chain = len(tokens), budget.branch == 1
        open_nodes: list[tuple[int, list[int]]] = [(0, places)]
        while open_nodes and tree.n_drafted < budget.nodes:
            node, here = open_nodes.pop(0)
            path = [tree.tokens[v] for v in tree.path_to(node)[1:]] if here[0] >= known else []
            followers: dict[int, list[int]] = {}
            for at in here:
                followers.setdefault(tokens[at] if at < known else path[at - known], []).append(at + 1)
            ranked = sorted(followers.items(), key=lambda item: -len(item[1]))
            for token, rest in ranked[: budget.branch]:
                if tree.n_drafted >= budget.nodes or tree.depths[node] >= budget.depth:
                    break
                if len(tree.children(node)) >= budget.branch and tree.child(node, token) is None:
                    continue
                if chain and 2 * len(rest) < len(here):
                    break
                # One more occurrence than was counted: a single match is not certain.
                child = tree.add(node, token, len(rest) / (len(here) + 1), budget.source, feature=n)
                open_nodes.append((child, rest))

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Index the emitted tokens."""
        index = self._slots[sequence.id]
        index.extend(list(sequence.tokens[len(index.tokens) :]))

    def end(self, sequence: SequenceView) -> None:
        """Drop the sequence's index."""
        self._slots.pop(sequence.id, None)
