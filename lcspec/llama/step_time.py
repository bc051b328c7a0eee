"""How long a step of one token takes."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from lcspec.llama.context import Context


def token_seconds(context: Context, seq: int, tokens: Sequence[int], repeat: int) -> float:
    """Median seconds of `repeat` decodes of one token after another, in the empty sequence `seq`, after two others.

    Raises:
        DecodeError: there is no room for so many. `seq` is empty again in any case.
    """
    seconds = []
    try:
        for i in range(repeat + 2):
            context.batch.clear()
            context.batch.add(tokens[i % len(tokens)], i, (seq,), logits=True)
            seconds.append(context.decode())
    finally:
        context.memory.remove(seq, 0)
    return float(np.median(seconds[2:]))
