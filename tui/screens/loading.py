"""While a model loads: how far it is, what was decided about drafting, and what to do when it fails."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Button, ProgressBar, Static

from lcspec.config import SpeculationParams
from lcspec.errors import LcspecError
from lcspec.tui.source import Loaded, Source

LOOK_EVERY = 0.1


class LoadingScreen(Screen[None]):
    """Shows a source until it is ready; then posts Done, and on any failure offers ways on."""

    BINDINGS = [Binding("escape", "give_up", "Choose another model")]

    class Done(Message):
        """The model is ready."""

        def __init__(self, source: Source, loaded: Loaded) -> None:
            super().__init__()
            self.source = source
            self.loaded = loaded

    class Wanted(Message):
        """A way on after a failure: `retry`, `plain` (without drafting), `models` or `quit`."""

        def __init__(self, source: Source, way: str) -> None:
            super().__init__()
            self.source = source
            self.way = way

    def __init__(self, source: Source, speculation: SpeculationParams) -> None:
        super().__init__()
        self.source = source
        self.speculation = speculation
        self.failed = False

    def compose(self) -> ComposeResult:
        """Name, bar, what goes on, and the ways on (hidden while all is well)."""
        with Vertical(id="loading"):
            yield Static(Content("lcspec"), id="loading-title")
            yield Static(Content(self.source.title), id="loading-model")
            yield ProgressBar(total=1.0, show_eta=False, id="loading-bar")
            yield Static(
                Content("reading the model ..." if self.source.local else "asking the server ..."), id="loading-what"
            )
            yield Static(id="loading-error")
            with Horizontal(id="loading-ways"):
                yield Button("Choose another model", name="models", variant="primary", compact=True)
                yield Button("Try again", name="retry", compact=True)
                if self.source.local:
                    yield Button("Without drafting", name="plain", compact=True)
                yield Button("Quit", name="quit", compact=True)

    def on_mount(self) -> None:
        """Look at the source now and then, and wait for it."""
        for name in ("#loading-error", "#loading-ways"):
            self.query_one(name).display = False
        self.set_interval(LOOK_EVERY, self._look)
        self.run_worker(self._wait(), exclusive=True)

    def _look(self) -> None:
        progress = self.source.progress
        if progress.what and not self.failed:
            self.query_one(ProgressBar).update(progress=progress.fraction)
            self.query_one("#loading-what", Static).update(Content(f"{progress.what} ..."))

    async def _wait(self) -> None:
        try:
            await self.source.ready()
            loaded = await self.source.prepare(self.speculation)
        except LcspecError as error:
            self._fail(str(error))
        except (OSError, MemoryError, RuntimeError) as error:
            self._fail(f"the model cannot be loaded: {error or 'out of memory'}; try a smaller one, or less --ctx")
        else:
            self.post_message(self.Done(self.source, loaded))

    def _fail(self, text: str) -> None:
        self.failed = True
        self.query_one(ProgressBar).display = False
        self.query_one("#loading-what").display = False
        error = self.query_one("#loading-error", Static)
        error.update(Content(text))
        error.display = self.query_one("#loading-ways").display = True
        ways = self.query("#loading-ways Button").results(Button)
        next(b for b in ways if b.name == ("models" if self.source.local else "retry")).focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.post_message(self.Wanted(self.source, event.button.name or "quit"))

    def action_give_up(self) -> None:
        """Stop loading and choose another model."""
        self.source.give_up()
        self.post_message(self.Wanted(self.source, "models"))
