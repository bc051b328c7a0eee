"""Records what drafters propose at every position of a model's answers, for `scripts/ablate_planner.py`.

    python scripts/record_drafts.py model.gguf smol.rec.gz --prompts prompts.jsonl --limit 42
    python scripts/record_drafts.py models/demo-target-q8_0.gguf demo.rec.gz --draft models/demo-draft-q8_0.gguf \\
        --level 0.1
    python scripts/record_drafts.py model.gguf head.rec.gz --head head.gguf --level 0.01

Prompts are read as `lcspec bench` reads them. What a step of the draft model costs is not recorded: `--level` says it,
as a share of the target's. It takes two minutes for a model of 135 M parameters on two cores.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import click

from lcspec.bench.builtin import builtin_prompts
from lcspec.bench.prompts import fit, read_prompts, spread
from lcspec.config import DrafterSpec, DraftFiles, ModelOptions, SpeculationParams
from lcspec.drafters.base import Budget, create
from lcspec.engine.events import Tokens
from lcspec.engine.sequence import Request
from lcspec.errors import LcspecError
from lcspec.planner.base import Limits, Plan, PlannedSequence, Planner, Proposal
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.recordings import Answer, Recording, Tree, rows_of

FREE = Budget(24, 64, 3)
# Of a draft model: a chain, and a tree of the likeliest nodes.
CHAIN, WIDE = Budget(16, 16, 1), Budget(48, 12, 3)
SEED = 11
PLAIN = SpeculationParams()


def view_of(tokens: list[int], n_prompt: int, params: SamplingParams) -> Any:
    """What a drafter sees."""
    return SimpleNamespace(
        id=1, tokens=tokens, n_prompt=n_prompt, params=params, seed=SEED, draws=0, prediction=(), hidden=None
    )


def drafts_of(drafter: Any, text: list[int], n_prompt: int, params: SamplingParams) -> list[Tree]:
    """What `drafter` says at every position of the answer, told of the text up to there and nothing else."""
    view, out = view_of(text[: n_prompt + 1], n_prompt, params), list[Tree]()
    drafter.begin(view, DrafterSpec(drafter.name, {}))
    while len(view.tokens) < len(text):
        tree = TokenTree.root(view.tokens[-1])
        for budget in (WIDE, CHAIN) if drafter.costly else (FREE,):
            drafted = TokenTree.root(view.tokens[-1])
            while drafter.costly and not drafted.n_drafted and len(view.tokens) > 1:
                drafted = drafter.draft(view, budget)  # the first times it reads the prompt
            if not drafter.costly:
                drafted = drafter.draft(view, budget)
            tree.merge(drafted)
            if drafter.costly:
                drafter.observe(view, drafted, Verdict([], view.tokens[-1:], bonus=False))
                drafter.rewind(view.id, len(view.tokens) - 1)
        out.append(rows_of(tree))
        view.tokens.append(text[len(view.tokens)])
        drafter.observe(view, TokenTree.root(view.tokens[-2]), Verdict([], view.tokens[-1:], bonus=False))
    drafter.end(view)
    return out


class Listener(Planner):
    """Asks a head in every step and keeps none of what it says: a head needs the states of the target's own steps."""

    def __init__(self) -> None:
        self.trees = list[Tree]()

    def propose(self, sequences: Sequence[PlannedSequence], limits: Sequence[Limits], others: int) -> list[Proposal]:
        """Record what the head says of the one sequence."""
        [sequence], [head] = sequences, sequences[0].drafters
        self.trees.append(rows_of(head.draft(sequence, WIDE)))
        return [Proposal(sequence, TokenTree.root(sequence.tokens[-1]), limits[0])]

    def select(self, proposals: Sequence[Proposal], base: int, context: int, streams: int = 0) -> Plan:
        """Keep nothing."""
        proposals[0].kept = proposals[0].tree
        return Plan()


def heard(session: Session, prompt: tuple[int, ...], params: SamplingParams, n: int) -> tuple[list[int], list[Tree]]:
    """The target's answer, and what its head says at every position of it."""
    listener, head = Listener(), SpeculationParams((DrafterSpec("eagle", {}),))
    with patch.object(session.engine.drafting, "_fixed", listener):
        return answer_of(session, prompt, params, n, head), listener.trees


def answer_of(
    session: Session,
    prompt: tuple[int, ...],
    params: SamplingParams,
    n: int,
    speculation: SpeculationParams = PLAIN,
) -> list[int]:
    """The target's answer."""
    ids = list[int]()
    for event in session.engine.run(Request(prompt, params, speculation, max_tokens=n)):
        if isinstance(event, Tokens):
            ids += [info.id for info in event.tokens]
    return ids


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--draft", multiple=True, type=click.Path(exists=True, path_type=Path), help="A draft model.")
@click.option("--head", type=click.Path(exists=True, path_type=Path), help="An EAGLE-3 head.")
@click.option(
    "--level", multiple=True, type=float, help="A step of the head and of each draft model over the target's."
)
@click.option("--prompts", type=click.Path(exists=True, path_type=Path), help="A prompts file; else the built-in set.")
@click.option("--limit", type=int, default=42, show_default=True, help="Prompts, shared out over the categories.")
@click.option("--categories", help="Only these, separated by commas.")
@click.option("-n", "tokens", default=128, show_default=True, help="The most tokens of an answer.")
@click.option("--temperature", default=0.0, show_default=True)
@click.option("--raw", is_flag=True, help="The model knows no chat: the prompts' text is gone on with.")
@click.option("--ctx", default=2048, show_default=True)
@click.option("-t", "threads", default=0, help="Threads; 0: as lcspec decides. One is quickest beside other work.")
def main(
    model: Path,
    out: Path,
    draft: tuple[Path, ...],
    head: Path | None,
    level: tuple[float, ...],
    prompts: Path | None,
    limit: int,
    categories: str | None,
    tokens: int,
    temperature: float,
    raw: bool,
    ctx: int,
    threads: int,
) -> None:
    """Record the answers of MODEL into OUT."""
    chosen = read_prompts(prompts) if prompts else builtin_prompts()
    if categories:
        chosen = [p for p in chosen if p.category in categories.split(",")]
    chosen = spread(chosen, limit)
    params = SamplingParams(temperature=temperature, seed=SEED)
    files, answers = DraftFiles(tuple(draft), eagle=head), list[Answer]()
    with open_session(ModelOptions(model, ctx=ctx, threads=threads), files, history=False) as session:
        names = ["suffix", *(name for name in files.drafters if name != "eagle")]
        costly = {name: create(name, session.engine.drafting.env) for name in names[1:]}
        for i, prompt in enumerate(chosen):
            encode = (
                session.prompt_ids if raw else lambda text: session.chat_ids([{"role": "user", "content": text}])[0]
            )
            ids, _ = fit(prompt.text, ctx - tokens - 8, encode)
            try:
                answer, said = (
                    heard(session, ids, params, tokens) if head else (answer_of(session, ids, params, tokens), [])
                )
            except LcspecError as error:
                click.echo(f"{prompt.id}: {error}", err=True)
                continue
            text = [*ids, *answer]
            if len(answer) < 8:
                continue
            drafts = {}
            for name in names:
                drafter = costly.get(name) or create(name, session.engine.drafting.env)
                drafts[name] = drafts_of(cast(Any, drafter), text, len(ids), params)
            if head:
                drafts["eagle"] = said
            answers.append(Answer(prompt.category, len(ids), text, drafts))
            click.echo(f"{i + 1}/{len(chosen)} {prompt.category}: {len(text) - len(ids)} tokens", err=True)
        for drafter in costly.values():
            drafter.close()
    levels = dict(zip(files.drafters, level or (0.1,) * len(files.drafters)))
    Recording(out.name.split(".")[0], levels, answers).save(out)


if __name__ == "__main__":
    main()
