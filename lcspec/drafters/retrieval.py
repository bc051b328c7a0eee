"""Retrieval: continuations of the longest suffix found in a datastore of the user's own texts (`--store`).

He et al. 2023 ("REST: Retrieval-Based Speculative Decoding", arXiv:2311.08252). `lcspec draft store` makes the
datastore; see lcspec.drafters.datastore for how it is searched.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Sequence

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.drafters.datastore import MAX_MATCH, Datastore, DatastoreError, Match
from lcspec.errors import UsageError
from lcspec.spec.token_tree import TokenTree

MIN_MATCH = 3
# The most occurrences whose continuations are weighed, and the most tokens of each.
MAX_PLACES = 48
MAX_AHEAD = 24


@register("store")
class StoreDrafter(Drafter):
    """Drafts from a datastore; takes microseconds."""

    name = "store"
    default_nodes = 6

    def __init__(self, env: DrafterEnv) -> None:
        """Map the datastore.

        Raises:
            UsageError: the user named none.
            DatastoreError: it cannot be used, or was made for another vocabulary.
        """
        if env.draft.store is None:
            raise UsageError(
                "the store drafter needs a datastore: make one with `lcspec draft store FILES... --out STORE` and add "
                "--store STORE"
            )
        self.store = Datastore(env.draft.store)
        info, target = self.store.info, env.target
        if info.vocabulary != target.vocab.digest:
            self.store.close()
            raise DatastoreError(
                f"{env.draft.store} was made for the vocabulary of {info.model}, which {target.vocab.path.name} does "
                f"not have: make it again with --model {target.vocab.path.name}"
            )
        self._min_match: dict[int, int] = {}

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Option `min_match`: the shortest match, in tokens."""
        spec.check_keys({"branch", "min_match", "nodes"})
        self._min_match[sequence.id] = spec.integer("min_match", MIN_MATCH, 1, MAX_MATCH)

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """The most frequent continuations of the longest match, then of a match half as long."""
        tree = TokenTree.root(sequence.tokens[-1])
        least, ahead, longest = self._min_match[sequence.id], min(budget.depth, budget.nodes, MAX_AHEAD), MAX_MATCH
        tail = sequence.tokens[-MAX_MATCH:]
        while ahead > 0 and longest >= least and tree.n_drafted < budget.nodes:
            match = self.store.lookup(tail, min_match=least, ahead=ahead, most=MAX_PLACES, longest=longest)
            if match is None:
                break
            self._grow(tree, match, budget)
            if budget.branch == 1:
                break
            longest = match.length // 2
        return tree

    @staticmethod
    def _grow(tree: TokenTree, match: Match, budget: Budget) -> None:
        """Add continuations, best first by P(v): the product of their shares of the occurrences."""
        heap: list[tuple[float, int, int, int, float, Sequence[tuple[int, ...]]]] = []
        ties = itertools.count()

        def look_below(node: int, reach: float, texts: Sequence[tuple[int, ...]]) -> None:
            at = tree.depths[node]
            if at >= budget.depth:
                return
            followers: dict[int, list[tuple[int, ...]]] = {}
            for text in texts:
                if at < len(text):
                    followers.setdefault(text[at], []).append(text)
            for token, those in sorted(followers.items(), key=lambda item: -len(item[1]))[: budget.branch]:
                share = len(those) / (len(texts) + 1)  # one more than was counted: a single match is not certain
                heapq.heappush(heap, (-reach * share, next(ties), node, token, share, those))

        look_below(0, 1.0, match.continuations)
        while heap and tree.n_drafted < budget.nodes:
            reach, _, parent, token, share, texts = heapq.heappop(heap)
            if tree.child(parent, token) is None and len(tree.children(parent)) >= budget.branch:
                continue
            look_below(tree.add(parent, token, share, budget.source), -reach, texts)

    def end(self, sequence: SequenceView) -> None:
        """Drop the sequence's options."""
        self._min_match.pop(sequence.id, None)

    def close(self) -> None:
        """Unmap the datastore."""
        self.store.close()
