"""The application: which screen is shown, which model runs, where chats are kept."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from textual import on, work
from textual.app import App, SystemCommand
from textual.filter import LineFilter
from textual.screen import Screen

from lcspec.config import DraftFiles, Lora, SpeculationParams
from lcspec.errors import LcspecError
from lcspec.modelfiles.companions import sort_drafts
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.modelfiles.library import last_model, remember_model
from lcspec.tui.ascii import AsciiFilter, ascii_wanted
from lcspec.tui.bridge import Bridge
from lcspec.tui.choices import Choices, options_for
from lcspec.tui.commands import ActionCommands
from lcspec.tui.screens.chat import DARK, LIGHT, ChatScreen
from lcspec.tui.screens.loading import LoadingScreen
from lcspec.tui.screens.picker import Choice, PickerScreen
from lcspec.tui.settings import SettingsFile
from lcspec.tui.source import Source
from lcspec.tui.store import Chat, Store, StoreProblem

CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class Server:
    """A server to connect to: its address, the key it wants, and which of its models (None: the first)."""

    url: str
    key: str | None = field(default=None, repr=False)
    model: str | None = None


@dataclass(frozen=True)
class ChatOptions:
    """What the command line said.

    Attributes:
        server: who answers, instead of a model on this machine.
        model, draft: files; model None = the one used last, or the picker.
        more: what else there is to draft with: further draft models, a datastore, heads.
        no_draft: pair no draft model with a model by itself.
        notice: said once the first model is there (what was paired with it).
        lora: adapters of `model`.
        history: use and keep what earlier texts taught the drafters.
        apart: run the engine in a process of its own, so that the chat stays if that dies.
        resume: open the conversation used last.
        overrides: settings given on the command line, by the names of `choices.changed`.
        store: where chats are kept; None = the user's data directory.
        settings: the settings file; None = the user's.
        dark: what the terminal is, as far as it says so.
    """

    server: Server | None = None
    model: Path | None = None
    draft: Path | None = None
    more: DraftFiles = DraftFiles()
    no_draft: bool = False
    notice: str = ""
    lora: tuple[Lora, ...] = ()
    history: bool = True
    apart: bool = True
    resume: bool = False
    overrides: Mapping[str, Any] | None = None
    store: Path | None = None
    settings: Path | None = None
    dark: bool = True

    def files(self, draft: Path | None) -> DraftFiles:
        """Everything to draft with beside `draft`."""
        return replace(self.more, models=(*((draft,) if draft is not None else ()), *self.more.models))


class ChatApp(App[int]):
    """`lcspec chat`."""

    TITLE = "lcspec"
    CSS_PATH = ["styles/app.tcss", "styles/chat.tcss", "styles/dialogs.tcss"]
    COMMANDS = App.COMMANDS | {ActionCommands}

    def __init__(self, options: ChatOptions | None = None) -> None:
        """Read the settings.

        Raises:
            LcspecError: an option is out of its range.
        """
        super().__init__()
        self.options = options or ChatOptions()
        self.choices = Choices(SettingsFile(self.options.settings), self.options.overrides)
        self.begun = time.time()
        self.store = Store(self.options.store, on_problem=self._store_problem)
        self.source: Source | None = None
        self.chat_screen: ChatScreen | None = None
        self._ascii = AsciiFilter() if ascii_wanted(os.environ) else None
        self._server = self.options.server
        self._ctx_before: int | None = None  # while a larger context is tried

    # ------------------------------------------------------------------ beginning and end

    def on_mount(self) -> None:
        """Show the first screen."""
        theme = self.choices.now.theme
        self.theme = theme if theme in self.available_themes else (DARK if self.options.dark else LIGHT)
        for problem in self.choices.file.problems:
            self.notify(str(problem), title=str(self.choices.file.path), severity="warning", markup=False, timeout=10)
        choice = self._first_choice() if self._server is None else None
        if self._server is not None:
            self.connect(self._server)
        elif choice is None:
            self.push_screen(PickerScreen(self.choices.now.folder_paths))
        else:
            self.load(choice)

    def _first_choice(self) -> Choice | None:
        draft, pairs = self.options.draft, not self.options.no_draft
        if self.options.model is not None:
            return Choice(self.options.model, draft or (bundled_draft(self.options.model) if pairs else None))
        last = last_model()
        if last is None:
            return None
        return Choice(last.model, draft or (last.draft if pairs else None))

    async def action_quit(self) -> None:
        """Leave; everything that came is kept."""
        self.exit(0)

    def shut_down(self) -> bool:
        """After the last screen: end the engine, write what is left. False if something did not end in time."""
        turn = self.chat_screen.answering.turn if self.chat_screen is not None else None
        if turn is not None:
            turn.stop()
        ended = self.source is None or self.source.close(CLOSE_SECONDS)
        if turn is not None:
            turn.drain()
        return self.store.close() and ended

    # ------------------------------------------------------------------ models

    def load(self, choice: Choice, speculation: SpeculationParams | None = None) -> None:
        """Load a model and show how far it is."""
        now = self.choices.now
        try:
            options = options_for(choice.model, now)
            if choice.model == self.options.model:
                options = replace(options, lora=self.options.lora)
            files = sort_drafts(choice.model, self.options.files(choice.draft))
            params = speculation or self.choices.speculation(files)
        except LcspecError as error:
            self._pick(str(error))
            return
        self._open(Bridge(options, files, self.options.history, apart=self.options.apart), params)

    def connect(self, server: Server) -> None:
        """Talk to a server."""
        from lcspec.tui.remote import ServerSource  # HTTP takes a while to import

        try:
            source = ServerSource(server.url, server.key, server.model)
        except LcspecError as error:
            self._pick(str(error))
            return
        self._open(source, SpeculationParams())

    def _open(self, source: Source, speculation: SpeculationParams) -> None:
        if self.source is not None:
            self._close_later(self.source)
        self.source = source
        self._leave_passing_screens()
        self.push_screen(LoadingScreen(source, speculation))

    @work(thread=True, group="closing")
    def _close_later(self, source: Source) -> None:
        source.close(timeout=60.0)

    def _leave_passing_screens(self) -> None:
        while isinstance(self.screen, (LoadingScreen, PickerScreen)):
            self.pop_screen()

    def _pick(self, problem: str = "") -> None:
        self._leave_passing_screens()
        chat = self.chat_screen
        used = chat.loaded.path if chat is not None and chat.source.local else None
        self.push_screen(PickerScreen(self.choices.now.folder_paths, problem, used))

    @on(LoadingScreen.Done)
    async def _loaded(self, event: LoadingScreen.Done) -> None:
        if event.source is not self.source:
            return
        self._ctx_before = None
        if event.source.local:
            remember_model(event.loaded.path, event.loaded.draft)
        self._leave_passing_screens()
        if isinstance(self.screen, ChatScreen):
            await self.screen.adopt(event.source, event.loaded)
            return
        chat = self._first_chat(event.loaded.path)
        self.chat_screen = ChatScreen(self.store, self.choices, chat, event.source, event.loaded)
        await self.push_screen(self.chat_screen)
        if self.options.notice:
            self.notify(self.options.notice, markup=False)
        if self.store.problem is not None:
            self._tell(self.store.problem)

    def _first_chat(self, model: Path) -> Chat:
        latest = self.store.latest() if self.options.resume else None
        if latest is not None:
            return self.store.load(latest.id)
        if self.options.resume:
            self.notify("There is no conversation to resume; this is a new one.")
        return self.store.create(system=self.choices.now.system, model=str(model))

    @on(LoadingScreen.Wanted)
    def _way_on(self, event: LoadingScreen.Wanted) -> None:
        if event.source is not self.source:
            return
        if self._ctx_before is not None:  # it did not load with the larger context
            self.choices.hold(ctx=self._ctx_before)
            self._ctx_before = None
        bridge = event.source if isinstance(event.source, Bridge) else None
        if event.way == "models":
            self._pick()
        elif event.way == "retry" and bridge is not None:
            self.load(Choice(bridge.options.path, bridge.draft))
        elif event.way == "retry" and self._server is not None:
            self.connect(self._server)
        elif event.way == "plain" and bridge is not None:
            self.choices.hold(drafters="off")
            self.load(Choice(bridge.options.path, None))
        else:
            self.exit(1)

    @on(ChatScreen.ModelsWanted)
    def _models_wanted(self, event: ChatScreen.ModelsWanted) -> None:
        if event.path is None:
            self._pick()
        else:
            self.load(Choice(event.path, bundled_draft(event.path)))

    @on(ChatScreen.ServerModelWanted)
    def _server_model_wanted(self, event: ChatScreen.ServerModelWanted) -> None:
        if self._server is not None:
            self._server = replace(self._server, model=event.name)
            self.connect(self._server)

    @on(ChatScreen.ContextWanted)
    def _context_wanted(self, event: ChatScreen.ContextWanted) -> None:
        if not isinstance(self.source, Bridge):
            return
        self._ctx_before = self.choices.now.model.ctx
        self.choices.hold(ctx=event.n_ctx)
        self.load(Choice(self.source.options.path, self.source.draft))

    @on(PickerScreen.Chosen)
    def _picked(self, event: PickerScreen.Chosen) -> None:
        draft = event.choice.draft or bundled_draft(event.choice.model)
        self.load(Choice(event.choice.model, draft))

    @on(PickerScreen.Left)
    def _left(self) -> None:
        below = self.screen_stack[-2] if len(self.screen_stack) > 1 else None
        if isinstance(below, ChatScreen):
            self._back_to(below)
        else:
            self.exit(0)

    def _back_to(self, chat: ChatScreen) -> None:
        """To a conversation, with the model it had: one that was tried since and given up has taken its place."""
        if chat.source is self.source:
            self.pop_screen()
        elif chat.source.local:
            self.load(Choice(chat.loaded.path, chat.loaded.draft))
        elif self._server is not None:
            self._server = replace(self._server, model=chat.loaded.name)
            self.connect(self._server)

    # ------------------------------------------------------------------ the store

    def _store_problem(self, problem: StoreProblem | None) -> None:
        """Called on any thread."""
        if self.is_running:
            self.call_later(self._tell, problem)

    def _tell(self, problem: StoreProblem | None) -> None:
        if problem is None:
            self.notify("Conversations are saved again.")
        else:
            self.notify(problem.message, title="Not saved", severity="error", markup=False, timeout=15)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """ASCII for those who have nothing else."""
        filters = super().get_line_filters()
        return [*filters, self._ascii] if self._ascii is not None else filters

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Textual's own, without those that have a key of ours."""
        for command in super().get_system_commands(screen):
            if command.title not in ("Quit", "Keys", "Maximize", "Minimize"):
                yield command
        yield SystemCommand("Quit", "Everything is saved already", self.action_quit)


def bundled_draft(model: Path) -> Path | None:
    """The bundled draft model, for the bundled target."""
    try:
        return demo_path(DEMO_DRAFT) if model.resolve() == demo_path(DEMO_TARGET).resolve() else None
    except (LcspecError, OSError):
        return None
