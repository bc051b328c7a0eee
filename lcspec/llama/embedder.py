"""Embeddings of texts: one vector a text, from a context of their own over weights that are loaded already."""

from __future__ import annotations

from dataclasses import replace
from typing import Generator, Sequence

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
NONE, MEAN, CLS, LAST = range(4)


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
        if not self.context.memory.exists:
            # An encoder: every token sees all others, so a text is one batch.
            self.context.close()
            self.limit = min(self.limit, model.traits.n_ctx_train or ENCODER_LIMIT, ENCODER_LIMIT)
            self.context = Context(model, replace(options, batch=self.limit, max_width=self.limit))

    def check(self, texts: Sequence[Sequence[int]]) -> None:
        """Refuse texts (token ids) that cannot be embedded.

        Raises:
            UsageError: a text has no tokens.
            ContextOverflow: a text is too long; the message names the limit.
        """
        for i, tokens in enumerate(texts):
            if not tokens:
                raise UsageError(f"text {i} is empty: there is nothing to embed")
            if len(tokens) > self.limit:
                raise ContextOverflow(
                    f"text {i} has {len(tokens)} tokens and an embedding takes at most {self.limit}: split it"
                )

    def embed(self, tokens: Sequence[int], unit: bool = True) -> Generator[NDArray[np.float32] | None, None, None]:
        """Evaluate one text: yields None after every decode but the last, then its vector, of unit length if `unit`.

        The vector is float32 [n_embd]. Only one text at a time.

        Raises:
            DecodeError: the library failed.
        """
        context, step = self.context, self.context.options.batch
        first = last = total = np.zeros(self.model.traits.n_embd)
        try:
            for start in range(0, len(tokens), step):
                if start:
                    yield None
                context.batch.clear()
                for i, token in enumerate(tokens[start : start + step], start):
                    context.batch.add(token, i, (0,), logits=True)
                context.decode()
                rows = context.hidden().astype(np.float64)
                first, last, total = (first if start else rows[0]), rows[-1], total + rows.sum(axis=0)
        finally:
            context.memory.remove(0, 0)
        vector = {MEAN: total / len(tokens), CLS: first, LAST: last}[self.pooling]
        norm = float(np.linalg.norm(vector)) if unit else 1.0
        yield (vector / norm if norm > 0 else vector).astype(np.float32)

    def stack(self, vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Vectors as float32 [n, n_embd]."""
        return np.stack(vectors) if vectors else np.zeros((0, self.model.traits.n_embd), dtype=np.float32)

    def close(self) -> None:
        """Free the context (not the model). Idempotent."""
        self.context.close()
