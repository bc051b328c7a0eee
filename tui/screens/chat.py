"""The chat screen: what the user can do with a conversation."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from textual import on
from textual.message import Message as TextualMessage

from lcspec.config import MAX_DRAFT_MODELS, model_drafter
from lcspec.errors import LcspecError
from lcspec.tui import keys
from lcspec.tui.attachments import file_command
from lcspec.tui.choices import MODEL
from lcspec.tui.conversation import answer_text
from lcspec.tui.markdown import code_blocks
from lcspec.tui.screens.ask_text import AskText
from lcspec.tui.screens.chats import ChatsScreen, Opened
from lcspec.tui.screens.conversation import ConversationScreen
from lcspec.tui.screens.drafters import DraftersScreen
from lcspec.tui.screens.export import ask_export, save_to
from lcspec.tui.screens.help import HelpScreen
from lcspec.tui.screens.presets import PresetsScreen
from lcspec.tui.screens.settings import SettingsScreen
from lcspec.tui.slash import Typed, read_setting
from lcspec.tui.store import Message
from lcspec.tui.widgets.answer import AnswerView
from lcspec.tui.widgets.inspector import Inspector
from lcspec.tui.widgets.message import MessageView
from lcspec.tui.widgets.notice import Notice
from lcspec.tui.widgets.prompt import PromptInput
from lcspec.tui.wording import UNFINISHED

SEED_BITS = 32
# Seconds within which a second Ctrl+C quits.
TWICE = 3.0
DARK, LIGHT = "textual-dark", "textual-light"


class ChatScreen(ConversationScreen):
    """A conversation and its actions (see `lcspec.tui.keys`)."""

    BINDINGS = keys.bindings(keys.CHAT)

    class ModelsWanted(TextualMessage):
        """The user wants another model: this file, or one of the list."""

        def __init__(self, path: Path | None = None) -> None:
            super().__init__()
            self.path = path

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

    @property
    def target(self) -> MessageView | None:
        """The message with the focus, else the latest one."""
        focused, branch = self.focused, self.chat.branch
        if isinstance(focused, MessageView):
            return focused
        return self.transcript.view_of(branch[-1].id) if branch else None

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
            self.notify("Ctrl+C again quits; everything is saved.", timeout=TWICE)

    def action_copy_text(self) -> None:
        """Ctrl+C where a message has the focus."""
        self.action_interrupt()

    @on(PromptInput.Interrupted)
    def _interrupt(self) -> None:
        self.action_interrupt()

    async def action_lens(self) -> None:
        """The lens on or off."""
        self.transcript.set_lens(not self.transcript.lens)
        self.show_figures()

    def action_inspector(self) -> None:
        """Show or hide the inspector."""
        inspector = self.query_one(Inspector)
        inspector.display = not inspector.display
        self.set_class(inspector.display, "-inspecting")
        self.show_figures()

    def action_drafters(self) -> None:
        """Choose drafters."""
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
        before = self.choices.now.speculation.drafters
        turn = self.answering.turn
        try:
            self.choices.hold(drafters=drafters)
            speculation = self.choices.speculation(self.loaded.files)
            if turn is not None:
                await self.bridge.switch(turn.running, speculation)
            else:
                await self.bridge.prepare(speculation)
        except LcspecError as error:
            self.choices.hold(drafters=before)
            self.notify(str(error), title="Drafters as before", severity="error", markup=False)
        self.show_figures()

    async def action_retry(self) -> None:
        """Answer the latest message again, with a new seed."""
        await self.transcript.to_end()
        await self.again(self.target, fresh_seed=True)

    async def action_repeat(self) -> None:
        """Answer the latest message again, with the same seed."""
        await self.transcript.to_end()
        await self.again(self.target, fresh_seed=False)

    async def again(self, view: MessageView | None, fresh_seed: bool) -> None:
        """Answer again beside the answer in `view` (or below the message in it)."""
        if view is None or self.answering.busy:
            self.notify("It is still answering. Esc stops it." if self.answering.busy else "There is no message yet.")
            return
        message = view.message
        parent = message.parent if message.role == "assistant" else message.id
        if parent is None:
            return
        seed = secrets.randbits(SEED_BITS) if fresh_seed else message.seed
        await self.answering.begin(parent, seed=seed)

    async def go_on(self, message: Message | None) -> None:
        """Continue an answer that did not end by itself."""
        if self._wait_for_answer():
            return
        branch = self.chat.branch
        if message is None or message.role != "assistant" or not branch or message.id != branch[-1].id:
            self.notify("Only the latest answer can be continued.")
        elif message.parent is None or not (message.state == "failed" or message.stop_reason in UNFINISHED):
            self.notify("This answer ended by itself: there is nothing to continue.")
        else:
            await self.answering.begin(message.parent, seed=message.seed, before=message)

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

    def _wait_for_answer(self) -> bool:
        if self.answering.busy:
            self.notify("It is still answering. Esc stops it.")
        return self.answering.busy

    def action_page_up(self) -> None:
        """A screen up."""
        self.transcript.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        """A screen down."""
        self.transcript.scroll_page_down(animate=False)

    @on(PromptInput.Paged)
    def _paged(self, event: PromptInput.Paged) -> None:
        (self.action_page_up if event.by < 0 else self.action_page_down)()

    async def action_to_end(self) -> None:
        """To the latest message."""
        await self.transcript.to_end()

    async def action_messages(self) -> None:
        """To the latest message."""
        if self.transcript.last < len(self.chat.branch):
            await self.transcript.to_end()
        views = self.transcript.views
        if views:
            views[-1].focus()

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

    def action_copy_answer(self) -> None:
        """Copy the latest answer."""
        answers = [m for m in self.chat.branch if m.role == "assistant"]
        if answers:
            view = self.transcript.view_of(answers[-1].id)
            text = view.text if isinstance(view, AnswerView) else answers[-1].text
            self.copy(answer_text(text) or text)

    def copy(self, text: str) -> None:
        """To the clipboard (through the terminal, so over ssh as well)."""
        self.app.copy_to_clipboard(text)
        self.notify(f"Copied {len(text)} characters.", timeout=2)

    # ------------------------------------------------------------------ on a message

    @on(MessageView.Wanted)
    async def _wanted(self, event: MessageView.Wanted) -> None:
        view, action = event.view, event.action
        if action in ("previous", "next"):
            self._move(view, -1 if action == "previous" else 1)
        elif action == "leave":
            self.prompt.focus()
        elif action in ("older_branch", "newer_branch"):
            await self._walk(view, -1 if action == "older_branch" else 1)
        elif action == "edit":
            self._edit(view.message)
        elif action in ("retry", "repeat"):
            await self.again(view, fresh_seed=action == "retry")
        elif action == "go_on":
            await self.go_on(view.message)
        elif action == "copy":
            self.copy(answer_text(view.text) or view.text if isinstance(view, AnswerView) else view.message.text)
        elif action == "copy_code":
            self._copy_code(view)
        elif action == "thinking" and isinstance(view, AnswerView):
            view.toggle_thinking()

    def _move(self, view: MessageView, by: int) -> None:
        views = self.transcript.views
        at = views.index(view) + by
        if at >= len(views):
            if self.transcript.last < len(self.chat.branch):
                self.call_later(self.transcript.load_later)
            else:
                self.prompt.focus()
        elif at >= 0:
            views[at].focus()
        else:
            self.call_later(self.transcript.load_earlier)

    async def _walk(self, view: MessageView, by: int) -> None:
        if self._wait_for_answer():
            return
        place, count = self.chat.tree.place(view.message.id)
        if not 1 <= place + by <= count:
            return
        depth = next((i for i, m in enumerate(self.chat.branch) if m.id == view.message.id), None)
        branch = self.chat.walk(view.message.id, by)
        await self.transcript.show(branch)
        if depth is not None and depth < len(branch):
            sibling = self.transcript.view_of(branch[depth].id)
            if sibling is not None:
                sibling.focus()
        self.refresh_fill()

    def _edit(self, message: Message) -> None:
        if self._wait_for_answer():
            return
        self.set_editing(message)
        self.prompt.give_back(message.text)
        self.prompt.focus()
        self.run_worker(self.attach_again(message))

    def _copy_code(self, view: MessageView) -> None:
        text = view.text if isinstance(view, AnswerView) else view.message.text
        blocks = code_blocks(text)
        if not blocks:
            self.notify("There is no code block in this message.")
            return
        at = self._code_at.get(view.message.id, 0) % len(blocks)
        self._code_at[view.message.id] = at + 1
        self.app.copy_to_clipboard(blocks[at])
        self.notify(f"Copied code block {at + 1} of {len(blocks)}.", timeout=2)

    @on(Notice.Chosen)
    async def _chosen(self, event: Notice.Chosen) -> None:
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
        if not path.is_file():
            raise LcspecError(f"there is no file {path}: /model alone lists what was found on this machine")
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
