"""A draft tree while it grows: how likely its nodes are to be reached, and which are worth going on from."""

from __future__ import annotations

from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.config import MAX_BRANCH
from lcspec.drafters.base import Budget, SequenceView
from lcspec.drafters.top_candidates import draft_distribution, top_candidates
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import inverse_cdf, uniform_noise
from lcspec.spec.token_tree import TokenTree

# Widest draft decode: nodes expanded at one level.
MAX_LEVEL = 16


class Growth:
    """Grows `tree` within a budget.

    Attributes:
        tree: what has been drafted.
        reach: P(v) of every node, with what `Budget.expects` makes of the drafter's own estimates.
    """

    def __init__(self, token: int, budget: Budget, p_min: float) -> None:
        """Begin below the pending `token`; `p_min`: the drafter's own estimate below which a branch ends."""
        self.tree = TokenTree.root(token)
        self.reach = [1.0]
        self.budget = budget
        self.p_min = p_min

    def add(self, node: int, children: Sequence[tuple[int, float, Distribution | None]]) -> list[int]:
        """Add children of a node, best first: (token, the drafter's estimate, the distribution if it was drawn).

        Returns those that something may grow below. The best child is there whatever is expected of it, or nobody
        would ever find out.
        """
        tree, budget, fresh = self.tree, self.budget, list[int]()
        for rank, (token, prob, dist) in enumerate(children):
            if dist is not None:
                # A draw stays whatever it drew; only what comes below it may depend on how likely it was.
                child = tree.add_sampled(node, token, dist, budget.source)
                if child == len(self.reach):
                    self.reach.append(self.reach[node] * tree.probs[child])
                if child not in fresh and prob >= self.p_min:
                    fresh.append(child)
                continue
            expected = prob if budget.expects is None else budget.expects(tree.depths[node] + 1, rank, prob)
            if prob < self.p_min or (rank and expected * self.reach[node] < budget.floor):
                break  # the others are less likely still
            fresh.append(tree.add(node, token, prob, budget.source, feature=rank))
            self.reach.append(self.reach[node] * expected)
        return fresh

    def next_level(self, fresh: Sequence[int], branch: int) -> list[int]:
        """The likeliest of the new nodes that could still have a child among the best of the tree, and that pays."""
        nodes, reach = self.budget.nodes, self.reach
        floor = sorted(reach[1:])[-nodes] if self.tree.n_drafted >= nodes else 0.0
        ranked = sorted((v for v in fresh if reach[v] > floor), key=lambda v: -reach[v])
        return [v for i, v in enumerate(ranked) if not i or reach[v] >= self.budget.below][: min(branch * 2, MAX_LEVEL)]

    def best(self) -> TokenTree:
        """The likeliest nodes, as many as there may be."""
        nodes = self.budget.nodes
        if self.tree.trials or self.tree.n_drafted <= nodes or nodes <= 0:
            return self.tree.best(nodes)
        # stable: among equals the earlier node (its parent, if anything) comes first
        order = np.argsort(-np.array(self.reach[1:]), kind="stable")[:nodes] + 1
        return self.tree.pruned(order.tolist())


def children(
    sequence: SequenceView, logits: NDArray[np.float32], position: int, n: int, node: int, sharpness: float, stream: int
) -> list[tuple[int, float, Distribution | None]]:
    """The `n` best continuations of a node: (token, probability that the target agrees, the distribution if drawn).

    Args:
        sequence: whose draft it is.
        logits: the drafter's own for the next token, float32 [n_vocab].
        position: that token's position in the text.
        n: children at most.
        node: the node's number; draws below different nodes at one position must be independent.
        sharpness: see `top_candidates`.
        stream: of the noise, another one for every drafter.
    """
    if not sequence.draws:
        return [
            (token, prob, None) for token, prob in top_candidates(sequence, logits, position, n, sharpness=sharpness)
        ]
    dist = draft_distribution(logits, sequence.params)
    counters = [node * MAX_BRANCH + i for i in range(n)]
    noise = uniform_noise(sequence.seed, position, counters, stream)
    return [(inverse_cdf(dist, float(u)), float(dist.probs.max()), dist) for u in noise]


def placeable(forks: int, tree: TokenTree, level: Sequence[int]) -> list[int]:
    """The nodes of a level there are sequence ids for: a node's first child needs none, every other one does.

    `forks`: new branches that can still be opened (see SequenceCache.forks).
    """
    continued, out = set[int](), list[int]()
    for node in level:
        forks -= tree.parents[node] in continued
        if forks < 0:
            break
        continued.add(tree.parents[node])
        out.append(node)
    return out
