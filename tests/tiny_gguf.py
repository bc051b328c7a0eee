"""Writers of tiny GGUF files with random weights, for tests: good models of every memory kind, and bad files.

Every writer is deterministic: the same arguments give the same bytes. Nothing here imports llama_cpp.

    path = write_llama(tmp_path / "target.gguf")                        # plain attention
    draft = write_llama(tmp_path / "draft.gguf", noise=0.1)             # often agrees with the target
    other = write_llama(tmp_path / "other.gguf", vocab=byte_bpe_vocab(permutation=1))   # same size, other vocabulary

A weight depends on `seed` and its tensor's name only, so models that differ in depth, quantization, vocabulary or
noise share their remaining weights.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

NORMAL, UNKNOWN, CONTROL, BYTE = (
    int(gguf.TokenType.NORMAL),
    int(gguf.TokenType.UNKNOWN),
    int(gguf.TokenType.CONTROL),
    int(gguf.TokenType.BYTE),
)

CHATML_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}


# --- vocabularies -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vocab:
    """What the `tokenizer.ggml.*` keys hold. `model` is "gpt2" for byte-level BPE and "llama" for SentencePiece."""

    model: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...] | None = None
    merges: tuple[str, ...] | None = None
    pre: str | None = None
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    add_bos: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    def metadata(self) -> dict[str, Any]:
        """The `tokenizer.ggml.*` keys, ready for `_write`."""
        keys: dict[str, Any] = {
            "model": self.model,
            "pre": self.pre,
            "tokens": list(self.tokens),
            "token_type": list(self.types),
            "scores": None if self.scores is None else list(self.scores),
            "merges": None if self.merges is None else list(self.merges),
            "bos_token_id": self.bos,
            "eos_token_id": self.eos,
            "unknown_token_id": self.unk,
            "add_bos_token": self.add_bos,
        }
        return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def byte_characters() -> list[str]:
    """The 256 characters by which byte-level BPE writes the bytes 0 to 255 (index: the byte)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters, next_free = [], 256
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(next_free))
            next_free += 1
    return characters


# Pairs in an order that lets a later one build on an earlier one ("Ġt" + "h", then "Ġth" + "e").
_BPE_MERGES = (
    "Ġ t", "h e", "i n", "r e", "o n", "Ġ a", "e r", "Ġt h", "Ġth e", "a n", "Ġ s", "e n", "Ġ o", "o r", "i t", "i s",
    "a t", "Ġ w", "a r", "e s", "in g", "an d", "Ġa n", "Ġan d", "l l", "o u", "Ġ c", "Ġ f", "e d", "t o", "Ġo f",
    "Ġ (", "Ġ =", "Ġ Ġ", "ĠĠ ĠĠ", "d e", "Ġ {", "Ċ Ġ", "s e", "l e", "Ġ b", "Ġ p", "Ġ m", "Ġ h", "Ġ d", "i on",
)  # fmt: skip
_BPE_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_bpe_vocab(n_vocab: int = 288, *, permutation: int = 0, missing_bytes: Sequence[int] = ()) -> Vocab:
    """A byte-level BPE vocabulary (gpt2): every byte, then merges, then the three special tokens of ChatML.

    `permutation` other than 0 gives a different vocabulary of the same size: the ordinary tokens in another order.
    `missing_bytes` leaves those bytes out; llama.cpp then drops them from any text without a word.
    Raises ValueError if `n_vocab` is too small for the bytes or larger than the merges allow.
    """
    tokens = [char for byte, char in enumerate(byte_characters()) if byte not in missing_bytes]
    n_merged = n_vocab - len(tokens) - len(_BPE_SPECIAL)
    usable = list(_BPE_MERGES)
    if not 0 <= n_merged <= len(usable):
        low = len(tokens) + len(_BPE_SPECIAL)
        raise ValueError(f"n_vocab must be between {low} and {low + len(usable)}, not {n_vocab}")
    merges = usable[:n_merged]
    tokens += [merge.replace(" ", "") for merge in merges]
    if permutation:
        order = np.random.default_rng([0xB9E, permutation]).permutation(len(tokens))
        tokens = [tokens[i] for i in order]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(_BPE_SPECIAL)
    tokens += _BPE_SPECIAL
    eos = len(tokens) - len(_BPE_SPECIAL)
    return Vocab("gpt2", tuple(tokens), tuple(types), merges=tuple(merges), pre="gpt-2", bos=eos, eos=eos)


# Pieces every one of whose characters is a piece too, as a SentencePiece model that was trained would have them.
_SPM_PIECES = (
    "▁", "e", "t", "a", "o", "n", "i", "s", "r", "h", "d", "l", "u", "c", "m", "f", "w", "g", "y", "p", "b", ".", ",",
    "▁t", "he", "▁the", "▁a", "in", "er", "an", "▁w", "ou", "re", "on", "at", "▁s", "▁an", "▁and", "ing", "▁to", "▁o",
)  # fmt: skip


def spm_vocab(n_vocab: int = 288, *, permutation: int = 0, missing_bytes: Sequence[int] = ()) -> Vocab:
    """A SentencePiece vocabulary (llama): <unk> <s> </s>, a token for every byte, then common pieces.

    `permutation` other than 0 gives a different vocabulary of the same size: the pieces in another order.
    `missing_bytes` leaves those byte tokens out; llama.cpp then ABORTS THE PROCESS on a text that needs one of them.
    Raises ValueError if `n_vocab` is too small for the bytes or larger than the pieces allow.
    """
    tokens = ["<unk>", "<s>", "</s>"]
    types = [UNKNOWN, CONTROL, CONTROL]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256) if byte not in missing_bytes]
    n_pieces = n_vocab - len(tokens) - len(byte_tokens)
    if not 0 <= n_pieces <= len(_SPM_PIECES):
        low = len(tokens) + len(byte_tokens)
        raise ValueError(f"n_vocab must be between {low} and {low + len(_SPM_PIECES)}, not {n_vocab}")
    pieces = list(_SPM_PIECES[:n_pieces])
    if permutation:
        order = np.random.default_rng([0x59E, permutation]).permutation(len(pieces))
        pieces = [pieces[i] for i in order]
    tokens += byte_tokens + pieces
    types += [BYTE] * len(byte_tokens) + [NORMAL] * len(pieces)
    # Longer pieces first: SentencePiece merges the pair with the best score.
    scores = [0.0] * (len(tokens) - len(pieces)) + [float(len(piece)) - 100.0 for piece in pieces]
    return Vocab("llama", tuple(tokens), tuple(types), scores=tuple(scores), bos=1, eos=2, unk=0, add_bos=True)


def plamo_vocab(n_vocab: int = 288) -> Vocab:
    """A vocabulary of PLaMo 2 (plamo2): the tokens of `spm_vocab`, but spaces are spaces, and of all ways to cut a text
    the one with the best sum of scores is taken."""
    found = spm_vocab(n_vocab)
    return replace(found, model="plamo2", pre="default", tokens=tuple(t.replace("▁", " ") for t in found.tokens))


# --- the file ---------------------------------------------------------------------------------------------------------


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Adds one metadata value under the GGUF type that llama.cpp expects for its Python type (int: uint32; a list of
    them: int32; an array: uint64)."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, np.ndarray):
        array, items = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64
        writer.add_key_value(key, value.tolist(), array, sub_type=items)
    else:
        writer.add_array(key, value)


def _write(
    path: Path | str,
    arch: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    vocab: Vocab | None,
    quant: str = "F32",
    chat_template: str | None = None,
) -> Path:
    """Writes one GGUF. Keys without a known prefix belong to the architecture; None leaves a key out. 2-D weights are
    stored as `quant`."""
    path = Path(path)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(f"tiny {arch}")
    writer.add_license("mit")
    writer.add_file_type(_FILE_TYPES[quant])
    for key, value in metadata.items():
        if value is None:
            continue
        _add(writer, key if key.startswith(("general.", "tokenizer.", "lcspec.")) else f"{arch}.{key}", value)
    if vocab is not None:
        for key, value in vocab.metadata().items():
            _add(writer, key, value)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    qtype = gguf.GGMLQuantizationType[quant]
    for name, data in tensors.items():
        # Convolution kernels and state matrices stay in F32, as llama.cpp's own quantizer leaves them.
        if data.ndim < 2 or quant == "F32" or "conv" in name or not name.endswith(".weight"):
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, quantize(data, qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class _Weights:
    """Random weights by name. A matrix of shape (out, in) has entries of deviation gain / sqrt(in)."""

    def __init__(self, seed: int, noise: float = 0.0) -> None:
        self._seed = seed
        self._noise = noise
        self.tensors: dict[str, np.ndarray] = {}

    def _normal(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        key = zlib.crc32(name.encode())
        values = np.random.default_rng([self._seed, key]).standard_normal(shape)
        if self._noise:
            values = values + self._noise * np.random.default_rng([self._seed, key, 1]).standard_normal(shape)
        return values

    def matrix(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
        self.tensors[f"{name}.weight"] = (self._normal(name, (n_out, n_in)) * gain / n_in**0.5).astype(np.float32)

    def norm(self, name: str, size: int) -> None:
        self.tensors[f"{name}.weight"] = (1.0 + 0.1 * self._normal(name, (size,))).astype(np.float32)

    def constant(self, name: str, values: np.ndarray) -> None:
        self.tensors[name] = np.ascontiguousarray(values, dtype=np.float32)

    def attention(self, block: str, width: int, n_head: int, n_head_kv: int) -> None:
        kv_width = width // n_head * n_head_kv
        # Queries and keys are enlarged so that attention prefers some positions instead of averaging over all.
        self.matrix(f"{block}.attn_q", width, width, gain=2.0)
        self.matrix(f"{block}.attn_k", kv_width, width, gain=2.0)
        self.matrix(f"{block}.attn_v", kv_width, width)
        self.matrix(f"{block}.attn_output", width, width)

    def feed_forward(self, block: str, width: int, n_ff: int) -> None:
        self.matrix(f"{block}.ffn_gate", n_ff, width)
        self.matrix(f"{block}.ffn_up", n_ff, width)
        self.matrix(f"{block}.ffn_down", width, n_ff, gain=2.0)


# --- good models ------------------------------------------------------------------------------------------------------


def write_llama(
    path: Path | str,
    *,
    seed: int = 0,
    n_vocab: int = 288,
    vocab: Vocab | None = None,
    width: int = 64,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 128,
    n_ctx: int = 512,
    logit_std: float = 2.5,
    noise: float = 0.0,
    quant: str = "F32",
    chat_template: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """A `llama` model: plain attention with grouped keys and values.

    `vocab` overrides `n_vocab` (a byte-level BPE vocabulary of that size). `logit_std` is the deviation of the logits,
    that is, how confident the model is. `noise` adds that much relative noise to every weight: a natural draft model
    (greedy agreement with the model without noise: about 0.9 at 0.02, 0.6 at 0.1, 0.1 at 0.3).
    `quant` is F32, F16, Q8_0 or Q4_0; K-quants need `width` and `n_ff` in multiples of 256 and llama.cpp's quantizer.
    `extra` is metadata to add or override.
    """
    vocab = byte_bpe_vocab(n_vocab) if vocab is None else vocab
    weights = _Weights(seed, noise)
    weights.matrix("token_embd", len(vocab), width, gain=width**0.5)
    for i in range(n_layer):
        weights.norm(f"blk.{i}.attn_norm", width)
        weights.attention(f"blk.{i}", width, n_head, n_head_kv)
        weights.norm(f"blk.{i}.ffn_norm", width)
        weights.feed_forward(f"blk.{i}", width, n_ff)
    weights.norm("output_norm", width)
    weights.matrix("output", len(vocab), width, gain=logit_std)
    metadata = {
        "vocab_size": len(vocab),
        "context_length": n_ctx,
        "embedding_length": width,
        "block_count": n_layer,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": width // n_head,
        "rope.freq_base": 10000.0,
    }
    metadata.update(extra or {})
    return _write(path, "llama", metadata, weights.tensors, vocab=vocab, quant=quant, chat_template=chat_template)


def write_gpt2(
    path: Path | str, *, seed: int = 0, width: int = 64, n_layer: int = 2, n_head: int = 4, n_ctx: int = 512
) -> Path:
    """A `gpt2` model: a learned vector for each of `n_ctx` positions, and none for more."""
    vocab = byte_bpe_vocab(288)
    weights = _Weights(seed, 0.0)
    weights.matrix("token_embd", len(vocab), width, gain=width**0.5)
    weights.matrix("position_embd", n_ctx, width, gain=width**0.5)
    sizes = {"attn_norm": width, "ffn_norm": width, "attn_output": width, "ffn_down": width}
    for i in range(n_layer):
        block = f"blk.{i}"
        weights.matrix(f"{block}.attn_qkv", 3 * width, width, gain=2.0)
        weights.matrix(f"{block}.attn_output", width, width)
        weights.matrix(f"{block}.ffn_up", 4 * width, width)
        weights.matrix(f"{block}.ffn_down", width, 4 * width, gain=2.0)
        for name in ("attn_norm", "ffn_norm"):
            weights.norm(f"{block}.{name}", width)
        for name, size in {**sizes, "attn_qkv": 3 * width, "ffn_up": 4 * width}.items():
            weights.constant(f"{block}.{name}.bias", np.zeros(size))
    weights.norm("output_norm", width)
    weights.constant("output_norm.bias", np.zeros(width))
    weights.matrix("output", len(vocab), width, gain=2.5)
    metadata = {
        "vocab_size": len(vocab),
        "context_length": n_ctx,
        "embedding_length": width,
        "block_count": n_layer,
        "feed_forward_length": 4 * width,
        "attention.head_count": n_head,
        "attention.layer_norm_epsilon": 1e-5,
    }
    return _write(path, "gpt2", metadata, weights.tensors, vocab=vocab, quant="F32", chat_template=None)


def write_lora(
    path: Path | str,
    *,
    seed: int = 0,
    width: int = 64,
    n_layer: int = 2,
    rank: int = 4,
    strength: float = 1.0,
    architecture: str = "llama",
) -> Path:
    """A LoRA adapter for the queries of `write_llama`'s models of this width: metadata and pairs of small matrices."""
    path = Path(path)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    random = np.random.default_rng([0x10A, seed])
    for i in range(n_layer):
        name = f"blk.{i}.attn_q.weight"
        writer.add_tensor(f"{name}.lora_a", random.standard_normal((rank, width)).astype(np.float32))
        writer.add_tensor(f"{name}.lora_b", (strength * random.standard_normal((width, rank))).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_sliding_window(
    path: Path | str,
    *,
    seed: int = 0,
    n_vocab: int = 288,
    vocab: Vocab | None = None,
    window: int = 16,
    width: int = 64,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 128,
    n_ctx: int = 512,
    logit_std: float = 2.5,
    noise: float = 0.0,
    chat_template: str | None = None,
) -> Path:
    """A `cohere2` model: every second layer (0, 2, ...) sees only the last `window` positions.

    The output matrix is the embedding matrix, as in every model of this architecture.
    """
    vocab = byte_bpe_vocab(n_vocab) if vocab is None else vocab
    weights = _Weights(seed, noise)
    weights.matrix("token_embd", len(vocab), width, gain=logit_std)
    for i in range(n_layer):
        weights.norm(f"blk.{i}.attn_norm", width)
        weights.attention(f"blk.{i}", width, n_head, n_head_kv)
        weights.feed_forward(f"blk.{i}", width, n_ff)
    weights.norm("output_norm", width)
    metadata = {
        "vocab_size": len(vocab),
        "context_length": n_ctx,
        "embedding_length": width,
        "block_count": n_layer,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": 2,
        "rope.dimension_count": width // n_head,
        "rope.freq_base": 10000.0,
        "logit_scale": 1.0,
    }
    return _write(path, "cohere2", metadata, weights.tensors, vocab=vocab, chat_template=chat_template)


def write_recurrent(
    path: Path | str,
    *,
    seed: int = 0,
    n_vocab: int = 288,
    vocab: Vocab | None = None,
    width: int = 64,
    n_layer: int = 2,
    d_state: int = 16,
    n_ctx: int = 512,
    logit_std: float = 2.5,
    noise: float = 0.0,
    chat_template: str | None = None,
) -> Path:
    """A `mamba` model: no attention, one state per sequence. llama.cpp cannot roll this architecture back at all."""
    vocab = byte_bpe_vocab(n_vocab) if vocab is None else vocab
    weights = _Weights(seed, noise)
    d_inner, d_conv, dt_rank = 2 * width, 4, max(1, width // 16)
    weights.matrix("token_embd", len(vocab), width, gain=width**0.5)
    for i in range(n_layer):
        block = f"blk.{i}"
        weights.norm(f"{block}.attn_norm", width)
        weights.matrix(f"{block}.ssm_in", 2 * d_inner, width)
        weights.matrix(f"{block}.ssm_conv1d", d_inner, d_conv)
        weights.constant(f"{block}.ssm_conv1d.bias", np.zeros(d_inner))
        weights.matrix(f"{block}.ssm_x", dt_rank + 2 * d_state, d_inner)
        weights.matrix(f"{block}.ssm_dt", d_inner, dt_rank)
        # Steps of 0.01 to 0.2 after the softplus: memories of a few to a hundred tokens.
        weights.constant(f"{block}.ssm_dt.bias", np.log(np.expm1(np.geomspace(0.01, 0.2, d_inner))))
        weights.constant(f"{block}.ssm_a", -np.tile(np.arange(1.0, d_state + 1), (d_inner, 1)))
        weights.constant(f"{block}.ssm_d", np.ones(d_inner))
        weights.matrix(f"{block}.ssm_out", width, d_inner, gain=2.0)
    weights.norm("output_norm", width)
    weights.matrix("output", len(vocab), width, gain=logit_std)
    metadata = {
        "vocab_size": len(vocab),
        "context_length": n_ctx,
        "embedding_length": width,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": n_layer,
        "ssm.conv_kernel": d_conv,
        "ssm.inner_size": d_inner,
        "ssm.state_size": d_state,
        "ssm.time_step_rank": dt_rank,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    return _write(path, "mamba", metadata, weights.tensors, vocab=vocab, chat_template=chat_template)


def write_hybrid(
    path: Path | str,
    *,
    seed: int = 0,
    n_vocab: int = 288,
    vocab: Vocab | None = None,
    width: int = 64,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 128,
    n_ctx: int = 512,
    logit_std: float = 2.5,
    noise: float = 0.0,
    chat_template: str | None = None,
) -> Path:
    """An `lfm2` model: short convolutions in the layers 0, 2, ..., attention in the layers 1, 3, ...

    llama.cpp can roll this architecture back by up to `n_rs_seq` tokens. The output matrix is the embedding matrix.
    """
    vocab = byte_bpe_vocab(n_vocab) if vocab is None else vocab
    weights = _Weights(seed, noise)
    l_cache = 3
    weights.matrix("token_embd", len(vocab), width, gain=logit_std)
    for i in range(n_layer):
        block = f"blk.{i}"
        weights.norm(f"{block}.attn_norm", width)
        if i % 2:
            weights.attention(block, width, n_head, n_head_kv)
            weights.norm(f"{block}.attn_q_norm", width // n_head)
            weights.norm(f"{block}.attn_k_norm", width // n_head)
        else:
            weights.matrix(f"{block}.shortconv.conv", width, l_cache)
            weights.matrix(f"{block}.shortconv.in_proj", 3 * width, width)
            weights.matrix(f"{block}.shortconv.out_proj", width, width, gain=2.0)
        weights.norm(f"{block}.ffn_norm", width)
        weights.feed_forward(block, width, n_ff)
    weights.norm("token_embd_norm", width)  # this architecture's name for the last normalization
    metadata = {
        "vocab_size": len(vocab),
        "context_length": n_ctx,
        "embedding_length": width,
        "block_count": n_layer,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": [n_head_kv if i % 2 else 0 for i in range(n_layer)],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "shortconv.l_cache": l_cache,
        "rope.freq_base": 10000.0,
    }
    return _write(path, "lfm2", metadata, weights.tensors, vocab=vocab, chat_template=chat_template)


# --- bad files --------------------------------------------------------------------------------------------------------


def write_bert(
    path: Path | str,
    *,
    seed: int = 0,
    width: int = 32,
    n_layer: int = 2,
    n_ctx: int = 64,
    pooling: int = 1,
    **keys: Any,
) -> Path:
    """An encoder: every token sees all others, there is no cache and no output matrix.

    `pooling` is the GGUF's number: 1 mean, 2 first token, 3 last token, 4 a rank; then there is a head for it. `keys`
    are more metadata.
    """
    vocab, weights, n_ff = byte_bpe_vocab(), _Weights(seed), 2 * width

    def norm(name: str) -> None:
        weights.norm(name, width)
        weights.constant(f"{name}.bias", np.zeros(width))

    weights.matrix("token_embd", len(vocab), width, gain=width**0.5)
    weights.matrix("position_embd", n_ctx, width)
    norm("token_embd_norm")
    for i in range(n_layer):
        block = f"blk.{i}"
        weights.attention(block, width, 4, 4)
        weights.matrix(f"{block}.ffn_up", n_ff, width)
        weights.matrix(f"{block}.ffn_down", width, n_ff)
        norm(f"{block}.attn_output_norm")
        norm(f"{block}.layer_output_norm")
    if pooling == 4:
        weights.matrix("cls", width, width)
        weights.matrix("cls.output", 1, width, gain=3.0)
        weights.constant("cls.bias", np.full(width, 0.1))
        weights.constant("cls.output.bias", np.full(1, 0.2))
    metadata = {
        **keys,
        "context_length": n_ctx,
        "embedding_length": width,
        "block_count": n_layer,
        "feed_forward_length": n_ff,
        "attention.head_count": 4,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.causal": False,
        "pooling_type": pooling,
        "tokenizer.ggml.token_type_count": 2,
    }
    return _write(path, "bert", metadata, weights.tensors, vocab=vocab)


def _without_vocab(path: Path | str, seed: int, extra: Mapping[str, Any]) -> Path:
    width, n_ff, n_vocab = 64, 128, 288
    weights = _Weights(seed)
    weights.matrix("token_embd", n_vocab, width, gain=width**0.5)
    weights.norm("blk.0.attn_norm", width)
    weights.attention("blk.0", width, 4, 2)
    weights.norm("blk.0.ffn_norm", width)
    weights.feed_forward("blk.0", width, n_ff)
    weights.norm("output_norm", width)
    metadata = {
        "vocab_size": n_vocab,
        "context_length": 512,
        "embedding_length": width,
        "block_count": 1,
        "feed_forward_length": n_ff,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": 16,
        **extra,
    }
    return _write(path, "llama", metadata, weights.tensors, vocab=None)


def write_no_vocab(path: Path | str, *, seed: int = 0) -> Path:
    """A model that says it has no vocabulary ("no_vocab"): it loads and decodes; tokenizing aborts the process."""
    return _without_vocab(path, seed, {"tokenizer.ggml.model": "no_vocab"})


def write_without_tokenizer(path: Path | str, *, seed: int = 0) -> Path:
    """A model without any `tokenizer.*` key: the library refuses it with an error."""
    return _without_vocab(path, seed, {})


def write_truncated_data(path: Path | str, *, seed: int = 0, keep: float = 0.5) -> Path:
    """A good model cut in its tensor data, of which the share `keep` is left."""
    path = write_llama(path, seed=seed)
    start = gguf.GGUFReader(path).data_offset
    data = path.read_bytes()
    path.write_bytes(data[: start + int((len(data) - start) * keep)])
    return path


def write_truncated_header(path: Path | str, *, seed: int = 0, n_bytes: int = 2000) -> Path:
    """A good model cut after `n_bytes` bytes; 2000 lies in the middle of the vocabulary."""
    path = write_llama(path, seed=seed)
    path.write_bytes(path.read_bytes()[:n_bytes])
    return path


def write_not_gguf(path: Path | str) -> Path:
    """A text file under a model's name."""
    path = Path(path)
    path.write_text("This is a note about a model, not a model.\n" * 20)
    return path


_NOT_ASCII = tuple(range(0x80, 0x100))


def write_spm_missing_bytes(path: Path | str, *, seed: int = 0, missing_bytes: Sequence[int] = _NOT_ASCII) -> Path:
    """A SentencePiece model without some byte tokens: llama.cpp aborts the process on text that needs them."""
    n_vocab = 3 + 256 - len(missing_bytes) + len(_SPM_PIECES)
    return write_llama(path, seed=seed, vocab=spm_vocab(n_vocab, missing_bytes=missing_bytes))


def write_bpe_missing_bytes(path: Path | str, *, seed: int = 0, missing_bytes: Sequence[int] = _NOT_ASCII) -> Path:
    """A byte-level BPE model without some byte tokens: llama.cpp silently drops what needs them."""
    n_vocab = 256 - len(missing_bytes) + len(_BPE_SPECIAL) + 20
    return write_llama(path, seed=seed, vocab=byte_bpe_vocab(n_vocab, missing_bytes=missing_bytes))


def write_duplicate_token(path: Path | str, *, seed: int = 0) -> Path:
    """A model whose vocabulary has the same token twice: llama.cpp aborts the process while loading it."""
    vocab = byte_bpe_vocab()
    tokens = (*vocab.tokens[:20], vocab.tokens[19], *vocab.tokens[21:])
    return write_llama(path, seed=seed, vocab=replace(vocab, tokens=tokens))
