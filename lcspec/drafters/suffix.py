"""Suffix decoding: copy what followed the last tokens where they occurred before, in this text and in earlier ones.

Oliaro et al. 2024 ("SuffixDecoding", arXiv:2411.04975). `ngram` is prompt lookup, the same with short matches in the
request's own text: Saxena 2023 ("Prompt Lookup Decoding"); Yang et al. 2023 (LLMA, arXiv:2304.04487).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.drafters.text_index import END, Place, TextIndex
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

# Tokens of earlier texts to keep; above that, the older half is dropped.
MAX_REMEMBERED = 50_000
# Tokens of them to store between sessions.
MAX_KEPT = 16_000
# The longest match, tokens.
MAX_MATCH = 16
# The most places of an index that are copied from, newest first.
MAX_PLACES = 16
# What a place weighs, by the tokens that match there; one token says little. That nothing follows as before weighs 1.
WEIGHTS = [0.0, 0.3, *(float(min(n, MAX_MATCH)) for n in range(2, 512))]
# Less probable paths are not drafted: they cost more of the planner's time than they save of the target's.
LEAST = 0.05


@dataclass
class _Slot:
    """One request: its text, and the shortest match of a tree, of a chain, and the longest match."""

    index: TextIndex
    tree_n: int
    chain_n: int
    max_n: int


@register("suffix")
class SuffixDrafter(Drafter):
    """Drafts from what occurred before, in this text and in earlier ones; takes microseconds."""

    name = "suffix"
    default_nodes = 6
    default_match = 1, MAX_MATCH

    def __init__(self, env: DrafterEnv) -> None:
        self._env = env
        self._fresh = False  # whether texts of this session were added
        self._earlier = TextIndex(1)
        self._texts: list[list[int]] = []
        self._slots: dict[int, _Slot] = {}

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Read the prompt. Options: `max_n` and `min_n`, the longest and shortest match in tokens.

        A chain copies from a match of one token only where `min_n` says so, because it is most often refused.
        """
        spec.check_keys({"max_n", "min_n", "branch", "nodes"})
        shortest, longest = self.default_match
        min_n = spec.integer("min_n", shortest, 1, MAX_MATCH)
        max_n = spec.integer("max_n", max(longest, min_n), min_n, MAX_MATCH)
        index = TextIndex(min(min_n, 2))
        index.extend(sequence.tokens)
        self._slots[sequence.id] = _Slot(index, min_n, min_n if "min_n" in spec.options else max(2, min_n), max_n)

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """The likeliest continuations; an estimate is the share of the places, by what they weigh."""
        slot = self._slots[sequence.id]
        tree, text = TokenTree.root(sequence.tokens[-1]), slot.index.tokens
        tail = text[-slot.max_n :]
        least = slot.tree_n if budget.branch > 1 else slot.chain_n
        places = slot.index.places(tail, MAX_PLACES, least, below=len(text))
        if self._texts:
            places += self._earlier.places(tail, MAX_PLACES, least)
        if places:
            _grow(tree, places, budget)
        return tree

    def continuation(self, sequence: SequenceView, more: Sequence[int], limit: int) -> tuple[list[int], int]:
        """At most `limit` tokens that may follow the text plus `more`, and the length of the match they come from;
        ([], 0) without a match. They are copied from the longest match, the latest of several.
        """
        slot = self._slots[sequence.id]
        text = [*slot.index.tokens, *more]
        places = slot.index.places(text[-slot.max_n :], MAX_PLACES, slot.chain_n, below=len(text))
        if not places:
            return [], 0
        length, start, _ = max(places, key=lambda place: place[0])  # the first of equals
        out: list[int] = []
        for at in range(start, start + limit):
            out.append(text[at] if at < len(text) else out[at - len(text)])
        return out, length

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Read the emitted tokens."""
        index = self._slots[sequence.id].index
        index.extend(sequence.tokens[len(index.tokens) :])

    def end(self, sequence: SequenceView) -> None:
        """Add the text to the earlier texts."""
        if self._slots.pop(sequence.id, None) is not None:
            self.remember(list(sequence.tokens))

    def remember(self, tokens: Sequence[int]) -> None:
        """Add an earlier text; the oldest ones are dropped when there are too many tokens."""
        self._fresh = True
        self._texts.append(list(tokens)[-MAX_REMEMBERED:])
        if sum(map(len, self._texts)) > MAX_REMEMBERED:
            while sum(map(len, self._texts)) > MAX_REMEMBERED // 2 and len(self._texts) > 1:
                self._texts.pop(0)
            self._earlier = TextIndex(1)
            for text in self._texts[:-1]:
                self._earlier.extend([*text, END])
        self._earlier.extend([*self._texts[-1], END])

    def dump(self) -> Any:
        """The latest texts, at most MAX_KEPT tokens, for later sessions (see lcspec.profiles.history)."""
        if not self._fresh:
            return None
        room, kept = MAX_KEPT, list[list[int]]()
        for text in reversed(self._texts):
            kept.append(text[-room:])
            room -= len(kept[-1])
            if room <= 0:
                break
        return {"n_vocab": self._env.target.n_vocab, "texts": kept[::-1]}

    def restore(self, data: Any) -> None:
        """Add the texts of an earlier session.

        Raises:
            ValueError: the data has another form.
        """
        try:
            texts = [[int(t) for t in text] for text in data["texts"]]
            n_vocab = int(data["n_vocab"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not the texts of a suffix drafter: {error}") from error
        tokens = [t for text in texts for t in text]
        same = n_vocab == self._env.target.n_vocab
        if not same or len(tokens) > MAX_KEPT or not all(0 <= t < n_vocab for t in tokens):
            raise ValueError("not the texts of a suffix drafter of this vocabulary")
        for text in texts:
            self.remember(text)
        self._fresh = False


@register("ngram")
class NgramDrafter(SuffixDrafter):
    """Drafts from short matches in the request's own prompt and answer."""

    name = "ngram"
    default_nodes = 3
    default_match = 2, 4

    def remember(self, tokens: Sequence[int]) -> None:
        """Nothing: it keeps no text."""


def _grow(tree: TokenTree, places: list[Place], budget: Budget) -> None:
    """Add what follows the places, the likeliest path first. A place that reaches the end of its text goes on with what
    was drafted, so that a short period is repeated. A chain ends where less than half of the weight agrees, because it
    has no alternative there.
    """
    branch, least = budget.branch, max(LEAST, budget.floor)
    # (-P, tie breaker, parent, token, share, places)
    heap: list[tuple[float, int, int, int, float, list[Place]]] = []
    node, reach, ties = 0, 1.0, 0
    for _ in range(budget.nodes):
        if tree.depths[node] < budget.depth:
            total, followers = 1.0, dict[int, list[Any]]()  # token -> [weight, places behind it]
            path: list[int] | None = None
            for length, at, text in places:
                if at < len(text):
                    token = text[at]
                else:
                    path = path or [tree.tokens[v] for v in tree.path_to(node)[1:]]
                    token = path[at - len(text)]
                weight = WEIGHTS[length]
                known = followers.get(token)
                if known is None:
                    followers[token] = [weight, [(length + 1, at + 1, text)]]
                else:
                    known[0] += weight
                    known[1].append((length + 1, at + 1, text))
                total += weight
            if END in followers:
                total -= followers.pop(END)[0]
            ranked = list(followers.items())
            if len(ranked) > 1:
                ranked = sorted(ranked, key=_weight)[:branch]
            for token, (weight, there) in ranked:
                share = weight / total
                if reach * share < least or (branch == 1 and 2.0 * weight < total - 1.0):
                    break
                ties += 1
                heapq.heappush(heap, (-reach * share, ties, node, token, share, there))
        if not heap:
            return
        reach, _, node, token, share, places = heapq.heappop(heap)
        reach = -reach
        node = tree.add(node, token, share, budget.source)


def _weight(follower: tuple[int, list[Any]]) -> float:
    return -float(follower[1][0])
