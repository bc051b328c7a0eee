"""What is in force: the settings file, its preset, and over both what was said on the command line or just now."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Mapping

from lcspec.config import DraftFiles, SpeculationParams
from lcspec.sampling import SamplingParams
from lcspec.session import parse_speculation
from lcspec.tui.settings import ModelSettings, Settings, SettingsFile, Speculation

SAMPLING = {f.name for f in fields(SamplingParams)}
SPECULATION = {f.name for f in fields(Speculation)}
MODEL = {f.name for f in fields(ModelSettings)}
OTHER = {"theme", "lens", "on_full", "folders", "system", "max_tokens", "preset"}


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

    def speculation(self, files: DraftFiles) -> SpeculationParams:
        """For a request.

        Raises:
            UsageError: the drafters are not written as they should be.
        """
        s = self.now.speculation
        return parse_speculation(s.drafters, files, max_draft=s.max_draft, verifier=s.verifier, exact=s.exact)
