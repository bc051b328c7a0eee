"""The list of conversations: search, open, rename, delete with undo, export."""

from __future__ import annotations

import datetime
from typing import NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, OptionList
from textual.widgets.option_list import Option

from lcspec.tui.screens.ask_text import AskText
from lcspec.tui.screens.export import ask_export
from lcspec.tui.store import Chat, ChatInfo, SearchHit, Store

UNTITLED = "(untitled)"


def when(seconds: float, now: float) -> str:
    """A short date: the time today, the day this year, else the year too."""
    then, today = datetime.datetime.fromtimestamp(seconds), datetime.datetime.fromtimestamp(now)
    if then.date() == today.date():
        return then.strftime("%H:%M")
    return then.strftime("%d %b" if then.year == today.year else "%d %b %Y")


MOVES = {"up": "cursor_up", "down": "cursor_down", "pageup": "page_up", "pagedown": "page_down"}


class Opened(NamedTuple):
    """What to open: a chat, and the message in it that was found."""

    chat: str
    message: str | None = None


class SearchInput(Input):
    """Has the focus all the time, so that nothing typed is lost; keys that move go to the list."""

    async def _on_key(self, event: Key) -> None:
        if event.key not in MOVES:
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()
        getattr(self.screen.query_one(OptionList), f"action_{MOVES[event.key]}")()


class ChatsScreen(ModalScreen[Opened | None]):
    """Gives what to open, or None."""

    BINDINGS = [
        Binding("escape", "cancel", "Close"),
        Binding("ctrl+r", "rename", "Rename", priority=True),
        Binding("ctrl+k", "pin", "Pin", priority=True),
        Binding("ctrl+d", "delete", "Delete", priority=True),
        Binding("ctrl+z", "undo", "Undo", priority=True),
        Binding("ctrl+e", "export", "Export", priority=True),
    ]

    class Found(Message):
        """Hits of a search."""

        def __init__(self, query: str, hits: list[SearchHit]) -> None:
            super().__init__()
            self.query_text = query
            self.hits = hits

    def __init__(self, store: Store, now: float, open_chat: Chat | None = None) -> None:
        """`open_chat` is shown behind this screen; `deleted` tells afterwards whether it still exists."""
        super().__init__()
        self.store = store
        self.now = now
        self.open_chat = open_chat
        self.rows: list[tuple[ChatInfo, str | None]] = []  # and the message that was found
        self.deleted: list[ChatInfo] = []

    def compose(self) -> ComposeResult:
        """Search field and list."""
        with Vertical(classes="dialog wide tall") as box:
            box.border_title = "Conversations"
            yield SearchInput(placeholder="type to search titles and messages", id="chats-search")
            options = OptionList(id="chats-list")
            options.can_focus = False
            yield options
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """List everything."""
        self.list_all()
        self.query_one(SearchInput).focus()

    def list_all(self) -> None:
        """Every chat, the one used last first."""
        summaries = self.store.chats()
        self._fill(
            [
                (
                    (s.info, None),
                    Content.assemble(
                        ("● " if self._open(s.info) else "▪ " if s.info.pinned else "  "),
                        (s.info.title or UNTITLED, "bold"),
                        (
                            f"  {when(s.info.updated, self.now)}, {s.n_messages} messages{', pinned' * s.info.pinned}",
                            "dim",
                        ),
                    ),
                )
                for s in summaries
            ]
        )

    def _fill(self, rows: list[tuple[tuple[ChatInfo, str | None], Content]]) -> None:
        options = self.query_one(OptionList)
        before = options.highlighted or 0
        self.rows = [found for found, _ in rows]
        options.clear_options()
        options.add_options([Option(line) for _, line in rows] or [Option("nothing here yet", disabled=True)])
        options.highlighted = min(before, len(rows) - 1) if rows else None

    @on(Input.Changed, "#chats-search")
    def _typed(self, event: Input.Changed) -> None:
        if event.value.strip():
            self.search(event.value)
        else:
            self.list_all()

    @work(thread=True, exclusive=True, group="chats-search")
    def search(self, text: str) -> None:
        """Search on a thread: a large file takes a while."""
        self.post_message(self.Found(text, self.store.search(text)))

    @on(Found)
    def _found(self, event: Found) -> None:
        if event.query_text != self.query_one("#chats-search", Input).value:
            return
        rows: list[tuple[tuple[ChatInfo, str | None], Content]] = []
        for hit in event.hits:
            excerpt = Content(hit.excerpt.replace("\n", " ")).stylize("reverse", hit.start, hit.end)
            line = Content.assemble((hit.chat.title or UNTITLED, "bold"), "\n  ", excerpt)
            rows.append(((hit.chat, hit.message), line))
        self._fill(rows)

    def _open(self, chat: ChatInfo) -> bool:
        return self.open_chat is not None and chat.id == self.open_chat.id

    @property
    def chosen(self) -> ChatInfo | None:
        """The highlighted chat."""
        at = self.query_one(OptionList).highlighted
        return self.rows[at][0] if at is not None and at < len(self.rows) else None

    @on(OptionList.OptionSelected)
    @on(Input.Submitted, "#chats-search")
    def _choose(self) -> None:
        at = self.query_one(OptionList).highlighted
        if at is not None and at < len(self.rows):
            info, message = self.rows[at]
            self.dismiss(Opened(info.id, message))

    def action_pin(self) -> None:
        """Keep the chat at the top of the list, or no longer."""
        chat = self.chosen
        if chat is not None:
            self.store.pin(chat.id, not chat.pinned)
            self.query_one(SearchInput).value = ""
            self.list_all()
            self.query_one(OptionList).highlighted = next(
                (i for i, (info, _) in enumerate(self.rows) if info.id == chat.id), None
            )

    def action_rename(self) -> None:
        """Give the chat another title."""
        chat = self.chosen
        if chat is None:
            return

        def rename(title: str | None) -> None:
            if title is None:
                return
            if self.open_chat is not None and self._open(chat):
                self.open_chat.rename(title)
            else:
                self.store.rename(chat.id, title)
            self.list_all()

        self.app.push_screen(AskText("Rename", chat.title, hint="Empty: a title from the first message."), rename)

    def action_delete(self) -> None:
        """Delete the chat; Ctrl+Z brings it back."""
        chat = self.chosen
        if chat is None:
            return
        self.deleted.append(chat)
        self.store.delete(chat.id)
        self.notify(f"Deleted {chat.title or UNTITLED!r}. Ctrl+Z brings it back.")
        self.list_all()

    def action_undo(self) -> None:
        """Bring back what was deleted last."""
        if self.deleted:
            chat = self.deleted.pop()
            self.store.undelete(chat.id)
            self.list_all()

    def action_export(self) -> None:
        """Write the chat to a file."""
        chat = self.chosen
        if chat is not None:
            ask_export(self.app, self.open_chat if self.open_chat and self._open(chat) else self.store.load(chat.id))

    def action_cancel(self) -> None:
        """Open nothing."""
        self.dismiss(None)
