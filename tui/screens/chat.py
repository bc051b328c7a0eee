"""The chat screen: what the user can do with a conversation."""

from __future__ import annotations

import time
from pathlib import Path

from textual import on
from textual.message import Message as TextualMessage

from lcspec.config import MAX_DRAFT_MODELS, model_drafter
from lcspec.errors import LcspecError
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.tui import keys
from lcspec.tui.attachments import file_command
from lcspec.tui.choices import MODEL
from lcspec.tui.screens.ask_text import AskText
from lcspec.tui.screens.chats import ChatsScreen, Opened
from lcspec.tui.screens.drafters import DraftersScreen
from lcspec.tui.screens.export import ask_export, save_to
from lcspec.tui.screens.help import HelpScreen
from lcspec.tui.screens.messages import MessagesScreen
from lcspec.tui.screens.presets import PresetsScreen
from lcspec.tui.screens.settings import SettingsScreen
from lcspec.tui.slash import Typed, read_setting
from lcspec.tui.widgets.inspector import Inspector
from lcspec.tui.widgets.message import MessageView
from lcspec.tui.widgets.notice import Notice
from lcspec.tui.widgets.prompt import PromptInput
from lcspec.tui.wording import sentence

# Seconds within which a second Ctrl+C quits.
TWICE = 3.0
DARK, LIGHT = "textual-dark", "textual-light"


class ChatScreen(MessagesScreen):
    """A conversation and its actions (see `lcspec.tui.keys`)."""

    BINDINGS = keys.bindings(keys.CHAT)

    class ModelsWanted(TextualMessage):
        """The user wants another model: this file, or one of the list."""

        def __init__(self, path: Path | None = None) -> None:
            super().__init__()
            self.path = path

    class ServerModelWanted(TextualMessage):
        """The user wants another model of the server's."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    class ContextWanted(TextualMessage):
        """The user wants the model loaded with a context of `n_ctx` tokens."""

        def __init__(self, n_ctx: int) -> None:
            super().__init__()
            self.n_ctx = n_ctx

    _interrupted = 0.0  # when Ctrl+C was last pressed with nothing to stop

    # ------------------------------------------------------------------ everywhere

    def do(self, action: keys.Action) -> None:
        """Carry out an action chosen by name; what works on a message works on the one that had the focus last."""
        if action in keys.CHAT:
            self.run_worker(self.run_action(action.name))
            return
        view = self.target
        if view is None:
            self.notify("There is no message yet.")
        else:
            view.post_message(MessageView.Wanted(view, action.name))

    def action_help(self) -> None:
        """Help for where the focus is."""
        self.app.push_screen(HelpScreen("message" if isinstance(self.focused, MessageView) else "prompt"))

    def action_stop(self) -> None:
        """Stop the answer, or leave the edit, or go to the input."""
        if not self.answering.stop() and self.editing is not None:
            self.set_editing(None)
            self.prompt.text = ""
        self.prompt.focus()

    def action_interrupt(self) -> None:
        """Copy what is marked, else stop the answer, else offer to quit: twice within a moment does."""
        marked = self.get_selected_text()
        if marked:
            self.copy(marked)
        elif self.answering.stop():
            self._interrupted = 0.0
        elif time.monotonic() - self._interrupted < TWICE:
            self.app.exit(0)
        else:
            self._interrupted = time.monotonic()
            unsent = self.prompt.text.strip() and self.editing is None
            kept = "what was sent is saved, what is in the input is not" if unsent else "everything is saved"
            self.notify(f"Ctrl+C again quits; {kept}.", timeout=TWICE)

    def action_copy_text(self) -> None:
        """Ctrl+C where a message has the focus."""
        self.action_interrupt()

    @on(PromptInput.Interrupted)
    def _interrupt(self) -> None:
        self.action_interrupt()

    async def action_lens(self) -> None:
        """The lens on or off."""
        if self._at_server("Lens and inspector"):
            return
        self.transcript.set_lens(not self.transcript.lens)
        self.show_figures()

    def action_inspector(self) -> None:
        """Show or hide the inspector."""
        if self._at_server("Lens and inspector"):
            return
        inspector = self.query_one(Inspector)
        inspector.display = not inspector.display
        self.set_class(inspector.display, "-inspecting")
        self.show_figures()

    def _at_server(self, what: str) -> bool:
        """Whether a server answers; then `what` is said to need a model on this machine."""
        if not self.source.local:
            self.notify(
                f"{what} need a local model: a server decides about drafts and does not say which words it guessed. "
                "F5 loads a model here.",
                timeout=6,
            )
        return not self.source.local

    def action_drafters(self) -> None:
        """Choose drafters."""
        if self._at_server("Drafters"):
            return
        from lcspec.drafters import all as _every  # noqa: F401  (fills the registry)
        from lcspec.drafters.base import REGISTRY

        now, files = self.choices.now.speculation.drafters, self.loaded.files

        def chosen(text: str | None) -> None:
            if text is not None:
                self.run_worker(self.switch(text), exclusive=True, group="switch")

        names = sorted(set(REGISTRY) - {model_drafter(i) for i in range(MAX_DRAFT_MODELS)} | {"model"})
        self.app.push_screen(DraftersScreen(now, names, files, self.answering.busy), chosen)

    async def switch(self, drafters: str) -> None:
        """Other drafters, from the next step of the running answer on."""
        if self._at_server("Drafters"):
            return
        before = self.choices.now.speculation.drafters
        turn = self.answering.turn
        try:
            self.choices.hold(drafters=drafters)
            speculation = self.choices.speculation(self.loaded.files)
            if turn is not None:
                await self.source.switch(turn.running, speculation)
            else:
                await self.source.prepare(speculation)
        except LcspecError as error:
            self.choices.hold(drafters=before)
            self.notify(sentence(str(error)), title="Drafters as before", severity="error", markup=False)
        self.show_figures()

    async def action_new_chat(self) -> None:
        """An empty conversation."""
        if self._wait_for_answer():
            return
        await self.open(self.store.create(system=self.choices.now.system, model=str(self.loaded.path)))
        self.prompt.focus()

    def action_chats(self) -> None:
        """The list of conversations."""
        if self._wait_for_answer():
            return
        screen = ChatsScreen(self.store, time.time(), self.chat)

        async def chosen(found: Opened | None) -> None:
            gone = {info.id for info in screen.deleted}
            if found is not None and found.chat not in gone:
                chat = self.chat if found.chat == self.chat.id else self.store.load(found.chat)
                if found.message is not None and found.message in chat.tree:
                    chat.show(chat.tree.leaf_below(found.message))  # the branch that has it
                await self.open(chat)
                if found.message is not None:
                    await self.transcript.go_to(found.message)
            elif self.chat.id in gone:
                await self.action_new_chat()
            self.show_head()

        self.app.push_screen(screen, chosen)

    def action_system(self) -> None:
        """Edit the system prompt of this conversation."""

        def accept(text: str | None) -> None:
            if text is not None:
                self.chat.set(system=text.strip())
                self.refresh_fill()

        hint = "What the model is told before this conversation."
        self.app.push_screen(AskText("System prompt", self.chat.info.system, hint=hint, lines=True), accept)

    def action_attach(self) -> None:
        """Name files to attach."""

        async def accept(text: str | None) -> None:
            if text and text.strip():
                await self.attach(file_command(f"/file {text.strip()}") or [])

        self.app.push_screen(AskText("Attach files", hint="One or more paths."), accept)

    def action_settings(self) -> None:
        """The settings."""
        self.choices.file.reload()

        def saved(told: str | None) -> None:
            if told is not None:
                self.notify(told, title="Settings", timeout=5, markup=False)
                theme = self.choices.now.theme
                if theme:
                    self.app.theme = theme
                self.show_figures()

        themes = sorted(self.app.available_themes)
        self.app.push_screen(SettingsScreen(self.choices, themes, self.app.theme), saved)

    def action_presets(self) -> None:
        """Presets. One that brings a system prompt gives it to a conversation that has not begun."""
        self.choices.file.reload()

        def closed(changed: bool | None) -> None:
            if changed:
                now = self.choices.now
                if not self.chat.branch:
                    self.chat.set(system=now.system)
                self.refresh_fill()
                name = now.preset
                self.notify(f"Preset {name}." if name else "No preset.", timeout=2, markup=False)

        self.app.push_screen(PresetsScreen(self.choices, self.chat.info.system), closed)

    def action_models(self) -> None:
        """Choose another model."""
        if not self._wait_for_answer():
            self.post_message(self.ModelsWanted())

    def action_export(self) -> None:
        """Write the conversation to a file."""
        ask_export(self.app, self.chat)

    def action_toggle_dark(self) -> None:
        """Dark or light."""
        self.app.theme = LIGHT if self.app.current_theme.dark else DARK

    @on(Notice.Chosen)
    async def _chosen(self, event: Notice.Chosen) -> None:
        self.prompt.focus()  # else a message would have it, where letters are keys
        await event.notice.remove()
        branch = self.chat.branch
        last = branch[-1] if branch else None
        if event.way == "new":
            await self.action_new_chat()
        elif event.way == "models":
            self.action_models()
        elif event.way == "quit":
            await self.app.action_quit()
        elif event.way == "continue":
            await self.go_on(last)
        elif event.way.startswith("ctx:"):
            self.post_message(self.ContextWanted(int(event.way.removeprefix("ctx:"))))
        elif event.way == "drop":
            self.choices.hold(on_full="drop")
            if last is not None and last.stop_reason == "context":
                await self.go_on(last)
            elif self.prompt.text.strip():
                self.prompt.action_send()  # the message that did not fit
        elif last is not None and last.role == "user":
            await self.answering.begin(last.id)
        elif last is not None and last.state == "failed" and last.parent is not None:
            await self.answering.begin(last.parent, seed=last.seed)

    # ------------------------------------------------------------------ commands typed

    async def command(self, typed: Typed) -> None:
        """Carry out a command of `lcspec.tui.slash`."""
        name, rest = typed.name, typed.rest
        if name == "help":
            self.action_help()
        elif name == "quit":
            await self.app.action_quit()
        elif name == "clear":
            await self.action_new_chat()
        elif name == "continue":
            await self.go_on(self.chat.branch[-1] if self.chat.branch else None)
        elif name == "retry":
            await self.action_retry()
        elif name == "file":
            self.action_attach()
        elif name == "system":
            self._set_system(rest)
        elif name == "model":
            self._load_model(rest)
        elif name == "save":
            self._save(rest)
        else:
            self._set(rest)

    def _set_system(self, text: str) -> None:
        if not text:
            self.action_system()
            return
        self.chat.set(system=text)
        self.refresh_fill()
        self.notify("System prompt set for this conversation.", timeout=3)

    def _load_model(self, text: str) -> None:
        if self.answering.busy:
            raise LcspecError("it is still answering: Esc stops it")
        if not text:
            self.action_models()
            return
        path = (file_command(f"/file {text}") or [Path(text)])[0]
        if not self.source.local and not path.is_file():
            self.post_message(self.ServerModelWanted(text))
            return
        if not path.is_file():
            raise LcspecError(f"there is no file {path}: /model alone lists what was found on this machine")
        read_gguf(path)  # what is no model does not take the place of the one that is loaded
        self.post_message(self.ModelsWanted(path))

    def _save(self, text: str) -> None:
        if not self.chat.branch:
            raise LcspecError("there is nothing to save yet")
        if text:
            save_to(self.app, self.chat, (file_command(f"/file {text}") or [Path(text)])[0])
        else:
            self.action_export()

    def _set(self, text: str) -> None:
        if not text:
            self.action_settings()
            return
        name, value = read_setting(text)
        if name == "drafters":
            self.run_worker(self.switch(value), exclusive=True, group="switch")
            return
        self.choices.hold(**{name: value})
        later = "; F5 loads the model with it" if name in MODEL else ""
        shown = "none" if value is None else value
        self.notify(f"{name} is {shown} for this run{later}.", timeout=4, markup=False)
        self.show_figures()
