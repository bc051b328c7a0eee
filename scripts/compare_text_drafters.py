"""Drafters that copy from the text, side by side on recorded answers: ours, llama.cpp's and suffix decoding.

    python scripts/compare_text_drafters.py smollm2.rec.gz smollm2-t08.rec.gz

For recordings see `scripts/record_drafts.py`; only their texts are used. The first table counts tokens per step where
every step is as wide as its column says, the tokens chosen by calibrated estimates as the planner chooses them; the
second is the planner's speed over plain decoding in virtual time, on the machines of `scripts/ablate_planner.py`. The
last columns are real microseconds, drafting and observing in a step: they mean little on a busy machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import click

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, create
from lcspec.planner.acceptance import Acceptance
from lcspec.planner.auto import FREE_NODES, AutoPlanner
from lcspec.planner.policy import BRANCH
from lcspec.spec import cutting
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.ablate_planner import FREE, MACHINES, mean
from scripts.peers.text_drafters import NgramMap, NgramMod, SuffixTrees
from scripts.planner_replay import Clock, Machine, Result, View, decode, taken, virtual
from scripts.recordings import Answer, Recording

WIDTHS = (2, 3, 4, 8, 16)
OURS = "ngram;suffix;ngram,suffix"
PEERS: dict[str, Callable[[], Any]] = {
    "llama.cpp ngram-map-k4v, 3 and 7": lambda: NgramMap(3, 7),
    "llama.cpp ngram-map-k4v, 2 and 3": lambda: NgramMap(2, 3),
    "llama.cpp ngram-mod, 4": lambda: NgramMod(4),
    "llama.cpp ngram-mod, 3": lambda: NgramMod(3),
    "suffix trees, chains": lambda: SuffixTrees(tree=False),
    "suffix trees, trees": lambda: SuffixTrees(tree=True),
}


class Charged:
    """A real drafter on the virtual clock, which a node of a draft advances."""

    def __init__(self, drafter: Any, clock: Clock, machine: Machine) -> None:
        self.drafter, self.clock, self.machine = drafter, clock, machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def draft(self, view: Any, budget: Budget) -> TokenTree:
        """The drafter's draft."""
        tree: TokenTree = self.drafter.draft(view, budget)
        self.clock.now += self.machine.node * tree.n_drafted
        return tree

    def draft_batch(self, views: Sequence[Any], budgets: Sequence[Budget]) -> list[TokenTree]:
        """`draft` for each."""
        return [self.draft(view, budget) for view, budget in zip(views, budgets)]


class Walk:
    """What one contender did to all answers at one width."""

    def __init__(self) -> None:
        self.tokens = self.steps = 0
        self.kinds: dict[str, list[int]] = {}
        self.seconds: list[float] = []

    def count(self, kind: str, tokens: int) -> None:
        """A step that emitted `tokens`."""
        self.tokens, self.steps = self.tokens + tokens, self.steps + 1
        both = self.kinds.setdefault(kind, [0, 0])
        both[0], both[1] = both[0] + tokens, both[1] + 1

    @property
    def rate(self) -> float:
        """Tokens per step."""
        return self.tokens / self.steps


def made(spec: str, answers: Sequence[Answer]) -> list[Any]:
    """New drafters of a contender: a strategy of ours, or a peer's name."""
    if spec in PEERS:
        return [PEERS[spec]()]
    n_vocab = 1 + max(max(answer.tokens) for answer in answers)
    env = cast(Any, SimpleNamespace(target=SimpleNamespace(n_vocab=n_vocab)))
    return [create(name, env) for name in spec.split(",")]


def walk(spec: str, answers: Sequence[Answer], width: int, branch: int, apart: bool) -> Walk:
    """Decode all answers in steps of at most `width` tokens; `apart`: no drafter remembers earlier ones."""
    out, acceptance, drafters = Walk(), Acceptance(), made(spec, answers)
    for number, answer in enumerate(answers):
        if apart:
            drafters = made(spec, answers)
        view = View(number, answer, drafters)
        for drafter in drafters:
            drafter.begin(view, DrafterSpec(drafter.name, {}))
        while view.left > 0:
            began = time.perf_counter()
            drafts = [d.draft(view, Budget(FREE_NODES, view.left, branch, view.bit_of(d))) for d in drafters]
            spent = time.perf_counter() - began
            tree = TokenTree.root(view.tokens[-1])
            for draft in drafts:
                if draft.n_drafted:
                    tree.merge(draft)
            reach = acceptance.path_probs(tree)
            best = sorted(range(1, len(tree)), key=lambda v: -reach[v])[: width - 1]
            kept = cutting.pruned(tree, best)
            emitted = taken(kept, answer.tokens[len(view.tokens) :])
            view.tokens += emitted
            acceptance.observe(tree, emitted)
            verdict = Verdict([], emitted, bonus=False)
            began = time.perf_counter()
            for drafter in drafters:
                drafter.observe(view, kept, verdict)
            out.seconds.append(spent + time.perf_counter() - began)
            out.count(answer.kind, len(emitted))
        for drafter in drafters:
            drafter.end(view)
    return out


def planned(spec: str, answers: Sequence[Answer], machine: Machine, apart: bool) -> list[Result]:
    """Decode all answers as the planner does, in virtual time."""
    clock, results, drafters = Clock(), list[Result](), made(spec, answers)
    planner = AutoPlanner(machine.curve())
    with virtual(clock):
        for number, answer in enumerate(answers):
            if apart:
                drafters = made(spec, answers)
            view = View(number, answer, [Charged(drafter, clock, machine) for drafter in drafters])
            results.append(decode(planner, view, machine, clock))
            planner.forget(cast(Any, view))
            for drafter in drafters:
                drafter.end(view)
    return results


def reading(spec: str, answers: Sequence[Answer]) -> float:
    """Median seconds that indexing a token of a prompt takes."""
    found = []
    for number, answer in enumerate(answers):
        drafters = made(spec, answers)
        view = View(number, answer, drafters)
        began = time.perf_counter()
        for drafter in drafters:
            drafter.begin(view, DrafterSpec(drafter.name, {}))
        found.append((time.perf_counter() - began) / len(view.tokens))
    return median(found)


@click.command()
@click.argument("recordings", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--ours", default=OURS, show_default=True, help="Strategies of drafters without options.")
@click.option("--peers/--no-peers", default=True, help="Also those of other programs.")
@click.option("--apart", is_flag=True, help="Drafters know nothing of earlier answers.")
@click.option("--kinds", is_flag=True, help="Also tokens per step of width 4 by kind of prompt.")
@click.option("--every", default=1, show_default=True, help="Decode only every so many answers.")
def main(recordings: tuple[Path, ...], ours: str, peers: bool, apart: bool, kinds: bool, every: int) -> None:
    """Print the two tables for every recording."""
    for path in recordings:
        recording = Recording.load(path)
        answers = recording.answers[::every]
        n = sum(answer.n_answer for answer in answers)
        click.echo(f"\n{recording.name}: {len(answers)} answers, {n} tokens{', each apart' if apart else ''}\n")
        heads = [*(f"chain {w}" for w in WIDTHS), *(f"tree {w}" for w in WIDTHS), *FREE, "us a step", "us a token read"]
        click.echo(f"| drafters | {' | '.join(heads)} |\n" + "|---" * (len(heads) + 1) + "|")
        for spec in [*(s.strip() for s in ours.split(";") if s.strip()), *(PEERS if peers else ())]:
            rows = [[walk(spec, answers, w, branch, apart) for w in WIDTHS] for branch in (1, BRANCH)]
            figures = [f"{w.rate:.3f}" for row in rows for w in row]
            for name in FREE:
                figures.append(f"{mean([r.speedup for r in planned(spec, answers, MACHINES[name], apart)]):.3f}")
            figures += [f"{1e6 * median(rows[1][2].seconds):.0f}", f"{1e6 * reading(spec, answers):.2f}"]
            click.echo(f"| {spec} | {' | '.join(figures)} |")
            if kinds:
                by = rows[1][2].kinds
                click.echo("  " + ", ".join(f"{kind} {by[kind][0] / by[kind][1]:.2f}" for kind in sorted(by)))


if __name__ == "__main__":
    main()
