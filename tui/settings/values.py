"""The settings as frozen dataclasses."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Mapping

from lcspec.sampling.parameters import SamplingParams


@dataclass(frozen=True)
class Speculation:
    """As the options of `lcspec generate`: `drafters` is `auto`, `off` or names with options."""

    drafters: str = "auto"
    max_draft: int | None = None
    verifier: str = "coupled"
    exact: bool = False


@dataclass(frozen=True)
class ModelSettings:
    """As the options of `lcspec generate`; None or 0 = decide for me, gpu_layers -1 = all."""

    ctx: int = 0
    threads: int = 0
    gpu_layers: int | None = None
    kv_type: str = "f16"
    kv_type_k: str | None = None
    kv_type_v: str | None = None
    flash_attn: str = "auto"
    device: str | None = None
    main_gpu: int = 0
    split_mode: str = "layer"
    tensor_split: str | None = None
    override_tensor: tuple[str, ...] = ()
    cpu_moe: bool = False
    kv_offload: bool = True
    swa_full: bool = True
    mmap: bool | None = None
    mlock: bool = False
    draft_device: str | None = None
    draft_gpu_layers: int | None = None
    draft_threads: int = 0
    workers: str | None = None


@dataclass(frozen=True)
class Preset:
    """A named set of changes: what is None stays as in the base settings. `sampling` has fields of SamplingParams."""

    name: str
    system: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    drafters: str | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Settings:
    """Everything that can be set.

    Attributes:
        theme: name of a Textual theme ("" = the application's choice).
        lens: whether the lens is on at the start.
        on_full: when the context is full: stop | drop.
        think: models that can think do so before they answer.
        folders: where to look for models, besides the known caches; ~ is allowed.
        system: the system prompt of new chats.
        max_tokens: tokens of an answer at most; None = until the model ends.
        preset: name of the preset in use; None = none.
        sampling: with `seed` None for a new one every time.
        presets: by name, in the file's order.
    """

    theme: str = ""
    lens: bool = False
    on_full: Literal["stop", "drop"] = "stop"
    think: bool = True
    folders: tuple[str, ...] = ()
    system: str = ""
    max_tokens: int | None = None
    preset: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: Speculation = field(default_factory=Speculation)
    model: ModelSettings = field(default_factory=ModelSettings)
    presets: Mapping[str, Preset] = field(default_factory=lambda: MappingProxyType({}))

    def with_preset(self, name: str | None) -> Settings:
        """These settings with a preset's changes in force (None, or an unknown name: unchanged).

        `preset` of the result says which; use the result for a request, never for saving.
        """
        preset = self.presets.get(name) if name is not None else None
        if preset is None:
            return replace(self, preset=None)
        return replace(
            self,
            preset=name,
            system=self.system if preset.system is None else preset.system,
            max_tokens=self.max_tokens if preset.max_tokens is None else preset.max_tokens,
            sampling=replace(self.sampling, **preset.sampling),
            speculation=replace(self.speculation, drafters=preset.drafters or self.speculation.drafters),
        )

    @property
    def folder_paths(self) -> tuple[Path, ...]:
        """`folders` with ~ and variables expanded."""
        return tuple(Path(os.path.expanduser(os.path.expandvars(folder))) for folder in self.folders)
