"""An open chat: its tree in memory, every change handed to the writer at once. Use it from one thread."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from lcspec.text import Piece
from lcspec.tui.attachments import Attachment
from lcspec.tui.store.records import ChatInfo, Message, State
from lcspec.tui.store.tree import MessageTree

if TYPE_CHECKING:
    from lcspec.tui.store.writer import Writer


class Parent(Enum):
    """Stands for the current leaf where None means "no parent"."""

    LEAF = "leaf"


class Answer:
    """An answer while it streams. `append` may be called from any thread, costs what the new text costs, and never
    waits for the disk."""

    id: str

    def append(self, pieces: Sequence[Piece], tokens: int = 0) -> None:
        """Add text with its drafters, and the number of tokens it came from."""
        raise NotImplementedError

    def update(self, *, seed: int | None = None, stats: Mapping[str, Any] | None = None) -> None:
        """Fill in what is known only after the start (the seed that the engine drew, say)."""
        raise NotImplementedError

    def finish(
        self,
        state: State = "done",
        *,
        stop_reason: str | None = None,
        tokens: int | None = None,
        seed: int | None = None,
        stats: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> Message:
        """End it as done, stopped or failed; written at once. A second call changes nothing."""
        raise NotImplementedError

    @property
    def message(self) -> Message:
        """What it is now."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The text so far."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """Whether `finish` was called."""
        raise NotImplementedError


class Chat:
    """A chat with its messages.

    Attributes:
        info: what is known about it (a new record after every change).
        tree: all messages. Read it; change it through this class only.
    """

    info: ChatInfo
    tree: MessageTree

    def __init__(self, info: ChatInfo, messages: Sequence[Message], writer: Writer) -> None:
        raise NotImplementedError

    @property
    def id(self) -> str:
        """The chat's id."""
        return self.info.id

    @property
    def branch(self) -> list[Message]:
        """The branch shown, from the first message to the current leaf."""
        raise NotImplementedError

    def add_user(
        self, text: str, attachments: Sequence[Attachment] = (), *, parent: str | None | Parent = Parent.LEAF
    ) -> Message:
        """Add a user's message after `parent` (default: the current leaf; None: as a first message) and show it.

        Editing an earlier message M is `add_user(new_text, M.attachments, parent=M.parent)`: a new branch.
        """
        raise NotImplementedError

    def begin_answer(
        self,
        *,
        parent: str | None = None,
        model: str | None = None,
        seed: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        speculation: str | None = None,
    ) -> Answer:
        """Add an empty answer after `parent` (default: the current leaf), show it and stream into it.

        Regenerating an answer A is `begin_answer(parent=A.parent)`: a new branch.
        """
        raise NotImplementedError

    def show(self, leaf: str | None) -> None:
        """Make `leaf` the end of the branch shown; ids that are not there are ignored."""
        raise NotImplementedError

    def walk(self, message: str, by: int) -> list[Message]:
        """Show the branch of the sibling `by` places on from `message`; returns the branch then shown."""
        raise NotImplementedError

    def remove(self, message: str) -> list[str]:
        """Take a message and everything below it away; returns the ids for `restore`. The branch before it is shown.

        For an Escape before anything came: `remove` the user's message, put its text back into the input.
        """
        raise NotImplementedError

    def restore(self, messages: Sequence[str]) -> None:
        """Undo `remove`, and show that branch again."""
        raise NotImplementedError

    def rename(self, title: str) -> None:
        """Give it a title of one line; an empty one goes back to the first message's."""
        raise NotImplementedError

    def set(self, *, system: str | None = None, model: str | None = None, preset: str | None = None) -> None:
        """Change what is given."""
        raise NotImplementedError
