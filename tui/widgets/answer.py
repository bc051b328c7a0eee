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
from lcspec.tui.markdown import parser
from lcspec.tui.store import Message, pieces_of
from lcspec.tui.widgets.message import MessageView
from lcspec.tui.wording import outcome, words


class ThinkingMark(Static):
    """The line that stands for folded reasoning."""

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
        self.text = message.text
        self.pieces: list[Piece] = pieces_of(message.text, message.spans)
        self.streaming = message.state == "streaming"
        self.unfolded = False
        self._shown = ""  # what the Markdown widget shows
        self._thought = ""
        self._stream: MarkdownStream | None = None
        self._progress = ""

    @property
    def who(self) -> str:
        """The model's name."""
        return (self.message.model or "answer").removesuffix(".gguf")

    def body(self) -> ComposeResult:
        """Reasoning (folded), Markdown, and the lens in its place."""
        yield ThinkingMark(classes="thinking-mark")
        yield Static(classes="thinking-text")
        yield Markdown(classes="answer-markdown", parser_factory=parser)
        yield Static(classes="answer-lens")

    async def on_mount(self) -> None:
        """Show what there is."""
        await super().on_mount()
        await self.refresh_text()
        self._foot()

    def add(self, pieces: Sequence[Piece]) -> None:
        """Text that arrived; it is shown by the next `refresh_text`."""
        self.pieces += pieces
        self.text += "".join(p.text for p in pieces)

    async def refresh_text(self) -> None:
        """Bring the screen up to date."""
        if not self.is_attached or not self.query(Markdown):
            return
        markdown, lens = self.query_one(Markdown), self.query_one(".answer-lens", Static)
        markdown.display, lens.display = not self.lens, self.lens
        if self.lens:
            lens.update(tinted(self.pieces, colour=not self.app.no_color))
            self._show_thinking("", closed=True)
            return
        parts = split_reasoning(self.text, streaming=self.streaming)
        thought = "\n\n".join(self.text[p.start : p.end].strip() for p in parts if p.kind == "reasoning")
        answer = "".join(self.text[p.start : p.end] for p in parts if p.kind == "answer")
        self._show_thinking(thought, closed=bool(answer) or not self.streaming)
        await self._write(answer.lstrip("\n"))

    async def _write(self, answer: str) -> None:
        """Append what is new; anything else, and the end of the stream, is one full update."""
        markdown = self.query_one(Markdown)
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
        self._foot()

    async def set_lens(self, lens: bool) -> None:
        """Show who drafted what, or the Markdown."""
        if lens != self.lens:
            self.lens = lens
            await self.refresh_text()

    def show_progress(self, text: str) -> None:
        """What goes on before the first token."""
        if text != self._progress:
            self._progress = text
            self._foot()

    def toggle_thinking(self) -> None:
        """Fold or unfold the reasoning."""
        self.unfolded = not self.unfolded
        self._show_thinking(self._thought, closed=not self.streaming or bool(self._shown))

    def _show_thinking(self, thought: str, closed: bool) -> None:
        mark, text = self.query_one(ThinkingMark), self.query_one(".thinking-text", Static)
        self._thought = thought or self._thought
        mark.display, text.display = bool(thought), bool(thought) and self.unfolded
        if thought:
            arrow, verb = ("▾" if self.unfolded else "▸"), ("Thought" if closed else "Thinking")
            mark.update(Content(f"{arrow} {verb}: {words(thought)}"))
            if self.unfolded:
                text.update(Content(thought))

    def _foot(self) -> None:
        if self.message.state == "failed":
            self.show_foot(Content.assemble((f"failed: {self.message.error or 'no reason given'}", "$text-error")))
        elif self.streaming:
            self.show_foot(Content(self._progress))
        else:
            self.show_foot(Content(outcome(self.message)))
