"""A draft tree while it grows: how likely its nodes are to be reached, and which are worth going on from."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from lcspec.drafters.base import Budget
from lcspec.sampling.distribution import Distribution
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
