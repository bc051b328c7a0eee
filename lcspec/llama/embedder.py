"""Embeddings of texts: one vector a text, from a context of their own over weights that are loaded already."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.errors import ContextOverflow, UnsupportedModel, UsageError
from lcspec.llama.context import Context
from lcspec.llama.model import Model

# Tokens a decode: the library computes logits for every one of them, so a batch costs this many rows of the vocabulary.
CHUNK = 64
# Longest text for models that see a text at once (encoders), whatever they were trained for.
ENCODER_LIMIT = 2048

# Pooling types of the GGUF format (`ARCH.pooling_type`): how a text's vector comes from those of its tokens.
NONE, MEAN, CLS, LAST, RANK = range(5)


class Embedder:
    """Makes embeddings; one text after the other.

    Pooling is what the file asks for (mean, first or last token). A model that asks for nothing, as ordinary
    text-generation models do, gets the mean over all tokens.

    Attributes:
        limit: tokens a text may have.
    """

    def __init__(self, model: Model, ctx: int, threads: int = 0) -> None:
        """Create the context, for texts of at most `ctx` tokens.

        Raises:
            UnsupportedModel: the model ranks texts and does not embed them, or has a recurrent state.
            ModelLoadError: there is no memory for the context.
        """
        header = model.header
        stated = header.metadata.get(f"{header.architecture}.pooling_type")
        self.pooling = stated if isinstance(stated, int) and stated != NONE else MEAN
        if self.pooling not in (MEAN, CLS, LAST):
            raise UnsupportedModel(f"{model.options.path.name} ranks texts and makes no embeddings of them")
        if not model.traits.attention_only:
            raise UnsupportedModel(
                f"{model.options.path.name} has a recurrent state, so it makes no embeddings: use an embedding model"
            )
        options = replace(
            model.options, ctx=ctx, slots=1, threads=threads, batch=CHUNK, max_width=CHUNK, embeddings=True
        )
        self.model = model
        self.context = Context(model, options)
        self.limit = self.context.n_ctx
        if self.context.memory is None:
            # An encoder: every token sees all others, so a text is one batch.
            self.context.close()
            self.limit = min(self.limit, model.traits.n_ctx_train or ENCODER_LIMIT, ENCODER_LIMIT)
            self.context = Context(model, replace(options, batch=self.limit, max_width=self.limit))

    def embed(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Vectors of unit length, float32 [n, n_embd], for `texts` as token ids.

        Raises:
            UsageError: a text has no tokens.
            ContextOverflow: a text is too long; the message names the limit.
            DecodeError: the library failed.
        """
        for i, tokens in enumerate(texts):
            if not tokens:
                raise UsageError(f"text {i} is empty: there is nothing to embed")
            if len(tokens) > self.limit:
                raise ContextOverflow(
                    f"text {i} has {len(tokens)} tokens and an embedding takes at most {self.limit}: split it"
                )
        rows = [self._pooled(tokens) for tokens in texts]
        return np.stack(rows) if rows else np.zeros((0, self.model.traits.n_embd), dtype=np.float32)

    def close(self) -> None:
        """Free the context (not the model). Idempotent."""
        self.context.close()

    def _pooled(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The vector of one text, float32 [n_embd]."""
        context, step = self.context, self.context.options.batch
        first = last = total = np.zeros(0)
        try:
            for start in range(0, len(tokens), step):
                context.batch.clear()
                for i, token in enumerate(tokens[start : start + step]):
                    context.batch.add(token, start + i, (0,), logits=True)
                context.decode()
                rows = context.hidden().astype(np.float64)
                first, total = (rows[0], rows.sum(axis=0)) if start == 0 else (first, total + rows.sum(axis=0))
                last = rows[-1]
        finally:
            context.seq_remove(0, 0)
        vector = {MEAN: total / len(tokens), CLS: first, LAST: last}[self.pooling]
        norm = float(np.linalg.norm(vector))
        out: NDArray[np.float32] = (vector / norm if norm > 0 else vector).astype(np.float32)
        return out
