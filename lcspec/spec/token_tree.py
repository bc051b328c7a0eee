"""The token tree: what drafters propose and what the target verifies in one pass.

Node 0 is the pending token (already part of the text, not yet in the target's cache); every other node is
a drafted continuation. Parents come before their children, so `parents[i] < i` always holds.

          0 pending           tokens  [ t0  t1  t2  t3  t4 ]
         / \\                  parents [ -1   0   0   1   1 ]
        1   2                 depths  [  0   1   1   2   2 ]
       / \\                    leaves: 3, 4, 2
      3   4

Pure numpy; nothing here knows llama.cpp. The idea of verifying a tree in one pass is SpecInfer's
(Miao et al. 2023, arXiv:2305.09781).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable, Mapping, NamedTuple, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.sampling.distribution import Distribution

FloatArray = NDArray[np.float32]


class Trial(NamedTuple):
    """One attempt to continue a node: its child, and the distribution the child was sampled from.

    `draft` is None for a child that was proposed deterministically (n-grams, top-k of a draft model).
    Two trials may name the same child: sampling with replacement can draw one token twice, and the
    sampling verifiers need both draws.
    """

    child: int
    draft: Distribution | None


@dataclass(slots=True)
class TokenTree:
    """A growable token tree.

    Attributes:
        tokens: token id of each node; `tokens[0]` is the pending token.
        parents: index of each node's parent; -1 for node 0.
        depths: distance from node 0.
        probs: the drafter's own estimate that the node is accepted given that its parent was, in [0, 1].
        sources: bit mask of the drafters that proposed the node (bit i = i-th drafter of the engine).
        trials: for parents with *sampled* children, every draw in order (see `Trial`).
        probes: how many of the last nodes are probes (see `with_probes`).
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    probs: list[float]
    sources: list[int]
    trials: dict[int, list[Trial]]
    probes: int
    _children: list[dict[int, int]] = field(repr=False)

    @classmethod
    def root(cls, pending: int) -> TokenTree:
        """A tree with only the pending token."""
        return cls([int(pending)], [-1], [0], [1.0], [0], {}, 0, [{}])

    @classmethod
    def chain(
        cls, pending: int, tokens: Iterable[int], probs: Iterable[float] | None = None, source: int = 0
    ) -> TokenTree:
        """A single path below the pending token."""
        tree = cls.root(pending)
        tokens = list(tokens)
        node = 0
        for token, prob in zip(tokens, probs if probs is not None else [1.0] * len(tokens)):
            node = tree.add(node, token, prob, source)
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def n_drafted(self) -> int:
        """Number of drafted nodes: neither the pending token nor probes count."""
        return len(self.tokens) - 1 - self.probes

    def add(self, parent: int, token: int, prob: float = 1.0, source: int = 0, *, tried: bool = True) -> int:
        """Add `token` below `parent` and return its node; an existing equal child is merged instead.

        A merged child keeps the larger estimate and remembers both proposers. Below a node with
        sampled children it is a trial of its own, unless it is not to be `tried` so.
        """
        token, prob = int(token), float(prob)
        node = self._children[parent].get(token)
        if node is None:
            if self.probes:
                raise ValueError("a tree with probes takes no further drafts: probes come last")
            node = self._children[parent][token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
            self.probs.append(prob)
            self.sources.append(source)
            self._children.append({})
        else:
            self.probs[node] = max(prob, self.probs[node])
            self.sources[node] |= source
        drawn = self.trials.get(parent) if tried and self.trials else None
        if drawn is not None and not any(t.child == node and t.draft is None for t in drawn):
            drawn.append(Trial(node, None))
        return node

    def add_path(self, parent: int, tokens: Iterable[int]) -> int:
        """Add `tokens` as a path below `parent`, sharing existing nodes; returns the last node.

        The nodes have estimate 1 and no drafter. For trees that are never verified: `trials` is not updated.
        """
        children, depth = self._children, self.depths[parent]
        for token in tokens:
            depth += 1
            node = children[parent].get(token)
            if node is None:
                node = children[parent][token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(parent)
                self.depths.append(depth)
                self.probs.append(1.0)
                self.sources.append(0)
                children.append({})
            parent = node
        return parent

    def add_sampled(self, parent: int, token: int, draft: Distribution, source: int = 0) -> int:
        """Add a child drawn from `draft`, recording the draw for the sampling verifiers."""
        deterministic = [Trial(c, None) for c in self.children(parent)] if parent not in self.trials else []
        node = self.add(parent, token, draft.prob_of(token), source, tried=False)
        self.trials.setdefault(parent, deterministic).append(Trial(node, draft))
        return node

    def children(self, node: int) -> list[int]:
        """Children of `node` in the order they were added."""
        return list(self._children[node].values())

    def child_map(self, node: int) -> Mapping[int, int]:
        """Token -> child of `node`; a view, for loops that ask often."""
        return self._children[node]

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that carries `token`, if there is one."""
        return self._children[node].get(int(token))

    def trials_of(self, node: int) -> list[Trial]:
        """The attempts below `node` in order: recorded draws, else each child as a deterministic proposal."""
        recorded = self.trials.get(node)
        return [Trial(c, None) for c in self.children(node)] if recorded is None else list(recorded)

    def leaves(self) -> list[int]:
        """Nodes without children, probes included; `[0]` for a tree with only a root."""
        if self.probes:
            inner = set(self.parents)
            return [i for i in range(len(self)) if i not in inner]
        return [i for i, kids in enumerate(self._children) if not kids]

    def path_to(self, node: int) -> list[int]:
        """Nodes from node 0 to `node`, both included."""
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        return path[::-1]

    def path_probs(self) -> FloatArray:
        """P(v), the estimated probability that each node is reached: float32 [n], the product along its path."""
        reach = np.ones(len(self), dtype=np.float32)
        for i in range(1, len(self)):
            reach[i] = reach[self.parents[i]] * self.probs[i]
        return reach

    def likeliest_path(self) -> list[int]:
        """The root, its most probable child, the most probable child of that one, and so on."""
        path = [0]
        while kids := self._children[path[-1]]:
            below = kids.values()
            path.append(max(below, key=lambda c: (self.probs[c], -c)) if len(kids) > 1 else next(iter(below)))
        return path

    def batch_order(self) -> list[int]:
        """Nodes in the order in which they go into a batch: the likeliest path first, then the rest, parents first.

        If the likeliest path wins, its cells are then in text order in the cache, which keeps attention sums
        bit-identical to those of plain decoding.
        """
        if len(self) == 1:
            return [0]
        spine = self.likeliest_path()
        on_spine = set(spine)
        return spine + [i for i in range(len(self)) if i not in on_spine]

    def merge(self, other: TokenTree) -> None:
        """Merge `other` (same pending token) into this tree; equal paths share their nodes.

        If children were drawn, this tree's trials come first. No draw is left out because of its token: a drawn child
        that was also proposed deterministically is tried once, as either.

        Raises:
            ValueError: the pending tokens differ, or there are probes.
        """
        if other.tokens[0] != self.tokens[0] or other.probes:
            raise ValueError("only trees of drafts below the same pending token can be merged")
        known = len(self)
        place = {0: 0}
        for i in range(1, len(other)):
            at = place[other.parents[i]]
            place[i] = self.add(at, other.tokens[i], other.probs[i], other.sources[i], tried=False)
        for parent, here in place.items():
            if parent in other.trials or here in self.trials:
                mine = self.trials.get(here, [Trial(c, None) for c in self.children(here) if c < known])
                certain = {t.child for t in mine if t.draft is None}
                theirs = [Trial(place[t.child], t.draft) for t in other.trials_of(parent)]
                self.trials[here] = mine + [t for t in theirs if t.draft is not None or t.child not in certain]

    def beyond(self, other: TokenTree) -> Sequence[int]:
        """The drafted nodes whose path is not in `other` (same pending token)."""
        if len(other) == 1:
            return range(1, len(self))
        place: dict[int, int | None] = {0: 0}
        for v in range(1, len(self)):
            parent = place[self.parents[v]]
            place[v] = None if parent is None else other.child(parent, self.tokens[v])
        return [v for v, there in place.items() if there is None]

    def with_probes(self, *windows: TokenTree) -> TokenTree:
        """This tree with the nodes of `windows` added as *probes* after its own nodes.

        A probe is evaluated in the same batch but never accepted. It is no node's child, so no verifier reaches it, and
        its parent is another probe or node 0, so it never attends to a drafted token. The nodes of this tree keep their
        numbers; those of each window follow in order.

        Raises:
            ValueError: a window has another pending token.
        """
        if not any(window.n_drafted for window in windows):
            return self
        out = TokenTree(
            list(self.tokens),
            list(self.parents),
            list(self.depths),
            list(self.probs),
            list(self.sources),
            self.trials,
            self.probes,
            list(self._children),
        )
        for window in windows:
            if window.tokens[0] != self.tokens[0]:
                raise ValueError("only a window below the same pending token can be evaluated with this tree")
            shift = len(out) - 1
            out.tokens += window.tokens[1:]
            out.parents += [parent + shift if parent else 0 for parent in window.parents[1:]]
            out.depths += window.depths[1:]
            out.probs += [0.0] * window.n_drafted
            out.sources += [0] * window.n_drafted
            out._children += [{}] * window.n_drafted  # no node is ever added below a probe
            out.probes += window.n_drafted
        return out

    def below(self, node: int) -> tuple[TokenTree, dict[int, int]]:
        """The tree whose pending token is that of `node` (0: a copy), and the new numbers of the nodes in it.

        Draws are dropped, as in lcspec.spec.cutting.pruned.
        """
        out, place = TokenTree.root(self.tokens[node]), {node: 0}
        for v in range(node + 1, len(self)):
            parent = place.get(self.parents[v])
            if parent is not None:
                place[v] = out.add(parent, self.tokens[v], self.probs[v], self.sources[v])
        return out, place
