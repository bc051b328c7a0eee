"""An answer in the transcript: Markdown that grows, its reasoning folded, and the same text through the lens."""

from __future__ import annotations

from typing import Sequence

from textual.app import ComposeResult
from textual.content import Content
from textual.events import Click
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from lcspec.text import Piece
from lcspec.tui.conversation import split_reasoning
from lcspec.tui.lens import tinted
from lcspec.tui.store import Message, pieces_of
from lcspec.tui.widgets.growing import GrowingMarkdown
from lcspec.tui.widgets.message import MessageView
from lcspec.tui.wording import outcome, words


class ThinkingMark(Static):
    """The line that stands for folded reasoning."""

    DEFAULT_CLASSES = "thinking-mark"

    def on_click(self, event: Click) -> None:
        """Fold or unfold."""
        event.stop()
        view = self.parent
        if isinstance(view, AnswerView):
            view.toggle_thinking()


class AnswerView(MessageView):
    """A model's answer."""

    def __init__(self, message: Message, place: tuple[int, int] = (1, 1), *, lens: bool = False) -> None:
        super().__init__(message, place)
        self.lens = lens
        self.set_class(lens, "-lens")
        self.text = message.text
        self.pieces: list[Piece] = pieces_of(message.text, message.spans)
        self.streaming = message.state == "streaming"
        self.unfolded = False
        self._shown = ""  # what the Markdown widget shows
        self._thought = ("", "")  # a title, and the reasoning itself
        self._stream: MarkdownStream | None = None
        self._progress = ""

    @property
    def who(self) -> str:
        """The model's name."""
        return (self.message.model or "answer").removesuffix(".gguf")

    def body(self) -> ComposeResult:
        """The Markdown; what few answers need (reasoning, lens) is made when it is needed."""
        yield GrowingMarkdown()

    @property
    def foot(self) -> Content | None:
        """Why it ended, and its figures; while it streams, what goes on."""
        if self.message.state == "failed":
            return Content.assemble((f"failed: {self.message.error or 'no reason given'}", "$text-error"))
        return Content(self._progress if self.streaming else outcome(self.message))

    async def on_mount(self) -> None:
        """Show what there is."""
        await self.refresh_text()

    def add(self, pieces: Sequence[Piece]) -> None:
        """Text that arrived; it is shown by the next `refresh_text`."""
        self.pieces += pieces
        self.text += "".join(p.text for p in pieces)

    async def refresh_text(self) -> None:
        """Bring the screen up to date."""
        if not self.is_attached or not self.query(Markdown):
            return
        if self.lens:
            await self._show_lens()
            return
        parts = split_reasoning(self.text, streaming=self.streaming)
        thought = "\n\n".join(self.text[p.start : p.end].strip() for p in parts if p.kind == "reasoning")
        answer = "".join(self.text[p.start : p.end] for p in parts if p.kind == "answer")
        if thought:
            await self._show_thinking(thought, closed=bool(answer) or not self.streaming)
        await self._write(answer.lstrip("\n"))

    async def _show_lens(self) -> None:
        if not self.query(".answer-lens"):
            await self.mount(Static(classes="answer-lens"), after=self.query_one(Markdown))
        self.query_one(".answer-lens", Static).update(tinted(self.pieces, colour=not self.app.no_color))

    async def _write(self, answer: str) -> None:
        """Append what is new; anything else, and the end of the stream, is one full update."""
        markdown = self.query_one(GrowingMarkdown)
        markdown.growing = self.streaming
        if self.streaming and answer.startswith(self._shown):
            if self._stream is None:
                self._stream = Markdown.get_stream(markdown)
            fragment, self._shown = answer[len(self._shown) :], answer
            await self._stream.write(fragment)
            return
        await self._close_stream()
        self._shown = answer
        await markdown.update(answer)

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.stop()

    async def finish(self, message: Message) -> None:
        """The answer ended: one full update, because fences that were streamed may be shown blank."""
        self.message, self.text, self.streaming = message, message.text, False
        self.pieces = pieces_of(message.text, message.spans)
        await self._close_stream()
        self._progress = ""
        await self.refresh_text()
        self._show_foot()

    async def set_lens(self, lens: bool) -> None:
        """Show who drafted what, or the Markdown."""
        if lens != self.lens:
            self.lens = lens
            self.set_class(lens, "-lens")
            await self.refresh_text()

    def show_progress(self, text: str) -> None:
        """What goes on before the first token."""
        if text != self._progress:
            self._progress = text
            self._show_foot()

    def toggle_thinking(self) -> None:
        """Fold or unfold the reasoning."""
        self.unfolded = not self.unfolded
        self._fold()

    async def _show_thinking(self, thought: str, closed: bool) -> None:
        if not self.query(ThinkingMark):
            await self.mount(ThinkingMark(), Static(classes="thinking-text"), before=self.query_one(Markdown))
        self._thought = f"{'Thought' if closed else 'Thinking'}: {words(thought)}", thought
        self._fold()

    def _fold(self) -> None:
        if self.query(ThinkingMark):
            title, thought = self._thought
            self.query_one(ThinkingMark).update(Content(f"{'▾' if self.unfolded else '▸'} {title}"))
            text = self.query_one(".thinking-text", Static)
            text.display = self.unfolded
            if self.unfolded:
                text.update(Content(thought))

    def _show_foot(self) -> None:
        self.query_one(".message-foot", Static).update(self.foot or Content(""))
