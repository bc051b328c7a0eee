"""The settings as a form. What is saved is in chat.toml, which can be edited by hand as well."""

from __future__ import annotations

from typing import Any, Sequence

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Select, Static

from lcspec.errors import LcspecError
from lcspec.tui.choices import Choices, changed, value_of
from lcspec.tui.slash import check_usual
from lcspec.tui.wording import sentence

NUMBERS: dict[str, tuple[str, type]] = {
    "temperature": ("Temperature (0 is greedy)", float),
    "top_k": ("Top-k", int),
    "top_p": ("Top-p", float),
    "min_p": ("Min-p", float),
    "repeat_penalty": ("Repeat penalty (1 is none)", float),
    "seed": ("Seed (empty: always a new one)", int),
    "max_tokens": ("Tokens of an answer at most", int),
    "ctx": ("Context (0: the model's; next load)", int),
}
ON_FULL = [("stop and ask", "stop"), ("drop the oldest turns", "drop")]
YES_NO = [("no", False), ("yes", True)]
NO_PRESET = "(none)"


def read_number(text: str, kind: type) -> Any:
    """A number, None for nothing.

    Raises:
        ValueError: it is not one.
    """
    text = text.strip()
    return kind(text) if text else None


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _choice(name: str, options: Sequence[tuple[str, Any]], value: Any) -> Select[Any]:
    return Select(options, value=value, allow_blank=False, id=name, compact=True)


class SettingsScreen(ModalScreen[str | None]):
    """Gives what was saved, in a sentence; None when nothing was."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (64, "-wide")]
    BINDINGS = [
        Binding("escape", "cancel", "Close"),
        Binding("ctrl+s", "save", "Save", priority=True),
    ]

    def __init__(self, choices: Choices, themes: list[str], theme: str) -> None:
        super().__init__()
        self.choices = choices
        self.themes = themes
        self.theme_now = theme

    def compose(self) -> ComposeResult:
        """The form."""
        now = self.choices.now
        presets = [(NO_PRESET, NO_PRESET), *((name, name) for name in now.presets)]
        with VerticalScroll(classes="dialog wide") as box:
            box.border_title = "Settings"
            yield from self._row("Preset", _choice("preset", presets, now.preset or NO_PRESET))
            for name, (label, _) in NUMBERS.items():
                yield from self._row(label, Input(_shown(value_of(now, name)), id=name, compact=True))
            yield from self._row("Drafters", Input(now.speculation.drafters, id="drafters", compact=True))
            yield from self._row("Exact (the same bits)", _choice("exact", YES_NO, now.speculation.exact))
            yield from self._row("Think before answering", _choice("think", YES_NO, now.think))
            yield from self._row("When the context is full", _choice("on_full", ON_FULL, now.on_full))
            yield from self._row("Theme", _choice("theme", [(t, t) for t in self.themes], self.theme_now))
            yield from self._row("Lens on at the start", _choice("lens", YES_NO, now.lens))
            yield Static(id="settings-error")
            with Horizontal(classes="buttons"):
                yield Button("Save", variant="primary", id="save", compact=True)
                yield Button("Close", id="close", compact=True)
            yield Static(
                Content(f"Ctrl+S saves to {self.choices.file.path}. F9 is the system prompt, F10 the presets."),
                classes="hint",
            )

    @staticmethod
    def _row(label: str, field: Any) -> ComposeResult:
        with Horizontal(classes="row"):
            yield Label(Content(label))
            yield field

    def on_mount(self) -> None:
        """Begin at the first field."""
        self.query_one("#preset").focus()

    def values(self) -> dict[str, Any]:
        """What the form says.

        Raises:
            LcspecError: something is not a number.
        """
        out: dict[str, Any] = {}
        for name, (label, kind) in NUMBERS.items():
            text = self.query_one(f"#{name}", Input).value
            try:
                out[name] = read_number(text, kind)
            except ValueError:
                raise LcspecError(f"{label}: {text!r} is not a{'n integer' if kind is int else ' number'}") from None
            check_usual(name, out[name])
            if out[name] is None and name not in ("seed", "max_tokens"):
                raise LcspecError(f"{label}: give a number")
        out["drafters"] = self.query_one("#drafters", Input).value.strip() or "off"
        for name in ("exact", "think", "lens", "on_full", "theme"):
            out[name] = self.query_one(f"#{name}", Select).value
        return out

    def action_save(self) -> None:
        """Save what is different from what is in force."""
        now = self.choices.now
        try:
            wanted = self.values()
            different = {k: v for k, v in wanted.items() if v != (self.theme_now if k == "theme" else value_of(now, k))}
            changed(now, different)
            chosen = self.query_one("#preset", Select).value
            preset = None if chosen == NO_PRESET else str(chosen)
            if preset != now.preset:
                self.choices.save({"preset": preset})
            if different:
                self.choices.save(different)
        except LcspecError as error:
            self._refuse(str(error))
            return
        self.dismiss(self._told(different, None if preset == now.preset else chosen))

    def _told(self, different: dict[str, Any], preset: Any) -> str:
        """What was saved, for the user."""
        said = [f"preset {preset}"] if preset is not None else []
        said += [f"{name.replace('_', ' ')} {_shown(value) or 'none'}" for name, value in different.items()]
        if not said:
            return "Nothing was changed."
        later = " The context counts from the next load (F5)." if "ctx" in different else ""
        return f"Saved: {', '.join(said)}.{later}"

    def _refuse(self, text: str) -> None:
        error = self.query_one("#settings-error", Static)
        error.update(Content(sentence(text)))
        error.display = True
        error.scroll_visible()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "save":
            self.action_save()
        else:
            self.action_cancel()

    def action_cancel(self) -> None:
        """Save nothing."""
        self.dismiss(None)
