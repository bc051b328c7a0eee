"""The chat's settings: frozen dataclasses <-> `chat.toml` in the user's configuration directory, made for hand editing.

file = SettingsFile()                       # never fails; file.problems says what was not understood
file.settings.with_preset("coding").sampling
file.save(replace(file.settings, lens=True))
"""

from lcspec.tui.settings.file import SettingsError, SettingsFile, SettingsProblem
from lcspec.tui.settings.values import ModelSettings, Preset, Settings, Speculation

__all__ = [
    "ModelSettings",
    "Preset",
    "Settings",
    "SettingsError",
    "SettingsFile",
    "SettingsProblem",
    "Speculation",
]
