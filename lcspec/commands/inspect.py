"""`lcspec inspect`: what a GGUF is, and what speculation it allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Sequence

import click

from lcspec.config import ModelOptions
from lcspec.modelfiles.companions import bundled_head
from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.mtp_layers import mtp_layers, usable_mtp
from lcspec.modelfiles.pairing import DISTILLED


def describe(path: Path) -> dict[str, Any]:
    """Everything `inspect --json` prints.

    Raises:
        LcspecError: the file cannot be used; the message says why.
    """
    from lcspec.llama import Branching, Context, Model

    options = ModelOptions(path, ctx=256, gpu_layers=0, repack=False)
    with Model.load(options) as model, Context(model) as context:
        header, traits = model.header, model.traits
        coverage = model.vocab.coverage
        # An encoder has no memory: it reads texts and writes none.
        branching = Branching.NONE if not context.memory.exists else context.memory.branching
        apart = branching is Branching.TREE and context.memory.streams
        return {
            "file": str(path),
            "name": header.name,
            "architecture": header.architecture,
            "parameters": header.n_params,
            "quantization": header.quantization,
            "tensor_types": dict(header.tensor_types),
            "file_bytes": header.file_size,
            "context": traits.n_ctx_train,
            "layers": traits.n_layer,
            "embedding": traits.n_embd,
            "sliding_window": traits.n_swa or None,
            "recurrent": traits.recurrent,
            "hybrid": traits.hybrid,
            "vocabulary": {
                "size": model.n_vocab,
                "tokenizer": header.tokenizer_model,
                "pre_tokenizer": header.tokenizer_pre,
                "covers_all_bytes": not coverage.missing,
                "missing_bytes": sorted(coverage.lacking),
            },
            "chat_template": header.chat_template is not None,
            "licence": header.licence,
            "mtp_layers": mtp_layers(read_gguf(path)),
            "drafts_with_mtp": usable_mtp(read_gguf(path)) > 0,
            "bundled_head": head.name if (head := bundled_head(path)) else None,
            "distilled_from": header.metadata.get(f"{DISTILLED}.target"),
            "writes_text": context.memory.exists,
            "speculation": Branching.CHAIN.value if apart else branching.value,
            "trees": branching is Branching.TREE and not apart,
            "rollback": branching is not Branching.NONE and not context.memory.redecodes,
            "max_rollback": {Branching.TREE: None, Branching.NONE: 0}.get(branching, context.memory.max_rollback),
            "redecodes": context.memory.redecodes,
            "longest_chain": {Branching.TREE: None, Branching.NONE: 0}.get(branching, context.memory.max_chain - 1),
        }


SPECULATION = {
    "tree": "trees and chains (its memory can branch and be rolled back at any position)",
    "chain": "chains of up to {longest_chain} tokens (its recurrent state keeps a few snapshots)",
    "apart": "chains (every text has a cache of its own, which can be rolled back at any position)",
    "redecodes": "chains of up to {longest_chain} tokens from a saved state: its recurrent state cannot be taken back, "
    "so after a refusal what was accepted is decoded again; `auto` drafts where that pays (see: lcspec calibrate)",
    "none": "none: its recurrent state cannot be taken back, it decodes plainly",
}
READS_ONLY = "none: it generates no text (use it for embeddings)"


def hexadecimal(numbers: Sequence[int]) -> str:
    """Bytes in order, neighbours as a range: 0x1D, 0x80-0xFF."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"0x{a:02X}" if a == b else f"0x{a:02X}-0x{b:02X}" for a, b in runs)


def _speculation(info: dict[str, Any]) -> str:
    """What can be verified on it, as `inspect` says it."""
    if not info["writes_text"]:
        return READS_ONLY
    anywhere = info["rollback"] and info["max_rollback"] is None
    kind = "redecodes" if info["redecodes"] else "apart" if anywhere and not info["trees"] else info["speculation"]
    return SPECULATION[kind].format(**info)


def run(model: Path | None, as_json: bool) -> None:
    """Print the description of `model`, or of the bundled target."""
    info = describe(model or demo_path(DEMO_TARGET))
    if as_json:
        click.echo(json.dumps(info, ensure_ascii=False))
        return
    vocabulary = info["vocabulary"]
    missing = hexadecimal(vocabulary["missing_bytes"])
    bytes_note = f"; texts with the bytes {missing} are refused, it has no tokens for them" if missing else ""
    kind = [word for word in ("recurrent", "hybrid") if info[word]]
    if info["sliding_window"]:
        kind.append(f"sliding window of {info['sliding_window']}")
    rows = {
        "file": f"{info['file']} ({info['file_bytes'] / 1e6:.1f} MB)",
        "name": info["name"] or "-",
        "architecture": info["architecture"] + (f" ({', '.join(kind)})" if kind else ""),
        "parameters": f"{info['parameters'] / 1e6:.1f} M in {info['layers']} layers, width {info['embedding']}",
        "quantization": f"{info['quantization']} ({', '.join(f'{n} x {t}' for t, n in info['tensor_types'].items())})",
        "context": f"{info['context']} tokens",
        "vocabulary": f"{vocabulary['size']} tokens, {vocabulary['tokenizer']}{bytes_note}",
        "chat template": "yes" if info["chat_template"] else "no (a fallback is used)",
        "licence": info["licence"] or "not stated",
        "speculation": _speculation(info),
    }
    if info["mtp_layers"]:
        layers = "layer" if info["mtp_layers"] == 1 else "layers"
        use = "`--speculate auto` drafts with" if info["drafts_with_mtp"] else "this version of llama.cpp cannot run"
        rows["head inside"] = f"{info['mtp_layers']} {layers} for multi-token prediction, which {use}"
    if info["bundled_head"]:
        rows["head for it"] = (
            f"{info['bundled_head']}, installed with lcspec; `--speculate auto` asks it where that pays"
        )
    if info["distilled_from"]:
        rows["made for"] = f"drafting for {info['distilled_from']}, from which it was distilled"
    for name, value in rows.items():
        click.echo(f"{name + ':':<15} {value}")
