"""The settings' file: read without ever failing, written without losing a comment or a stranger's key."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, MutableMapping

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError

from lcspec.errors import LcspecError
from lcspec.paths import config_dir, printable, write_atomically
from lcspec.tui.settings.schema import plain_values, read_settings, template
from lcspec.tui.settings.sections import drop_section, rename_section
from lcspec.tui.settings.values import Settings

FILE_NAME = "chat.toml"


class SettingsError(LcspecError):
    """The settings cannot be saved; the message says why and what to do."""


@dataclass(frozen=True)
class SettingsProblem:
    """Something in the file that was not taken over; the default serves instead."""

    key: str
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line is not None else self.message


class SettingsFile:
    """The file and what was read from it.

    Attributes:
        path: the file.
        settings: in force; defaults where the file says nothing or nonsense.
        problems: unknown keys, bad values, a file that cannot be read; to be shown once.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read `path` (default: chat.toml in the configuration directory). Never raises; a missing file is fine."""
        self.path = config_dir() / FILE_NAME if path is None else path
        self.settings = Settings()
        self.problems: tuple[SettingsProblem, ...] = ()
        self._on_disk = self.settings
        self._read()

    def reload(self) -> bool:
        """Read it again if it has changed on disk; True if it had. What could not be saved is lost then."""
        if self._signature() == self._seen:
            return False
        self._read()
        return True

    def create(self) -> Path:
        """Make the file, all comments, if there is none, so that it can be opened in an editor.

        Raises:
            SettingsError: it cannot be written.
        """
        if not self.path.exists():
            self._write(template())
        return self.path

    def save(self, settings: Settings) -> None:
        """Write what differs from what was read into the file, which keeps its comments, order, unknown keys, and what
        was edited there meanwhile.

        Raises:
            SettingsError: the file is not TOML (it is left alone), or cannot be written. The settings are in force
                all the same.
        """
        self.settings = settings
        before, after = plain_values(self._on_disk), plain_values(settings)
        changes = {path: after.get(path) for path in {**before, **after} if before.get(path) != after.get(path)}
        if not changes:
            return
        try:
            text = self.path.read_bytes().decode("utf-8") if self.path.exists() else template()
            document = tomlkit.parse(text)
        except OSError as error:
            raise SettingsError(f"{self.path} cannot be read: {error.strerror}; nothing was saved") from None
        except (TOMLKitError, ValueError, RecursionError) as error:
            raise SettingsError(
                f"{self.path} is not valid TOML and was left alone: {_reason(error)}; correct it, then save again"
            ) from None
        for path, value in changes.items():
            _put(document, path, value)
        new = tomlkit.dumps(document)
        self._check(new, changes)
        self._write(new)
        self._read()

    def rename_preset(self, old: str, new: str) -> None:
        """Give a preset another name; its comments stay with it.

        Raises:
            SettingsError: as `save`.
        """
        presets = {new if name == old else name: p for name, p in self.settings.presets.items()}
        presets[new] = replace(presets[new], name=new)
        preset = new if self.settings.preset == old else self.settings.preset
        settings = replace(self.settings, presets=MappingProxyType(presets), preset=preset)
        self.save(replace(self.settings, preset=None))  # a file never names a preset that it does not have
        self._edit(lambda text: rename_section(text, ("presets", old), new), settings)
        self.save(settings)

    def delete_preset(self, name: str) -> None:
        """Take a preset away, and nothing else.

        Raises:
            SettingsError: as `save`.
        """
        presets = {key: p for key, p in self.settings.presets.items() if key != name}
        preset = None if self.settings.preset == name else self.settings.preset
        settings = replace(self.settings, presets=MappingProxyType(presets), preset=preset)
        self.save(replace(self.settings, preset=preset))
        self._edit(lambda text: drop_section(text, ("presets", name)), settings)
        self.save(settings)

    # ------------------------------------------------------------ inside

    def _edit(self, edit: Callable[[str], str | None], wanted: Settings) -> None:
        """Change the presets in the text itself, if the result is sure to say what is wanted; else `save` has to."""
        try:
            text = edit(self.path.read_bytes().decode("utf-8"))
            found = read_settings(tomlkit.parse(text).unwrap(), lambda path, message: None) if text else None
        except (OSError, TOMLKitError, ValueError, RecursionError):
            return
        if text and found is not None and _presets(found) == _presets(wanted):
            self._write(text)
            self._read()

    def _read(self) -> None:
        self._seen = self._signature()
        problems: list[SettingsProblem] = []
        text, data = "", {}
        try:
            text = self.path.read_bytes().decode("utf-8-sig")
            data = tomlkit.parse(text).unwrap()
        except FileNotFoundError:
            pass
        except OSError as error:
            problems.append(SettingsProblem("", None, f"{self.path} cannot be read: {error.strerror}; defaults serve"))
        except (TOMLKitError, ValueError, RecursionError) as error:
            line = error.line if isinstance(error, ParseError) else None
            problems.append(
                SettingsProblem("", line, f"{self.path.name} is not valid TOML: {_reason(error)}; defaults serve")
            )

        def report(path: tuple[str, ...], message: str) -> None:
            problems.append(SettingsProblem(printable(".".join(path)), line_of(text, path), printable(message)))

        self.settings = self._on_disk = read_settings(data, report)
        self.problems = tuple(problems)

    def _check(self, text: str, changes: dict[tuple[str, ...], Any]) -> None:
        """What is about to be written must say what was meant: a file of the user's is at stake."""
        found = plain_values(read_settings(tomlkit.parse(text).unwrap(), lambda path, message: None))
        wrong = [path for path, value in changes.items() if found.get(path) != value]
        # A preset in use that is not defined reads as none; that is what the settings say, too.
        if wrong:
            raise SettingsError(f"{'.'.join(wrong[0])} cannot be changed in {self.path}: change it by hand")

    def _write(self, text: str) -> None:
        try:
            write_atomically(self.path, text)
        except OSError as error:
            raise SettingsError(
                f"{self.path} cannot be written: {error.strerror}; check the directory's permissions and the disk"
            ) from None

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _presets(settings: Settings) -> dict[tuple[str, ...], Any]:
    return {path: value for path, value in plain_values(settings).items() if path[0] == "presets"}


def _put(table: MutableMapping[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a value (None: take it away), making the tables on the way."""
    key, rest = path[0], path[1:]
    if rest:
        inner = table.get(key)
        if not isinstance(inner, MutableMapping):
            if value is None:
                return
            # [presets] itself stands nowhere in the file, only [presets.name]
            table[key] = inner = tomlkit.table(is_super_table=len(rest) > 1)
            inner = table[key]
        _put(inner, rest, value)
    elif value is None:
        table.pop(key, None)
    elif value == {} and isinstance(value, dict):
        if not isinstance(table.get(key), MutableMapping):
            table[key] = tomlkit.table()
    else:
        table[key] = value


def _reason(error: Exception) -> str:
    return printable(" ".join(str(error).split())) or type(error).__name__


_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """The line (from 1) on which a key stands, or its table's header; None if it is not found."""
    wanted = ".".join(path)
    section, inside = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if inside:
            inside = "" if inside in line else inside
            continue
        header, key = _HEADER.fullmatch(line), _KEY.match(line)
        if header:
            section = _bare(header[1])
            name = section
        elif key:
            name = f"{section}.{_bare(key[1])}" if section else _bare(key[1])
        else:
            continue
        if name == wanted:
            return number
        value = line[key.end() :] if key else ""
        inside = next((q for q in ('"""', "'''") if value.count(q) == 1), "")
    return None


def _bare(key: str) -> str:
    return re.sub(r"\s*\.\s*", ".", re.sub("[\"']", "", key))
