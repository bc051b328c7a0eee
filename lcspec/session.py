"""From what a user names (files, counts, strategy strings) to a running engine. Every front end starts here."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Generator, Iterator, Mapping, Sequence

from lcspec.config import OFF, QUANTIZED, DrafterSpec, DraftFiles, ModelOptions, SpeculationParams
from lcspec.errors import UsageError
from lcspec.modelfiles.companions import sort_drafts
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.placement import draft_layers
from lcspec.profiles.history import allowed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lcspec.drafters import DrafterEnv
    from lcspec.engine.engine import Engine
    from lcspec.llama import Model
    from lcspec.llama.embedder import Embedder
    from lcspec.llama.ranker import Ranker
    from lcspec.profiles.exactness import Kernels

Progress = Callable[[str, float], bool | None]


@dataclass(frozen=True)
class ModelPair:
    """The files to load. Without a model it is the bundled pair, with the bundled draft unless another is named."""

    target: Path
    draft: DraftFiles

    @classmethod
    def resolve(
        cls,
        model: Path | None = None,
        draft: Sequence[Path] = (),
        store: Path | None = None,
        heads: Path | None = None,
    ) -> ModelPair:
        """Fill in the bundled files, and determine what kind of file each of `draft` is.

        Raises:
            LcspecError: one of them cannot draft for the model (see lcspec.modelfiles.companions).
        """
        if model is None:
            return cls(demo_path(DEMO_TARGET), DraftFiles(tuple(draft) or (demo_path(DEMO_DRAFT),), store, heads))
        return cls(model, sort_drafts(model, DraftFiles(tuple(draft), store, heads)))


@dataclass
class Session:
    """A loaded target with its engine; `notes`: sentences on what did not go as asked for."""

    model: Model
    engine: Engine
    notes: tuple[str, ...] = ()
    _embedder: Embedder | None = None
    _ranker: Ranker | None = None
    closes: Session | None = None  # the session whose model and engine this one holds

    def prompt_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a raw prompt."""
        ids = tuple(self.model.vocab.tokenize(text))
        # Without a BOS token an empty prompt has nothing to continue; then the BOS or end token starts a text.
        return ids or (max(self.model.vocab.bos, self.model.vocab.eos, 0),)

    def chat_ids(
        self, messages: Sequence[Mapping[str, object]], think: bool = True
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """See lcspec.llama.template.chat_ids."""
        from lcspec.llama.template import chat_ids

        return chat_ids(self.model, messages, think)

    def embed(self, texts: Sequence[str]) -> tuple[NDArray[np.float32], list[int]]:
        """Embeddings of `texts`: vectors of unit length, float32 [n, n_embd], and each text's tokens.

        Call it only on the engine thread. The first call makes a context for it, as large as one slot's.

        Raises:
            UnsupportedModel: the model cannot make embeddings.
            ContextOverflow: a text has more tokens than `Embedder.limit`.
            UsageError: a text is empty.
            LcspecError: another failure; the message says what to do.
        """
        for found in self.embed_in_pieces(texts):
            if found is not None:
                return found
        raise AssertionError("the last piece is the answer")

    def embed_in_pieces(
        self, texts: Sequence[str]
    ) -> Generator[tuple[NDArray[np.float32], list[int]] | None, None, None]:
        """`embed` for a thread with other work: yields None between two decodes, then the result."""
        ids = [self.model.vocab.tokenize(text) for text in texts]
        for vectors in self.embed_ids(ids):
            yield None if vectors is None else (vectors, [len(i) for i in ids])

    def embed_ids(
        self, ids: Sequence[Sequence[int]], unit: bool = True
    ) -> Generator[NDArray[np.float32] | None, None, None]:
        """`embed_in_pieces` for texts that are token ids already; the result is the vectors alone, of unit length if
        `unit`."""
        from lcspec.llama.embedder import Embedder

        if self._embedder is None:
            context = self.engine.context
            self._embedder = Embedder(self.model, context.n_ctx, context.n_threads)
        embedder, rows = self._embedder, []
        embedder.check(ids)
        for tokens in ids:
            for row in embedder.embed(tokens, unit):
                if row is not None:
                    rows.append(row)
                if len(rows) < len(ids):
                    yield None
        yield embedder.stack(rows)

    def rank_in_pieces(
        self, query: str, documents: Sequence[str]
    ) -> Generator[tuple[list[float], list[int]] | None, None, None]:
        """The scores of documents for a query and the tokens of each pair, by a cross-encoder; yields None between two
        decodes. Call it only on the engine thread.

        Raises:
            UnsupportedModel: the model is none.
            ContextOverflow: a pair has more tokens than `Ranker.limit`.
        """
        from lcspec.llama.ranker import Ranker

        if self._ranker is None:
            context = self.engine.context
            self._ranker = Ranker(self.model, context.n_ctx, context.n_threads)
        ranker, scores, counts = self._ranker, list[float](), list[int]()
        for document in documents:
            ids = ranker.pair(query, document)
            counts.append(len(ids))
            for score in ranker.score(ids):
                if score is not None:
                    scores.append(score)
                if len(scores) < len(documents):
                    yield None
        yield scores, counts

    @property
    def kernels(self) -> Kernels:
        """What was decided for the engine."""
        from lcspec.profiles.exactness import Kernels

        return Kernels(self.engine.options, self.engine.exact.certificate, self.engine.prompts.beyond)

    def take_over(self, fresh: Session) -> None:
        """Continue with another session's model and engine, made from the same files; the old ones stay open.

        Holders of the old vocabulary may still read it.
        """
        self.close()
        self.model.vocab.take_over(fresh.model.vocab)
        fresh.model.vocab = self.model.vocab
        self.model, self.engine = fresh.model, fresh.engine
        fresh.closes = self

    def close(self) -> None:
        """Free what `embed` and ranking made (the engine and the model belong to `open_session`)."""
        if self._embedder is not None:
            self._embedder.close()
            self._embedder = None
        if self._ranker is not None:
            self._ranker.close()
            self._ranker = None
        if self.closes is not None:
            self.closes.close()


@contextlib.contextmanager
def open_session(
    options: ModelOptions,
    draft: DraftFiles | Path | None = None,
    progress: Progress | None = None,
    history: bool = True,
    kernels: Kernels | None = None,
) -> Iterator[Session]:
    """Load the target and make an engine; draft models are loaded when a request first needs them.

    Args:
        options, draft: what to load; progress: called while it is loaded.
        history: False: neither use nor store what drafters learn from texts (see lcspec.profiles.history).
        kernels: those of an earlier session, whose texts this one goes on with; None: they are chosen.

    Raises:
        LcspecError: the files cannot be used; the message says what to do.
    """
    from lcspec.drafters import DrafterEnv
    from lcspec.llama import Model, drafts_apart, offloads
    from lcspec.llama.fitting import fitted, reserved_for_drafts
    from lcspec.modelfiles.memory import check_memory, fit_positions, fit_rollback, fit_windows

    def report(what: str) -> Callable[[float], bool | None] | None:
        return None if progress is None else lambda fraction: progress(what, fraction)

    draft = sort_drafts(options.path, DraftFiles.of(draft))
    options, positions = fit_positions(options)
    found = [positions]
    options = replace(options, mtp=options.rollback > 0 and draft.mtp == options.path)
    if options.gpu_layers == 0 or not offloads(options.placement):  # only the library knows a GPU's free memory
        options, planes = fit_rollback(options, draft)
        options, windows = fit_windows(options, draft)
        check_memory(options, draft)
        found += [planes, windows]
    notes = tuple(filter(None, found))
    for note in notes:
        print(f"lcspec: {note}", file=sys.stderr)
    reserved = reserved_for_drafts(options, DraftFiles.of(draft).models)
    load = functools.partial(Model.load, progress=report(options.path.name), reserved=reserved)

    def make(model: Model) -> Engine:
        env = DrafterEnv(
            target=model,
            slots=options.slots,
            draft=draft,
            threads=options.placement.draft_threads or options.threads,
            ahead=drafts_apart(options.placement, options.gpu_layers),
            gpu_layers=draft_layers(options.gpu_layers, options.placement),
            placement=options.placement.for_draft,
            progress=progress,
            history=allowed(history),
        )
        return make_engine(model, options, env, kernels)

    model, engine = fitted(load(options), make, load)
    if options.rollback > 0 and draft.mtp not in (None, options.path):
        engine.drafting.make(["mtp"])  # it may share the cells, which must be free when it is made
    with model:
        gc.freeze()  # what is loaded stays: the garbage collector need not visit it between steps
        session = Session(model, engine, notes)
        with engine:
            try:
                yield session
            finally:
                session.close()


def make_engine(
    model: Model,
    options: ModelOptions | None = None,
    env: DrafterEnv | None = None,
    kernels: Kernels | None = None,
) -> Engine:
    """Assemble an engine for a loaded target; `env`: what drafters are made from; `kernels`: see open_session.

    Raises:
        ModelLoadError: there is no memory for the context.
    """
    from lcspec.drafters import Drafter, DrafterEnv
    from lcspec.engine.drafting import Drafting
    from lcspec.engine.engine import Engine
    from lcspec.engine.exact_policy import ExactPolicy
    from lcspec.engine.metrics import Counters
    from lcspec.engine.prompt_reading import PromptReading
    from lcspec.kv_cache.checkpoints import checkpoints_for
    from lcspec.kv_cache.host_cache import HostCache
    from lcspec.kv_cache.parking import Parking
    from lcspec.kv_cache.prefix_cache import PrefixCache
    from lcspec.kv_cache.sequence_pool import SequencePool
    from lcspec.llama import Branching, Context
    from lcspec.modelfiles.memory import copy_budget
    from lcspec.profiles.exactness import ScratchPad
    from lcspec.profiles.kernels import choose_kernels

    counters = Counters()

    def assemble(
        wanted: ModelOptions, drafters: dict[str, Drafter] | None = None, known: Kernels | None = None
    ) -> Engine:
        told = env.progress if env is not None else None
        options, certificate, beyond = known.with_options(wanted) if known else choose_kernels(model, wanted, told)
        context = Context(model, options)
        pool = SequencePool(context.n_seq, shared=not context.memory.streams)
        # Without drafts nothing is padded and no step's cost measured: a recurrent model then has no id to spare.
        padding = ScratchPad(context, pool.spare if context.memory.branching is not Branching.NONE else -1)
        share = context.memory.branching is Branching.TREE
        host = HostCache(copy_budget() if options.cache_ram is None else options.cache_ram << 20)
        cells = PrefixCache(context, pool, options.slots, share, checkpoints_for(context), host)
        exact = ExactPolicy(options, certificate, scattered=context.memory.slack > 0 or not model.traits.attention_only)
        if exact.independent and not exact.chains_only:
            pool.parking = Parking(context, pool.take())
        prompts = PromptReading(context, pool, beyond)
        made = replace(env or DrafterEnv(model, options.slots), ctx=context.n_ctx, context=context)
        drafting = Drafting(context, padding.seq, made, drafters)
        by_rows = not {options.kv_type, options.kv_type_v} & set(QUANTIZED)
        attention = "rows" if by_rows else "library"
        alone = replace(
            options, slots=1, attention=attention, exact=True, full_windows=True, streams=False, cache_ram=0
        )
        return Engine(cells, padding, exact, drafting, prompts, lambda: assemble(alone, drafting.drafters), counters)

    return assemble(options or model.options, known=kernels)


def parse_speculation(
    text: str,
    draft: DraftFiles | Path | None = None,
    *,
    has_grammar: bool = False,
    has_prediction: bool = False,
    max_draft: int | None = None,
    verifier: str = "coupled",
    exact: bool = False,
) -> SpeculationParams:
    """Read `--speculate`: off, or drafters separated by commas, each `name[:option=value...]`.

    `auto` asks every drafter that this session can make.

    Raises:
        UsageError: a drafter is malformed.
    """
    if text == "auto":
        names = ["prediction"] * has_prediction + ["forced"] * has_grammar + ["suffix"]
        names += DraftFiles.of(draft).drafters
        specs: tuple[DrafterSpec, ...] = tuple(map(DrafterSpec, names))
    elif text in OFF:
        specs = ()
    else:
        specs = tuple(DrafterSpec.parse(part) for part in text.split(",") if part.strip())
        alone = [spec.name for spec in specs if spec.name in ("auto", *OFF)]
        if alone:
            raise UsageError(f"{alone[0]!r} stands alone: it cannot be combined with drafters or options")
    return SpeculationParams(specs, auto=text == "auto", max_draft=max_draft, verifier=verifier, exact=exact)


def loading_line() -> Progress | None:
    """A progress line on stderr while models load; None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(what: str, fraction: float) -> None:
        end = "\r\x1b[K" if fraction >= 1.0 else ""
        verb = "loading " if what.endswith(".gguf") else ""  # else it is a sentence
        sys.stderr.write(f"\r\x1b[K{verb}{what} {fraction:4.0%}{end}")
        sys.stderr.flush()

    return show
