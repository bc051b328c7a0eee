"""The input: several lines, history, files dropped on it."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.widgets import TextArea

from lcspec.tui.attachments import pasted_paths
from lcspec.tui.completing import NOTHING, complete
from lcspec.tui.widgets.completion import CompletionList

NEWLINE_KEYS = ("shift+enter", "ctrl+j", "alt+enter")

# Characters; longer pastes are attached like a file, as every key would wait for their lines to be broken anew.
LONGEST_PASTE = 20_000


class PromptInput(TextArea):
    """Enter sends; up and down at the edges walk the history."""

    BINDINGS = [
        Binding("enter", "send", "Send", show=True),
        Binding(",".join(NEWLINE_KEYS), "newline", "New line", show=False),
        # A text area would mark text with these; here they are the screen's.
        Binding("f6", "screen.attach", show=False),
        Binding("f7", "screen.copy_answer", show=False),
    ]

    class Submitted(Message):
        """The user sends `text`."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class FilesDropped(Message):
        """Pasted text that names files which exist."""

        def __init__(self, paths: list[str], text: str) -> None:
            super().__init__()
            self.paths = paths
            self.text = text

    class LongPaste(Message):
        """Pasted text that is too long to be edited here."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Paged(Message):
        """The user scrolls the conversation by a page: `by` is -1 or 1."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    class Emptied(Message):
        """Backspace in the empty input."""

    class Interrupted(Message):
        """Ctrl+C with nothing marked."""

    def __init__(
        self, placeholder: str = "", *, completion: CompletionList | None = None, id: str | None = None
    ) -> None:
        """`completion`: the list that shows what may follow what is typed."""
        super().__init__(placeholder=placeholder, soft_wrap=True, show_line_numbers=False, tab_behavior="focus", id=id)
        self.highlight_cursor_line = False
        self.completion = completion
        self.sent: list[str] = []
        self._at: int | None = None  # place in the history; None: not walking it
        self._draft = ""

    def give_back(self, text: str) -> None:
        """Put text into the input, the cursor behind it."""
        self.text = text
        self.move_cursor(self.document.end)

    def action_send(self) -> None:
        """Send what was written."""
        text = self.text
        if not text.strip():
            return
        self._at = None
        self.text = ""  # now: what is typed before the message is handled belongs to the next one
        self.post_message(self.Submitted(text))

    def action_newline(self) -> None:
        """Begin a new line."""
        self.insert("\n")

    def remember(self, text: str) -> None:
        """Add a sent message to the history."""
        if not self.sent or self.sent[-1] != text:
            self.sent.append(text)

    def action_cursor_up(self, select: bool = False) -> None:
        """Up; in the first line, the message sent before."""
        if select or not self.cursor_at_first_line or not self.sent or self._at == 0:
            super().action_cursor_up(select)
            return
        if self._at is None:
            self._at, self._draft = len(self.sent), self.text
        self._at -= 1
        self.give_back(self.sent[self._at])

    def action_cursor_down(self, select: bool = False) -> None:
        """Down; in the last line, the message sent after."""
        if select or not self.cursor_at_last_line or self._at is None:
            super().action_cursor_down(select)
            return
        self._at += 1
        if self._at >= len(self.sent):
            self._at = None
            self.give_back(self._draft)
        else:
            self.give_back(self.sent[self._at])

    def action_delete_left(self) -> None:
        """Backspace."""
        if not self.text:
            self.post_message(self.Emptied())
        super().action_delete_left()

    def action_delete_to_start_of_line(self) -> None:
        """Ctrl+U: back to the last line break, however often the line is wrapped, as in a shell."""
        row, column = self.cursor_location
        if column:
            self._delete_via_keyboard((row, 0), (row, column))
        else:
            super().action_delete_left()

    async def action_delete_to_end_of_line_or_delete_line(self) -> None:
        """Ctrl+K: up to the next line break; there, the line break."""
        row, column = self.cursor_location
        end = len(self.document.get_line(row))
        if column < end:
            self._delete_via_keyboard((row, column), (row, end))
        else:
            self.action_delete_right()

    def action_cursor_page_up(self) -> None:
        """The input is small: the page keys scroll the conversation."""
        self.post_message(self.Paged(-1))

    def action_cursor_page_down(self) -> None:
        """As `action_cursor_page_up`."""
        self.post_message(self.Paged(1))

    async def _on_key(self, event: events.Key) -> None:
        """Enter takes its turn among the keys: a priority binding would overtake letters that are still queued."""
        if event.key == "ctrl+c" and not self.selected_text:
            event.prevent_default()
            event.stop()
            self.post_message(self.Interrupted())
            return
        if self._complete_with(event.key):
            event.prevent_default()
            event.stop()
            return
        if event.key == "enter":
            event.prevent_default()
            event.stop()
            self.action_send()

    # ------------------------------------------------------------------ completion

    @property
    def before_cursor(self) -> str:
        """The text up to the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    def suggest(self) -> None:
        """Show what may follow; nothing while the history is walked."""
        if self.completion is not None:
            self.completion.show(complete(self.before_cursor) if self._at is None else NOTHING)

    def _complete_with(self, key: str) -> bool:
        """Let the list have a key; False: it does not want it."""
        listed = self.completion
        if listed is not None and listed.open and key in ("up", "down", "escape", "tab", "enter"):
            self.suggest()  # keys may come faster than the list: it would stand for what was typed before
        if listed is None or not listed.open:
            return False
        if key in ("up", "down"):
            listed.move(-1 if key == "up" else 1)
        elif key == "escape":
            listed.show(NOTHING)
        elif key == "tab":
            self._take(listed)
        elif key == "enter" and listed.completion.kind == "command":
            chosen = listed.chosen
            if chosen is None or self.text == chosen.text.strip():
                return False
            self._take(listed)
            return not chosen.whole  # one that nothing follows is sent at once
        else:
            return False
        return True

    def _take(self, listed: CompletionList) -> None:
        """Put the highlighted candidate in."""
        chosen, before = listed.chosen, self.before_cursor
        if chosen is None:
            return
        line, column = self.cursor_location
        typed = len(before) - listed.completion.start  # never goes beyond the line
        self.replace(chosen.text, (line, column - typed), (line, column))
        self.suggest()

    async def _on_paste(self, event: events.Paste) -> None:
        """Pasted text; terminals paste the paths of files dropped on them."""
        paths = pasted_paths(event.text)
        if paths:
            event.prevent_default()
            event.stop()
            self.post_message(self.FilesDropped([str(p) for p in paths], event.text))
            return
        event.prevent_default()
        if len(event.text) > LONGEST_PASTE:
            event.stop()
            self.post_message(self.LongPaste(event.text))
            return
        await super()._on_paste(event)
