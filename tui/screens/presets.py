"""Presets: what is in force saved under a name, chosen, renamed, deleted. They live in chat.toml."""

from __future__ import annotations

from typing import Callable

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from lcspec.errors import LcspecError
from lcspec.tui.choices import Choices
from lcspec.tui.screens.ask_text import AskText
from lcspec.tui.settings import Preset
from lcspec.tui.wording import sentence

NONE = "(none)"
ROOM = 60


def about(preset: Preset) -> str:
    """What a preset changes, in one line."""
    parts = [f"{name.replace('_', ' ')} {value:g}" for name, value in preset.sampling.items()]
    if preset.drafters is not None:
        parts.append(f"drafters {preset.drafters}")
    if preset.max_tokens is not None:
        parts.append(f"at most {preset.max_tokens} tokens")
    if preset.system:
        parts.insert(0, f"“{' '.join(preset.system.split())}”")
    text = ", ".join(parts) or "changes nothing"
    return text if len(text) <= ROOM else text[: ROOM - 1] + "…"


class PresetsScreen(ModalScreen[bool]):
    """Gives True when another preset is in force."""

    BINDINGS = [
        Binding("escape", "cancel", "Close"),
        Binding("ctrl+s", "save", "Save as"),
        Binding("ctrl+r", "rename", "Rename"),
        Binding("ctrl+d,delete", "delete", "Delete"),
        Binding("ctrl+z", "undo", "Undo"),
    ]

    def __init__(self, choices: Choices, system: str) -> None:
        """`system`: the system prompt of the conversation, which a new preset takes along."""
        super().__init__()
        self.choices = choices
        self.system = system
        self.names: list[str] = []
        self._deleted: tuple[Preset, bool] | None = None
        self._changed = False

    def compose(self) -> ComposeResult:
        """The list and what can be done."""
        with Vertical(classes="dialog wide") as box:
            box.border_title = "Presets"
            yield OptionList()
            yield Static(id="presets-error", classes="error")
            keys = "Enter uses it, Ctrl+S saves what is in force now (sampling, drafters, system prompt) under a name,"
            yield Static(
                Content(f"{keys} Ctrl+R renames, Ctrl+D deletes, Ctrl+Z takes that back, Esc closes."), classes="hint"
            )

    def on_mount(self) -> None:
        """Begin at the one in use."""
        self.show(self.choices.now.preset)
        self.query_one(OptionList).focus()

    def show(self, at: str | None) -> None:
        """List them, `at` highlighted."""
        settings = self.choices.file.settings
        self.names = list(settings.presets)
        table = self.query_one(OptionList)
        table.clear_options()
        table.add_option(Option(self._line(NONE, "the settings as they are", settings.preset is None)))
        for name, preset in settings.presets.items():
            table.add_option(Option(self._line(name, about(preset), settings.preset == name)))
        table.highlighted = self.names.index(at) + 1 if at in self.names else 0
        self._refuse("")

    @staticmethod
    def _line(name: str, text: str, in_use: bool) -> Content:
        return Content.assemble("● " if in_use else "  ", (f"{name:<16}", "bold"), (f" {text}", "dim"))

    @property
    def chosen(self) -> str | None:
        """The highlighted preset; None is none."""
        at = self.query_one(OptionList).highlighted or 0
        return self.names[at - 1] if 0 < at <= len(self.names) else None

    @on(OptionList.OptionSelected)
    def _use(self) -> None:
        try:
            self.choices.save({"preset": self.chosen})
        except LcspecError as error:
            self.app.notify(sentence(str(error)), title="Not saved", severity="error", markup=False)
        self.dismiss(True)

    def action_save(self) -> None:
        """Save what is in force under a name."""

        def accept(name: str | None) -> None:
            if name is not None:
                self._do(lambda: self.choices.save_preset(name, self.system), name.strip())
                self._changed = True

        hint = "Sampling, drafters and system prompt as they are now. A preset of that name is replaced."
        self.app.push_screen(AskText("Save as a preset", self.chosen or "", hint=hint), accept)

    def action_rename(self) -> None:
        """Another name for the highlighted one."""
        old = self.chosen
        if old is None:
            return

        def accept(name: str | None) -> None:
            if name is not None:
                self._do(lambda: self.choices.rename_preset(old, name), name.strip())

        self.app.push_screen(AskText("Rename the preset", old), accept)

    def action_delete(self) -> None:
        """Delete the highlighted one."""
        name = self.chosen
        if name is None:
            return
        deleted = self.choices.file.settings.presets[name], self.choices.file.settings.preset == name
        if self._do(lambda: self.choices.file.delete_preset(name), None):
            self._deleted = deleted
            self._changed = self._changed or deleted[1]

    def action_undo(self) -> None:
        """Bring the one deleted last back."""
        if self._deleted is None:
            return
        (preset, in_use), self._deleted = self._deleted, None
        self._do(lambda: self.choices.restore_preset(preset, in_use), preset.name)

    def _do(self, change: Callable[[], None], at: str | None) -> bool:
        """Carry a change out and list anew; False, with the reason shown, if it cannot be."""
        try:
            change()
        except LcspecError as error:
            self._refuse(sentence(str(error)))
            return False
        self.show(at)
        return True

    def _refuse(self, text: str) -> None:
        error = self.query_one("#presets-error", Static)
        error.update(Content(text))
        error.display = bool(text)

    def action_cancel(self) -> None:
        """Close."""
        self.dismiss(self._changed)
