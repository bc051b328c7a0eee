"""Trains an EAGLE-3 head for a `llama` model on millions of tokens, on a GPU, with PyTorch alone.

    pip install 'lcspec[train]'
    python scripts/train_wide_eagle.py prompts MODEL prompts.npz --text dialogues.jsonl --plain prose.txt
    python scripts/train_wide_eagle.py train MODEL prompts.npz head.npz --write-seconds 100 --train-seconds 300
    python scripts/train_wide_eagle.py export MODEL head.npz head.gguf

`lcspec draft eagle` does the same for any model that llama.cpp knows, with what llama.cpp hands out: 8 000 tokens a
second on an H200. Here PyTorch computes the model itself: 87 000 a second there, so that a head learns from many texts
and not from the same ones again and again.

`prompts` needs llama-cpp-python and no GPU, `train` a GPU and no llama-cpp-python, `export` neither. The head has the
layout and the facts of `lcspec draft eagle`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import numpy as np

from lcspec.errors import LcspecError

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW = click.Path(dir_okay=False, path_type=Path)


@click.group(context_settings={"show_default": True}, help=__doc__)
def main() -> None:
    pass


@main.command()
@click.argument("model", type=FILE)
@click.argument("out", type=NEW)
@click.option("--text", type=FILE, multiple=True, help="JSON lines with `messages`, whose first question is answered.")
@click.option("--plain", type=FILE, multiple=True, help="Prose, of which pieces are asked about.")
@click.option("--code", default=8000, help="Questions about functions of Python's standard library.")
@click.option("--seed", default=1)
def prompts(model: Path, out: Path, text: tuple[Path, ...], plain: tuple[Path, ...], code: int, seed: int) -> None:
    """Write prompts as token ids."""
    from wide_eagle.prompt_file import save
    from wide_eagle.prompts import make

    from lcspec.config import ModelOptions
    from lcspec.llama import Model
    from lcspec.training.prompts import read_sources

    with Model.load(ModelOptions(model)) as loaded:
        made = make(loaded, read_sources(text), [p.read_text(encoding="utf-8") for p in plain], code, seed)
    save(out, made)
    click.echo(
        f"{len(made.first)} questions to begin with, {sum(map(len, made.first))} tokens; {len(made.later)} for later"
    )


@main.command()
@click.argument("model", type=FILE)
@click.argument("prompts_file", type=FILE)
@click.argument("out", type=NEW)
@click.option("--write-seconds", default=100.0, help="How long the model writes.")
@click.option("--train-seconds", default=300.0, help="How long the head learns.")
@click.option("--rows", default=2048, help="Texts that are written side by side.")
@click.option("--length", default=768, help="The longest text, in tokens.")
@click.option("--vocab", default="8192,12288,16384", help="Sizes of the head's vocabulary to choose from.")
@click.option("--coverage", default=0.97, help="The first of them with this share of the answers' tokens is taken.")
@click.option("--size", default=24576, help="Tokens of an update.")
@click.option("--seed", default=1)
def train(
    model: Path,
    prompts_file: Path,
    out: Path,
    write_seconds: float,
    train_seconds: float,
    rows: int,
    length: int,
    vocab: str,
    coverage: float,
    size: int,
    seed: int,
) -> None:
    """Have the model write, and train a head on it."""
    import time

    import torch
    from wide_eagle.batch import Batch
    from wide_eagle.conversations import Writer
    from wide_eagle.prompt_file import load
    from wide_eagle.target import Target
    from wide_eagle.texts import Reader, TextSet, frequent
    from wide_eagle.train import train as train_head

    from lcspec.training.eagle.initial import head_sizes, initial_weights
    from lcspec.training.layer_sizes import default_layers

    torch.manual_seed(seed)
    began = time.monotonic()
    target, given = Target(model), load(prompts_file)
    layers = default_layers(target.layers)
    batch = Batch(target, rows, length, given.end)
    batch.record()
    writer = Writer(batch, given, seed)
    click.echo(f"{time.monotonic() - began:.0f} s to load")
    found = list(writer.run(write_seconds))
    del batch, writer
    texts = TextSet(found, seed)
    answers = int(texts.learn.sum())
    click.echo(
        f"{len(found)} texts, {texts.starts[-1]} tokens, {answers} of them answers'; {time.monotonic() - began:.0f} s"
    )
    for n in map(int, vocab.split(",")):
        kept, share = frequent(target, texts, n)
        click.echo(f"{n} tokens are {share:.2%} of the answers")
        if share >= coverage:
            break
    reader = Reader(target, layers, kept)
    reader.measure_scale(texts, next(texts.batches(False, size, np.random.default_rng(seed))))
    sizes = head_sizes(model, len(kept))
    scale = reader.scale.cpu().numpy()
    weights = initial_weights(model, sizes, kept.cpu().numpy(), scale, seed)
    trained = train_head(sizes, weights, texts, reader, train_seconds, seed, size)
    depths = " ".join(f"{d:.3f}" for d in trained.measured.depths)
    click.echo(f"held out: right at each depth {depths}, {trained.measured.length:.2f} tokens a step")
    facts = {
        "answers": len(found),
        "tokens": int(texts.starts[-1]),
        "steps": trained.steps,
        "seconds": train_seconds,
        "acceptance": trained.measured.depths,
        "acceptance_length": trained.measured.length,
        "held_out": trained.measured.rows,
        "coverage": share,
        "layers": layers,
    }
    # The output matrix stays the target's, so it need not travel.
    small = {name: value.astype(np.float16) for name, value in trained.weights.items() if name != "output.weight"}
    np.savez(out, facts=json.dumps(facts), kept=kept.cpu().numpy(), scale=scale, **small)


@main.command()
@click.argument("model", type=FILE)
@click.argument("trained", type=FILE)
@click.argument("out", type=NEW)
@click.option("--sources", default="", help="What the prompts were made from, for the file.")
def export(model: Path, trained: Path, out: Path, sources: str) -> None:
    """Write what `train` left as a GGUF."""
    from lcspec.drafters.medusa.target import output_rows
    from lcspec.modelfiles.modelfile import read_header
    from lcspec.training.eagle.export import write_head
    from lcspec.training.eagle.initial import head_sizes
    from lcspec.training.task import origin

    with np.load(trained) as kept:
        facts, ids, scale = json.loads(str(kept["facts"])), kept["kept"], kept["scale"]
        weights = {name: kept[name].astype(np.float32) for name in kept if name not in ("facts", "kept", "scale")}
    weights["output.weight"] = output_rows(model, ids.tolist())
    weights["fc.weight"] = weights["fc.weight"] / scale
    layers = facts.pop("layers")
    facts |= {**origin(model, sources), "target_block_count": read_header(model).block_count or 0}
    write_head(out, model, head_sizes(model, len(ids)), weights, ids, layers, facts)


if __name__ == "__main__":
    try:
        main()
    except LcspecError as error:
        sys.exit(f"error: {error}")
