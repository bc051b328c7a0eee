"""Loading a GGUF and asking the library what it can do."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lcspec.config import ModelOptions
from lcspec.errors import ModelLoadError, UnsupportedModel
from lcspec.llama import pages
from lcspec.llama.adapters import Adapters
from lcspec.llama.context_params import context_length, context_params
from lcspec.llama.devices import Placed, place
from lcspec.llama.few_rows import copies, faster_as_stored
from lcspec.llama.fitting import plan
from lcspec.llama.lib import C, error_reason, init, log_lines, may_repack, uses_amx
from lcspec.llama.row_by_row import take_faster_kernels
from lcspec.llama.vocab import Vocab
from lcspec.llama.workers import Workers, connect
from lcspec.modelfiles.memory import machine_memory
from lcspec.modelfiles.modelfile import ByteCoverage, ModelHeader, byte_coverage, read_header
from lcspec.modelfiles.offload import fewer
from lcspec.modelfiles.own_caches import with_own_caches
from lcspec.modelfiles.pairing import SPEECH, part_of_a_pair
from lcspec.modelfiles.unusable import check_usable
from lcspec.modelfiles.windows import window_cache

Progress = Callable[[float], bool | None]


class Branching(Enum):
    """What a model's memory allows: trees, chains with a rollback, or neither."""

    TREE = "tree"
    CHAIN = "chain"
    NONE = "none"


@dataclass(frozen=True)
class Traits:
    """What the library says about a model (never its name). `n_layer` does not count the `n_mtp` layers for multi-token
    prediction, which are 0 where they were not loaded.
    """

    recurrent: bool
    hybrid: bool
    n_swa: int
    n_ctx_train: int
    n_embd: int
    n_embd_out: int
    n_layer: int
    n_mtp: int
    n_params: int
    size_bytes: int
    description: str

    @property
    def attention_only(self) -> bool:
        """Whether all of its memory is a KV cache, which can branch and be rolled back at any position."""
        return not (self.recurrent or self.hybrid)


class Model:
    """A loaded GGUF: weights and vocabulary. Contexts are made from it; close it after them."""

    def __init__(
        self,
        options: ModelOptions,
        header: ModelHeader,
        handle: ctypes.c_void_p,
        gpu_layers: int,
        repack: bool,
        coverage: ByteCoverage | None = None,
    ) -> None:
        self.options = options
        self.header = header
        self.handle = handle
        self.gpu_layers = gpu_layers
        self.repack = repack
        self.workers: Workers | None = None  # other machines that have a part of it
        self.vocab = Vocab(C.llama_model_get_vocab(handle), options.path, coverage)
        self._alive = self.vocab.alive  # another model of the same file may take the vocabulary over
        self.adapters: Adapters | None = None
        self._copies = copies(C.llama_cpp._lib, handle) if repack and not gpu_layers else None
        if repack:
            pages.give_back()
        description = ctypes.create_string_buffer(256)
        C.llama_model_desc(handle, description, 256)
        self.traits = Traits(
            recurrent=bool(C.llama_model_is_recurrent(handle)),
            hybrid=bool(C.llama_model_is_hybrid(handle)),
            n_swa=int(C.llama_model_n_swa(handle)) or _compressed_window(header),
            n_ctx_train=int(C.llama_model_n_ctx_train(handle)),
            n_embd=int(C.llama_model_n_embd(handle)),
            n_embd_out=int(C.llama_model_n_embd_out(handle)),
            n_layer=int(C.llama_model_n_layer(handle)),
            n_mtp=int(C.llama_model_n_layer_nextn(handle)) if options.mtp else 0,
            n_params=int(C.llama_model_n_params(handle)),
            size_bytes=int(C.llama_model_size(handle)),
            description=description.value.decode("utf-8", "replace"),
        )

    @classmethod
    def load(
        cls, options: ModelOptions, progress: Progress | None = None, reserved: int = 0, *, head: bool = False
    ) -> Model:
        """Load the file.

        Args:
            options: see ModelOptions.
            progress: called with 0.0 .. 1.0; returning False stops the load.
            reserved: bytes on the devices to leave for other models, where the number of layers was left open.
            head: it is a head for another model, which writes nothing by itself.

        Raises:
            UsageError: this build of the library cannot place it so; the message says which build can.
            ModelFileError: the file cannot be a model that runs (see `modelfile.read_header`).
            ModelLoadError: the library refused it, or loading was stopped.
            UnsupportedModel: the model does not generate text from left to right, or the library never ends with it.
        """
        init()
        header = read_header(options.path)
        part = None if head else part_of_a_pair(options.path)
        if part is not None:
            raise UnsupportedModel(f"{options.path.name} is no model: {part}; give the model itself")
        if header.architecture in SPEECH and not head:
            raise _writes_no_text(header)
        check_usable(header)
        coverage = byte_coverage(options.path)  # before loading: on some vocabularies the library aborts the process
        workers = connect(options.placement.workers) if options.placement.workers else None
        try:
            return cls._load(options, header, coverage, progress, reserved, workers, head)
        except BaseException:
            if workers is not None:
                workers.close()
            raise

    @classmethod
    def _load(
        cls,
        options: ModelOptions,
        header: ModelHeader,
        coverage: ByteCoverage | None,
        progress: Progress | None,
        reserved: int,
        workers: Workers | None,
        head: bool,
    ) -> Model:
        placed = place(options, workers.devices if workers is not None else ())
        count = (header.layers or 32) + 1
        split: Sequence[float] = ()
        layers: int | None = options.gpu_layers
        if not placed.devices:
            layers = 0
        elif layers is None:
            wanted = plan(placed, header, options, functools.partial(_rehearsed, header), reserved)
            layers, split = wanted.layers, wanted.split
        take_faster_kernels()  # which weights are repacked follows from them
        while layers is not None:
            repack = _repacks(options, header, layers)
            handle, reason = _load_once(
                options, layers, progress, header.file_size, placed=placed, split=split, repack=repack
            )
            if handle:
                model = cls(options, header, handle, layers, repack, coverage)
                model.workers = workers
                if not head:
                    model._check_generates()
                try:
                    model.adapters = Adapters(model, options.lora)
                except BaseException:
                    model.close()
                    raise
                return model
            if workers is not None:
                workers.check()
            layers = fewer(layers, count) if options.gpu_layers is None and reason != STOPPED else None
        raise ModelLoadError(f"{options.path.name} could not be loaded: {reason}")

    def _check_generates(self) -> None:
        has_decoder = C.llama_model_has_decoder(self.handle) and not C.llama_model_has_encoder(self.handle)
        if not has_decoder or C.llama_model_is_diffusion(self.handle):
            self.close()
            raise _writes_no_text(self.header)

    @property
    def n_vocab(self) -> int:
        """Entries in the vocabulary, i.e. columns of the logits."""
        return self.vocab.n_tokens

    def close(self) -> None:
        """Free the weights, once nobody reads the vocabulary any more. Idempotent."""
        if self.handle:
            self._alive.end()
            if self._copies is not None:
                self._copies.close()
            C.llama_model_free(self.handle)
            self.handle = None  # type: ignore[assignment]
            if self.workers is not None:
                self.workers.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _writes_no_text(header: ModelHeader) -> UnsupportedModel:
    return UnsupportedModel(
        f"{header.path.name} is not a left-to-right text model (it is {header.architecture}); "
        "use a text-generation GGUF"
    )


def _repacks(options: ModelOptions, header: ModelHeader, layers: int) -> bool:
    """Whether the library may repack the weights, with `layers` on devices: where that is faster.

    Repacked ones are copies. Those in the file need not be in memory all at once, and are not written to swap.
    """
    if not options.repack or not may_repack():
        return False
    if layers or uses_amx():
        return True
    memory = machine_memory()
    fits = memory is None or header.file_size <= memory.free - memory.swap
    return fits and not faster_as_stored(C.llama_cpp._lib, header.tensor_types)


def _compressed_window(header: ModelHeader) -> int:
    """The window of DeepSeek V4, of which the library says 0, as nothing can be rolled back in it."""
    size = header.metadata.get("deepseek4.attention.sliding_window", 0)
    return size if isinstance(size, int) else 0


def _rehearsed(header: ModelHeader, handle: ctypes.c_void_p, options: ModelOptions) -> Any:
    """Parameters of the context that a model of which only the header was read will get."""
    options = with_own_caches(header, options)
    attention_only = not (C.llama_model_is_recurrent(handle) or C.llama_model_is_hybrid(handle))
    n_ctx_train = int(C.llama_model_n_ctx_train(handle))
    own = window_cache(header, options, context_length(options, n_ctx_train)) if attention_only else None
    return context_params(options, n_ctx_train, attention_only, windows=own)


@contextlib.contextmanager
def load_vocab(options: ModelOptions, progress: Progress | None = None) -> Iterator[Vocab]:
    """A model's vocabulary alone, without its weights.

    Raises:
        ModelFileError: the file cannot be a model.
        ModelLoadError: the library refused it.
    """
    init()
    read_header(options.path)
    coverage = byte_coverage(options.path)
    handle, reason = _load_once(options, 0, progress, vocab_only=True)
    if not handle:
        raise ModelLoadError(f"the vocabulary of {options.path.name} could not be loaded: {reason}")
    vocab = Vocab(C.llama_model_get_vocab(handle), options.path, coverage)
    try:
        yield vocab
    finally:
        vocab.alive.end()
        C.llama_model_free(handle)


STOPPED = "stopped"
MLOCK_LIMIT = "raise the limit on locked memory with `ulimit -l unlimited`"
# Progress reports on which huge pages are asked for.
HUGE_PAGE_REPORTS = 4


def _load_once(
    options: ModelOptions,
    layers: int,
    progress: Progress | None,
    size: int = 0,
    vocab_only: bool = False,
    placed: Placed | None = None,
    split: Sequence[float] = (),
    repack: bool = False,
) -> tuple[ctypes.c_void_p | None, str]:
    """The library's model, or None and why; `size`: bytes of its weights, 0 if none are loaded."""
    params = C.llama_model_default_params()
    params.vocab_only = vocab_only
    params.n_gpu_layers = layers
    kept = placed.into(params, options.placement, layers, split) if placed is not None else []
    params.load_mtp = options.mtp
    params.use_extra_bufts = repack
    stopped, reports, given_back = False, 0, 0.0

    @C.llama_progress_callback  # type: ignore[untyped-decorator]
    def on_progress(fraction: float, _user: object) -> bool:
        nonlocal stopped, reports, given_back
        # The buffers exist now and are still empty; a model with several of them reports a few times before the last.
        reports += 1
        large = size >= pages.MIN_BYTES
        if large and reports <= HUGE_PAGE_REPORTS:
            pages.ask()
        if large and repack and fraction >= given_back + 1 / pages.TIMES:
            given_back = fraction
            pages.give_back()
        # An exception must not cross the C frame; KeyboardInterrupt here means "stop loading".
        try:
            stopped = progress is not None and progress(float(fraction)) is False
        except BaseException:
            stopped = True
        return not stopped

    params.progress_callback = on_progress
    with error_reason("the library gave no reason; is there enough memory?") as reason, log_lines() as lines:
        handle = C.llama_model_load_from_file(str(options.path).encode(), params)
    del kept
    if options.placement.mlock and any("failed to mlock" in line for line in lines):
        print(f"lcspec: {options.path.name} could not be locked in memory as a whole: {MLOCK_LIMIT}", file=sys.stderr)
    return handle, STOPPED if stopped else reason[0]
