"""What is in force: the settings file, its preset, and over both what was said on the command line or just now."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Mapping

from lcspec.config import DraftFiles, ModelOptions, SpeculationParams, rollback_for
from lcspec.errors import LcspecError
from lcspec.placement import loading_fields
from lcspec.sampling.parameters import MADE, SamplingParams
from lcspec.session import parse_speculation
from lcspec.tui.settings import ModelSettings, Preset, Settings, SettingsFile, Speculation

SAMPLING = {f.name for f in fields(SamplingParams)}
SPECULATION = {f.name for f in fields(Speculation)}
MODEL = {f.name for f in fields(ModelSettings)}
# Of the sampling: what a file can say, and what a preset always says.
SAMPLING_KEYS = tuple(f.name for f in fields(SamplingParams) if f.name not in MADE)
ALWAYS = {"temperature", "top_k", "top_p", "min_p", "repeat_penalty"}
LONGEST_NAME = 40
OTHER = {"theme", "lens", "on_full", "think", "folders", "system", "max_tokens", "preset"}


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings with `changes`: names of fields of Settings, or of its sampling, speculation and model.

    Raises:
        LcspecError: a value is out of its range.
    """
    sampling = {k: v for k, v in changes.items() if k in SAMPLING}
    speculation = {k: v for k, v in changes.items() if k in SPECULATION}
    model = {k: v for k, v in changes.items() if k in MODEL}
    return replace(
        settings,
        sampling=replace(settings.sampling, **sampling),
        speculation=replace(settings.speculation, **speculation),
        model=replace(settings.model, **model),
        **{k: v for k, v in changes.items() if k in OTHER},
    )


def value_of(settings: Settings, name: str) -> Any:
    """A value by the name `changed` knows it by."""
    for part, names in ((settings.sampling, SAMPLING), (settings.speculation, SPECULATION), (settings.model, MODEL)):
        if name in names:
            return getattr(part, name)
    return getattr(settings, name)


def options_for(path: Path, now: Settings) -> ModelOptions:
    """How to load a model. Drafters can be changed while it is loaded: where they are off, a recurrent state keeps
    nothing to go back to, and drafts that come later are verified from a saved state.

    Raises:
        UsageError: a value is out of its range.
    """
    said, model = now.speculation, now.model
    return ModelOptions(
        path,
        ctx=model.ctx,
        threads=model.threads,
        **loading_fields(vars(model)),
        rollback=rollback_for("auto", said.max_draft or None),
        planes=rollback_for(said.drafters, said.max_draft) > 0,
        exact=said.exact or None,
    )


def preset_name(text: str) -> str:
    """A name that will do.

    Raises:
        LcspecError: it will not.
    """
    name = text.strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise LcspecError(f"a preset needs a name of one line, of {LONGEST_NAME} characters at most")
    return name


class Choices:
    """Settings in force, and changing them."""

    def __init__(self, file: SettingsFile, overrides: Mapping[str, Any] | None = None) -> None:
        """`overrides` hold for this run and are never saved.

        Raises:
            LcspecError: an override is out of its range.
        """
        self.file = file
        self.overrides = dict(overrides or {})
        self.now  # noqa: B018  (refuses bad values before a screen is opened)

    @property
    def now(self) -> Settings:
        """In force."""
        return changed(self.file.settings.with_preset(self.file.settings.preset), self.overrides)

    def hold(self, **changes: Any) -> None:
        """Change for this run only.

        Raises:
            LcspecError: a value is out of its range; nothing changed.
        """
        changed(self.now, changes)
        self.overrides.update(changes)

    def save(self, changes: Mapping[str, Any]) -> None:
        """Change for good.

        Raises:
            LcspecError: a value is out of its range (nothing changed), or the file cannot be written (in force all
                the same).
        """
        wanted = changed(self.file.settings, changes)
        if "preset" in changes:  # what was set before the preset was chosen must not hide it
            self.overrides = {k: v for k, v in self.overrides.items() if k in MODEL}
        for name in changes:
            self.overrides.pop(name, None)
        try:
            self.file.save(wanted)
        finally:
            now = self.now
            self.overrides.update({k: v for k, v in changes.items() if k != "preset" and value_of(now, k) != v})

    def save_preset(self, name: str, system: str) -> None:
        """Save what is in force as a preset (one of that name is replaced), and use it. `system`: the system prompt.

        Raises:
            LcspecError: the name will not do, or the file cannot be written (in force all the same).
        """
        name, now = preset_name(name), self.now
        usual = SamplingParams()
        sampling = {
            key: getattr(now.sampling, key)
            for key in SAMPLING_KEYS
            if key in ALWAYS or getattr(now.sampling, key) != getattr(usual, key)
        }
        preset = Preset(name, system or None, MappingProxyType(sampling), now.speculation.drafters, now.max_tokens)
        presets = MappingProxyType({**self.file.settings.presets, name: preset})
        self.overrides = {k: v for k, v in self.overrides.items() if k in MODEL | {"theme", "lens", "folders"}}
        self.file.save(replace(self.file.settings, presets=presets, preset=name))

    def restore_preset(self, preset: Preset, in_use: bool) -> None:
        """Bring back one that was deleted.

        Raises:
            LcspecError: the file cannot be written.
        """
        settings = self.file.settings
        presets = MappingProxyType({**settings.presets, preset.name: preset})
        self.file.save(replace(settings, presets=presets, preset=preset.name if in_use else settings.preset))

    def rename_preset(self, old: str, new: str) -> None:
        """Give a preset another name.

        Raises:
            LcspecError: the name will not do or is taken, or the file cannot be written.
        """
        new = preset_name(new)
        if new != old and new in self.file.settings.presets:
            raise LcspecError(f"there is a preset {new!r} already: choose another name")
        if new != old:
            self.file.rename_preset(old, new)

    def speculation(self, files: DraftFiles) -> SpeculationParams:
        """For a request.

        Raises:
            UsageError: the drafters are not written as they should be.
        """
        s = self.now.speculation
        return parse_speculation(s.drafters, files, max_draft=s.max_draft, verifier=s.verifier, exact=s.exact)
