"""`lcspec draft heads`: collect, train, measure, write."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from lcspec import __version__
from lcspec.commands.training_run import Recipe, bar, carry_out, require_folder
from lcspec.commands.training_steps import collect, seconds_collecting, sources_line
from lcspec.drafters.medusa.file import STORAGE, HeadsFile, write_heads
from lcspec.drafters.medusa.network import Sizes, choose_rank, initial
from lcspec.drafters.medusa.target import output_rows
from lcspec.errors import UsageError
from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.modelfiles.identity import identify
from lcspec.training.collect import Job, Writer
from lcspec.training.data import Dataset, make_dataset
from lcspec.training.measure import Measured
from lcspec.training.prompts import Source, read_sources
from lcspec.training.states import StateStore
from lcspec.training.train import State, Trainer, load_state


@dataclass(frozen=True, kw_only=True)
class HeadsRecipe(Recipe):
    """See the options of the same names."""

    heads: int
    vocab: int
    hidden: int
    embed: int
    rank: int | None


def run(**o: Any) -> int:
    """Run the command with the options of `cli.draft_heads`; returns the exit code.

    Raises:
        LcspecError: with a message for the user.
    """
    model: Path = o["model"] or demo_path(DEMO_TARGET)
    out: Path = o["out"] or Path(f"{model.stem}.heads.gguf")
    if o["store"] not in STORAGE:
        raise UsageError(f"--store must be one of {', '.join(STORAGE)}, not {o['store']}")
    require_folder(out)
    sources = read_sources(o["text"])
    recipe = HeadsRecipe.of(o)

    def steps(work: Path) -> None:
        began = time.monotonic()
        collected = _collect(model, o, recipe, sources, work)
        if time.monotonic() - began > 1.0:
            click.echo(f"collected {len(collected)} positions of {collected.answers} answers", err=True)
        heads = _train(model, recipe, collected, work, o["text"])
        write_heads(out, heads, o["store"])
        click.echo(report(heads))

    use = "--heads {out} --speculate medusa"
    return carry_out(out, model, o["text"], recipe, steps, use=use, collected="answers.i32")


# --- collecting -------------------------------------------------------------------------------------------------------


def _collect(path: Path, o: dict[str, Any], recipe: HeadsRecipe, sources: list[Source], work: Path) -> StateStore:
    """Fill the store up to the wanted positions or the end of its share of the time."""
    store = StateStore(work, identify(path).n_embd)

    def keep(_: Writer, job: Job) -> None:
        store.append(np.stack(job.states), np.array(job.tokens, dtype=np.int32), job.group)

    collect(path, o, recipe, sources, work, store, Writer, keep)
    return store


# --- training ---------------------------------------------------------------------------------------------------------


def network_sizes(recipe: HeadsRecipe, state: int, vocab: int) -> Sizes:
    """The network for a target: a hidden layer of four times its width, at most 1024, if nothing else is asked for."""
    hidden = recipe.hidden or min(4 * state, 1024)
    return Sizes(recipe.heads, state, hidden, min(recipe.embed, state), choose_rank(vocab, state, recipe.rank), vocab)


def _train(path: Path, recipe: HeadsRecipe, store: StateStore, work: Path, text: list[Path]) -> HeadsFile:
    identity = identify(path)
    data = make_dataset(store, identity.n_vocab, recipe.heads, recipe.vocab)
    sizes = network_sizes(recipe, identity.n_embd, len(data.vocab))
    state = load_state(work, sizes)
    if state is None:
        output = output_rows(path, data.vocab.tolist())
        state = State.start(initial(sizes, output, data.scale, np.random.default_rng(recipe.seed)))
    seconds = 60.0 * recipe.minutes - seconds_collecting(work)
    trainer = Trainer(data, sizes, state, max(1.0, seconds), recipe.seed, work)
    with bar("training") as show:
        try:
            trainer.run(show)
        except KeyboardInterrupt:
            trainer.save()
            raise
    found = trainer.measured()
    return HeadsFile(
        sizes=sizes,
        params=state.best,
        tokens=data.vocab,
        scale=data.scale,
        scales=found.scales,
        table=found.table,
        shape=found.tree(),
        fingerprint=identity.fingerprint,
        vocabulary=identity.vocabulary,
        n_vocab=identity.n_vocab,
        quantization=identity.quantization,
        target=identity.name,
        licence=identity.licence,
        facts=_facts(path, store, data, state, found, sources_line(text, recipe.invent)),
    )


def _facts(
    path: Path, store: StateStore, data: Dataset, state: State, found: Measured, text: str
) -> dict[str, str | int | float]:
    return {
        "by": f"lcspec {__version__}",
        "date": datetime.date.today().isoformat(),
        "target_file": path.name,
        "text": text,
        "answers": store.answers,
        "positions": len(store),
        "held_out_positions": found.positions,
        "coverage": data.coverage,
        "steps": state.step,
        "seconds": round(state.seconds, 1),
    }


def report(heads: HeadsFile) -> str:
    """What was made, for people."""
    facts = heads.facts
    lines = [
        f"{heads.sizes.heads} heads for {heads.target}, trained for {facts['steps']} steps in "
        f"{float(facts['seconds']):.0f} s on {facts['positions']} positions of {facts['answers']} of its own answers",
        f"reduced vocabulary: {heads.sizes.vocab} of {heads.n_vocab} tokens, {float(facts['coverage']):.2%} of what it "
        "writes",
        f"held out ({facts['held_out_positions']} positions):",
        "  head    " + "".join(f"{k:>7}" for k in range(1, heads.sizes.heads + 1)),
        "  top-1   " + "".join(f"{x:>7.3f}" for x in heads.top(1)),
        "  top-5   " + "".join(f"{x:>7.3f}" for x in heads.top(5)),
    ]
    return "\n".join(lines)
