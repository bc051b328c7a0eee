"""Suffix decoding: continuations of the longest suffix that occurred before, weighted by how often each followed.

Oliaro et al. 2024 ("SuffixDecoding", arXiv:2411.04975). There are two suffix automata (Blumer et al. 1985): one over
the request's own prompt and answer, one over earlier texts of this engine. An automaton finds the longest match of any
length in constant time per token, and counts how often every substring occurred.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Any, Sequence

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

# Tokens of earlier texts to keep; above that, the older half is dropped.
MAX_REMEMBERED = 50_000
# Tokens of them to store between sessions; loading takes a few microseconds for each.
MAX_KEPT = 16_000
MIN_MATCH = 2
# Calibration tells matches apart up to this length.
MAX_FEATURE = 15


class SuffixAutomaton:
    """All substrings of a growing set of token sequences, with their number of occurrences.

    State 0 is the empty string; `length`, `link`, `count` and `next` are indexed by state.
    """

    def __init__(self) -> None:
        self.length = [0]
        self.link = [-1]
        self.count = [0]
        self.next: list[dict[int, int]] = [{}]
        self.last = 0

    def restart(self) -> None:
        """Start a new text with the next token."""
        self.last = 0

    def extend(self, token: int) -> None:
        """Append a token to the current text."""
        self.last = self._state_after(self.last, token)
        state = self.last
        while state > 0:
            self.count[state] += 1
            state = self.link[state]

    def _state_after(self, last: int, token: int) -> int:
        """The state of the current text plus `token`, made if it does not exist."""
        known = self.next[last].get(token)
        if known is not None:  # the text so far begins an earlier text, too
            return known if self.length[known] == self.length[last] + 1 else self._clone(last, token, known)
        state = self._new(self.length[last] + 1)
        p = last
        while p >= 0 and token not in self.next[p]:
            self.next[p][token] = state
            p = self.link[p]
        if p < 0:
            self.link[state] = 0
        else:
            q = self.next[p][token]
            self.link[state] = q if self.length[q] == self.length[p] + 1 else self._clone(p, token, q)
        return state

    def _clone(self, p: int, token: int, q: int) -> int:
        """Split off from `q` the substrings that end with those of `p` plus `token`."""
        clone = self._new(self.length[p] + 1)
        self.next[clone] = dict(self.next[q])
        self.link[clone] = self.link[q]
        self.count[clone] = self.count[q]
        self.link[q] = clone
        while p >= 0 and self.next[p].get(token) == q:
            self.next[p][token] = clone
            p = self.link[p]
        return clone

    def _new(self, length: int) -> int:
        self.length.append(length)
        self.link.append(0)
        self.count.append(0)
        self.next.append({})
        return len(self.length) - 1

    def step(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """Read `token` in (`state`, `matched` tokens long); returns the longest known suffix in the same form."""
        while state and token not in self.next[state]:
            state = self.link[state]
            matched = self.length[state]
        if token in self.next[state]:
            return self.next[state][token], matched + 1
        return 0, 0


@dataclass
class _Slot:
    own: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    read: int = 0
    # Where the text ends in the automaton of earlier texts, and how many tokens match it.
    state: int = 0
    matched: int = 0


@register("suffix")
class SuffixDrafter(Drafter):
    """Drafts from what occurred before, in this text and in earlier ones; takes microseconds."""

    name = "suffix"
    default_nodes = 6

    def __init__(self, env: DrafterEnv) -> None:
        self._n_vocab = env.target.n_vocab
        self._fresh = False  # whether texts of this session were added
        self._earlier = SuffixAutomaton()
        self._texts: list[list[int]] = []
        self._slots: dict[int, _Slot] = {}

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Read the prompt."""
        spec.check_keys({"branch", "nodes"})
        self._slots[sequence.id] = _Slot()
        self._read(sequence)

    def _read(self, sequence: SequenceView) -> None:
        mine = self._slots[sequence.id]
        for token in sequence.tokens[mine.read :]:
            mine.own.extend(token)
            mine.state, mine.matched = self._earlier.step(mine.state, mine.matched, token)
        mine.read = len(sequence.tokens)

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """The most probable continuations of the longer of the two matches, then of the other one."""
        mine = self._slots[sequence.id]
        tree = TokenTree.root(sequence.tokens[-1])
        # The longest suffix that also occurs earlier in the same text is the suffix link of the whole text.
        own = mine.own.link[mine.own.last]
        sources = [(mine.own.length[max(own, 0)], mine.own, max(own, 0)), (mine.matched, self._earlier, mine.state)]
        for matched, automaton, state in sorted(sources, key=lambda s: -s[0]):
            if matched >= MIN_MATCH and tree.n_drafted < budget.nodes:
                self._grow(tree, automaton, state, min(matched, MAX_FEATURE), budget)
        return tree

    @staticmethod
    def _grow(tree: TokenTree, automaton: SuffixAutomaton, state: int, feature: int, budget: Budget) -> None:
        """Add continuations, best first by P(v): the product of their shares of the occurrences."""
        heap: list[tuple[float, int, int, int, float, int]] = []  # (-P, tie breaker, parent, token, share, state)
        ties = itertools.count()

        def look_below(node: int, at: int, reach: float) -> None:
            if tree.depths[node] >= budget.depth:
                return
            followers = [(automaton.count[to], token, to) for token, to in automaton.next[at].items()]
            total = sum(f[0] for f in followers) + 1  # one more than was counted: a single match is not certain
            followers.sort(key=lambda f: -f[0])
            for count, token, to in followers[: budget.branch]:
                share = count / total
                heapq.heappush(heap, (-reach * share, next(ties), node, token, share, to))

        look_below(0, state, 1.0)
        while heap and tree.n_drafted < budget.nodes:
            reach, _, parent, token, share, to = heapq.heappop(heap)
            if tree.child(parent, token) is None and len(tree.children(parent)) >= budget.branch:
                continue
            look_below(tree.add(parent, token, share, budget.source, feature), to, -reach)

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Read the emitted tokens."""
        self._read(sequence)

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
            self._earlier = SuffixAutomaton()
            for text in self._texts:
                self._add(text)
            for mine in self._slots.values():
                mine.state, mine.matched = 0, 0
        else:
            self._add(self._texts[-1])

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
        return {"n_vocab": self._n_vocab, "texts": kept[::-1]}

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
        if n_vocab != self._n_vocab or len(tokens) > MAX_KEPT or not all(0 <= t < n_vocab for t in tokens):
            raise ValueError("not the texts of a suffix drafter of this vocabulary")
        for text in texts:
            self.remember(text)
        self._fresh = False

    def _add(self, text: Sequence[int]) -> None:
        self._earlier.restart()
        for token in text:
            self._earlier.extend(token)
