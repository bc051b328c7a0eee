"""Blockwise parallel decoding: the heads' top candidates as a single chain.

Stern et al. 2018 (arXiv:1811.03115): predict a block, verify it, keep its right beginning. Their two passes are one
here: the pass that verifies a block also gives the hidden state from which the next block is predicted.
"""

from __future__ import annotations

from lcspec.config import DrafterSpec
from lcspec.drafters.base import SequenceView, register
from lcspec.drafters.medusa.drafter import HeadsDrafter
from lcspec.spec.tree_shapes import Shape


@register("blockwise")
class BlockwiseDrafter(HeadsDrafter):
    """A chain as long as there are heads."""

    name = "blockwise"
    default_nodes = 4
    default_branch = 1

    def choose_shape(self) -> Shape:
        """The first guess of every head."""
        return Shape.chain(self.heads.n_heads)

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Option: `nodes`, the length of the chain."""
        spec.check_keys({"nodes"})
