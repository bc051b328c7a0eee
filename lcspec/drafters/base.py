"""The drafter protocol, what a drafter may read, and the registry."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterable, Protocol, Sequence, cast

import numpy as np
from numpy.typing import NDArray

from lcspec.config import DrafterSpec, DraftFiles
from lcspec.errors import UsageError
from lcspec.modelfiles.companions import held_out_acceptance
from lcspec.placement import Placement
from lcspec.sampling.parameters import SamplingParams
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

if TYPE_CHECKING:
    from lcspec.kv_cache.sequence_cache import SequenceCache
    from lcspec.llama.context import Context
    from lcspec.llama.model import Model


class SequenceView(Protocol):
    """What a drafter sees of a running request. A drafter reads it and never changes it."""

    @property
    def id(self) -> int:
        """An id that stays the same while the request runs; drafters key their state by it."""

    @property
    def tokens(self) -> Sequence[int]:
        """Token ids of the prompt and of the answer so far; the last one is the pending token."""

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
        """How many children of a node are *drawn* from the draft distribution (see TokenTree.add_sampled);
        0: the verifier wants the most probable tokens instead."""

    @property
    def prediction(self) -> Sequence[int]:
        """The answer that the caller expects, as token ids; empty if there is none."""

    @property
    def hidden(self) -> NDArray[np.float32] | None:
        """The target's final normed hidden state, from which it chose the pending token: float32 [n_embd].

        None if no drafter of the request has `wants_hidden`, or if the last step gave none: a step with a prompt chunk
        gives none (see Context.hidden), so it is also None at the first step of a request.
        """

    def forced_text(self, limit: int) -> str:
        """The text to which the request's grammar leaves no alternative, at most `limit` characters; often empty."""


@dataclass(frozen=True)
class Budget:
    """How much a drafter may propose in this step.

    Attributes:
        nodes: the most drafted nodes in all.
        depth: the greatest depth of a node.
        branch: the most children of a node; 1 gives a chain.
        source: the drafter's bit, for TokenTree.add.
        floor: a node whose path is less probable than this cannot be worth its row.
        below: from this probability on, it pays to expand a node that is not the likeliest of its level.
        expects: maps the drafter's own estimate to the probability that the target takes the child. None: the estimate
            itself.
        reading: once a drafter has read a long text for so many seconds, it reads no further piece in this step.
        keep_going: called by costly drafters after every level with the tree so far and its newest nodes; returns
            whether another level is worth its time. None means yes.
    """

    nodes: int
    depth: int
    branch: int
    source: int = 0
    floor: float = 0.0
    below: float = 0.0
    reading: float = 0.0
    expects: Callable[[float], float] | None = None
    keep_going: Callable[[TokenTree, Iterable[int]], bool] | None = None


class Drafter:
    """Proposes token trees cheaply. Its capabilities and needs are declared here, as class attributes.

    Attributes:
        name: its name in the registry, shown to users.
        default_nodes, default_branch: default number of nodes in a step, and of children of a node.
        costly: it runs a model, so the planner decides when to ask it; others are asked in every step.
        wants_hidden: it needs the target's hidden states (see `SequenceView.hidden`).
        wants_rows: it needs rows of its own in the target's batch (see ProbingDrafter).
        wants_states: the target's layers whose inputs it reads (see StateDrafter, Context.states).
        goes_ahead: it can draft on a thread of its own while the target decodes (see lcspec.drafters.ahead).
    """

    name: str
    default_nodes: int
    default_branch = 1
    costly = False
    wants_hidden = False
    wants_rows = False
    wants_states: tuple[int, ...] = ()
    goes_ahead = False

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Prepare for a new request with the options in `spec`; its prompt is in `sequence.tokens`."""
        spec.check_keys(set())

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """Propose continuations of `sequence.tokens[-1]`; only the root if it has none."""
        raise NotImplementedError

    def draft_batch(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[TokenTree]:
        """`draft` for several sequences of one step; a drafter that runs a model decodes for all of them at once."""
        return [self.draft(sequence, budget) for sequence, budget in zip(sequences, budgets)]

    def levels_ready(self, sequence: SequenceView) -> int:
        """How deep the draft is that it has already (see `draft_ahead`); 0: it has none."""
        return 0

    def draft_ahead(self, sequences: Sequence[SequenceView], seconds: float) -> None:
        """Start to draft what may follow the step that the target decodes now, or to read the prompt that it reads, on
        another thread. Nothing else is called before `stop_ahead`.

        `seconds`: how long the decode is expected to take; 0.0: as long as the last one; math.inf: not known.
        """

    def stop_ahead(self) -> None:
        """Stop that; returns when the other thread has ended what it was doing."""

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Learn from the step's verified tree and its verdict; `sequence.tokens` already holds the emitted tokens.

        Steps in which no drafter was asked come together in one call: a tree with only a root, and all their tokens.
        """

    def end(self, sequence: SequenceView) -> None:
        """Drop the state of a request that has ended."""

    def forget(self) -> None:
        """Drop what is kept of ended requests."""

    def step_seconds(self, repeat: int = 9) -> float | None:
        """Median seconds of `repeat` steps of its model (width 1, short context); None if it has no model.

        Raises:
            DecodeError: the cache has no room for the measurement.
        """
        return None

    def dump(self) -> Any:
        """What to store between sessions, as JSON allows; None if there is nothing new."""
        return None

    def restore(self, data: Any) -> None:
        """Load what `dump` returned.

        Raises:
            ValueError: the data has another form.
        """
        raise ValueError(f"{self.name} keeps nothing")

    def close(self) -> None:
        """Free all resources."""


@dataclass(frozen=True)
class Window:
    """What a drafter wants evaluated in the target's next batch besides the drafts.

    Attributes:
        drafter: the drafter that made it.
        tree: probe nodes below the pending token (see TokenTree.with_probes); only a root if there are none.
        ask: the nodes of `tree`, ascending, after which the drafter needs the target's argmax.
        drafted: kept nodes of the drafts, ascending, after which it needs the argmax as well.
    """

    drafter: ProbingDrafter
    tree: TokenTree
    ask: tuple[int, ...] = ()
    drafted: tuple[int, ...] = ()


class ProbingDrafter(Drafter):
    """A drafter that learns from probes: rows of the target's batch that belong to no draft.

    A step calls `draft`, `window`, then (after the decode) `harvest` and `observe`. A step that grants it no rows calls
    neither `window` nor `harvest`.
    """

    wants_rows = True

    def reserved_rows(self, sequence: SequenceView) -> int:
        """How many rows its window takes once it is warm."""
        raise NotImplementedError

    def window(self, sequence: SequenceView, kept: TokenTree, rows: int, leaves: int) -> Window:
        """The window to evaluate: at most `rows` probes with at most `leaves` leaves, beside the drafts in `kept`."""
        raise NotImplementedError

    def harvest(self, sequence: SequenceView, best: NDArray[np.int32]) -> None:
        """Take the target's argmax after each node of `ask` and `drafted`: int32 [len(ask) + len(drafted)]."""
        raise NotImplementedError


def probing(drafters: Iterable[Drafter]) -> list[ProbingDrafter]:
    """The drafters that need rows of their own."""
    return [cast(ProbingDrafter, drafter) for drafter in drafters if drafter.wants_rows]


class StateDrafter(Drafter):
    """A drafter that reads the target's hidden states (MTP, EAGLE); it gets those of every evaluated token."""

    def process(self, sequence: SequenceView, cells: SequenceCache, start: int, states: NDArray[np.float32]) -> None:
        """Take the states of the text's tokens from position `start` on, which the target has just evaluated.

        Called after every decode, for prompt chunks and for accepted drafts, before `observe`. A position may come
        twice (if accepted tokens are decoded again) or never (if its cell was taken over from another text).

        Args:
            sequence: whose text it is; `sequence.tokens` already holds the emitted tokens.
            cells: the target's cache of the text.
            start: position of the first state.
            states: the states of the layers `wants_states` side by side, float32 [n, len(wants_states) * n_embd]; valid
                only during the call.
        """
        raise NotImplementedError


def state_drafters(drafters: Iterable[Drafter]) -> list[StateDrafter]:
    """The drafters that read the target's hidden states."""
    return [cast(StateDrafter, drafter) for drafter in drafters if drafter.wants_states]


def pass_states(
    sequence: SequenceView,
    drafters: Iterable[Drafter],
    context: Context,
    cells: SequenceCache,
    start: int,
    rows: Sequence[int],
) -> None:
    """Pass on the states of `rows` of the latest decode of `context`, whose `cells` hold the text from `start` on."""
    for drafter in state_drafters(drafters):
        states = context.states(drafter.wants_states)
        if len(states):  # accepted drafts may end past the end of the text
            drafter.process(sequence, cells, start, states[rows[: len(sequence.tokens) - start]])


@dataclass(frozen=True)
class DrafterEnv:
    """What drafters are made from: the loaded target, and what the user named for drafting.

    Attributes:
        target: the loaded target.
        slots: the most requests at a time.
        ctx: positions of one slot.
        draft: the files to draft with.
        threads: of draft models.
        ahead: those threads have cores or devices of their own, so draft models may run while the target decodes.
        gpu_layers, placement: layers of draft models on devices (None: as many as fit), and which devices.
        progress: called with a file's name and the loaded share of it.
        history: whether drafters and planner may read and store what sessions learn (see lcspec.profiles.history).
        context: the target's context.
    """

    target: Model
    slots: int
    ctx: int = 0
    draft: DraftFiles = DraftFiles()
    threads: int = 0
    ahead: bool = False
    gpu_layers: int | None = None
    placement: Placement = Placement()
    progress: Callable[[str, float], bool | None] | None = None
    history: bool = False
    context: Context | None = None

    def chances(self) -> dict[str, tuple[float, ...]]:
        """By drafter, how often its tokens were right at each depth on texts held out from its training, where its file
        says so.

        Raises:
            ModelFileError: a file cannot be read.
        """
        found = held_out_acceptance(self.draft.eagle) if self.draft.eagle is not None else ()
        return {"eagle": found} if found else {}


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
        UsageError: there is no such drafter; the message lists all of them.
    """
    importlib.import_module("lcspec.drafters.all")  # only now: it loads the model library
    if name not in REGISTRY:
        raise UsageError(f"unknown drafter {name!r}: choose from {', '.join(sorted(REGISTRY))}, or off")
    return REGISTRY[name](env)
