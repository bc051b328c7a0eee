"""Medusa: heads on the target's own hidden state propose a sparse tree (`--heads`, made by `lcspec draft heads`).

Cai et al. 2024 (arXiv:2401.10774). Each head predicts the token a fixed number of places ahead, without regard to the
tokens in between. Which combinations of their guesses are worth verifying was measured when the heads were trained, and
is stored in the file. A node's estimate is its head's softmax, which was calibrated then as well.

At temperature > 0 the guesses are ranked with the same noise as the target's, like a draft model's.
"""

from __future__ import annotations

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.drafters.medusa.inference import load_heads
from lcspec.drafters.top_candidates import top_candidates
from lcspec.spec import cutting
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.tree_shapes import Shape
from lcspec.spec.verifiers import Verdict


class HeadsDrafter(Drafter):
    """The common part of `medusa` and `blockwise`: it fills a tree shape with the heads' guesses.

    Attributes:
        shape: the ranks of a node's guesses along its path; the best nodes first.
    """

    name = "heads"
    default_nodes = 0
    costly = True
    wants_hidden = True

    def __init__(self, env: DrafterEnv) -> None:
        """Load the heads.

        Raises:
            LcspecError: the user named none, or they were made for another model.
        """
        self.heads = load_heads(env, self.name)
        self.shape = self.choose_shape()

    def choose_shape(self) -> Shape:
        """The shape to fill."""
        raise NotImplementedError

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """The `budget.nodes` most probable nodes of the shape; nothing without a hidden state."""
        tree = TokenTree.root(sequence.tokens[-1])
        depth = min(budget.depth, self.heads.n_heads)
        if sequence.hidden is None or depth <= 0 or budget.nodes <= 0:
            return tree
        ranks = 1 + max(self.shape.ranks)
        rows = self.heads.logits(sequence.hidden, sequence.tokens[-1], depth)
        at, tokens = len(sequence.tokens), self.heads.tokens
        guesses = [top_candidates(sequence, row, at + k, ranks, tokens) for k, row in enumerate(rows)]
        place = {0: 0}
        for v in range(1, len(self.shape)):
            parent, rank = place.get(self.shape.parents[v]), self.shape.ranks[v]
            if parent is None or tree.depths[parent] >= depth or rank >= budget.branch:
                continue
            level = guesses[tree.depths[parent]]
            if rank < len(level):
                token, prob = level[rank]
                place[v] = tree.add(parent, token, prob, budget.source)
        return cutting.best(tree, budget.nodes)

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Do nothing: a draft depends only on the sequence's hidden state."""

    def end(self, sequence: SequenceView) -> None:
        """Nothing to drop."""


@register("medusa")
class MedusaDrafter(HeadsDrafter):
    """Drafts the sparse tree that was measured when the heads were trained."""

    name = "medusa"
    default_nodes = 15
    default_branch = 10

    def choose_shape(self) -> Shape:
        """The shape in the file."""
        return self.heads.file.shape

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Options: `nodes`, `branch` (children of a node; 1 gives a chain)."""
        spec.check_keys({"branch", "nodes"})
