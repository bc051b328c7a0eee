"""A chat's messages as a tree in memory: branches, siblings, walking between them (no database)."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Iterable, Iterator, Mapping

from lcspec.tui.store.records import Message


class MessageTree:
    """Messages by parent. Order among siblings is the order in which they were added.

    A message whose parent is missing counts as a first message, and one message of a ring does, so that damage never
    hides text and no walk goes round in circles.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: dict[str, Message] = {}
        self._chosen: dict[str | None, str] = {}  # where each fork was left last
        self._children: dict[str | None, list[str]] | None = None  # None: to be made again
        self._parents: dict[str, str | None] = {}
        for message in messages:
            self.put(message)

    def __len__(self) -> int:
        """Messages that are not deleted, on all branches."""
        self._index()
        return len(self._parents)

    def __contains__(self, message: object) -> bool:
        """Whether a message with this id is there and not deleted."""
        self._index()
        return message in self._parents

    def __iter__(self) -> Iterator[Message]:
        """All messages that are not deleted, parents before children."""
        index = self._index()
        stack = list(reversed(index.get(None, [])))
        while stack:
            at = stack.pop()
            yield self._messages[at]
            stack += reversed(index.get(at, []))

    def get(self, message: str) -> Message:
        """The message with this id, deleted or not.

        Raises:
            KeyError: there is none.
        """
        return self._messages[message]

    @property
    def everything(self) -> Mapping[str, Message]:
        """All messages by id, deleted ones included, in order of arrival."""
        return MappingProxyType(self._messages)

    def put(self, message: Message) -> None:
        """Add a message, or replace the one with its id (which keeps its place and parent)."""
        old = self._messages.get(message.id)
        if old is not None and old.parent != message.parent:
            message = replace(message, parent=old.parent)
        self._messages[message.id] = message
        if old is None or old.deleted != message.deleted:
            self._children = None

    def children(self, message: str | None) -> tuple[Message, ...]:
        """Answers to a message, oldest first; of None: the first messages."""
        return tuple(self._messages[c] for c in self._index().get(message, []))

    def siblings(self, message: str) -> tuple[Message, ...]:
        """All messages with the same parent, itself included, oldest first: the branches at this point."""
        index = self._index()
        return self.children(self._parents[message]) if message in self._parents and index else ()

    def place(self, message: str) -> tuple[int, int]:
        """(which of its siblings it is, from 1; how many there are), for "2/3"; (0, 0) for an unknown id."""
        ids = [m.id for m in self.siblings(message)]
        return (ids.index(message) + 1, len(ids)) if ids else (0, 0)

    def branch(self, leaf: str | None) -> list[Message]:
        """Messages from a first one to `leaf`; empty for None or an unknown id."""
        self._index()
        out: list[Message] = []
        at = leaf if leaf in self._parents else None
        while at is not None:
            out.append(self._messages[at])
            at = self._parents[at]
        return out[::-1]

    def leaf_below(self, message: str | None) -> str | None:
        """The end of the branch through `message` (None: from the beginning): at every fork the child chosen last,
        else the newest."""
        index = self._index()
        if message is not None and message not in self._parents:
            return None
        at = message
        while index.get(at):
            chosen = self._chosen.get(at)
            at = chosen if chosen in index[at] else index[at][-1]
        return at

    def choose(self, leaf: str | None) -> None:
        """Remember the branch that ends in `leaf` for `leaf_below`."""
        for message in self.branch(leaf):
            self._chosen[self._parents[message.id]] = message.id

    def step(self, message: str, by: int) -> str | None:
        """The leaf to show after walking `by` siblings on from `message` (stops at both ends); None = no such id."""
        ids = [m.id for m in self.siblings(message)]
        if not ids:
            return None
        return self.leaf_below(ids[min(max(ids.index(message) + by, 0), len(ids) - 1)])

    def subtree(self, message: str) -> list[Message]:
        """The message and everything below it that is not deleted, parents first."""
        index = self._index()
        out: list[Message] = []
        stack = [message] if message in self._parents else []
        while stack:
            at = stack.pop()
            out.append(self._messages[at])
            stack += reversed(index.get(at, []))
        return out

    def _index(self) -> dict[str | None, list[str]]:
        """Children by effective parent, made again after a change of the tree's shape."""
        if self._children is not None:
            return self._children
        visible = {m.id: m for m in self._messages.values() if not m.deleted}
        parents = {m.id: m.parent if m.parent in visible else None for m in visible.values()}
        children: dict[str | None, list[str]] = {}
        for child, parent in parents.items():
            children.setdefault(parent, []).append(child)
        reached: set[str] = set()

        def reach(first: str) -> None:
            stack = [first]
            while stack:
                at = stack.pop()
                if at not in reached:
                    reached.add(at)
                    stack += children.get(at, [])

        for first in children.get(None, []):
            reach(first)
        for lost in [m for m in visible if m not in reached]:
            if lost not in reached:  # in a ring, or hanging from one
                children[parents[lost]].remove(lost)
                children.setdefault(None, []).append(lost)
                parents[lost] = None
                reach(lost)
        self._parents = parents
        self._children = children
        return children
