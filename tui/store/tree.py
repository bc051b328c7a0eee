"""A chat's messages as a tree in memory: branches, siblings, walking between them (no database)."""

from __future__ import annotations

from typing import Iterable, Iterator

from lcspec.tui.store.records import Message


class MessageTree:
    """Messages by parent. Order among siblings is the order in which they were added.

    A message whose parent is missing counts as a first message, so that damage never hides text.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: dict[str, Message] = {}
        self._children: dict[str | None, list[str]] = {}
        self._chosen: dict[str | None, str] = {}  # where each branching was left last
        raise NotImplementedError

    def __len__(self) -> int:
        """Messages that are not deleted, on all branches."""
        raise NotImplementedError

    def __contains__(self, message: object) -> bool:
        """Whether a message with this id is there and not deleted."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Message]:
        """All messages that are not deleted, parents before children."""
        raise NotImplementedError

    def get(self, message: str) -> Message:
        """The message with this id.

        Raises:
            KeyError: there is none.
        """
        raise NotImplementedError

    def put(self, message: Message) -> None:
        """Add a message, or replace the one with its id (which keeps its place and parent)."""
        raise NotImplementedError

    def children(self, message: str | None) -> tuple[Message, ...]:
        """Answers to a message, oldest first; of None: the first messages."""
        raise NotImplementedError

    def siblings(self, message: str) -> tuple[Message, ...]:
        """All messages with the same parent, itself included, oldest first: the branches at this point."""
        raise NotImplementedError

    def place(self, message: str) -> tuple[int, int]:
        """(which of its siblings it is, from 1; how many there are), for "2/3"."""
        raise NotImplementedError

    def branch(self, leaf: str | None) -> list[Message]:
        """Messages from a first one to `leaf`; empty for None or an unknown id."""
        raise NotImplementedError

    def leaf_below(self, message: str | None) -> str | None:
        """The end of the branch through `message`: at every fork the child chosen last, else the newest."""
        raise NotImplementedError

    def choose(self, leaf: str | None) -> None:
        """Remember the branch that ends in `leaf` for `leaf_below`."""
        raise NotImplementedError

    def step(self, message: str, by: int) -> str | None:
        """The leaf to show after walking `by` siblings on from `message` (stops at both ends); None = no such id."""
        raise NotImplementedError

    def subtree(self, message: str) -> list[Message]:
        """The message and everything below it, parents first, deleted ones included."""
        raise NotImplementedError
