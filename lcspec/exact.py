"""`--exact`: keep every step on widths whose logits are bit-identical.

What is known (measured on CPU; see docs/exactness.md): with F32, Q8_0 and Q4_0 weights every width from 2 to 32
gives the same bits and width 1 does not, because matrix-vector and single-token attention kernels sum in another
order. So a lone token is padded with a throwaway token on a scratch sequence, and an accepted path that does not
lie in the cache in text order is decoded again with the next step.
"""

from __future__ import annotations

from typing import Sequence

from lcspec.config import ModelOptions
from lcspec.errors import ExactnessError
from lcspec.llama import Context, Model, supports_gpu_offload

EXACT_TYPES = frozenset({"F32", "Q8_0", "Q4_0"})
EXACT_WIDTH = 32


class ScratchPad:
    """Keeps a lone token company."""

    max_width = EXACT_WIDTH

    def __init__(self, context: Context, seq: int) -> None:
        self.context = context
        self.seq = seq
        self._used = False

    def at_least(self, n: int) -> int:
        """The width that a batch of `n` tokens must be padded to for its bits to be the certified ones."""
        return max(2, n)

    def fill(self, width: int) -> None:
        """Pad the batch to `width` tokens."""
        batch = self.context.batch
        self._used = 0 < batch.n < width
        for pos in range(width - batch.n if self._used else 0):
            batch.add(batch.first_token, pos, (self.seq,), logits=False)

    def drop(self) -> None:
        """Remove the padding's cell."""
        if self._used:
            self.context.seq_remove(self.seq, 0)

    @staticmethod
    def in_order(order: Sequence[int], path: Sequence[int]) -> int:
        """How many accepted nodes lie in the cache in text order: those that came first in the batch.

        The others are decoded again: attention sums run over cells, so scattered cells would change the bits.
        """
        n = 0
        while n < len(path) and order[n + 1] == path[n]:
            n += 1
        return n


def check_exact(model: Model, options: ModelOptions) -> None:
    """Refuse what cannot be promised.

    Raises:
        ExactnessError: several slots, layers on a GPU, or weights in a type whose widths are known to disagree.
    """
    name = options.path.name
    if options.slots > 1:
        raise ExactnessError("--exact needs a single slot: requests decoded side by side change each other's bits")
    if model.gpu_layers != 0 and supports_gpu_offload():
        raise ExactnessError(f"--exact is not certified with layers of {name} on a GPU: add --gpu-layers 0")
    other = sorted(set(model.header.tensor_types) - EXACT_TYPES)
    if other:
        raise ExactnessError(
            f"--exact cannot be promised for {name}: it has weights in {', '.join(other)}, whose results depend on how "
            f"many tokens are decoded at once; use a {', '.join(sorted(EXACT_TYPES))} version, or leave --exact out"
        )
