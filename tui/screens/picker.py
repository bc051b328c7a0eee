"""Choosing a model: what is bundled, then everything found on this machine, as it is found."""

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
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import get_current_worker

from lcspec.modelfiles.library import LibraryModel, drafts_for, models
from lcspec.modelfiles.places import here
from lcspec.tui.wording import size

# Columns beside the name, which takes the rest.
WIDTHS = {"Size": 8, "Quant.": 8, "Context": 9}


@dataclass(frozen=True)
class Choice:
    """A model and the draft model to go with it."""

    model: Path
    draft: Path | None


class PickerScreen(Screen[None]):
    """A table of models. Enter loads the model with the draft named below; `d` takes the next one."""

    BINDINGS = [
        Binding("escape", "back", "Back"),
        Binding("d", "next_draft", "Other draft"),
        Binding("slash", "path", "Type a path"),
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

    def __init__(self, folders: Sequence[Path], problem: str = "") -> None:
        """Search `folders` and the caches; `problem` is shown above (why the user is here)."""
        super().__init__()
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
        yield DataTable(cursor_type="row", zebra_stripes=True, id="picker-table")
        yield Static(id="picker-about")
        yield Input(placeholder="path of a GGUF file, then Enter", id="picker-path")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to search."""
        table = self.query_one(DataTable)
        name = max(24, self.app.size.width - sum(WIDTHS.values()) - 2 * len(WIDTHS) - 4)
        table.add_column("Model", key="model", width=name)
        for label, width in WIDTHS.items():
            table.add_column(label, key=label, width=width)
        self.query_one("#picker-path").display = False
        self.query_one("#picker-about", Static).update(Content("searching ..."))
        table.focus()
        self.search()

    @work(thread=True, exclusive=True, group="search")
    def search(self) -> None:
        """Look through everything, on a thread."""
        worker = get_current_worker()
        for model in models(self.folders, near=here()):
            if worker.is_cancelled:
                return
            self.post_message(self.Found(model))
        self.post_message(self.Searched())

    @on(Found)
    def _found(self, event: Found) -> None:
        model, table = event.model, self.query_one(DataTable)
        key = str(model.path)
        if key in self.models:
            return
        self.models[key] = model
        label = f"{model.label} (bundled: a toy)" if model.source == "bundled" else model.label
        context = f"{model.context}" if model.context else "-"
        style = "" if model.usable else "dim"
        cells = (label, size(model.size), model.quantization or "-", context if model.usable else "unusable")
        table.add_row(*(Text(cell, style) for cell in cells), key=key)
        if len(self.models) == 1:
            self._about()

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
        if model is None:
            return
        if model.problem is not None:
            about.update(Content(model.problem))
            return
        if model.path not in self.drafts:
            text = "looking for draft models ..."
        else:
            draft, n = self.draft_of(model), len(self.drafts[model.path])
            text = f"draft model: {draft.label} ({size(draft.size)})" if draft else "draft model: none"
            text += f"; {n} match, d takes the next" if n else " matches; n-gram drafting needs none"
        searching = "" if self._searched else " (still searching)"
        about.update(Content(f"{model.summary}{searching}\n{text}"))

    def action_next_draft(self) -> None:
        """Another draft model, or none."""
        model = self.current
        if model is not None and self.drafts.get(model.path):
            self.picked[model.path] = (self.picked.get(model.path, 0) + 1) % (len(self.drafts[model.path]) + 1)
            self._about()

    @on(DataTable.RowSelected)
    def _selected(self) -> None:
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

    def action_path(self) -> None:
        """Name a file that is elsewhere."""
        field = self.query_one("#picker-path", Input)
        field.display = True
        field.focus()

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.post_message(self.Chosen(Choice(Path(os.path.expanduser(event.value.strip())), None)))

    def action_back(self) -> None:
        """Hide the path, or leave."""
        field = self.query_one("#picker-path", Input)
        if field.display:
            field.display = False
            self.query_one(DataTable).focus()
        else:
            self.post_message(self.Left())
