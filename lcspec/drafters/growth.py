"""A draft tree that is still growing: how likely its nodes are reached, and which of them to expand."""

from __future__ import annotations

from typing import Callable, Container, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.config import MAX_BRANCH
from lcspec.drafters.base import Budget, SequenceView
from lcspec.drafters.top_candidates import draft_distribution, top_candidates
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import inverse_cdf, uniform_noise
from lcspec.spec import cutting
from lcspec.spec.token_tree import TokenTree

# The most nodes expanded at one level, which is the widest decode of a draft model.
MAX_LEVEL = 16
# What one more row of a decode costs the draft model, in decodes of a single row; at most, as a rule.
ROW = 0.5


class Growth:
    """Grows `tree` within a budget.

    Attributes:
        tree: what has been drafted.
        reach: P(v) of every node, from the drafter's estimates as corrected by `Budget.expects`.
    """

    def __init__(self, tree: TokenTree, budget: Budget, p_min: float) -> None:
        """Go on from `tree`; `p_min`: a child with a lower estimate of the drafter ends its branch."""
        self.tree = tree
        self.reach = [1.0]
        for node in range(1, len(tree)):
            prob = tree.probs[node]
            if budget.expects is not None:
                prob = budget.expects(prob)
            self.reach.append(self.reach[tree.parents[node]] * prob)
        self.budget = budget
        self.p_min = p_min

    def add(self, node: int, children: Sequence[tuple[int, float, Distribution | None]]) -> list[int]:
        """Add children of a node, best first: (token, the drafter's estimate, the distribution if it was drawn).

        Returns those that may be expanded. The best child is always added, however low its estimate: otherwise the
        estimate could never be found wrong.
        """
        tree, budget, new = self.tree, self.budget, list[int]()
        for rank, (token, prob, dist) in enumerate(children):
            if dist is not None:
                # A drawn token stays whatever it is; only its children may depend on how likely it was.
                child = tree.add_sampled(node, token, dist, budget.source)
                if child == len(self.reach):
                    self.reach.append(self.reach[node] * tree.probs[child])
                if child not in new and prob >= self.p_min:
                    new.append(child)
                continue
            expected = prob if budget.expects is None else budget.expects(prob)
            if prob < self.p_min or (rank and expected * self.reach[node] < budget.floor):
                break  # the others are even less likely
            new.append(tree.add(node, token, prob, budget.source))
            self.reach.append(self.reach[node] * expected)
        return new

    def next_level(self, new: Sequence[int], branch: int) -> list[int]:
        """The likeliest of the `new` nodes that pay and could still have a child among the best nodes of the tree."""
        nodes, reach = self.budget.nodes, self.reach
        floor = sorted(reach[1:])[-nodes] if self.tree.n_drafted >= nodes else 0.0
        ranked = sorted((v for v in new if reach[v] > floor), key=lambda v: -reach[v])
        return [v for i, v in enumerate(ranked) if not i or reach[v] >= self.budget.below][: min(branch * 2, MAX_LEVEL)]

    def waiting(self, placed: Container[int], branch: int) -> list[int]:
        """The nodes that are not decoded yet; of a chain (`branch` 1) the last one."""
        nodes: Iterable[int] = self.spine()[-1:] if branch == 1 else range(1, len(self.tree))
        return [node for node in nodes if node not in placed]

    def likeliest(self, placed: Container[int], useful: Callable[[int], bool]) -> list[int]:
        """What to decode next where every decode takes the same time: the likeliest of the nodes that are `useful` and
        not decoded yet, and those that are worth their row beside it."""
        ranked = sorted(filter(useful, self.waiting(placed, 0)), key=lambda v: -self.reach[v])
        return [v for v in ranked[:MAX_LEVEL] if self.reach[v] >= ROW * self.reach[ranked[0]]]

    def spine(self) -> list[int]:
        """The likeliest child of node 0, its likeliest child, and so on."""
        out, node = list[int](), 0
        while below := self.tree.children(node):
            node = max(below, key=lambda v: self.reach[v])
            out.append(node)
        return out

    def best(self) -> TokenTree:
        """The likeliest nodes, as many as the budget allows; one branch of them, if it allows no more."""
        nodes = self.budget.nodes
        if self.budget.branch == 1 and not self.tree.trials and len(self.tree.leaves()) > 1:
            return cutting.pruned(self.tree, self.spine()[: max(0, nodes)])
        if self.tree.trials or self.tree.n_drafted <= nodes or nodes <= 0:
            return cutting.best(self.tree, nodes)
        # stable: among equals the earlier node comes first, so a parent comes before its children
        order = np.argsort(-np.array(self.reach[1:]), kind="stable")[:nodes] + 1
        return cutting.pruned(self.tree, order.tolist())


def children(
    sequence: SequenceView,
    logits: NDArray[np.float32],
    position: int,
    n: int,
    node: int,
    sharpness: float,
    stream: int,
    tokens: NDArray[np.int32] | None = None,
) -> list[tuple[int, float, Distribution | None]]:
    """The `n` best continuations of a node: (token, probability that the target agrees, the distribution if drawn).

    Args:
        sequence: whose draft it is.
        logits: the drafter's logits for the next token, float32 [n_vocab], or of `tokens`.
        position: that token's position in the text.
        n: the most children.
        node: the node's number; draws below different nodes at one position must be independent.
        sharpness: see `top_candidates`.
        stream: of the noise; every drafter has its own.
        tokens: the token id of each logit, int32 [k]; None: its index.
    """
    if not sequence.draws:
        ranked = top_candidates(sequence, logits, position, n, tokens, sharpness)
        return [(token, prob, None) for token, prob in ranked]
    dist = draft_distribution(logits, sequence.params, tokens)
    counters = [node * MAX_BRANCH + i for i in range(n)]
    noise = uniform_noise(sequence.seed, position, counters, stream)
    return [(inverse_cdf(dist, float(u)), float(dist.probs.max()), dist) for u in noise]


def placeable(forks: int, tree: TokenTree, level: Sequence[int], placed: Iterable[int] = ()) -> list[int]:
    """The nodes of a level for which there are sequence ids: a node's first child needs none, each other child one.

    `forks`: how many branches can still be opened (see SequenceCache.forks); `placed`: nodes with cells.
    """
    continued, out = {tree.parents[node] for node in placed}, list[int]()
    for node in level:
        forks -= tree.parents[node] in continued
        if forks < 0:
            break
        continued.add(tree.parents[node])
        out.append(node)
    return out


def place_level(
    cache: SequenceCache, tree: TokenTree, placed: dict[int, int], level: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Place the nodes of one level in the cache; yields each with the sequence id that it is decoded with.

    The first child of a node continues its branch, others fork. `placed`: nodes of the tree -> the cache's numbers for
    them; the new ones are added.
    """
    continued = {tree.parents[node] for node in placed}
    for node in level:
        parent = tree.parents[node]
        path = [placed[v] for v in tree.path_to(parent)]
        seq = cache.extend(placed[parent], tree.depths[node], parent in continued, path)
        continued.add(parent)
        placed[node] = len(placed)
        yield node, seq
