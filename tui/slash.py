"""Commands typed into the input: `/set temperature 0.5`. What they do is in `screens.chat`."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from lcspec.errors import LcspecError
from lcspec.tui.settings.schema import MODEL, SAMPLING, SPECULATION, TOP, Rule


@dataclass(frozen=True)
class Command:
    """A command: its name, what may follow it, one sentence, and whether what follows is a path."""

    name: str
    takes: str
    help: str
    path: bool = False


COMMANDS = (
    Command("help", "", "Keys and commands."),
    Command("file", "PATH", "Attach a text file; so does @PATH in a message.", path=True),
    Command("continue", "", "Go on with an answer that was cut or stopped."),
    Command("retry", "", "Answer again, with another seed."),
    Command("clear", "", "Begin a new conversation; this one stays in the list (Ctrl+O)."),
    Command("system", "[TEXT]", "What the model is told before the conversation."),
    Command("set", "[NAME VALUE]", "Change a setting for this run: /set temperature 0.5"),
    Command("model", "[PATH]", "Choose another model, or load this file.", path=True),
    Command("save", "[FILE]", "Write the conversation to a file: Markdown, or JSON by its name.", path=True),
    Command("quit", "", "Leave; everything is saved."),
)
BY_NAME = {command.name: command for command in COMMANDS}
_COMMAND = re.compile(r"/(?P<name>[A-Za-z][\w-]*)(?:\s+(?P<rest>.*))?", re.DOTALL)

# What /set can change. `ctx` and its like say when they count.
SETTINGS: dict[str, Rule] = {
    **SAMPLING,
    **SPECULATION,
    **MODEL,
    "max_tokens": TOP["max_tokens"],
    "on_full": TOP["on_full"],
    "think": TOP["think"],
}
EMPTY = ("seed", "max_tokens", "max_draft")  # may be without a value
HOTTEST = 2.0


@dataclass(frozen=True)
class Typed:
    """A command as it was typed."""

    name: str
    rest: str


def command_of(text: str) -> Typed | None:
    """The command that a message is; None: it is a message (`plain` gives its text).

    Raises:
        LcspecError: there is no such command.
    """
    match = _COMMAND.fullmatch(text.strip())
    if match is None or text.startswith("//"):
        return None
    name = match["name"].lower()
    if name not in BY_NAME:
        near = difflib.get_close_matches(name, BY_NAME, 1)
        hint = f"did you mean /{near[0]}? " if near else ""
        raise LcspecError(f"there is no command /{name}: {hint}/help lists them all, and //{name} sends it as text")
    return Typed(name, (match["rest"] or "").strip())


def plain(text: str) -> str:
    """A message without the mark that says that it is no command (`//text` is `/text`)."""
    return text[1:] if text.startswith("//") and not text.startswith("///") else text


def read_setting(text: str) -> tuple[str, Any]:
    """Name and value of `temperature 0.5` or `temperature=0.5`.

    Raises:
        LcspecError: there is no such setting, or the value is none for it.
    """
    parts = re.split(r"[\s=]+", text.strip(), maxsplit=1)
    name = parts[0].lower().replace("-", "_")
    if name not in SETTINGS:
        near = difflib.get_close_matches(name, SETTINGS, 1)
        raise LcspecError(
            f"there is no setting {parts[0]!r}: "
            + (f"did you mean {near[0]}?" if near else ", ".join(sorted(SETTINGS)))
        )
    given = parts[1].strip() if len(parts) > 1 else ""
    if not given or given.lower() == "none":
        if name in EMPTY:
            return name, None
        raise LcspecError(f"{name} needs a value: /set {name} VALUE")
    try:
        value = SETTINGS[name](_plain_value(given))
    except ValueError as error:
        raise LcspecError(f"{name} {error}") from None
    check_usual(name, value)
    return name, value


def check_usual(name: str, value: Any) -> None:
    """Refuse what a form or a command should not take, though the engine would.

    Raises:
        LcspecError: text at this temperature is noise.
    """
    if name == "temperature" and value is not None and value > HOTTEST:
        raise LcspecError(f"temperature must be from 0 to {HOTTEST:g}, not {value:g}: beyond that the text is noise")


def _plain_value(text: str) -> object:
    """A value as a TOML file would have it."""
    if text.lower() in ("true", "yes", "on"):
        return True
    if text.lower() in ("false", "no", "off"):
        return False if text.lower() != "off" else "off"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("\"'")
