"""GGUF files of the demo models: written in float32 with `gguf`, quantized by llama.cpp itself. Needs no torch."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import demo_data
import gguf
import llama_cpp
import numpy as np
from demo_sources import SOURCES

CONTEXT_LENGTH = 1024

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


DESCRIPTIONS = {
    "target": "Tiny demonstration model bundled with lcspec, to show speculative decoding. Not useful as an assistant.",
    "draft": "Draft model distilled from the lcspec demo target; shares its tokenizer. Not useful on its own.",
}


def write_float_model(weights: Path, tokenizer: Path, name: str, path: Path) -> None:
    """Write the float32 GGUF file of one model from its saved weights."""
    with np.load(weights) as saved:
        shape = json.loads(str(saved["shape"]))
        tensors = {key: saved[key] for key in saved.files if key.endswith(".weight")}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"lcspec demo {name}")
    writer.add_description(DESCRIPTIONS[name])
    writer.add_license("mit")
    writer.add_languages(["en"])
    writer.add_tags(["demo", "speculative-decoding", name])
    for i, source in enumerate(SOURCES):
        writer.add_dataset_name(i, source.name)
        writer.add_dataset_author(i, source.author)
        writer.add_dataset_version(i, f"{source.part}; licence {source.licence}")
        writer.add_dataset_url(i, source.url)
    writer.add_uint32("general.dataset.count", len(SOURCES))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(shape["vocab"])
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(shape["width"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["ffn"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_layer_norm_rms_eps(shape["norm_eps"])
    writer.add_rope_dimension_count(shape["width"] // shape["heads"])
    writer.add_rope_freq_base(shape["rope_theta"])
    add_tokenizer(writer, tokenizer)
    for key, tensor in tensors.items():
        writer.add_tensor(key, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Path) -> None:
    """Copy a byte-level BPE `tokenizer.json` into the file, and add the chat template."""
    model = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]
    ids = model["vocab"]
    tokens = sorted(ids, key=ids.__getitem__)
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    special = set(demo_data.SPECIAL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(demo_data.PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(ids[demo_data.END_OF_TEXT])
    writer.add_pad_token_id(ids[demo_data.END_OF_TEXT])
    writer.add_eos_token_id(ids[demo_data.IM_END])
    writer.add_eot_token_id(ids[demo_data.IM_END])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def quantize(source: Path, destination: Path, kind: int = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0) -> None:
    """Quantize a GGUF file with llama.cpp."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = kind
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(destination).encode(), ctypes.byref(parameters))
    if code != 0:
        raise RuntimeError(f"llama.cpp could not quantize {source.name} (code {code})")


def export_pair(work: Path, out: Path, names: list[str]) -> None:
    """Write `demo-NAME-f32.gguf` to the work folder and `demo-NAME-q8_0.gguf` to the output folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        exact, small = work / f"demo-{name}-f32.gguf", out / f"demo-{name}-q8_0.gguf"
        write_float_model(work / f"{name}-weights.npz", work / "tokenizer.json", name, exact)
        quantize(exact, small)
        print(f"{small.name}: {small.stat().st_size / 1e6:.2f} MB")
