"""Trains a small hybrid model with a layer for multi-token prediction, and writes a GGUF that llama.cpp loads.

    pip install 'lcspec[train]'
    python scripts/train_hybrid.py train --text dialogues.jsonl --work work/hybrid --minutes 25
    python scripts/train_hybrid.py export --work work/hybrid hybrid-mtp.gguf
    python scripts/train_hybrid.py check --work work/hybrid hybrid-mtp.gguf

The model has llama.cpp's architecture `qwen35`: three layers of four have a gated delta net, the fourth attention, and
one more layer predicts the token after the next. Its vocabulary is another model's (--vocabulary; the bundled one). It
is for measuring drafts from such a layer on text that a model means to say; it is no assistant.

`train` goes on from its last checkpoint when it is run again, and does not count the time in which it was stopped.
`export` can be run while it trains. `check` compares the logits of torch and llama.cpp, and greedy answers with the
drafter `mtp` and without, on prompts that were held out. These are written to held-out.jsonl in the work folder, for
`lcspec bench --prompts` and scripts/compare_server.py.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from lcspec.errors import LcspecError
from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.modelfiles.modelfile import read_header
from lcspec.training.prompts import read_sources

TEXTS, PROMPTS, SETTINGS = "texts.npz", "held-out.jsonl", "settings.json"
# Tokens whose logits are compared.
COMPARED = 160
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
work_option = click.option("--work", type=click.Path(file_okay=False, path_type=Path), required=True)


@click.group()
def main() -> None:
    """Train a small hybrid with a layer for multi-token prediction."""


@main.command()
@click.option(
    "--text", "texts", type=FILE, multiple=True, required=True, help="Conversations or texts; may be given again."
)
@click.option(
    "--vocabulary", type=FILE, help="A GGUF whose tokenizer and chat template to use. [default: the bundled target]"
)
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), default=25.0, show_default=True, help="In all runs."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@work_option
def train(
    texts: tuple[Path, ...], vocabulary: Path | None, minutes: float, threads: int, seed: int, work: Path
) -> None:
    """Train for so many minutes, from the last checkpoint if there is one."""
    import torch
    from hybrid.texts import Texts, tokenize, write_prompts
    from hybrid.train import LENGTH, ROWS, Trainer

    torch.set_num_threads(threads)
    work.mkdir(parents=True, exist_ok=True)
    if not (work / SETTINGS).exists():
        vocabulary = vocabulary or demo_path(DEMO_TARGET)
        found, prompts = tokenize(vocabulary, read_sources(texts))
        found.save(work / TEXTS)
        write_prompts(work / PROMPTS, prompts)
        settings = {"vocabulary": str(vocabulary.resolve()), "texts": [path.name for path in texts], "seed": seed}
        (work / SETTINGS).write_text(json.dumps(settings))
    settings, shape = _settings(work)
    found = Texts.load(work / TEXTS)
    rng = np.random.default_rng(0)
    if not len(found.rows(LENGTH, rng)) >= ROWS or not len(found.rows(LENGTH, rng, held_out=True)):
        sys.exit(
            "there is too little text to train on and to hold some out: give more --text, and remove the work folder"
        )
    print(f"{sum(map(len, found.train))} tokens to train on, {len(found.held_out)} texts held out", flush=True)
    trainer = Trainer(found, shape, Path(settings["vocabulary"]), 60 * minutes, settings["seed"], work, tell=_tell)
    try:
        trainer.run(lambda share: None)
    except KeyboardInterrupt:
        sys.exit(f"stopped; the same command goes on from here (its work is in {work})")


@main.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--quant", default="Q8_0", show_default=True, help="Quantization of the file, or F32.")
@work_option
def export(out: Path, quant: str, work: Path) -> None:
    """Write the GGUF, and a float32 one into the work folder."""
    from hybrid.export import write_hybrid
    from scale_model import quantize

    settings, shape = _settings(work)
    weights, progress = _trained(work, shape)
    facts: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "text": ", ".join(settings["texts"]),
        "steps": progress["step"],
        "seconds": float(progress["seconds"]),
    }
    write_hybrid(work / "hybrid-f32.gguf", Path(settings["vocabulary"]), shape, weights, facts)
    quantize(work / "hybrid-f32.gguf", out, quant)
    print(f"written: {out} ({progress['step']} steps, {progress['seconds'] / 60:.1f} minutes)")


@main.command()
@click.argument("model", type=FILE)
@click.option("--prompts", "n_prompts", type=click.IntRange(1), default=16, show_default=True)
@click.option("-n", "n", type=click.IntRange(2), default=96, show_default=True, help="Tokens of an answer.")
@work_option
def check(model: Path, n_prompts: int, n: int, work: Path) -> None:
    """Compare with torch, and drafted answers with plain ones."""
    from hybrid.check import draft, logit_differences
    from hybrid.network import Hybrid
    from hybrid.texts import Texts

    _, shape = _settings(work)
    text = max(Texts.load(work / TEXTS).held_out, key=len)[:COMPARED].tolist()
    found = logit_differences(work / "hybrid-f32.gguf", Hybrid(shape, _trained(work, shape)[0]), text)
    for name, difference in zip(("the model", "its layer for multi-token prediction"), found):
        print(
            f"logits of {name}: torch and llama.cpp differ by {difference.largest:.4f} at most, "
            f"the same first choice in {difference.same} of {difference.rows} rows"
        )
    prompts = [json.loads(line)["turns"][0] for line in (work / PROMPTS).read_text(encoding="utf-8").splitlines()]
    drafted = draft(model, prompts[:n_prompts], n)
    print(f"greedy answers with and without drafts are the same for {drafted.same} of {drafted.prompts} prompts")
    print("accepted at depth 1, 2, ...: " + " ".join(f"{share:.3f}" for share in drafted.depths))
    print(f"{drafted.length:.2f} tokens a step with chains of {len(drafted.depths)}")


def _settings(work: Path) -> tuple[dict[str, Any], Any]:
    from hybrid.shape import HybridShape

    try:
        settings = json.loads((work / SETTINGS).read_text())
    except OSError:
        raise click.UsageError(f"{work} holds no training: run the command train first") from None
    return settings, HybridShape(read_header(Path(settings["vocabulary"])).n_vocab)


def _trained(work: Path, shape: Any) -> tuple[Any, dict[str, Any]]:
    """The weights of the last checkpoint, and how far the training was."""
    from hybrid.train import FILE

    from lcspec.training.clock import load_checkpoint

    kept = load_checkpoint(work / FILE, shape.key())
    if kept is None:
        raise click.UsageError(f"{work} holds no checkpoint of a model of this shape: run the command train first")
    return kept["weights"], kept["progress"]


def _tell(line: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {line}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except LcspecError as error:
        sys.exit(f"error: {error}")
