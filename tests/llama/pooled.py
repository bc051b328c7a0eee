"""What the library itself makes of a text."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp as ll
import numpy as np

from lcspec.session import Session


def pooled(session: Session, ids: Sequence[int], pooling: int, n: int) -> np.ndarray:
    """The first `n` numbers, float64, of llama.cpp's own pooling of tokens that it sees at once."""
    params = ll.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.embeddings, params.pooling_type = True, pooling
    params.n_threads = params.n_threads_batch = 1
    context = ll.llama_init_from_model(session.model.handle, params)
    batch = ll.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
    assert ll.llama_decode(context, batch) == 0
    pointer = ctypes.cast(ll.llama_get_embeddings_seq(context, 0), ctypes.POINTER(ctypes.c_float))
    vector = np.ctypeslib.as_array(pointer, (n,)).astype(np.float64)
    ll.llama_batch_free(batch)
    ll.llama_free(context)
    return vector
