"""`lcspec inspect`: what a GGUF is, and what speculation it allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from lcspec.config import ModelOptions
from lcspec.session import DEMO_TARGET, demo_path


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
            },
            "chat_template": header.chat_template is not None,
            "licence": header.licence,
            "speculation": context.branching.value,
            "trees": context.branching is Branching.TREE,
            "rollback": context.max_rollback > 0,
            "max_rollback": None if context.branching is Branching.TREE else context.max_rollback,
        }


SPECULATION = {
    "tree": "trees and chains (its memory can branch and be rolled back at any position)",
    "chain": "chains of up to {max_rollback} tokens (its recurrent state keeps a few snapshots)",
    "none": "none: its recurrent state cannot be taken back, it decodes plainly",
}


def run(model: Path | None, as_json: bool) -> None:
    """Print the description of `model`, or of the bundled target."""
    info = describe(model or demo_path(DEMO_TARGET))
    if as_json:
        click.echo(json.dumps(info, ensure_ascii=False))
        return
    vocabulary = info["vocabulary"]
    bytes_note = "" if vocabulary["covers_all_bytes"] else ", cannot express every byte"
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
        "speculation": SPECULATION[info["speculation"]].format(**info),
    }
    for name, value in rows.items():
        click.echo(f"{name + ':':<15} {value}")
