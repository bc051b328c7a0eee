"""The conversation's messages. Only those around what is seen are widgets: others come, ahead of being scrolled to,
and those that are left far behind go."""

from __future__ import annotations

from itertools import takewhile
from typing import Callable, NamedTuple, Sequence

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
STRETCH = 4
LIMIT = 24
# Screens of messages that are there before they are seen, and screens after which those left behind go.
AHEAD = 2
BEHIND = 4

PlaceOf = Callable[[str], tuple[int, int]]


class Held(NamedTuple):
    """A message that keeps its place on the screen while others come and go."""

    view: MessageView
    y: int  # its row among all before they do


class MoreMark(Static):
    """Says how many messages are above, or below."""

    class Pressed(TextualMessage):
        """The user wants them."""

        def __init__(self, mark: MoreMark) -> None:
            super().__init__()
            self.mark = mark

    def on_click(self, event: Click) -> None:
        """Ask for them."""
        event.stop()
        self.post_message(self.Pressed(self))

    def count(self, n: int) -> None:
        """Say so, or hide."""
        self.display = n > 0
        arrow, where = ("▲", "earlier") if self.id == "earlier" else ("▼", "later")
        self.update(Content(f"{arrow} {n} {where} message{'' if n == 1 else 's'}"))


class Transcript(VerticalScroll, can_focus=False):
    """Scrolls with the end while it is there; scrolled away, it stays where it is."""

    # Of the messages: here they are worked out once, and not for every message.
    COMPONENT_CLASSES = {
        "em", "strong", "s", "code_inline", "code-block", "math", "heading-1", "heading-2", "heading-3", "quote",
        "quote-text", "bullet", "rule", "table-head", "thinking-mark", "thinking-text", "user-head", "assistant-head",
        "message-place", "message-foot", "message-error",
    }  # fmt: skip

    def __init__(self, place_of: PlaceOf) -> None:
        super().__init__(id="transcript")
        self.place_of = place_of
        self.lens = False
        self.branch: list[Message] = []
        self._index: dict[str, int] = {}  # of a message's id in the branch
        self.fetching = False  # from when others begin to come until they have their place

    def compose(self) -> ComposeResult:
        """The marks; messages come between them with `show`."""
        yield MoreMark(id="earlier")
        yield MoreMark(id="later")

    def on_mount(self) -> None:
        """Stay at the end."""
        self._mark()
        self.anchor()

    @property
    def views(self) -> list[MessageView]:
        """Messages that are widgets, in order."""
        return [child for child in self.children if isinstance(child, MessageView)]

    @property
    def first(self) -> int:
        """Index in the branch of the first message that is a widget."""
        return next((self._index[v.message.id] for v in self.views if v.message.id in self._index), 0)

    @property
    def last(self) -> int:
        """Index in the branch behind the last message that is a widget."""
        return next((self._index[v.message.id] + 1 for v in reversed(self.views) if v.message.id in self._index), 0)

    def view_of(self, message: str) -> MessageView | None:
        """The widget of a message, if it is one."""
        return next((v for v in self.views if v.message.id == message), None)

    async def show(self, branch: Sequence[Message]) -> None:
        """Show the end of a branch: what is there already stays, everything else is replaced."""
        views, first = self.views, self.first
        ids = [message.id for message in branch[first : first + len(views)]]
        keep = sum(1 for _ in takewhile(lambda pair: pair[0].message.id == pair[1], zip(views, ids)))
        if len(branch) - (first + keep) > WINDOW:
            keep = 0  # the end is far away: nothing of what is there stays
        self.branch = list(branch)
        self._index = {message.id: i for i, message in enumerate(branch)}
        with self.app.batch_update():
            await self.remove_children(Notice)
            await self.remove_children(views[keep:])
            await self._mount_at(first + keep if keep else max(0, len(branch) - WINDOW), len(branch))
            for view in self.views[:keep]:
                view.show_place(self.place_of(view.message.id))
            if len(self.views) > LIMIT and not self._away:
                await self.remove_children(self.views[:-WINDOW])
        self._mark()
        self.call_after_refresh(self._fill)

    async def to_end(self) -> None:
        """To the latest message, wherever the user has scrolled to."""
        if self.last < len(self.branch):
            await self.show(self.branch)
        self.anchor()

    async def go_to(self, message: str) -> None:
        """Show the messages around one of the branch, and give it the focus."""
        at = self._index.get(message)
        if at is None:
            return
        if self.view_of(message) is None:
            with self.app.batch_update():
                await self.remove_children(Notice)
                await self.remove_children(self.views)
                await self._mount_at(max(0, at - WINDOW // 2), min(len(self.branch), at + WINDOW // 2 + 1))
            self._mark()
        self.release_anchor()
        view = self.view_of(message)
        if view is not None:
            view.focus(scroll_visible=False)
            self.call_after_refresh(self.scroll_to_widget, view, animate=False, top=True)

    async def say(self, notice: Notice) -> None:
        """Show a notice at the end."""
        if self.last < len(self.branch):
            await self.show(self.branch)
        await self.mount(notice)

    def set_lens(self, lens: bool) -> None:
        """The lens on every answer."""
        self.lens = lens
        for view in self.views:
            if isinstance(view, AnswerView):
                view.set_lens(lens)

    # ------------------------------------------------------------------ coming and going

    async def load_earlier(self, n: int = STRETCH) -> None:
        """Make more of the earlier messages widgets; what is on the screen stays where it is."""
        if self.fetching or not self.first:
            return
        self.fetching = True
        held, shifted = self._hold(), 0.0
        try:
            with self.app.batch_update():
                await self.remove_children(self._far_below())
                views = self._views(max(0, self.first - n), self.first)
                await self.mount_all(views, after=self.query_one("#earlier"))
                self._mark()
                shifted = self._shift(self._height_of(views))
        finally:
            self.call_after_refresh(self._stay, held, shifted)

    async def load_later(self, n: int = STRETCH) -> None:
        """Make more of the later messages widgets, after the user has been far above."""
        if self.fetching or self.last >= len(self.branch):
            return
        self.fetching = True
        self.release_anchor()  # what is added at the end is not to be followed
        held, shifted = self._hold(), 0.0
        try:
            with self.app.batch_update():
                await self._mount_at(self.last, min(len(self.branch), self.last + n))
                far = self._far_above()
                gone = sum(view.outer_size.height + view.styles.margin.height for view in far)
                await self.remove_children(far)
                self._mark()
                shifted = self._shift(-gone)
        finally:
            self.call_after_refresh(self._stay, held, shifted)

    def _hold(self) -> Held | None:
        """The first message that is seen."""
        return next((Held(v, v.virtual_region.y) for v in self.views if v.virtual_region.bottom > self.scroll_y), None)

    def _shift(self, rows: int) -> float:
        """Scroll along with what comes or goes above, in the same picture; the rows that there was room for."""
        before = self.scroll_y
        if rows and (self._anchor_released or self.last < len(self.branch)):
            self.scroll_to(y=max(0, self.scroll_y + rows), animate=False, immediate=True)
            self.release_anchor()  # as far as there is room yet is not the end
        return self.scroll_y - before

    def _stay(self, held: Held | None, shifted: float) -> None:
        """Scroll by what the message held has moved but for `shifted` (nothing, if the heights were foreseen rightly),
        so that whatever the user has scrolled meanwhile stays scrolled."""
        self.fetching = False
        if not self._anchor_released and self.last >= len(self.branch):
            self.anchor()  # whoever follows the end goes on following it
        elif held is not None and held.view.is_attached:
            missing = held.view.virtual_region.y - held.y - shifted
            if missing:
                self.scroll_to(y=self.scroll_y + missing, animate=False, immediate=True)
        self._fill()

    def _fill(self) -> None:
        """Messages that will be seen when the user goes on scrolling are wanted."""
        ahead = AHEAD * self.size.height
        if self.first and self.scroll_y <= ahead:
            self.call_later(self.load_earlier)
        elif self.last < len(self.branch) and self.max_scroll_y - self.scroll_y <= ahead:
            self.call_later(self.load_later)

    def _far_below(self) -> list[MessageView]:
        """Messages far below what is seen, but for those that must stay."""
        if self.query(Notice) or (self.branch and self.branch[-1].state == "streaming"):
            return []
        limit = self.scroll_y + (1 + BEHIND) * self.size.height
        return list(takewhile(lambda v: v.virtual_region.y > limit and not v.has_focus, reversed(self.views)))

    def _far_above(self) -> list[MessageView]:
        limit = self.scroll_y - BEHIND * self.size.height
        return list(takewhile(lambda v: v.virtual_region.bottom < limit and not v.has_focus, self.views))

    def _height_of(self, new: Sequence[MessageView]) -> int:
        """Rows that new messages will take."""
        known = next((v for v in self.views if v not in new), None)
        if known is None or not known.content_size.width:
            return 0
        width, more = known.content_size.width, known.outer_size.height - known.content_size.height
        return sum(len(view.lines(width)) + more + known.styles.margin.height for view in new)

    async def _mount_at(self, start: int, end: int) -> None:
        await self.mount_all(self._views(start, end), before=self.query_one("#later"))

    def _views(self, start: int, end: int) -> list[MessageView]:
        return [self._view(message) for message in self.branch[start:end]]

    def _view(self, message: Message) -> MessageView:
        place = self.place_of(message.id)
        return UserView(message, place) if message.role == "user" else AnswerView(message, place, lens=self.lens)

    @property
    def _away(self) -> bool:
        """Whether the user has scrolled away from the end."""
        return self.scroll_y < self.max_scroll_y - 1

    def _mark(self) -> None:
        self.query_one("#earlier", MoreMark).count(self.first)
        self.query_one("#later", MoreMark).count(len(self.branch) - self.last)

    @on(MoreMark.Pressed)
    async def _pressed(self, event: MoreMark.Pressed) -> None:
        event.stop()
        await (self.load_earlier() if event.mark.id == "earlier" else self.to_end())

    def watch_scroll_y(self, old: float, new: float) -> None:
        """There may be more to load."""
        super().watch_scroll_y(old, new)
        if new != old:
            self._fill()
