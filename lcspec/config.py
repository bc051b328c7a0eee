"""Options as frozen dataclasses. Every front end builds these and hands them to the engine."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lcspec.errors import UsageError
from lcspec.placement import Placement

# The largest sensible numbers of drafted nodes in a step, and of children of a node.
MAX_DRAFT = 255
MAX_BRANCH = 64
# The library's choice; its fused kernel (flash attention); matrix products; both again, and all else, row by row (see
# lcspec.llama.row_by_row); whichever is faster here (see lcspec.profiles.attention).
ATTENTION = ("library", "fused", "products", "fused_rows", "rows", "measured")
BY_ROWS = ("fused_rows", "rows")
# What `--speculate` takes for plain decoding.
OFF = ("off", "none", "")
# The longest chain that a recurrent model may have to roll back in one step. Each of its tokens costs a copy of the
# state.
RECURRENT_ROLLBACK = 16
# The widest step: the default, and the most that can be set.
DEFAULT_MAX_WIDTH = 64
MAX_WIDTH = 1024
KV_TYPES = ("f16", "f32", "bf16", "q8_0", "q4_0")
QUANTIZED = ("q8_0", "q4_0")  # only the fused kernel reads values of these types


@dataclass(frozen=True)
class Lora:
    """An adapter and its strength; a scale of 0 switches it off."""

    path: Path
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Lora:
        """Read FILE or FILE:SCALE.

        Raises:
            UsageError: the scale is not a finite number.
        """
        before, colon, after = text.rpartition(":")
        if not colon or Path(text).exists():
            return cls(Path(text))
        try:
            scale = float(after)
        except ValueError:
            return cls(Path(text))
        if not math.isfinite(scale):
            raise UsageError(f"--lora {text}: the scale must be a finite number, such as 0.5")
        return cls(Path(before), scale)


@dataclass(frozen=True)
class ModelOptions:
    """How to load a model and its context.

    Attributes:
        path: the GGUF file.
        ctx: positions of a slot; 0: as many as the model was trained for, at most `DEFAULT_CTX_LIMIT`.
        slots: the most requests that run at a time.
        threads: CPU threads; 0: the physical cores that this process may use.
        gpu_layers: layers to offload; None: as many as fit, -1: all.
        kv_type: element type of the KV cache, one of `KV_TYPES`.
        kv_type_v: element type of its values; None: the same as the keys'.
        attention: how attention is computed, one of `ATTENTION`; exact requests need what `library` gives.
        exact: choose cache types and attention that give a token the same bits at every step width and beside every
            other request; None: where that costs hardly any time (see lcspec.profiles.attention).
        batch: tokens in a prompt chunk.
        repack: let the library repack weights for this CPU where that is faster (the bits differ from those without).
        max_width: the widest step (pending token + drafted nodes over all slots) that the context must take.
        rollback: how many tokens of a step a recurrent state must be able to roll back; 0: nothing is drafted.
        planes: keep copies of the state for that, where the library can; False: roll back to a saved state instead.
        full_windows: layers with a sliding window keep every position, as others do.
        streams: a cache of its own for every slot, over which its attention runs: nobody else's cells lie between a
            text's own, and there are no trees.
        cache_ram: MiB of main memory for texts that gave way to others; None: an eighth of what is free, at most 2048.
        embeddings: also keep the final hidden states of decode steps (see Context.hidden).
        lora: adapters that change the model.
        placement: which devices and machines, and how the model is spread over them.
        mtp: load the model's layers for multi-token prediction, if it has any.
    """

    path: Path
    ctx: int = 0
    slots: int = 1
    threads: int = 0
    gpu_layers: int | None = None
    kv_type: str = "f16"
    kv_type_v: str | None = None
    attention: str = "measured"
    exact: bool | None = None
    batch: int = 512
    repack: bool = True
    max_width: int = DEFAULT_MAX_WIDTH
    rollback: int = RECURRENT_ROLLBACK
    planes: bool = True
    full_windows: bool = True
    streams: bool = False
    cache_ram: int | None = None
    embeddings: bool = False
    lora: tuple[Lora, ...] = ()
    placement: Placement = Placement()
    mtp: bool = False

    @property
    def acting(self) -> tuple[Lora, ...]:
        """The adapters with a scale other than 0."""
        return tuple(lora for lora in self.lora if lora.scale != 0)

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            UsageError: a value is out of its range.
        """
        if self.ctx < 0:
            raise UsageError(f"the context must be positive (or 0 for the model's own), not {self.ctx}")
        if self.threads < 0:
            raise UsageError(f"threads must be positive (or 0 to choose), not {self.threads}")
        if self.slots < 1:
            raise UsageError(f"at least one slot is needed, not {self.slots}")
        if self.batch < 2:
            raise UsageError(f"the prompt chunk must be at least 2 tokens, not {self.batch}")
        if self.cache_ram is not None and self.cache_ram < 0:
            raise UsageError(f"memory for texts that gave way must be 0 MiB or more, not {self.cache_ram}")
        if self.rollback < 0:
            raise UsageError(f"the number of tokens to roll back must be 0 or more, not {self.rollback}")
        for kind in (self.kv_type, self.kv_type_v or self.kv_type):
            if kind not in KV_TYPES:
                raise UsageError(f"unknown KV cache type {kind!r}: choose one of {', '.join(KV_TYPES)}")
        if self.attention not in ATTENTION:
            raise UsageError(f"unknown attention {self.attention!r}: choose one of {', '.join(ATTENTION)}")
        if self.attention in ("products", "rows") and (self.kv_type_v or self.kv_type) in QUANTIZED:
            raise UsageError("values of a quantized type need flash attention: --flash-attn on, or --kv-type-v f16")

    @property
    def texts_in_order(self) -> bool:
        """Whether texts are decoded row by row and their cells lie in order, since each has a cache for itself.

        Prompts are then read in place, and drafts are chains.
        """
        return self.attention in BY_ROWS and (self.slots == 1 or self.streams)


def rollback_for(speculate: str, max_draft: int | None) -> int:
    """`ModelOptions.rollback` for the drafts that `--speculate` and `--max-draft` allow."""
    if speculate in OFF or max_draft == 0:
        return 0
    return RECURRENT_ROLLBACK if max_draft is None else min(RECURRENT_ROLLBACK, max_draft + 1)


DEFAULT_CTX_LIMIT = 8192
MAX_DRAFT_MODELS = 4


@dataclass(frozen=True)
class DraftFiles:
    """The files that the user named for drafting.

    Attributes:
        models: draft models: the first is for the drafter `model`, the second for `model2`, and so on.
        store: a datastore of text (`lcspec draft store`).
        heads: heads trained on the target (`lcspec draft heads`).
        mtp: the file with the layers for multi-token prediction: the target itself, or its companion file.
        eagle: an EAGLE-3 head.
    """

    models: tuple[Path, ...] = ()
    store: Path | None = None
    heads: Path | None = None
    mtp: Path | None = None
    eagle: Path | None = None

    def __post_init__(self) -> None:
        """Check the number of draft models.

        Raises:
            UsageError: there are too many.
        """
        if len(self.models) > MAX_DRAFT_MODELS:
            raise UsageError(f"at most {MAX_DRAFT_MODELS} draft models can be used together, not {len(self.models)}")

    @classmethod
    def of(cls, draft: DraftFiles | Path | None) -> DraftFiles:
        """Wrap a single draft model, or none."""
        if isinstance(draft, DraftFiles):
            return draft
        return cls((draft,) if draft is not None else ())

    @property
    def drafters(self) -> list[str]:
        """The drafters that these files allow."""
        free = ["store"] * (self.store is not None) + ["medusa"] * (self.heads is not None)
        free += ["mtp"] * (self.mtp is not None) + ["eagle"] * (self.eagle is not None)
        return free + [model_drafter(i) for i in range(len(self.models))]

    @property
    def files(self) -> tuple[Path, ...]:
        """Draft models and heads; the target itself if it contains MTP layers."""
        return (*self.models, *(path for path in (self.mtp, self.eagle) if path is not None))

    def named(self, target: Path) -> tuple[Path, ...]:
        """Draft models and heads in files other than the target."""
        return tuple(path for path in self.files if path != target)


def model_drafter(index: int) -> str:
    """The name of the drafter that runs draft model number `index`: model, model2, model3 ..."""
    return f"model{index + 1}" if index else "model"


@dataclass(frozen=True)
class DrafterSpec:
    """One drafter by name with its options, written `name` or `name:key=value:flag` on the command line."""

    name: str
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> DrafterSpec:
        """Read `model:branch=3` or `ngram:tree`; a flag without a value is stored as "1"."""
        name, *rest = text.strip().split(":")
        options = {}
        for item in rest:
            key, _, value = item.partition("=")
            if not key:
                raise UsageError(f"empty option in {text!r}: write name:key=value")
            options[key] = value or "1"
        return cls(name, options)

    def integer(self, key: str, default: int, low: int = 0, high: int = 1_000_000) -> int:
        """Option `key` as an int.

        Raises:
            UsageError: not a whole number in [low, high].
        """
        try:
            value = int(self.options.get(key, default))
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            given = self.options.get(key, default)
            raise UsageError(f"{self.name}:{key} must be a whole number from {low} to {high}, not {given}")
        return value

    def number(self, key: str, default: float, low: float = 0.0, high: float = 1.0) -> float:
        """Option `key` as a float.

        Raises:
            UsageError: not a number in [low, high].
        """
        try:
            value = float(self.options.get(key, default))
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            given = self.options.get(key, default)
            raise UsageError(f"{self.name}:{key} must be a number from {low:g} to {high:g}, not {given}")
        return value

    def check_keys(self, known: set[str]) -> None:
        """Refuse unknown options.

        Raises:
            UsageError: an option is unknown.
        """
        for key in self.options:
            if key not in known:
                raise UsageError(f"{self.name} has no option {key!r}; it knows {', '.join(sorted(known)) or 'none'}")


@dataclass(frozen=True)
class SpeculationParams:
    """How a request speculates.

    Attributes:
        drafters: the drafters to ask; empty: plain decoding.
        auto: the planner decides in every step which to ask and what to keep; else every drafter drafts in every step.
        max_draft: the most drafted nodes in a step; None: each drafter's own default.
        verifier: a name in `verifiers.VERIFIERS`, with options as in `typical:epsilon=0.1`.
        exact: keep every step to widths whose logits are bit-identical.
    """

    drafters: tuple[DrafterSpec, ...] = ()
    auto: bool = False
    max_draft: int | None = None
    verifier: str = "coupled"
    exact: bool = False

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            UsageError: `max_draft` is negative.
        """
        if self.max_draft is not None and not 0 <= self.max_draft <= MAX_DRAFT:
            raise UsageError(f"max-draft must be from 0 to {MAX_DRAFT}, not {self.max_draft}")
        for spec in self.drafters:
            spec.integer("nodes", 0, 0, MAX_DRAFT)
            spec.integer("branch", 1, 1, MAX_BRANCH)


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        UsageError: it cannot be read or is not TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return data
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no TOML, no text, a number of more digits than Python reads
        raise UsageError(f"{path} is not valid TOML: {error}") from error
