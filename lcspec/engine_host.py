"""An engine as a front end sees it that does not care where it runs: on a thread here (`lcspec.engine_thread`), or in a
process of its own (`lcspec.engine_process`).

What is run over there by `call` and `in_pieces` must be a function of a module, with plain values for its arguments
(`functools.partial`), because it may have to be sent. Those that front ends need are here.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Generator, Protocol, Sequence, TypeVar

from lcspec.config import DraftFiles, ModelOptions, SpeculationParams
from lcspec.engine.events import Event, TokenInfo
from lcspec.engine.metrics import Totals
from lcspec.errors import LcspecError
from lcspec.modelfiles.fill_in_middle import FillInMiddle
from lcspec.modelfiles.modelfile import ModelHeader
from lcspec.session import Session

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lcspec.engine.request import Request
    from lcspec.sampling.grammar import CompiledGrammar

T = TypeVar("T")
Sink = Callable[[Sequence[Event]], None]


class TextVocab(Protocol):
    """What a front end asks of a vocabulary (see lcspec.llama.vocab.Vocab)."""

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
        """A `logit_bias` under which the text never ends by itself."""

    @property
    def fill_in_middle(self) -> FillInMiddle | None:
        """The tokens for filling in the middle."""


@dataclass(frozen=True)
class EngineFacts:
    """What never changes about a loaded model.

    Attributes:
        options: how it was asked for.
        n_ctx: positions of a slot; slots: requests side by side.
        draft: what drafts for it.
        writes: it generates text; else it only makes embeddings.
        n_ctx_train, n_embd, n_params: see lcspec.llama.model.Traits.
    """

    options: ModelOptions
    n_ctx: int
    slots: int
    draft: DraftFiles
    writes: bool
    n_ctx_train: int
    n_embd: int
    n_params: int


@dataclass(frozen=True)
class Loaded:
    """A model that has been loaded. `vocab` may be used from any thread."""

    facts: EngineFacts
    vocab: TextVocab
    header: ModelHeader

    @property
    def options(self) -> ModelOptions:
        """How it was asked for."""
        return self.facts.options


@dataclass(frozen=True)
class Life:
    """How an engine has lived until now.

    Attributes:
        away: why it cannot answer at the moment; None: it can.
        restarts: how often it had to be started again.
        resumed: requests that went on in a new process; refused: those that were running twice when it died.
        pid: the process it runs in; None: this one, or none at the moment.
    """

    away: str | None = None
    restarts: int = 0
    resumed: int = 0
    refused: int = 0
    pid: int | None = None


class Submitted(Protocol):
    """A submitted request."""

    def cancel(self) -> None:
        """End it between two steps; its last event is Finished with reason `cancelled`."""


class EngineHost(Protocol):
    """Where an engine runs. All methods may be called from any thread."""

    @property
    def error(self) -> LcspecError | None:
        """What ended it, if that was not `close`."""

    @property
    def alive(self) -> bool:
        """Whether it takes requests, now or once it is back."""

    @property
    def life(self) -> Life:
        """How it has lived until now."""

    def loaded(self) -> Loaded:
        """The model, as soon as it is there.

        Raises:
            LcspecError: it could not be loaded.
        """

    def submit(self, request: Request, sink: Sink) -> Future[Any]:
        """Queue a request; the future becomes a `Submitted`. `sink` gets its events in order, on another thread."""

    def call(self, function: Callable[[Session], T]) -> Future[T]:
        """Run a short `function` on the engine's thread, between two steps."""

    def in_pieces(self, start: Callable[[Session], Generator[T | None, None, None]]) -> Future[T]:
        """What the generator `start(session)` yields at last; running requests get their steps between its pieces. To
        cancel the future closes it."""

    def compile(self, grammar: str) -> str | CompiledGrammar:
        """A grammar for a request's sampling. It takes a while: not for a thread that others wait for.

        Raises:
            GrammarError: it is none, it is too large, or no text follows it.
        """

    def close(self, drain: bool = False, timeout: float | None = None) -> bool:
        """Stop: after the requests at hand with `drain`, else after cancelling them. False if `timeout` came first."""


def start_of_text(vocab: TextVocab) -> tuple[int, ...]:
    """What an empty prompt becomes where the vocabulary adds nothing to it: its BOS or end token starts a text."""
    return (max(vocab.bos, vocab.eos, 0),)


# --- what is run over there -------------------------------------------------------------------------------------------


def facts_of(session: Session) -> EngineFacts:
    """What never changes about a session."""
    context, traits = session.engine.context, session.model.traits
    return EngineFacts(
        options=session.model.options,
        n_ctx=context.n_ctx,
        slots=session.engine.options.slots,
        draft=session.engine.drafting.env.draft,
        writes=context.memory is not None,
        n_ctx_train=traits.n_ctx_train,
        n_embd=traits.n_embd,
        n_params=traits.n_params,
    )


def totals(session: Session) -> Totals:
    """What the engine has done."""
    return session.engine.totals()


def warm_up(speculation: SpeculationParams, session: Session) -> None:
    """Make what the first request would have to wait for: drafters, the cost curve, the certificate, memory.

    Raises:
        LcspecError: `speculation` asks for something that cannot be had.
    """
    from lcspec.llama import hugepages
    from lcspec.llama.grammar import grammar_tokenizer

    grammar_tokenizer(session.model.vocab)
    if session.engine.context.memory is not None:  # else it only embeds
        session.engine.prepare(speculation)
    hugepages.populate()


def embed(texts: Sequence[Sequence[int]], session: Session) -> Generator[NDArray[np.float32] | None, None, None]:
    """Vectors float32 [n, n_embd] of `texts`, which are token ids, a decode at a time."""
    return session.embed_ids(texts)


def score(ids: Sequence[int], n_ctx: int, top: int, session: Session) -> Generator[list[TokenInfo] | None, None, None]:
    """Log-probabilities of a text's own tokens, a decode at a time (see lcspec.engine.scorer)."""
    from lcspec.engine import scorer

    return scorer.score(session.model, ids, n_ctx, top, session.engine.context.n_threads)
