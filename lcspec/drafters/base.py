"""The drafter protocol, what a drafter may read, and the registry."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterable, Protocol, Sequence, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lcspec.config import DrafterSpec, DraftFiles
from lcspec.errors import UsageError
from lcspec.sampling.parameters import SamplingParams
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

if TYPE_CHECKING:
    from lcspec.llama.model import Model


class SequenceView(Protocol):
    """What a drafter sees of a slot. It reads and never changes it."""

    @property
    def id(self) -> int:
        """Stable while the request runs; the key for a drafter's own state."""

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and answer so far; the last one is the pending token."""

    @property
    def n_prompt(self) -> int:
        """How many of `tokens` are the prompt."""

    @property
    def params(self) -> SamplingParams:
        """How the target samples."""

    @property
    def seed(self) -> int:
        """Seed of the counter-based noise."""

    @property
    def draws(self) -> int:
        """Children a node may have that are *drawn* from the draft distribution (see TokenTree.add_sampled);
        0: the verifier wants the most probable ones instead."""

    @property
    def prediction(self) -> Sequence[int]:
        """The answer the caller expects, as token ids; empty if unknown."""

    @property
    def hidden(self) -> NDArray[np.float32] | None:
        """The target's final normed hidden state from which it chose the pending token, float32 [n_embd].

        None unless a drafter of the slot has `wants_hidden`, and after a step that had none to give: one that
        contained a prompt chunk (see Context.hidden), so also at the first step of a request.
        """

    def forced_text(self, limit: int) -> str:
        """What the request's grammar allows no alternative to, `limit` characters at most; often empty."""


@dataclass(frozen=True)
class Budget:
    """How much a drafter may propose this step.

    Attributes:
        nodes: drafted nodes in all.
        depth: no node deeper than this.
        branch: children a node; 1 is a chain.
        source: the drafter's bit, for TokenTree.add.
        floor: probability (of the whole path) below which a node cannot be worth its row.
        below: the same, from which it pays to look below a node that is not the likeliest of its level.
        expects: how likely the target is to take a child, given its depth, its rank among its siblings (0: best) and
            the drafter's own estimate. None: the estimate itself.
        reading: seconds after which a drafter that takes in a long text begins no other piece of it in this step.
        keep_going: asked by costly drafters after every level with the tree so far and its newest nodes: is another
            level worth its time? None means yes.
    """

    nodes: int
    depth: int
    branch: int
    source: int = 0
    floor: float = 0.0
    below: float = 0.0
    reading: float = 0.0
    expects: Callable[[int, int, float], float] | None = None
    keep_going: Callable[[TokenTree, Iterable[int]], bool] | None = None


class Drafter(Protocol):
    """Something cheap that proposes a token tree.

    Attributes:
        name: its registry name, shown to users.
        default_nodes: nodes a step when nobody says otherwise. A drafter whose trees should branch by themselves
            may have a `default_branch` as well (children a node; 1 without it).
        costly: asking it takes time worth planning (it runs a model); others are simply asked every step.
        wants_hidden: it needs the target's hidden states (see `SequenceView.hidden`).

    One that wants the target's argmax at nodes of its own is a ProbingDrafter, declared by `wants_rows`.
    """

    name: str
    default_nodes: int
    costly: bool
    wants_hidden: bool

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """A request starts in `slot` with the options in `spec`; its prompt is in `slot.tokens`."""

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """Propose continuations of `slot.tokens[-1]`; a bare root when there is nothing to say."""

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """The step's verified tree and its outcome; `slot.tokens` holds the emitted tokens already.

        Steps of a rest, for which nobody was asked, are told together: a bare root, and all of their tokens.
        """

    def end(self, sequence: SequenceView) -> None:
        """The request is over: drop its state."""

    def close(self) -> None:
        """Free everything."""


@dataclass(frozen=True)
class Window:
    """What a drafter wants evaluated in the target's next batch besides the drafts.

    Attributes:
        drafter: whose it is.
        tree: probe nodes below the pending token (see TokenTree.with_probes); a bare root for none.
        ask: the nodes of `tree`, ascending, after which the target's argmax is wanted.
        drafted: kept nodes of the drafts, ascending, after which it is wanted as well.
    """

    drafter: ProbingDrafter
    tree: TokenTree
    ask: tuple[int, ...] = ()
    drafted: tuple[int, ...] = ()


class ProbingDrafter(Drafter, Protocol):
    """A drafter that learns from rows of the target's batch that belong to no draft: it has `wants_rows = True`.

    A step calls `draft`, `window`, then (after the decode) `harvest` and `observe`. A step that grants it nothing calls
    neither `window` nor `harvest`.
    """

    wants_rows: bool

    def reserved_rows(self, sequence: SequenceView) -> int:
        """Rows its window takes when it is warm."""

    def window(self, sequence: SequenceView, kept: TokenTree, rows: int, leaves: int) -> Window:
        """What to evaluate: at most `rows` probes with at most `leaves` leaves, beside the drafts in `kept`."""

    def harvest(self, sequence: SequenceView, best: NDArray[np.int32]) -> None:
        """The target's argmax, int32 [len(ask) + len(drafted)], after the nodes of the window that were asked for."""


@runtime_checkable
class ReadingDrafter(Drafter, Protocol):
    """A drafter that has to read a text before it can draft, and keeps what it read for a later request."""

    def forget(self) -> None:
        """Drop what is kept of requests that are over."""


@runtime_checkable
class TimedDrafter(Drafter, Protocol):
    """A drafter whose cost can be told before it has drafted anything."""

    def step_seconds(self, repeat: int = 9) -> float:
        """Median seconds of `repeat` steps (width 1, short context).

        Raises:
            DecodeError: there is no room to measure in.
        """


def probing(drafters: Iterable[Drafter]) -> list[ProbingDrafter]:
    """Those of `drafters` that want rows of their own."""
    return [cast(ProbingDrafter, d) for d in drafters if getattr(d, "wants_rows", False)]


def branch_of(drafter: Drafter, default: int = 1) -> int:
    """Children a node that `drafter` may propose when nobody says otherwise."""
    return max(default, getattr(drafter, "default_branch", 1))


@dataclass(frozen=True)
class DrafterEnv:
    """What drafters are made from: the loaded target and what the user named for drafting.

    Attributes:
        target: the loaded target.
        slots: requests side by side.
        ctx: positions a slot may use.
        draft: the files to draft with.
        threads, gpu_layers: as for the target.
        progress: told a file's name and how far it has loaded.
        history: drafters and planner may use and keep what earlier sessions taught (see lcspec.profiles.history).
    """

    target: Model
    slots: int
    ctx: int = 0
    draft: DraftFiles = DraftFiles()
    threads: int = 0
    gpu_layers: int | None = None
    progress: Callable[[str, float], bool | None] | None = None
    history: bool = False


Factory = Callable[[DrafterEnv], Drafter]

REGISTRY: dict[str, Factory] = {}


def register(name: str) -> Callable[[Factory], Factory]:
    """Class decorator: make a drafter available under `name`."""

    def add(factory: Factory) -> Factory:
        REGISTRY[name] = factory
        return factory

    return add


def create(name: str, env: DrafterEnv) -> Drafter:
    """Make the drafter called `name`.

    Raises:
        UsageError: there is none; the message lists those there are.
    """
    importlib.import_module("lcspec.drafters.all")  # only now: it loads the model library
    if name not in REGISTRY:
        raise UsageError(f"unknown drafter {name!r}: choose from {', '.join(sorted(REGISTRY))}, or off")
    return REGISTRY[name](env)
