"""An open chat: its tree in memory, every change handed to the writer at once. Use it from one thread."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from lcspec.tui.attachments import Attachment
from lcspec.tui.store.answer import Answer
from lcspec.tui.store.records import ChatInfo, Message, clean, new_id, now, title_of
from lcspec.tui.store.tree import MessageTree

if TYPE_CHECKING:
    from lcspec.tui.store.writer import Writer


class Parent(Enum):
    """Stands for the current leaf where None means "no parent"."""

    LEAF = "leaf"


class Chat:
    """A chat with its messages.

    Attributes:
        info: what is known about it (a new record after every change).
        tree: all messages. Read it; change it through this class only.
    """

    def __init__(self, info: ChatInfo, messages: Sequence[Message], writer: Writer) -> None:
        self.info = info
        self.tree = MessageTree(messages)
        self._writer = writer
        self._live: dict[str, Answer] = {}
        self.tree.choose(info.leaf)
        if info.leaf not in self.tree:  # never written, or taken away by another program
            self.info = replace(info, leaf=self.tree.leaf_below(None))

    @property
    def id(self) -> str:
        """The chat's id."""
        return self.info.id

    @property
    def branch(self) -> list[Message]:
        """The branch shown, from the first message to the current leaf, with what has streamed so far."""
        return [self.message(m.id) for m in self.tree.branch(self.info.leaf)]

    def message(self, message: str) -> Message:
        """A message as it is now, also while it streams.

        Raises:
            KeyError: there is none with this id.
        """
        live = self._live.get(message)
        return self.tree.get(message) if live is None else live.message

    @property
    def streaming(self) -> Answer | None:
        """The answer that streams now, if one does."""
        return next(iter(self._live.values()), None)

    def add_user(
        self, text: str, attachments: Sequence[Attachment] = (), *, parent: str | None | Parent = Parent.LEAF
    ) -> Message:
        """Add a user's message after `parent` (default: the current leaf; None: as a first message) and show it.

        Editing an earlier message M is `add_user(new_text, M.attachments, parent=M.parent)`: a new branch.
        """
        above = self.info.leaf if isinstance(parent, Parent) else parent
        message = Message(
            new_id(), self.id, above, "user", clean(text), tuple(attachments), created=now(), updated=now()
        )
        self._add(message)
        return message

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
        message = Message(
            new_id(),
            self.id,
            parent if parent is not None else self.info.leaf,
            "assistant",
            model=model,
            seed=seed,
            sampling=dict(sampling or {}),
            speculation=speculation,
            tokens=0,
            state="streaming",
            created=now(),
            updated=now(),
        )
        answer = Answer(message, self._writer, self._finished)
        self._live[message.id] = answer
        self._add(message)
        return answer

    def continue_answer(self, message: str) -> Answer:
        """Stream on into an answer that was cut, stopped or edited.

        Raises:
            KeyError: there is none with this id.
        """
        found = replace(self.tree.get(message), state="streaming", stop_reason=None, error=None, updated=now())
        answer = Answer(found, self._writer, self._finished)
        self._live[message] = answer
        self.tree.put(found)
        self._writer.put_message(found)
        return answer

    def add_edited(self, answer: Message, text: str) -> Message:
        """Put `text` beside an answer, as another branch, and show it."""
        message = Message(
            new_id(),
            self.id,
            answer.parent,
            "assistant",
            clean(text),
            model=answer.model,
            stop_reason="edited",
            created=now(),
            updated=now(),
        )
        self._add(message)
        return message

    def show(self, leaf: str | None) -> None:
        """Make `leaf` the end of the branch shown; ids that are not there are ignored."""
        if leaf != self.info.leaf and (leaf is None or leaf in self.tree):
            self.tree.choose(leaf)
            self._change(leaf=leaf)

    def walk(self, message: str, by: int) -> list[Message]:
        """Show the branch of the sibling `by` places on from `message`; returns the branch then shown."""
        self.show(self.tree.step(message, by) or self.info.leaf)
        return self.branch

    def remove(self, message: str) -> list[str]:
        """Take a message and everything below it away; returns the ids for `restore`.

        The branch shown then ends before it, or goes on with a sibling if it has one. For an Escape before anything
        came: `remove` the user's message and put its text back into the input.
        """
        gone = [m.id for m in self.tree.subtree(message)]
        if not gone:
            return []
        branch = self.tree.branch(message)
        parent = branch[-2].id if len(branch) > 1 else None
        self._set_deleted(gone, True)
        if self.info.leaf in gone:
            self._change(leaf=self.tree.leaf_below(parent))
        return gone

    def restore(self, messages: Sequence[str]) -> None:
        """Undo `remove`, and show that branch again."""
        known = [m for m in messages if m in self.tree.everything]
        self._set_deleted(known, False)
        if known:
            self.show(self.tree.leaf_below(known[0]))

    def rename(self, title: str) -> None:
        """Give it a title of one line; an empty one goes back to the first message's."""
        title = " ".join(clean(title).split())
        if not title:
            first = next(iter(self.tree.children(None)), None)
            title = title_of(first.text) if first else ""
        self._change(title=title)

    def set(self, *, system: str | None = None, model: str | None = None, preset: str | None = None) -> None:
        """Change what is given ("" takes a system prompt away)."""
        given: dict[str, Any] = {"system": system, "model": model, "preset": preset}
        self._change(**{k: v for k, v in given.items() if v is not None})

    def pin(self, pinned: bool) -> None:
        """Keep it at the top of the list of chats, or not."""
        self._change(pinned=pinned)

    def set_deleted(self, deleted: bool) -> None:
        """Delete the whole chat, or undo that (`Store.delete`)."""
        self._change(deleted=now() if deleted else None)

    def write_all(self) -> None:
        """Hand everything to the writer once more. May be called from any thread."""
        messages = list(self.tree.everything.values())
        live = dict(self._live)
        if messages:
            current = [live[m.id].message if m.id in live else m for m in messages]
            self._writer.put_chat(self.info, messages=current)

    # ------------------------------------------------------------ inside

    def _add(self, message: Message) -> None:
        self.tree.put(message)
        self.tree.choose(message.id)
        title = self.info.title or title_of(message.text) or "".join(a.name for a in message.attachments[:1])
        # A new message brings a chat back that another program deleted.
        self._change(added=(message,), leaf=message.id, title=title, deleted=None)

    def _finished(self, message: Message) -> None:
        if self._live.pop(message.id, None) is not None:
            self.tree.put(message)
            self._change()

    def _set_deleted(self, messages: Sequence[str], deleted: bool) -> None:
        for number in messages:
            live = self._live.get(number)
            if live is None:
                message = replace(self.tree.get(number), deleted=deleted, updated=now())
            else:
                message = live.mark_deleted(deleted)
            self.tree.put(message)
            self._writer.put_message(message)

    def _change(self, *, added: Sequence[Message] = (), **changes: Any) -> None:
        fields = {k for k, v in changes.items() if getattr(self.info, k) != v} | {"updated"}
        fields |= {"deleted"} if added else set()
        self.info = replace(self.info, **changes, updated=now())
        if self.tree.everything:  # an unused chat leaves nothing behind
            self._writer.put_chat(self.info, fields, bump=bool(added), messages=added)
