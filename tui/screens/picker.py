"""Choosing a model: everything found on this machine, as it is found, then what is bundled."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.events import Key
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import get_current_worker

from lcspec.modelfiles.library import LibraryModel, drafts_for, models
from lcspec.modelfiles.places import here
from lcspec.modelfiles.starter import STARTER
from lcspec.tui.completing import path_candidates
from lcspec.tui.screens.help import HelpScreen
from lcspec.tui.wording import size

# Columns beside the name, which takes the rest.
WIDTHS = {"Size": 8, "Quant.": 8, "Context": 9}


@dataclass(frozen=True)
class Choice:
    """A model and the draft model to go with it."""

    model: Path
    draft: Path | None


# What a path begins with, rather than a word to look for.
PATH_STARTS = ("/", "~", "./", "../")
MOVES = {"up": "cursor_up", "down": "cursor_down", "pageup": "page_up", "pagedown": "page_down"}


class FilterInput(Input):
    """What is typed anywhere on the screen; the keys that move go to the table, Tab completes a path."""

    class Moved(Message):
        """Move in the table: the name of an action of it."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    @property
    def path(self) -> str | None:
        """What is typed, if it is a path."""
        value = self.value.strip()
        return value if value.startswith(PATH_STARTS) else None

    async def _on_key(self, event: Key) -> None:
        if event.key in MOVES:
            self.post_message(self.Moved(MOVES[event.key]))
        elif event.key == "tab" and self.path is not None:
            self._complete(self.path)
        else:
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()

    def _complete(self, path: str) -> None:
        found = path_candidates(path, suffixes=(".gguf",))
        longest = os.path.commonprefix(found)
        if found:
            self.value = longest if len(longest) > len(path) else found[0]
            self.cursor_position = len(self.value)


class PickerScreen(Screen[None]):
    """A table of models. What is typed filters it, or is a path. Enter loads the model with the draft named below."""

    BINDINGS = [
        Binding("f1", "help", "Help"),
        Binding("escape", "back", "Back"),
        Binding("ctrl+d", "next_draft", "Other draft", priority=True),
        Binding("ctrl+q", "app.quit", "Quit"),
    ]

    class Chosen(Message):
        """The user chose."""

        def __init__(self, choice: Choice) -> None:
            super().__init__()
            self.choice = choice

    class Left(Message):
        """The user goes back without choosing."""

    class Found(Message):
        """A model was found."""

        def __init__(self, model: LibraryModel) -> None:
            super().__init__()
            self.model = model

    class Searched(Message):
        """Everything was looked through."""

    class DraftsKnown(Message):
        """Drafts that go with a model."""

        def __init__(self, model: Path, drafts: list[LibraryModel]) -> None:
            super().__init__()
            self.model = model
            self.drafts = drafts

    def __init__(self, folders: Sequence[Path], problem: str = "", used: Path | None = None) -> None:
        """Search `folders`, where the model `used` last lies, and the caches; `problem` is shown above (why the user
        is here)."""
        super().__init__()
        self.used = used
        self.folders = tuple(folders)
        self.problem = problem
        self.models: dict[str, LibraryModel] = {}
        self.drafts: dict[Path, list[LibraryModel]] = {}
        self.picked: dict[Path, int] = {}  # which draft; past the last: none
        self._searched = False

    def compose(self) -> ComposeResult:
        """Heading, table, what is known of the row, keys."""
        yield Static(
            Content(self.problem or "Choose a model: Enter loads it"),
            id="picker-head",
            classes="error" if self.problem else "",
        )
        yield FilterInput(placeholder="type to filter, or the path of a GGUF file (Tab completes)", id="picker-filter")
        table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=True, id="picker-table")
        table.can_focus = False
        yield table
        yield Static(id="picker-about")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to search."""
        table = self.query_one(DataTable)
        name = max(24, self.app.size.width - sum(WIDTHS.values()) - 2 * len(WIDTHS) - 4)
        table.add_column("Model", key="model", width=name)
        for label, width in WIDTHS.items():
            table.add_column(label, key=label, width=width)
        self.query_one("#picker-about", Static).update(Content("searching ..."))
        self.filter.focus()
        self.search()

    @property
    def filter(self) -> FilterInput:
        """What is typed."""
        return self.query_one(FilterInput)

    def _wanted(self, model: LibraryModel) -> bool:
        """Whether the model passes the filter: every word stands somewhere in its names."""
        if self.filter.path is not None:
            return True
        names = f"{model.label} {model.quantization} {model.path}".casefold()
        return all(word in names for word in self.filter.value.casefold().split())

    @on(FilterInput.Changed)
    def _filtered(self) -> None:
        table, before = self.query_one(DataTable), self.current
        table.clear()
        shown = [model for model in self.models.values() if self._wanted(model)]
        for model in shown:
            self._add(model)
        if before in shown:
            table.move_cursor(row=shown.index(before))
        self._about()

    @on(FilterInput.Moved)
    def _moved(self, event: FilterInput.Moved) -> None:
        getattr(self.query_one(DataTable), f"action_{event.action}")()

    @work(thread=True, exclusive=True, group="search")
    def search(self) -> None:
        """Look through everything, on a thread."""
        worker = get_current_worker()
        beside = (self.used.parent,) if self.used is not None else ()
        toys = []  # last, so that Enter in a list that was just opened takes a real model
        for model in models(self.folders, near=(*beside, *here())):
            if worker.is_cancelled:
                return
            if model.source == "bundled":
                toys.append(model)
            else:
                self.post_message(self.Found(model))
        for model in toys:
            self.post_message(self.Found(model))
        self.post_message(self.Searched())

    @on(Found)
    def _found(self, event: Found) -> None:
        model, key = event.model, str(event.model.path)
        if key in self.models:
            return
        self.models[key] = model
        if self._wanted(model):
            self._add(model)
        if self._is_used(model) and not self.filter.value:
            table = self.query_one(DataTable)
            table.move_cursor(row=table.get_row_index(key))
        if len(self.models) == 1:
            self._about()

    def _is_used(self, model: LibraryModel) -> bool:
        return self.used is not None and os.path.realpath(model.path) == os.path.realpath(self.used)

    def _add(self, model: LibraryModel) -> None:
        """A row of the table."""
        notes = ["used last"] * self._is_used(model) + ["bundled: a toy"] * (model.source == "bundled")
        label = f"{model.label} ({', '.join(notes)})" if notes else model.label
        context = f"{model.context}" if model.context else "-"
        style = "" if model.usable else "dim"
        cells = (label, size(model.size), model.quantization or "-", context if model.usable else "unusable")
        self.query_one(DataTable).add_row(*(Text(cell, style) for cell in cells), key=str(model.path))

    @on(Searched)
    def _done(self) -> None:
        self._searched = True
        if self.current is not None:
            self.find_drafts(self.current)
        self._about()

    @property
    def current(self) -> LibraryModel | None:
        """The row's model."""
        table = self.query_one(DataTable)
        if not table.row_count:
            return None
        return self.models.get(str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value))

    @on(DataTable.RowHighlighted)
    def _highlighted(self) -> None:
        model = self.current
        if model is not None and self._searched and model.path not in self.drafts:
            self.find_drafts(model)
        self._about()

    @work(thread=True, exclusive=True, group="drafts")
    def find_drafts(self, model: LibraryModel) -> None:
        """Compare vocabularies, on a thread: headers of large vocabularies take a while."""
        found = drafts_for(model, list(self.models.values())) if model.usable else []
        if not get_current_worker().is_cancelled:
            self.post_message(self.DraftsKnown(model.path, found))

    @on(DraftsKnown)
    def _drafts_known(self, event: DraftsKnown) -> None:
        self.drafts[event.model] = event.drafts
        self._about()

    def draft_of(self, model: LibraryModel) -> LibraryModel | None:
        """The draft model that would be loaded with it."""
        drafts = self.drafts.get(model.path, [])
        index = self.picked.get(model.path, 0)
        return drafts[index] if index < len(drafts) else None

    def _about(self) -> None:
        model, about = self.current, self.query_one("#picker-about", Static)
        if self.filter.path is not None:
            found = path_candidates(self.filter.path, suffixes=(".gguf",))
            names = "   ".join(os.path.basename(path.rstrip("/")) + "/" * path.endswith("/") for path in found[:8])
            about.update(Content(f"Enter loads this file. Tab: {names}" if found else "There is no such GGUF file."))
            return
        if model is None:
            if self.models:
                about.update(Content("No model found here has that in its name; Esc shows all."))
            return
        if model.problem is not None:
            about.update(Content(model.problem))
            return
        if model.path not in self.drafts:
            text = "looking for draft models ..."
        else:
            draft, n = self.draft_of(model), len(self.drafts[model.path])
            text = f"draft model: {draft.label} ({size(draft.size)})" if draft else "draft model: none"
            others = "another one, or none" if n > 1 else "none" if draft else "with it again"
            text += f" (Ctrl+D: {others})" if n else " matches; guessing from the text at hand needs none"
        searching = "" if self._searched else " (still searching)"
        if model.source == "bundled":
            text += f"\nThis is a toy: `lcspec pull {STARTER}` downloads a small assistant that answers in English."
        about.update(Content(f"{model.summary}{searching}\n{text}"))

    def action_next_draft(self) -> None:
        """Another draft model, or none."""
        model = self.current
        if model is not None and self.drafts.get(model.path):
            self.picked[model.path] = (self.picked.get(model.path, 0) + 1) % (len(self.drafts[model.path]) + 1)
            self._about()

    @on(FilterInput.Submitted)
    @on(DataTable.RowSelected)
    def _selected(self) -> None:
        path = self.filter.path
        if path is not None:
            self.post_message(self.Chosen(Choice(Path(os.path.expanduser(path)), None)))
            return
        model = self.current
        if model is None:
            return
        if model.problem is not None:
            self.app.bell()
            return
        if model.path not in self.drafts and model.usable:
            self.drafts[model.path] = drafts_for(model, list(self.models.values()))
        draft = self.draft_of(model)
        self.post_message(self.Chosen(Choice(model.path, draft.path if draft else None)))

    def action_help(self) -> None:
        """What can be done here."""
        self.app.push_screen(HelpScreen("picker"))

    def action_back(self) -> None:
        """Show all again, or leave."""
        if self.filter.value:
            self.filter.value = ""
        else:
            self.post_message(self.Left())
