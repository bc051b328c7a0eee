"""Gemma 3n: several streams of hidden states, inputs per layer, windows, and layers that read an earlier one's cache.
See tests/tiny_families.py."""

from __future__ import annotations

from tests.tiny_layers import FF, HEAD, VOCAB, WIDTH, WINDOW, Metadata, Net, blocks, family

# The library has these numbers fixed, so the files are larger than other families': of the layers, the first 20 have
# cells of their own.
PER_LAYER, STREAMS, LOW_RANK, WITH_CELLS = 256, 4, 64, 20
LAYERS = WITH_CELLS + 2


@family("gemma3n", memory="window", pieces=True)
def _gemma3n(net: Net) -> Metadata:
    net.ends(tied=True, loud=4.0)
    net.matrix("per_layer_token_embd", VOCAB, PER_LAYER * LAYERS)
    net.matrix("per_layer_model_proj", PER_LAYER * LAYERS, WIDTH)
    net.norm("per_layer_proj_norm", PER_LAYER)
    for name in ("altup_proj", "altup_unembd_proj"):
        stack = net._normal(name, ((STREAMS - 1), WIDTH, WIDTH)) / WIDTH**0.5
        net.constant(f"{name}.weight", stack)
    for block in blocks(LAYERS):
        net.norms(block, "attn_norm", "ffn_norm", "post_norm", "altup_router_norm", "laurel_post_norm")
        net.norms(block, "altup_correct_scale")
        net.norms(block, "post_attention_norm", "post_ffw_norm", loud=0.5)
        net.attend(block, head=HEAD)
        net.norms(block, "attn_q_norm", size=HEAD, loud=0.3)  # nothing else scales scores down
        net.norms(block, "attn_k_norm", size=HEAD)
        net.feed_forward(block, WIDTH, FF)
        net.matrix(f"{block}.inp_gate", PER_LAYER, WIDTH)
        net.matrix(f"{block}.proj", WIDTH, PER_LAYER)
        net.matrix(f"{block}.altup_correct_coef", STREAMS, STREAMS, gain=0.1)
        net.matrix(f"{block}.altup_predict_coef", STREAMS * STREAMS, STREAMS, gain=0.1)
        net.matrix(f"{block}.altup_router", STREAMS, WIDTH)
        net.matrix(f"{block}.laurel_l", LOW_RANK, WIDTH)
        net.matrix(f"{block}.laurel_r", WIDTH, LOW_RANK)
    return {
        "block_count": LAYERS,
        "embedding_length_per_layer_input": PER_LAYER,
        "attention.shared_kv_layers": LAYERS - WITH_CELLS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.sliding_window": WINDOW,
        "rope.dimension_count": HEAD,
        "rope.freq_base_swa": 10000.0,
    }
