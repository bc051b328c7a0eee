"""An engine as front ends see it, wherever it runs: on a thread of this process (`lcspec.engine_thread`) or in a
process of its own (`lcspec.engine_process`).

Functions for `call` and `in_pieces` may have to be sent to another process, so they must be module-level functions with
plain values as arguments (`functools.partial`). The ones that front ends need are here.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Generator, Mapping, Protocol, Sequence, TypeVar

from lcspec.config import DraftFiles, ModelOptions, SpeculationParams, model_drafter
from lcspec.engine.events import Event, TokenInfo
from lcspec.engine.metrics import Totals
from lcspec.errors import LcspecError
from lcspec.modelfiles.fill_in_middle import FillInMiddle
from lcspec.modelfiles.modelfile import ModelHeader
from lcspec.profiles.exactness import Kernels
from lcspec.session import Progress, Session

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lcspec.engine.request import Request
    from lcspec.profiles.cost_curve import CostCurve
    from lcspec.sampling.grammar import CompiledGrammar

T = TypeVar("T")
Sink = Callable[[Sequence[Event]], None]


class TextVocab(Protocol):
    """The methods of a vocabulary that front ends use (see lcspec.llama.vocab.Vocab)."""

    path: Path
    n_tokens: int
    bos: int
    eos: int
    add_bos: bool

    def tokenize(self, text: str, *, special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one token."""

    def text(self, tokens: list[int], *, special: bool = False) -> str:
        """Text of `tokens`."""

    @property
    def no_end(self) -> tuple[tuple[int, float], ...]:
        """A `logit_bias` that keeps the text from ending by itself."""

    @property
    def fill_in_middle(self) -> FillInMiddle | None:
        """The tokens for filling in the middle; None if the model was not trained for that."""


@dataclass(frozen=True)
class EngineFacts:
    """Facts about a loaded model that never change.

    Attributes:
        options: the options it was loaded with.
        n_ctx: positions of a slot; slots: the most requests that run at a time.
        threads: CPU threads that decode; spare: whether that leaves a core free.
        draft: the files to draft with.
        writes: whether it generates text; an encoder only makes embeddings.
        n_ctx_train, n_embd, n_params: see lcspec.llama.model.Traits.
        exact: whether every text has the same bits with drafts and without.
        notes: see lcspec.session.Session.
        kernels: what was decided for it; another engine that goes on with its texts is to have the same.
    """

    options: ModelOptions
    n_ctx: int
    slots: int
    threads: int
    spare: bool
    draft: DraftFiles
    writes: bool
    n_ctx_train: int
    n_embd: int
    n_params: int
    exact: bool
    notes: tuple[str, ...] = field(default=(), compare=False)  # they depend on the memory that is left
    kernels: Kernels | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Loaded:
    """A loaded model. Its `vocab` may be used from any thread."""

    facts: EngineFacts
    vocab: TextVocab
    header: ModelHeader

    @property
    def options(self) -> ModelOptions:
        """The options it was loaded with."""
        return self.facts.options

    def chat_ids(
        self, messages: Sequence[Mapping[str, object]], think: bool = True
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """See lcspec.llama.template.chat_ids."""
        from lcspec.llama.template import chat_ids

        return chat_ids(self, messages, think)


@dataclass(frozen=True)
class Life:
    """The state of an engine, and its restarts so far.

    Attributes:
        away: why it cannot answer at the moment; None: it can.
        restarts: how often it was restarted; last: why the last time.
        resumed: requests that continued in a new process; refused: requests that ran in two processes that died.
        pid: its process; None: this process, or none at the moment.
    """

    away: str | None = None
    restarts: int = 0
    last: str | None = None
    resumed: int = 0
    refused: int = 0
    pid: int | None = None


@dataclass(frozen=True)
class Prepared:
    """What was decided about drafting.

    Attributes:
        speculation: as it can run: without drafters if nothing can be drafted for this model.
        curve: what decodes cost; None: nobody needed to know.
        draft_seconds: what a step of the first draft model takes; 0.0: there is none, or it was not timed.
    """

    speculation: SpeculationParams
    curve: CostCurve | None
    draft_seconds: float


@dataclass(frozen=True)
class Ticket:
    """A submitted request."""

    engine: EngineHost
    number: int

    def cancel(self) -> None:
        """End it between two steps; its last event is Finished with reason `cancelled`."""
        self.engine.cancel(self.number)

    def switch(self, speculation: SpeculationParams) -> Future[None]:
        """Change its drafters between two steps (see Engine.switch); the future fails with the same errors."""
        return self.engine.switch(self.number, speculation)


class EngineHost(Protocol):
    """Where an engine runs. All methods may be called from any thread."""

    @property
    def error(self) -> LcspecError | None:
        """The error that ended the engine; None if it runs or was closed."""

    @property
    def alive(self) -> bool:
        """Whether it takes requests, now or after a restart."""

    @property
    def life(self) -> Life:
        """Its state and restarts."""

    def loading(self) -> Future[Loaded]:
        """The model when it is loaded, of the caller's own; it fails with an LcspecError if it could not be."""

    def loaded(self) -> Loaded:
        """Wait for `loading`.

        Raises:
            LcspecError: it could not be loaded.
        """

    def prepare(self, speculation: SpeculationParams) -> Future[Prepared]:
        """Load what drafts, and measure what steps cost if nobody has; tells the host's `progress`. The future fails
        with an LcspecError if a part of `speculation` cannot be made."""

    def cancel(self, number: int) -> None:
        """End a request, if it still runs or waits."""

    def switch(self, number: int, speculation: SpeculationParams) -> Future[None]:
        """Change a request's drafters."""

    def submit(self, request: Request, sink: Sink, *, details: bool = False) -> Future[Ticket]:
        """Queue a request; the future becomes a `Ticket`. `sink` gets its events in order, on another thread.

        `details`: its prompt's progress, too, and a Step for each of its steps; else none of the account of steps.
        """

    def call(self, function: Callable[[Session], T]) -> Future[T]:
        """Run a short `function` on the engine's thread, between two steps."""

    def in_pieces(self, start: Callable[[Session], Generator[T | None, None, None]]) -> Future[T]:
        """Run a generator on the engine's thread; running requests get their steps between its pieces. The future gives
        its last value. Cancelling the future closes the generator."""

    def compile(self, grammar: str) -> str | CompiledGrammar:
        """Compile a grammar for a request's sampling. This takes time: do not call it on a thread that others wait for.

        Raises:
            GrammarError: it is invalid or too large, or allows no text.
        """

    def close(self, drain: bool = False, timeout: float | None = None) -> bool:
        """Stop the engine: with `drain` finish the running requests, else cancel them. False if `timeout` came
        first."""


def followed(future: Future[Any], then: Callable[[Any], T]) -> Future[T]:
    """What `then` makes of a future's result; who cancels it cancels nothing else."""
    out: Future[T] = Future()

    def done(future: Future[Any]) -> None:
        if not out.set_running_or_notify_cancel():
            return
        try:
            out.set_result(then(future.result()))
        except BaseException as problem:
            out.set_exception(problem)

    future.add_done_callback(done)
    return out


def start_of_text(vocab: TextVocab) -> tuple[int, ...]:
    """The tokens for an empty prompt if the vocabulary adds none: its BOS or end token starts a text."""
    return (max(vocab.bos, vocab.eos, 0),)


# --- functions for `call` and `in_pieces` -----------------------------------------------------------------------------


def facts_of(session: Session) -> EngineFacts:
    """The facts of a session's model."""
    from lcspec.llama.threads import default_threads

    context, traits = session.engine.context, session.model.traits
    return EngineFacts(
        options=session.model.options,
        n_ctx=context.n_ctx,
        slots=session.engine.options.slots,
        threads=context.n_threads,
        spare=session.model.gpu_layers != 0 or context.n_threads < default_threads(),
        draft=session.engine.drafting.env.draft,
        writes=context.memory.exists,
        n_ctx_train=traits.n_ctx_train,
        n_embd=traits.n_embd,
        n_params=traits.n_params,
        exact=session.engine.exact.independent,
        notes=session.notes,
        kernels=session.kernels,
    )


def totals(session: Session) -> Totals:
    """The engine's totals."""
    return session.engine.totals()


def prepare(speculation: SpeculationParams, session: Session, progress: Progress) -> Prepared:
    """See EngineHost.prepare."""
    from lcspec.llama import Branching

    engine = session.engine
    if engine.context.memory.branching is not Branching.NONE:

        def measured(share: float) -> None:
            progress("measuring how fast this machine is", share)

        engine.drafting.make_planner(measured)  # also without the planner: what a step costs is shown in the inspector
    progress("loading what drafts", 1.0)
    settled, planner = engine.prepare(speculation), engine.drafting.auto
    if planner is None:
        return Prepared(settled, None, 0.0)
    return Prepared(settled, planner.curve, planner.costly.level_seconds(model_drafter(0)))


def warm_up(speculation: SpeculationParams, session: Session) -> None:
    """Prepare what the first request would otherwise wait for: drafters, the cost curve, the certificate, memory.

    Raises:
        LcspecError: a part of `speculation` cannot be made.
    """
    from lcspec.llama import pages
    from lcspec.llama.grammar import grammar_tokenizer

    grammar_tokenizer(session.model.vocab)
    if session.engine.context.memory.exists:  # an encoder has no memory: it only embeds
        session.engine.prepare(speculation)
    if session.model.traits.attention_only:  # the library reserves far more for the graphs of others than it uses
        pages.populate()


def embed(
    texts: Sequence[Sequence[int]], session: Session, *, unit: bool = True
) -> Generator[NDArray[np.float32] | None, None, None]:
    """Embeddings of `texts` (token ids), float32 [n, n_embd], of unit length if `unit`; yields None after each decode,
    then the vectors."""
    return session.embed_ids(texts, unit)


def rank(
    query: str, documents: Sequence[str], session: Session
) -> Generator[tuple[list[float], list[int]] | None, None, None]:
    """Scores of documents by a cross-encoder (see Session.rank_in_pieces)."""
    return session.rank_in_pieces(query, documents)


def score(ids: Sequence[int], n_ctx: int, top: int, session: Session) -> Generator[list[TokenInfo] | None, None, None]:
    """Log-probabilities of a text's own tokens; yields after each decode (see lcspec.engine.scorer)."""
    from lcspec.engine import scorer

    return scorer.score(session.model, ids, n_ctx, top, session.engine.context.n_threads)
