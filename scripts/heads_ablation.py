"""What Medusa heads are worth on held-out dialogue: the ablations of Cai et al. 2024 (arXiv:2401.10774), as Markdown.

    python scripts/heads_ablation.py split dialogues.jsonl --out work        the demo models' own train / held-out rule
    python scripts/heads_ablation.py report MODEL HEADS --text work/held-out.jsonl

`report` lets the target answer held-out prompts, greedily and sampled, and prints the accuracy of each head on these
answers and on the held-out dialogues as people wrote them; the tokens a step emits with the sparse tree, with random
trees of the same size and with a chain; and what typical acceptance gains over lossless acceptance and loses in the
target's own log-likelihood. On a flat cost curve every step verifies the whole tree, so tokens a step is the speed-up.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from lcspec.config import DraftFiles, ModelOptions
from lcspec.drafters.medusa.file import HeadsFile, check_heads, read_heads
from lcspec.drafters.medusa.network import forward
from lcspec.engine.engine import Engine
from lcspec.engine.events import Finished, Tokens
from lcspec.engine.request import Request
from lcspec.llama import Context, Model
from lcspec.llama.template import ChatTemplate
from lcspec.modelfiles.identity import identify
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import open_session, parse_speculation
from lcspec.spec.tree_shapes import Shape, by_depth_and_rank, expected_length, random_shape, sparse_shape
from lcspec.training.collect import Job, Writer, answer_jobs
from lcspec.training.prompts import PromptMaker, read_sources
from lcspec.training.states import NONE, StateStore, labels

FILE = click.Path(path_type=Path, exists=True)
RANDOM_TREES = 8
MISSED = 1 << 20
BRANCH = 5  # of the random trees, so that they are not hopeless by their width alone
VERIFIERS = ("coupled", "typical:epsilon=0.09", "typical:epsilon=0.2:delta=0.5", "typical:epsilon=0.02")


@click.group()
def main() -> None:
    """Ablations of Medusa heads."""


@main.command()
@click.argument("dialogues", type=FILE)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def split(dialogues: Path, out: Path) -> None:
    """Write train.jsonl and held-out.jsonl by the rule with which the demo models were trained."""
    from demo_data import DIALOGUE_HOLDOUT, bucket, read_dialogues, render_chat

    out.mkdir(parents=True, exist_ok=True)
    count = [0, 0]
    with (out / "train.jsonl").open("w") as train, (out / "held-out.jsonl").open("w") as held:
        for source, messages in read_dialogues(dialogues):
            kept = bucket(render_chat(messages), DIALOGUE_HOLDOUT) == 0
            count[kept] += 1
            (held if kept else train).write(json.dumps({"source": source, "messages": messages}) + "\n")
    click.echo(f"{count[0]} dialogues to train on, {count[1]} held out")


# --- offline: ranks on recorded answers -------------------------------------------------------------------------------


def record(model: Path, text: Path, answers: int, temperature: float, length: int, folder: Path) -> StateStore:
    """The target's answers to `answers` prompts of a file, with their hidden states."""
    options = ModelOptions(model, ctx=512, slots=16, threads=1)
    store = StateStore(folder, identify(model).n_embd)
    with Model.load(options) as loaded, Context(loaded, options, separate=True) as context:
        maker = PromptMaker(loaded, read_sources([text]), context.n_ctx - length, seed=11)

        def keep(job: Job) -> bool:
            store.append(np.stack(job.states), np.array(job.tokens, dtype=np.int32), job.group)
            return store.answers < answers

        Writer(context, seed=11).run(answer_jobs(maker, length, 0, (temperature,)), keep)
    return store


def record_text(model: Path, text: Path, limit: int, folder: Path) -> StateStore:
    """The states of `limit` conversations of a file as they are, each with the token that really comes next."""
    options = ModelOptions(model, ctx=1024, threads=1)
    store = StateStore(folder, identify(model).n_embd)
    with Model.load(options) as loaded, Context(loaded, options) as context:
        template = ChatTemplate(loaded)
        context.want_hidden()
        for group, source in enumerate(read_sources([text])[:limit]):
            rendered = template.render(source.messages, add_generation_prompt=False) if source.messages else source.text
            ids = loaded.vocab.tokenize(rendered)[: context.n_ctx]
            states = []
            for start in range(0, len(ids), options.max_width):
                context.batch.clear()
                for i, token in enumerate(ids[start : start + options.max_width], start=start):
                    context.batch.add(token, i, (0,), logits=True)
                context.decode()
                states.append(context.hidden().astype(np.float16))
            context.memory.clear()
            if len(ids) > 1:
                store.append(np.concatenate(states)[:-1], np.array(ids[1:], dtype=np.int32), group)
    return store


def label_ranks(heads: HeadsFile, store: StateStore) -> NDArray[np.int64]:
    """At which rank each head has the token it should say, int64 [heads, n]: MISSED for none, NONE past the end."""
    recorded = store.states()
    reduced = np.full(heads.n_vocab, heads.sizes.vocab, dtype=np.int32)
    reduced[heads.tokens] = np.arange(heads.sizes.vocab, dtype=np.int32)
    tokens = store.tokens()
    wanted = labels(tokens, store.lengths(), heads.sizes.heads)
    out = np.full(wanted.shape, NONE, dtype=np.int64)
    for start in range(0, len(tokens), 256):
        part = slice(start, start + 256)
        states = recorded[part].astype(np.float32) / np.float32(heads.scale)
        logits, _ = forward(heads.params, heads.sizes, states, reduced[tokens[part]])
        for k in range(heads.sizes.heads):
            label = reduced[np.maximum(wanted[k, part], 0)]
            known = label < heads.sizes.vocab
            value = logits[k][np.arange(len(label)), np.where(known, label, 0)][:, None]
            rank = np.where(known, (logits[k] > value).sum(axis=1), MISSED)
            out[k, part] = np.where(wanted[k, part] == NONE, NONE, rank)
    return out


def accuracy(ranks: NDArray[np.int64], k: int) -> list[float]:
    """Top-k accuracy of every head."""
    return [float((row[row != NONE] < k).mean()) for row in ranks]


def walked(shape: Shape, ranks: NDArray[np.int64], lengths: NDArray[np.int64]) -> float:
    """Tokens a step when recorded greedy answers are decoded with this tree: exactly what an engine would emit."""
    children = {(p, r): v for v, (p, r) in enumerate(zip(shape.parents, shape.ranks)) if v}
    steps = tokens = at = 0
    for length in lengths:
        end, i = at + int(length), at
        while i < end - 1:  # the state of the last token drafts nothing
            node: int | None = 0
            emitted = 1
            for k in range(len(ranks)):
                node = children.get((node, int(ranks[k, i])))  # type: ignore[arg-type]
                if node is None:
                    break
                emitted += 1
            emitted = min(emitted, end - 1 - i)
            steps, tokens, i = steps + 1, tokens + emitted, i + emitted
        at = end
    return tokens / max(1, steps)


# --- online: the engine -----------------------------------------------------------------------------------------------


def prompts(engine_model: Model, text: Path, n: int) -> Iterator[tuple[int, ...]]:
    """Token ids of the first `n` prompts."""
    maker = PromptMaker(engine_model, read_sources([text]), 256, seed=11)
    for i, (_, ids) in enumerate(maker.prompts()):
        if i >= n:
            return
        yield ids


def decode(engine: Engine, ids: tuple[int, ...], speculate: str, verifier: str, temperature: float, n: int) -> Any:
    """(log-probabilities of the emitted tokens under the bare model, the request's statistics)."""
    speculation = parse_speculation(speculate, verifier=verifier)
    sampling = SamplingParams(temperature=temperature, seed=1)
    found: list[float] = []
    for event in engine.run(Request(ids, sampling, speculation, n, logprobs=0)):
        if isinstance(event, Tokens):
            found += [t.logprob or 0.0 for t in event.tokens]
        elif isinstance(event, Finished):
            return found, event.stats
    raise AssertionError("the stream ended early")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table."""
    click.echo("| " + " | ".join(head) + " |")
    click.echo("|" + "---|" * len(head))
    for row in rows:
        click.echo("| " + " | ".join(f"{x:.3f}" if isinstance(x, float) else str(x) for x in row) + " |")
    click.echo("")


@main.command()
@click.argument("model", type=FILE)
@click.argument("heads", type=FILE)
@click.option("--text", type=FILE, required=True, help="Held-out prompts (JSON lines).")
@click.option("--answers", default=300, show_default=True, help="Recorded answers of each temperature.")
@click.option("--runs", default=40, show_default=True, help="Prompts decoded by the engine for each verifier.")
@click.option("-n", "length", default=96, show_default=True, help="The most tokens of an answer.")
@click.option("--nodes", default=(4, 8, 16, 32, 64), multiple=True, show_default=True, help="Sizes of trees.")
def report(model: Path, heads: Path, text: Path, answers: int, runs: int, length: int, nodes: tuple[int, ...]) -> None:
    """Print the tables."""
    note = check_heads(heads, model)
    if note:
        click.echo(f"Note: {note}.\n")
    file = read_heads(heads)
    recorded: dict[float, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for temperature in (0.0, 0.8):
            store = record(model, text, answers, temperature, length, Path(folder) / str(temperature))
            recorded[temperature] = label_ranks(file, store), store.lengths()
        store = record_text(model, text, answers, Path(folder) / "text")
        forced = label_ranks(file, store), store.lengths()
    click.echo("### Accuracy on held-out prompts\n")
    rows = []
    for temperature, (ranks, lengths) in [*recorded.items(), (None, forced)]:
        name = "the dialogues themselves" if temperature is None else f"its answers, temperature {temperature}"
        rows += [[name, int(lengths.sum()), f"top-{k}", *accuracy(ranks, k)] for k in (1, 5)]
    table(["text", "tokens", "", *(f"head {k}" for k in range(1, file.sizes.heads + 1))], rows)
    _trees(file, recorded, nodes)
    _verifiers(model, heads, text, runs, length, max(n for n in nodes if n <= 32))


def _trees(
    file: HeadsFile, recorded: dict[float, tuple[NDArray[np.int64], NDArray[np.int64]]], nodes: Sequence[int]
) -> None:
    click.echo("### Tokens a step with trees of the same size (flat cost curve)\n")
    rng, depth = np.random.default_rng(0), file.sizes.heads
    rows: list[list[object]] = []
    for n in nodes:
        sparse = sparse_shape(file.table, n)
        others = [random_shape(n, depth, BRANCH, rng) for _ in range(RANDOM_TREES)]
        row: list[object] = [n, expected_length(sparse, by_depth_and_rank(file.table))]
        for ranks, lengths in recorded.values():
            row += [walked(sparse, ranks, lengths), float(np.mean([walked(s, ranks, lengths) for s in others]))]
        rows.append(row)
    chain = Shape.chain(depth)
    base: list[object] = [f"chain of {depth}", expected_length(chain, by_depth_and_rank(file.table))]
    for ranks, lengths in recorded.values():
        base += [walked(chain, ranks, lengths), "-"]
    names = ["sparse, greedy", "random, greedy", "sparse, sampled", "random, sampled"]
    table(["nodes", "calculator (independent heads)", *names], [*rows, base])
    click.echo("Sampled answers are walked with the ranks of the heads' logits; the drafter uses the target's noise.\n")


def _verifiers(model: Path, heads: Path, text: Path, runs: int, length: int, nodes: int) -> None:
    click.echo(f"### Lossless and typical acceptance (engine, sparse tree of {nodes})\n")
    cases = [("off", "coupled"), *((f"medusa:nodes={nodes}", v) for v in VERIFIERS), ("blockwise", "coupled")]
    rows = []
    with open_session(ModelOptions(model, ctx=512, threads=1), DraftFiles(heads=heads)) as session:
        asked = list(prompts(session.model, text, runs))
        for temperature in (0.0, 0.8):
            for speculate, verifier in cases:
                logprobs, steps, emitted = [], 0, 0
                for ids in asked:
                    found, stats = decode(session.engine, ids, speculate, verifier, temperature, length)
                    logprobs += found
                    steps, emitted = steps + stats.target_steps, emitted + stats.step_tokens
                name = verifier if speculate != "off" else "-"
                rows.append([temperature, speculate, name, emitted, emitted / max(1, steps), float(np.mean(logprobs))])
    table(["temperature", "drafter", "verifier", "tokens", "tokens a step", "log-likelihood a token"], rows)
    click.echo("A step that finds the end of the answer emits nothing, which is why plain decoding is below 1.\n")


if __name__ == "__main__":
    main()
