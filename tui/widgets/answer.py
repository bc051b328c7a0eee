"""An answer in the transcript: Markdown that grows, its reasoning folded, and the same text through the lens."""

from __future__ import annotations

from typing import Sequence

from textual.content import Content
from textual.events import Click

from lcspec.answers.text import Piece
from lcspec.tui.conversation import split_reasoning
from lcspec.tui.document import MIN_WIDTH, Document, wrapped
from lcspec.tui.lens import tinted
from lcspec.tui.store import Message, pieces_of
from lcspec.tui.widgets.message import INDENT, MessageView, indented
from lcspec.tui.wording import outcome, words

THOUGHT_BAR = "▏ "


class AnswerView(MessageView):
    """A model's answer."""

    def __init__(self, message: Message, place: tuple[int, int] = (1, 1), *, lens: bool = False) -> None:
        super().__init__(message, place)
        self.lens = lens
        self.text = message.text
        self.pieces: list[Piece] = pieces_of(message.text, message.spans)
        self.streaming = message.state == "streaming"
        self.unfolded = False
        self.document = Document(INDENT)
        self.thought = ""
        self._answered = False
        self._progress = ""
        self._read()

    @property
    def who(self) -> str:
        """The model's name."""
        return (self.message.model or "answer").removesuffix(".gguf")

    @property
    def foot(self) -> Content | None:
        """Why it ended, and its figures; while it streams, what goes on."""
        if self.message.state == "failed":
            return Content.styled(f"failed: {self.message.error or 'no reason given'}", ".message-error")
        text = self._progress if self.streaming else outcome(self.message)
        return Content(text) if text else None

    def body(self, width: int) -> Sequence[Content]:
        """The Markdown below its folded reasoning, or the lens."""
        if self.lens:
            tints = tinted(self.pieces, colour=not self.app.no_color)
            return indented(wrapped(tints.rstrip(), max(MIN_WIDTH, width - len(INDENT))))
        return [*self._thinking(width), *self.document.lines(width)]

    def _thinking(self, width: int) -> list[Content]:
        if not self.thought:
            return []
        title = f"{'▾' if self.unfolded else '▸'} {self._thinking_title}"
        lines = [Content(INDENT) + Content.styled(f"{title}: {words(self.thought)}", ".thinking-mark")]
        if self.unfolded:
            bar = Content.styled(INDENT + THOUGHT_BAR, ".thinking-text")
            room = max(MIN_WIDTH, width - bar.cell_length)
            lines += [bar + line for line in wrapped(Content.styled(self.thought, ".thinking-text"), room)]
            lines += [Content("")]
        return lines

    @property
    def _thinking_title(self) -> str:
        if self._answered:
            return "Thought"
        return "Thinking" if self.streaming else "It ended while it was thinking"

    def add(self, pieces: Sequence[Piece]) -> None:
        """Text that arrived; it is shown by the next `refresh_text`."""
        self.pieces += pieces
        self.text += "".join(p.text for p in pieces)

    def refresh_text(self) -> None:
        """Bring the screen up to date."""
        self._read()
        self.changed()

    def _read(self) -> None:
        """Tell reasoning and answer apart."""
        parts = split_reasoning(self.text, streaming=self.streaming)
        self.thought = "\n\n".join(self.text[p.start : p.end].strip() for p in parts if p.kind == "reasoning")
        answer = "".join(self.text[p.start : p.end] for p in parts if p.kind == "answer")
        self._answered = bool(answer.strip())
        if self.thought and not self._answered and not self.streaming:
            self.unfolded = True  # there is nothing else to see
        self.document.update(answer.strip("\n"), growing=self.streaming)

    def finish(self, message: Message) -> None:
        """The answer ended."""
        self.message, self.text, self.streaming = message, message.text, False
        self.pieces = pieces_of(message.text, message.spans)
        self._progress = ""
        self.refresh_text()

    def resume(self, message: Message) -> None:
        """The answer goes on."""
        self.message, self.text, self.streaming = message, message.text, True
        self.pieces = pieces_of(message.text, message.spans)
        self.refresh_text()

    def set_lens(self, lens: bool) -> None:
        """Show who drafted what, or the Markdown."""
        if lens != self.lens:
            self.lens = lens
            self.changed()

    def show_progress(self, text: str) -> None:
        """What goes on before the first token."""
        if text != self._progress:
            self._progress = text
            self.changed()

    def toggle_thinking(self) -> None:
        """Fold or unfold the reasoning."""
        self.unfolded = not self.unfolded
        self.changed()

    def on_click(self, event: Click) -> None:
        """A click on the line that stands for the reasoning folds or unfolds it."""
        at = event.get_content_offset(self)
        if at is not None and at.y == 1 and self.thought and not self.lens:
            event.stop()
            self.toggle_thinking()
        else:
            super().on_click(event)
