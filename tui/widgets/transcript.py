"""The conversation's messages. Only those near the end are widgets; earlier ones come when they are scrolled to."""

from __future__ import annotations

from typing import Callable, Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.message import Message as TextualMessage
from textual.widgets import Static

from lcspec.tui.store import Message
from lcspec.tui.widgets.answer import AnswerView
from lcspec.tui.widgets.message import MessageView, UserView
from lcspec.tui.widgets.notice import Notice

# Messages made into widgets when a conversation is opened, for every stretch scrolled to, and kept while it goes on.
WINDOW = 14
STRETCH = 6
LIMIT = 24

PlaceOf = Callable[[str], tuple[int, int]]


class EarlierMark(Static):
    """Says how many messages are above."""

    class Pressed(TextualMessage):
        """The user wants them."""

    def on_click(self, event: Click) -> None:
        """Ask for them."""
        event.stop()
        self.post_message(self.Pressed())


class Transcript(VerticalScroll, can_focus=False):
    """Scrolls with the end while it is there; scrolled away, it stays where it is."""

    def __init__(self, place_of: PlaceOf) -> None:
        super().__init__(id="transcript")
        self.place_of = place_of
        self.lens = False
        self.branch: list[Message] = []
        self.first = 0  # index in the branch of the first message that is a widget
        self._fetching = False

    def compose(self) -> ComposeResult:
        """The mark above; messages come with `show`."""
        yield EarlierMark(id="earlier")

    def on_mount(self) -> None:
        """Stay at the end."""
        self.query_one(EarlierMark).display = False
        self.anchor()

    @property
    def views(self) -> list[MessageView]:
        """Messages that are widgets, in order."""
        return [child for child in self.children if isinstance(child, MessageView)]

    def view_of(self, message: str) -> MessageView | None:
        """The widget of a message, if it is one."""
        return next((v for v in self.views if v.message.id == message), None)

    async def show(self, branch: Sequence[Message]) -> None:
        """Show a branch: what is there already stays, everything else is replaced."""
        views = self.views
        keep = 0
        while (
            keep < len(views)
            and self.first + keep < len(branch)
            and branch[self.first + keep].id == views[keep].message.id
        ):
            keep += 1
        self.branch = list(branch)
        with self.app.batch_update():
            await self.remove_children(Notice)
            if keep:
                for view in views[keep:]:
                    await view.remove()
                start = self.first + keep
            else:
                await self.remove_children(MessageView)
                start = self.first = max(0, len(branch) - WINDOW)
            await self.mount_all([self._view(m) for m in branch[start:]])
            for view in self.views[:keep]:
                view.show_place(self.place_of(view.message.id))
            if len(self.views) > LIMIT and not self._away:
                await self._trim()
        self._mark_earlier()
        self.call_after_refresh(self._fill)

    async def say(self, notice: Notice) -> None:
        """Show a notice at the end."""
        await self.mount(notice)

    async def set_lens(self, lens: bool) -> None:
        """The lens on every answer."""
        self.lens = lens
        for view in self.views:
            if isinstance(view, AnswerView):
                await view.set_lens(lens)

    async def load_earlier(self, n: int = STRETCH) -> None:
        """Make more of the earlier messages widgets; what is on the screen stays where it is."""
        if self._fetching or not self.first:
            return
        self._fetching = True
        try:
            start = max(0, self.first - n)
            views = [self._view(m) for m in self.branch[start : self.first]]
            below = self.max_scroll_y - self.scroll_y
            self.first = start
            with self.app.batch_update():
                await self.mount_all(views, after=self.query_one(EarlierMark))
                self._mark_earlier()
            self.call_after_refresh(self._stay, below)
        finally:
            self._fetching = False

    def _stay(self, below: float) -> None:
        if self._anchor_released:
            self.scroll_to(y=self.max_scroll_y - below, animate=False, immediate=True)
        else:  # whoever follows the end goes on following it
            self.anchor()
        self._fill()

    def _fill(self) -> None:
        """Less than a screen above what is seen: the messages there are wanted."""
        if self.first and self.scroll_y <= self.size.height:
            self.call_later(self.load_earlier)

    @property
    def _away(self) -> bool:
        """Whether the user has scrolled away from the end."""
        return self.scroll_y < self.max_scroll_y - 1

    async def _trim(self) -> None:
        surplus = self.views[: len(self.views) - WINDOW]
        self.first += len(surplus)
        for view in surplus:
            await view.remove()

    def _view(self, message: Message) -> MessageView:
        place = self.place_of(message.id)
        return UserView(message, place) if message.role == "user" else AnswerView(message, place, lens=self.lens)

    def _mark_earlier(self) -> None:
        mark = self.query_one(EarlierMark)
        mark.display = self.first > 0
        mark.update(Content(f"▲ {self.first} earlier messages"))

    @on(EarlierMark.Pressed)
    async def _pressed(self, event: EarlierMark.Pressed) -> None:
        event.stop()
        await self.load_earlier()

    def watch_scroll_y(self, old: float, new: float) -> None:
        """Upwards, there may be more to load."""
        super().watch_scroll_y(old, new)
        if new < old:
            self._fill()
