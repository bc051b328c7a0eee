"""The chat's settings: frozen dataclasses <-> `chat.toml` in the user's configuration directory, made for hand editing.

    theme = "textual-dark"
    on_full = "drop"
    preset = "coding"

    [sampling]
    temperature = 0.8

    [presets.coding]
    system = "Answer with code."
    temperature = 0.2
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Mapping

from lcspec.errors import LcspecError
from lcspec.sampling import SamplingParams

FILE_NAME = "chat.toml"


class SettingsError(LcspecError):
    """The settings cannot be saved; the message says why and what to do."""


@dataclass(frozen=True)
class SettingsProblem:
    """Something in the file that was not taken over; the default (or the base value) serves instead."""

    key: str
    line: int | None
    message: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line is not None else ""
        return f"{where}{self.message}"


@dataclass(frozen=True)
class Speculation:
    """As the options of `lcspec generate`: `drafters` is `auto`, `off` or names with options."""

    drafters: str = "auto"
    max_draft: int | None = None
    verifier: str = "coupled"
    exact: bool = False


@dataclass(frozen=True)
class ModelSettings:
    """As ModelOptions; None or 0 = decide for me."""

    ctx: int = 0
    threads: int = 0
    gpu_layers: int | None = None
    kv_type: str = "f16"


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
    folders: tuple[str, ...] = ()
    system: str = ""
    max_tokens: int | None = None
    preset: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: Speculation = field(default_factory=Speculation)
    model: ModelSettings = field(default_factory=ModelSettings)
    presets: Mapping[str, Preset] = field(default_factory=dict)

    def with_preset(self, name: str | None) -> Settings:
        """These settings with a preset's changes in force (None, or an unknown name: unchanged).

        `preset` of the result says which; use the result for a request, never for saving.
        """
        raise NotImplementedError

    @property
    def folder_paths(self) -> tuple[Path, ...]:
        """`folders` with ~ and variables expanded."""
        raise NotImplementedError


class SettingsFile:
    """The file and what was read from it.

    Attributes:
        settings: in force; defaults where the file says nothing or nonsense.
        problems: unknown keys, bad values, a file that cannot be read; to be shown once.
    """

    path: Path
    settings: Settings
    problems: tuple[SettingsProblem, ...]

    def __init__(self, path: Path | None = None) -> None:
        """Read `path` (default: chat.toml in the configuration directory). Never raises; a missing file is fine."""
        raise NotImplementedError

    def reload(self) -> bool:
        """Read it again if it has changed on disk; True if it had."""
        raise NotImplementedError

    def save(self, settings: Settings) -> None:
        """Write what differs from `self.settings` into the file, which keeps its comments, order, unknown keys, and
        what was edited there meanwhile.

        Raises:
            SettingsError: the file is not TOML (it is left alone), or cannot be written. The settings are in force
                all the same.
        """
        raise NotImplementedError
