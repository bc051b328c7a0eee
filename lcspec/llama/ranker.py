"""Scores of documents for a query, by a model that reads both at once (a cross-encoder) and has a head for that."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Generator, Sequence

import numpy as np

from lcspec.errors import ContextOverflow, DecodeError, ModelLoadError, UnsupportedModel
from lcspec.llama.batch import Batch
from lcspec.llama.embedder import CHUNK, ENCODER_LIMIT
from lcspec.llama.lib import C, error_reason, last_errors
from lcspec.llama.model import Model
from lcspec.llama.vocab import Vocab
from lcspec.modelfiles.pairing import RANK, ranks, reads_whole

# How such a model wants a query and a document, where the file says it.
TEMPLATE = "tokenizer.chat_template.rerank"
PLACES = re.compile(r"\{(query|document)\}")


class Ranker:
    """Scores pairs; one after the other.

    Attributes:
        limit: tokens a pair may have.
    """

    def __init__(self, model: Model, ctx: int, threads: int) -> None:
        """Create the context, for pairs of at most `ctx` tokens.

        Raises:
            UnsupportedModel: the model does not rank.
            ModelLoadError: there is no memory for the context.
        """
        name = model.options.path.name
        if not ranks(model.header.metadata):
            raise UnsupportedModel(f"{name} does not rank texts: use a reranker")
        self.model = model
        self.limit = min(ctx, model.traits.n_ctx_train or ENCODER_LIMIT, ENCODER_LIMIT)
        # An encoder sees a text at once; others go through it, and their score is that of the last token.
        self._step = self.limit if reads_whole(model.header.metadata) else min(CHUNK, self.limit)
        template = model.header.metadata.get(TEMPLATE)
        self._template = template if isinstance(template, str) else None
        params = C.llama_context_default_params()
        params.n_ctx, params.n_seq_max = self.limit, 1
        params.n_batch = params.n_ubatch = params.n_outputs_max = self._step
        params.n_threads = params.n_threads_batch = threads
        params.embeddings, params.pooling_type = True, RANK
        params.offload_kqv = model.options.placement.kv_offload
        params.no_perf = True
        with error_reason("the library gave no reason") as reason:
            self._handle: Any = C.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise ModelLoadError(f"no context of {self.limit} tokens to rank with {name}: {reason[0]}")
        if model.adapters is not None:
            model.adapters.put_on(self._handle)
        self._memory = C.llama_get_memory(self._handle)
        self._batch = Batch(self._step, 1)

    def pair(self, query: str, document: str) -> list[int]:
        """Token ids of a query with a document.

        Raises:
            TokenizeError: the vocabulary has no tokens for some of it.
            ContextOverflow: they are too long together.
        """
        vocab = self.model.vocab
        if self._template is None:
            ids = joined(vocab, query, document)
        else:
            given = {"query": query, "document": document}
            text = PLACES.sub(lambda found: given[found[1]], self._template)
            ids = vocab.tokenize(text, special=False)
        if len(ids) > self.limit:
            raise ContextOverflow(
                f"a document and the query have {len(ids)} tokens together, and at most {self.limit} are ranked: "
                "split the document"
            )
        return ids

    def score(self, ids: Sequence[int]) -> Generator[float | None, None, None]:
        """Evaluate a pair: yields None after every decode but the last, then its score.

        Raises:
            DecodeError: the library failed.
        """
        batch = self._batch
        try:
            for start in range(0, len(ids), self._step):
                if start:
                    yield None
                batch.clear()
                for i, token in enumerate(ids[start : start + self._step], start):
                    batch.add(token, i, (0,), logits=True)
                batch.struct.n_tokens = batch.n
                code = C.llama_decode(self._handle, batch.struct)
                if code != 0:
                    raise DecodeError(f"ranking failed: {' '.join(last_errors()) or f'llama_decode returned {code}'}")
            found = C.llama_get_embeddings_seq(self._handle, 0)
            if not found:
                raise DecodeError("ranking failed: the model gave no score")
            score = float(np.ctypeslib.as_array(ctypes.cast(found, ctypes.POINTER(ctypes.c_float)), (1,))[0])
        finally:
            if self._memory:
                C.llama_memory_clear(self._memory, True)
        yield score

    def close(self) -> None:
        """Free the context (not the model). Idempotent."""
        if self._handle:
            C.llama_free(self._handle)
            self._handle = None


def joined(vocab: Vocab, query: str, document: str) -> list[int]:
    """A query and a document with the tokens around and between them that the vocabulary has for it."""
    with vocab.alive:
        handle = vocab.handle
        sep, eos = int(C.llama_vocab_sep(handle)), vocab.eos
        end = [eos if eos >= 0 else sep] if C.llama_vocab_get_add_eos(handle) else []
        between = [sep] if C.llama_vocab_get_add_sep(handle) else []
    begin = [vocab.bos] if vocab.add_bos else []
    first, second = (vocab.tokenize(text, special=False, parse_special=False) for text in (query, document))
    return [*begin, *first, *end, *between, *second, *end]
