"""Qwen 4's experimental architecture: a delta net, attention to what an indexer finds, and several streams of hidden
states. See tests/tiny_families.py."""

from __future__ import annotations

import numpy as np

from tests.tiny_layers import (
    DELTA_NET,
    EXPERT_FF,
    FAMILIES,
    HEAD,
    MOE,
    VOCAB,
    WIDTH,
    Metadata,
    Net,
    blocks,
    family,
)

STREAMS, LOW_RANK = 4, 8
# A token's n-gram: two pieces of each length of up to so many tokens are looked up, in tables of so many rows.
NGRAM, PIECES, ROWS, KERNEL = 3, 2, 97, 4
LOOKED_UP = (NGRAM - 1) * PIECES
INDEX_HEADS, INDEX_HEAD, TOP_K, BLOCK = 2, 32, 8, 4


@family("qwen4exp", memory="rollback")
def _qwen4exp(net: Net) -> Metadata:
    """A delta net behind hashed n-grams with a convolution of their own, then attention to 8 positions that an indexer
    finds in blocks of 4, and to the latest block; experts everywhere. It has no layers for multi-token prediction."""
    net.matrix("token_embd", VOCAB, WIDTH, gain=WIDTH**0.5)
    net.matrix("output", VOCAB, WIDTH, gain=5.0)
    net.matrix("per_layer_token_embd", LOOKED_UP * ROWS, WIDTH // LOOKED_UP, gain=(WIDTH // LOOKED_UP) ** 0.5)
    _mixer(net, "output_hc")  # this architecture's last normalization
    for i, block in enumerate(blocks(2)):
        if i == 0:
            _ngrams(net, block)
            net.delta_net(block, joined=False)
        else:
            net.attend(block, gated=True)
            net.tensors[f"{block}.attn_output.weight"] *= np.float32(4)  # or it would count little
            net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
            net.matrix(f"{block}.indexer.q_proj", INDEX_HEADS * INDEX_HEAD, WIDTH, gain=2.0)
            net.matrix(f"{block}.indexer.k_proj", INDEX_HEAD, WIDTH, gain=2.0)
            net.norms(block, "indexer.q_norm", "indexer.k_norm", size=INDEX_HEAD)
        for kind in ("attn", "ffn"):
            _mixer(net, f"{block}.hc_{kind}")
            net.matrix(f"{block}.hc_{kind}_inject", STREAMS, STREAMS * WIDTH, gain=4.0)
        net.experts(block, shared=True)
        net.constant(f"{block}.ffn_gate_inp_shexp.weight", net._normal(f"{block}.ffn_gate_inp_shexp.weight", (WIDTH,)))
    return {
        "block_count": 2,
        **DELTA_NET,
        **MOE,
        "expert_shared_feed_forward_length": EXPERT_FF,
        "rope.dimension_count": HEAD,
        "rope.dimension_sections": [2, 3, 3, 0],
        "hyper_connection.count": STREAMS,
        "hyper_connection.low_rank": LOW_RANK,
        "attention.compress_ratios": [0, BLOCK],
        "attention.indexer.head_count": INDEX_HEADS,
        "attention.indexer.key_length": INDEX_HEAD,
        "attention.indexer.top_k": TOP_K,
        "ple.layers": [0],
        "ple.ngram_size": NGRAM,
        "ple.heads_per_ngram": PIECES,
        "ple.conv_kernel": KERNEL,
        "ple.eos_token_id": FAMILIES["qwen4exp"].vocab.eos,
        "ple.layer_multipliers": np.array([1, 1_000_003, 998_244_353], dtype=np.uint64),
        "ple.head_offsets": np.arange(LOOKED_UP, dtype=np.uint64) * np.uint64(ROWS),
        "ple.head_vocab_sizes": np.full(LOOKED_UP, ROWS, dtype=np.uint64),
        "embedding_length_per_layer_input": WIDTH // LOOKED_UP,
    }


def _mixer(net: Net, name: str) -> None:
    """What makes one input of the streams of hidden states."""
    net.norm(f"{name}_norm", STREAMS * WIDTH)
    net.matrix(f"{name}_down", LOW_RANK, STREAMS * WIDTH, gain=4.0)
    net.matrix(f"{name}_up", STREAMS * WIDTH, LOW_RANK)


def _ngrams(net: Net, block: str) -> None:
    """What a layer adds of the n-gram in front of it: a gated value, and a convolution of the values before."""
    net.matrix(f"{block}.ple_key", STREAMS * WIDTH, WIDTH)
    net.matrix(f"{block}.ple_value", WIDTH, WIDTH)
    net.norms(block, "ple_norm_key", "ple_norm_query", "ple_norm_conv", size=STREAMS * WIDTH)
    net.matrix(f"{block}.ple_conv1d", STREAMS * WIDTH, KERNEL)
