"""What the chat screen shows, and sending: messages, input, attachments, status. Its actions are in `chat`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Callable

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer, Static, TextArea

from lcspec.errors import LcspecError
from lcspec.tui.answering import CONTINUE, Answering
from lcspec.tui.attachments import Attachment, count_tokens, file_command, pasted_attachment, read_attachment
from lcspec.tui.choices import Choices
from lcspec.tui.completing import mentions, missing
from lcspec.tui.conversation import ContextFill, measure
from lcspec.tui.pace import TICK
from lcspec.tui.slash import Typed, command_of, plain
from lcspec.tui.source import Loaded, Source
from lcspec.tui.speculation import SpeculationLog
from lcspec.tui.store import Chat, Message, Store
from lcspec.tui.widgets.attachments import AttachmentStrip, Chip, Pending
from lcspec.tui.widgets.completion import CompletionList
from lcspec.tui.widgets.inspector import Inspector
from lcspec.tui.widgets.notice import Notice
from lcspec.tui.widgets.prompt import PromptInput
from lcspec.tui.widgets.status import Status, StatusLine
from lcspec.tui.widgets.transcript import Transcript
from lcspec.tui.wording import sentence

SHORT_PLACEHOLDER = "Message (Enter sends, F1 helps)"
PLACEHOLDER = "Message (Enter sends, Ctrl+J begins a new line, F1 helps)"
EDITING = "Editing: Enter sends it on a branch of its own, Esc leaves it as it was."
EDITING_ANSWER = "Editing the answer: Enter keeps it on a branch of its own, Esc leaves it."


class ConversationScreen(Screen[None]):
    """One conversation on one loaded model."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide"), (170, "-vast")]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-high")]

    def __init__(self, store: Store, choices: Choices, chat: Chat, source: Source, loaded: Loaded) -> None:
        super().__init__()
        self.store = store
        self.choices = choices
        self.chat = chat
        self.source = source
        self.loaded = loaded
        self.answering = Answering(self)
        self.figures = SpeculationLog()
        self.fill = ContextFill(0, loaded.n_ctx)
        self.editing: Message | None = None
        self._ticker: Timer | None = None
        self._code_at: dict[str, int] = {}  # message -> code block to copy next

    # ------------------------------------------------------------------ what is where

    def compose(self) -> ComposeResult:
        """Head, messages beside the inspector, status, input, keys."""
        yield Static(id="head")
        with Horizontal(id="middle"):
            yield Transcript(self.chat.tree.place)
            yield Inspector(id="inspector")
        yield StatusLine(id="status")
        yield Static(Content(EDITING), id="editing")
        yield AttachmentStrip()
        completion = CompletionList()
        yield completion
        with Vertical(id="prompt-box"):
            yield PromptInput(PLACEHOLDER, completion=completion, id="prompt")
        yield Footer(show_command_palette=True)

    async def on_mount(self) -> None:
        """Show the conversation."""
        self.query_one(Inspector).display = False
        self.query_one("#editing").display = False
        self.attachments.limit = self.loaded.n_ctx
        self._ticker = self.set_interval(TICK, self.answering.tick, pause=True)
        self.transcript.lens = self.choices.now.lens and self.source.local
        await self.open(self.chat)
        self.prompt.focus()

    def on_resize(self, event: Resize) -> None:
        """What stands in the empty input must fit."""
        self.prompt.placeholder = PLACEHOLDER if event.size.width > len(PLACEHOLDER) + 8 else SHORT_PLACEHOLDER

    @property
    def transcript(self) -> Transcript:
        """The messages."""
        return self.query_one(Transcript)

    @property
    def prompt(self) -> PromptInput:
        """The input."""
        return self.query_one(PromptInput)

    @property
    def attachments(self) -> AttachmentStrip:
        """Files for the next message."""
        return self.query_one(AttachmentStrip)

    async def open(self, chat: Chat) -> None:
        """Show another conversation."""
        self.chat, self.figures, self.answering.keep_from = chat, SpeculationLog(), None
        self.transcript.place_of = chat.tree.place
        self.prompt.sent = [m.text for m in chat.branch if m.role == "user"]
        self.set_editing(None)
        await self.transcript.show([])
        await self.transcript.show(chat.branch)
        self.transcript.anchor()
        self.show_head()
        self.refresh_fill()
        if not chat.branch:
            await self.transcript.say(Notice("\n".join((f"{self.loaded.name} is ready.", *self.loaded.notes))))

    async def adopt(self, source: Source, loaded: Loaded) -> None:
        """Go on with another model, or with a larger context."""
        same = source.local and loaded.path == self.loaded.path and loaded.n_ctx != self.loaded.n_ctx
        self.attachments.limit = loaded.n_ctx
        await self.attachments.set(self.attachments.pending)
        self.source, self.loaded, self.figures, self.answering.keep_from = source, loaded, SpeculationLog(), None
        self.fill = replace(self.fill, limit=loaded.n_ctx)  # the old count stands until there is a new one
        self.show_head()
        self.refresh_fill()
        await self.transcript.show(self.chat.branch)  # without notices that are out of date
        if same:
            last = self.chat.branch[-1] if self.chat.branch else None
            ways = (CONTINUE,) if last is not None and last.stop_reason == "context" else ()
            waits = " Enter sends your message." if self.prompt.text.strip() else ""
            await self.transcript.say(Notice(f"The context now holds {loaded.n_ctx:,} tokens.{waits}", ways=ways))
        else:
            await self.transcript.say(Notice("\n".join((f"{loaded.name} is ready.", *loaded.notes))))

    def show_head(self) -> None:
        """Title and model."""
        title = self.chat.info.title or "New conversation"
        self.query_one("#head", Static).update(Content.assemble((title, "bold"), (f"  {self.loaded.heading}", "dim")))

    def show_figures(self) -> None:
        """Status line and inspector."""
        turn = self.answering.turn
        log, fill = (turn.log, turn.fill) if turn is not None else (self.figures, self.fill)
        rate = turn.rate if turn is not None else None
        drafters = self.choices.now.speculation.drafters if self.source.local else ""
        status = Status(fill, turn.phase if turn is not None else "", rate, drafters, self.transcript.lens)
        self.query_one(StatusLine).show(status, log)
        self.query_one(Inspector).show(log, self.source.piece, self.loaded.exact)

    @work(exclusive=True, group="fill")
    async def refresh_fill(self) -> None:
        """Count the tokens of the branch."""
        try:
            self.fill = await asyncio.to_thread(
                measure, self.source.tokenizer, self.chat.branch, self.loaded.n_ctx, system=self.chat.info.system
            )
        except LcspecError:
            self.fill = ContextFill(0, self.loaded.n_ctx)  # the message that cannot be counted is refused when sent
        self.show_figures()

    def following(self, running: bool) -> None:
        """An answer begins or has ended."""
        if self._ticker is not None:
            (self._ticker.resume if running else self._ticker.pause)()

    # ------------------------------------------------------------------ sending

    @on(PromptInput.Submitted)
    async def _submitted(self, event: PromptInput.Submitted) -> None:
        lines = event.text.splitlines()
        paths = [path for line in lines for path in file_command(line) or []]
        if paths:
            rest = "\n".join(line for line in lines if file_command(line) is None).strip()
            back = rest if await self.attach(paths) else event.text  # a path to be corrected
            if back:
                self.prompt.give_back(back + self.prompt.text)
            return
        try:
            typed = command_of(event.text) if self.editing is None else None
            if typed is not None:
                await self.command(typed)
                self.prompt.remember(event.text.strip())
                return
        except LcspecError as error:
            self.notify(sentence(str(error)), severity="error", markup=False)
            self.prompt.give_back(event.text + self.prompt.text)
            return
        if self.answering.busy:
            self.notify("It is still answering. Esc stops it.")
            self.prompt.give_back(event.text + self.prompt.text)
            return
        text = plain(event.text)
        attached = {p.attachment.path for p in self.attachments.pending}
        named = [path for path in mentions(text) if str(path.absolute()) not in attached]
        if named and await self.attach(named) < len(named):
            self.prompt.give_back(event.text + self.prompt.text)  # which file could not be read is said already
            return
        self.prompt.remember(event.text)
        absent = missing(text)
        if absent:
            self.notify(f"There is no file {absent[0]}: that was sent as text, nothing is attached.", markup=False)
        await self.send(text)

    async def command(self, typed: Typed) -> None:
        """Carry out a command.

        Raises:
            LcspecError: it cannot be; the message says why.
        """
        raise NotImplementedError

    async def send(self, text: str) -> None:
        """Add a message (or a branch with it, while editing) and ask for an answer."""
        files, edited = [p.attachment for p in self.attachments.pending], self.editing
        if edited is not None and edited.role == "assistant":
            await self._keep_edited(edited, text)
            return
        if edited is not None:
            message = self.chat.add_user(text, files, parent=edited.parent)
        else:
            message = self.chat.add_user(text, files)
        self.set_editing(None)
        await self.attachments.set([])
        await self.transcript.show(self.chat.branch)
        self.transcript.anchor()
        self.show_head()
        await self.answering.begin(message.id, asked=message)
        if edited is not None and message.id not in self.chat.tree:  # refused: it is still to be edited
            self.set_editing(edited)

    async def _keep_edited(self, answer: Message, text: str) -> None:
        """An answer that the user wrote anew stands beside the model's."""
        self.set_editing(None)
        self.chat.add_edited(answer, text)
        self.figures = SpeculationLog()  # those were the other branch's
        await self.transcript.show(self.chat.branch)
        self.transcript.anchor()
        self.refresh_fill()

    @on(TextArea.Changed)
    def _typed(self) -> None:
        self.prompt.suggest()

    async def give_back(self, message: Message) -> None:
        """Put a message that got no answer back into the input."""
        if not self.prompt.text.strip():
            self.prompt.give_back(message.text)
        await self.attach_again(message)

    async def attach(self, paths: list[Path]) -> int:
        """Read files and count their tokens; how many could be attached."""
        return sum([await self._read_and_attach(partial(read_attachment, path)) for path in paths])

    async def _read_and_attach(self, read: Callable[[], Attachment]) -> bool:
        try:
            attachment = await asyncio.to_thread(read)
            tokens = await asyncio.to_thread(count_tokens, attachment, self.source.tokenize)
        except LcspecError as error:
            self.notify(sentence(str(error)), title="Not attached", severity="error", markup=False)
            return False
        await self.attachments.set([*self.attachments.pending, Pending(attachment, tokens)])
        self._announce_size(Pending(attachment, tokens))
        return True

    def _announce_size(self, added: Pending) -> None:
        """Say at once when an attachment cannot be sent."""
        limit, name = self.loaded.n_ctx, added.attachment.name
        total = self.fill.used + sum(p.tokens for p in self.attachments.pending)
        if added.tokens >= limit:
            text = f"{name} has {added.tokens:,} tokens and the context holds {limit:,}: attach a part of it"
            if self.loaded.n_ctx_train > added.tokens:
                text += ", or load with a larger context (/set ctx, then F5)"
        elif total >= limit and self.choices.now.on_full == "stop":
            text = (
                f"With {name} the conversation has {total:,} tokens and the context holds {limit:,}: attach less, or "
                "begin a new conversation (Ctrl+N)"
            )
        else:
            return
        self.notify(f"{text}.", title="Too large", severity="warning", markup=False, timeout=10)

    async def attach_again(self, message: Message) -> None:
        """Attach what a message carried."""
        files = message.attachments
        try:
            counts = await asyncio.to_thread(lambda: [count_tokens(a, self.source.tokenize) for a in files])
        except LcspecError:
            counts = [0] * len(files)  # counted again when it is sent
        await self.attachments.set([Pending(a, n) for a, n in zip(files, counts)])

    @on(PromptInput.FilesDropped)
    async def _dropped(self, event: PromptInput.FilesDropped) -> None:
        if not await self.attach([Path(p) for p in event.paths]):
            self.prompt.insert(event.text)  # a path that was meant as text

    @on(PromptInput.LongPaste)
    async def _pasted(self, event: PromptInput.LongPaste) -> None:
        taken = [p.attachment.name for p in self.attachments.pending]
        if await self._read_and_attach(lambda: pasted_attachment(event.text, taken)):
            self.notify("The paste is attached; Backspace in the empty input takes it away.", timeout=4)

    @on(PromptInput.Emptied)
    async def _emptied(self) -> None:
        await self.attachments.drop_last()

    @on(Chip.Removed)
    async def _chip_removed(self, event: Chip.Removed) -> None:
        await self.attachments.set([p for p in self.attachments.pending if p is not event.pending])

    def set_editing(self, message: Message | None) -> None:
        """Write a message anew, or stop doing so."""
        self.editing = message
        line = self.query_one("#editing", Static)
        line.update(Content(EDITING_ANSWER if message is not None and message.role == "assistant" else EDITING))
        line.display = message is not None
