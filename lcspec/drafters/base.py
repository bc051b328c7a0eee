"""The drafter protocol, what a drafter may read, and the registry."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterable, Protocol, Sequence, cast

import numpy as np
from numpy.typing import NDArray

from lcspec.config import DrafterSpec, DraftFiles
from lcspec.errors import UsageError
from lcspec.placement import Placement
from lcspec.sampling.parameters import SamplingParams
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

if TYPE_CHECKING:
    from lcspec.kv_cache.sequence_cache import SequenceCache
    from lcspec.llama.context import Context
    from lcspec.llama.model import Model


class SequenceView(Protocol):
    """What a drafter sees of a running request. It reads and never changes it."""

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

        None unless one of its drafters has `wants_hidden`, and after a step that had none to give: one that
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


class Drafter:
    """Something cheap that proposes token trees. What a drafter can and needs is declared here, in one way.

    Attributes:
        name: its registry name, shown to users.
        default_nodes, default_branch: nodes a step, and children a node, when nobody says otherwise.
        costly: asking it takes time worth planning (it runs a model); others are simply asked every step.
        wants_hidden: it needs the target's hidden states (see `SequenceView.hidden`).
        wants_rows: it wants rows of its own in the target's batch (see ProbingDrafter).
        wants_states: the target's layers whose inputs it reads (see StateDrafter, Context.states).
    """

    name: str
    default_nodes: int
    default_branch = 1
    costly = False
    wants_hidden = False
    wants_rows = False
    wants_states: tuple[int, ...] = ()

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """A request starts with the options in `spec`; its prompt is in `sequence.tokens`."""
        spec.check_keys(set())

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """Propose continuations of `sequence.tokens[-1]`; a bare root when there is nothing to say."""
        raise NotImplementedError

    def draft_batch(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[TokenTree]:
        """`draft` for several sequences of one step; one that runs a model decodes for all of them at once."""
        return [self.draft(sequence, budget) for sequence, budget in zip(sequences, budgets)]

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """The step's verified tree and its outcome; `sequence.tokens` holds the emitted tokens already.

        Steps for which nobody was asked are told together: a bare root, and all of their tokens.
        """

    def end(self, sequence: SequenceView) -> None:
        """The request is over: drop its state."""

    def forget(self) -> None:
        """Drop what is kept of requests that are over."""

    def step_seconds(self, repeat: int = 9) -> float | None:
        """Median seconds of `repeat` steps of its model (width 1, short context); None where it has none.

        Raises:
            DecodeError: there is no room to measure in.
        """
        return None

    def dump(self) -> Any:
        """What to keep between sessions, as JSON allows; None if there is nothing new."""
        return None

    def restore(self, data: Any) -> None:
        """Take up what `dump` gave.

        Raises:
            ValueError: it is not that.
        """
        raise ValueError(f"{self.name} keeps nothing")

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


class ProbingDrafter(Drafter):
    """A drafter that learns from rows of the target's batch that belong to no draft.

    A step calls `draft`, `window`, then (after the decode) `harvest` and `observe`. A step that grants it nothing calls
    neither `window` nor `harvest`.
    """

    wants_rows = True

    def reserved_rows(self, sequence: SequenceView) -> int:
        """Rows its window takes when it is warm."""
        raise NotImplementedError

    def window(self, sequence: SequenceView, kept: TokenTree, rows: int, leaves: int) -> Window:
        """What to evaluate: at most `rows` probes with at most `leaves` leaves, beside the drafts in `kept`."""
        raise NotImplementedError

    def harvest(self, sequence: SequenceView, best: NDArray[np.int32]) -> None:
        """The target's argmax, int32 [len(ask) + len(drafted)], after the nodes of the window that were asked for."""
        raise NotImplementedError


def probing(drafters: Iterable[Drafter]) -> list[ProbingDrafter]:
    """Those of `drafters` that want rows of their own."""
    return [cast(ProbingDrafter, drafter) for drafter in drafters if drafter.wants_rows]


class StateDrafter(Drafter):
    """A drafter that reads the target's hidden states (MTP, EAGLE). It is told of every token the target evaluates."""

    def process(self, sequence: SequenceView, cells: SequenceCache, start: int, states: NDArray[np.float32]) -> None:
        """The target has evaluated the tokens of the text from position `start` on.

        Called after every decode, for prompt chunks as for accepted drafts, before `observe`. Positions may come twice
        (where accepted tokens are decoded again) or never (where they were taken over from another text).

        Args:
            sequence: whose text it is; `sequence.tokens` holds the emitted tokens already.
            cells: where the target keeps the text.
            start: position of the first of them.
            states: the states of `wants_states` side by side, float32 [n, len(wants_states) * n_embd]; not to keep.
        """
        raise NotImplementedError


def state_drafters(drafters: Iterable[Drafter]) -> list[StateDrafter]:
    """Those of `drafters` that read the target's hidden states."""
    return [cast(StateDrafter, drafter) for drafter in drafters if drafter.wants_states]


def tell_states(
    sequence: SequenceView, drafters: Iterable[Drafter], cells: SequenceCache, start: int, rows: Sequence[int]
) -> None:
    """Hand on the states of `rows` of the latest decode of `cells.context`, those of the text from `start` on."""
    for drafter in state_drafters(drafters):
        states = cells.context.states(drafter.wants_states)
        if len(states):  # accepted drafts may go on where the text ends
            drafter.process(sequence, cells, start, states[rows[: len(sequence.tokens) - start]])


@dataclass(frozen=True)
class DrafterEnv:
    """What drafters are made from: the loaded target and what the user named for drafting.

    Attributes:
        target: the loaded target.
        slots: requests side by side.
        ctx: positions a slot may use.
        draft: the files to draft with.
        threads: as for the target.
        gpu_layers, placement: layers of draft models on devices (None: as many as fit), and which devices.
        progress: told a file's name and how far it has loaded.
        history: drafters and planner may use and keep what earlier sessions taught (see lcspec.profiles.history).
        context: the target's context.
    """

    target: Model
    slots: int
    ctx: int = 0
    draft: DraftFiles = DraftFiles()
    threads: int = 0
    gpu_layers: int | None = None
    placement: Placement = Placement()
    progress: Callable[[str, float], bool | None] | None = None
    history: bool = False
    context: Context | None = None


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
