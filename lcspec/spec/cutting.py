"""Cutting token trees: smaller trees of their best nodes, with draws that are still valid for the sampling verifiers.

Whether a drawn child is kept must not depend on its token (see `best`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lcspec.spec.token_tree import TokenTree, Trial


def pruned(tree: TokenTree, keep: Sequence[int]) -> TokenTree:
    """The tree of the nodes in `keep` (node 0 is implied; every kept node's parent must be kept).

    The choice of `keep` may depend on the drawn tokens, so draws are dropped: every child becomes a deterministic
    proposal, which the sampling verifiers accept less often but without bias. `best` and `with_leaves` choose in a
    way that keeps draws valid.

    Raises:
        ValueError: a kept node's parent is missing, or the tree has probes (which are added last).
    """
    return _pruned(tree, keep)[0]


def _pruned(tree: TokenTree, keep: Sequence[int]) -> tuple[TokenTree, dict[int, int]]:
    """`pruned`, and the new number of each kept node."""
    if tree.probes:
        raise ValueError("a tree with probes cannot be cut: probes come last")
    out = TokenTree.root(tree.tokens[0])
    out.sources[0] = tree.sources[0]
    place = {0: 0}
    for i in sorted(set(keep) - {0}):
        parent = tree.parents[i]
        if parent not in place:
            raise ValueError(f"node {i} is kept without its parent {parent}")
        place[i] = out.add(place[parent], tree.tokens[i], tree.probs[i], tree.sources[i])
    return out, place


def ended(tree: TokenTree, ends: frozenset[int]) -> TokenTree:
    """The tree without the nodes below a token of `ends`: the text ends there, so they are useless.

    Every other node keeps all of its children, so draws stay valid.
    """
    if ends.isdisjoint(tree.tokens[1:]):
        return tree
    over = {node for node in range(1, len(tree)) if tree.tokens[node] in ends}
    keep: list[int] = []
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        if parent in over:
            over.add(node)
        else:
            keep.append(node)
    if len(keep) == tree.n_drafted:
        return tree
    out, place = _pruned(tree, keep)
    for parent, drawn in tree.trials.items():
        if parent not in over:
            out.trials[place[parent]] = [Trial(place[t.child], t.draft) for t in drawn]
    return out


def best(tree: TokenTree, n: int) -> TokenTree:
    """The `n` most probable drafted nodes; they form a tree because P(v) never grows along a path.

    Of a node's sampled children, the first trials are kept while there is room: a choice that depends on the drawn
    token would change the distribution of the sampling verifiers.
    """
    if tree.trials:
        return _first_trials(tree, n, free=0)
    if tree.n_drafted <= n:
        return tree
    if n <= 0:
        return TokenTree.root(tree.tokens[0])
    reach = tree.path_probs()
    # stable: among equals the earlier node comes first, so a parent comes before its children
    order = np.argsort(-reach[1:], kind="stable")[:n] + 1
    return pruned(tree, order.tolist())


def _first_trials(tree: TokenTree, room: int, free: int) -> TokenTree:
    """The first trials of the likeliest nodes, while there is `room` for nodes; `free` children of each node need
    no room.

    Whether a trial is kept may depend on the tokens of other trials, never on its own token: a trial that repeats a
    token is left out like any other if there is no room. Among children that were not drawn, the most probable come
    first.
    """
    reach = tree.path_probs()
    trials: dict[int, list[Trial]] = {}
    kept: list[int] = []
    open_nodes = [0]
    while open_nodes:
        parent = max(open_nodes, key=lambda v: reach[v])
        open_nodes.remove(parent)
        offered, first, children = tree.trials_of(parent), list[Trial](), set[int]()
        if parent not in tree.trials:
            offered.sort(key=lambda t: -reach[t.child])
        for trial in offered:
            if room <= 0 and len(children) >= free:
                break
            first.append(trial)
            if trial.child not in children:
                room -= len(children) >= free
                children.add(trial.child)
                kept.append(trial.child)
                open_nodes.append(trial.child)
        trials[parent] = first
    out, place = _pruned(tree, kept)
    for parent in trials.keys() & tree.trials.keys():
        if trials[parent]:
            out.trials[place[parent]] = [Trial(place[t.child], t.draft) for t in trials[parent]]
    return out


def with_leaves(tree: TokenTree, n: int) -> TokenTree:
    """The tree with at most `n` leaves (n >= 1): of its branches those with the most tokens that are expected to be
    accepted.

    As in `best`, the first trials of sampled children are kept.
    """
    if tree.n_drafted <= 1 and not tree.trials:
        return tree
    if tree.trials:
        return _first_trials(tree, n - 1, free=1)
    leaves = tree.leaves()
    if len(leaves) <= n:
        return tree
    # Paths from a node to a leaf, each time to the child with the most below it: one begins at the root, the others
    # where they branch off, from a path with no less below. So the n that have most are a tree.
    weight, next_of = tree.path_probs().tolist(), [0] * len(tree)
    for v in range(len(tree) - 1, -1, -1):
        if children := tree.children(v):
            next_of[v] = max(children, key=weight.__getitem__)
            weight[v] += weight[next_of[v]]
    first = [v for v in range(len(tree)) if v == 0 or next_of[tree.parents[v]] != v]
    kept: list[int] = []
    for v in sorted(first, key=lambda v: -weight[v])[:n]:
        kept.append(v)
        while v := next_of[v]:
            kept.append(v)
    return pruned(tree, kept)
