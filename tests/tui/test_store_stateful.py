"""Random use of the store with restarts in between: after each, everything is as the open chats had it."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lcspec.answers.text import Piece
from lcspec.tui.store import Answer, Chat, ChatInfo, Message, Store

pytestmark = pytest.mark.slow

TEXT = st.text(max_size=8)
PICK = st.integers(0, 1000)


class Using(RuleBasedStateMachine):
    """Chats are kept open here until a restart; `order` is the order of use, the last one first."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store(self.folder / "chats.db")
        self.chats: dict[str, Chat] = {}
        self.order: list[str] = []
        self.answers: list[tuple[str, Answer]] = []
        self.removed: list[tuple[str, list[str]]] = []

    def chat(self, pick: int) -> Chat:
        return list(self.chats.values())[pick % len(self.chats)]

    def message(self, chat: Chat, pick: int) -> Message | None:
        messages = list(chat.tree)
        return messages[pick % len(messages)] if messages else None

    def used(self, chat: Chat) -> None:
        self.order = [chat.id, *(n for n in self.order if n != chat.id)]

    @rule(text=TEXT, title=TEXT)
    def create(self, text: str, title: str) -> None:
        chat = self.store.create(title=title)
        chat.add_user(text)
        self.chats[chat.id] = chat
        self.used(chat)

    @precondition(lambda self: self.chats)
    @rule(pick=PICK, where=PICK, text=TEXT, edit=st.booleans())
    def ask(self, pick: int, where: int, text: str, edit: bool) -> None:
        chat = self.chat(pick)
        message = self.message(chat, where)
        if edit and message is not None:
            chat.add_user(text, parent=message.parent)
        else:
            chat.add_user(text)
        self.used(chat)

    @precondition(lambda self: self.chats)
    @rule(pick=PICK, seed=st.integers(0, 2**64 - 1))
    def begin(self, pick: int, seed: int) -> None:
        chat = self.chat(pick)
        self.answers.append((chat.id, chat.begin_answer(seed=seed, sampling={"top_k": 4})))
        self.used(chat)

    @precondition(lambda self: self.answers)
    @rule(pick=PICK, text=TEXT, drafter=st.sampled_from([None, "ngram", "model"]), end=st.booleans())
    def stream(self, pick: int, text: str, drafter: str | None, end: bool) -> None:
        at = pick % len(self.answers)
        answer = self.answers[at][1]
        answer.append([Piece(text, drafter)], 1)
        if end:
            answer.finish(stop_reason="stop", stats={"n": pick})
            del self.answers[at]

    @precondition(lambda self: self.chats)
    @rule(pick=PICK, where=PICK, by=st.integers(-2, 2))
    def walk(self, pick: int, where: int, by: int) -> None:
        chat = self.chat(pick)
        message = self.message(chat, where)
        if message is not None:
            chat.walk(message.id, by)

    @precondition(lambda self: self.chats)
    @rule(pick=PICK, where=PICK)
    def remove(self, pick: int, where: int) -> None:
        chat = self.chat(pick)
        message = self.message(chat, where)
        if message is not None:
            self.removed.append((chat.id, chat.remove(message.id)))

    @precondition(lambda self: self.removed)
    @rule()
    def restore(self) -> None:
        number, messages = self.removed.pop()
        self.chats[number].restore(messages)

    @precondition(lambda self: self.chats)
    @rule(pick=PICK, title=TEXT, deleted=st.booleans())
    def rename_and_delete(self, pick: int, title: str, deleted: bool) -> None:
        chat = self.chat(pick)
        self.store.rename(chat.id, title)
        (self.store.delete if deleted else self.store.undelete)(chat.id)

    @rule(kill=st.booleans())
    def restart(self, kill: bool) -> None:
        """With `kill`, the old store is not closed: another program opens the file beside it."""
        if not kill:
            for _, answer in self.answers:
                answer.finish("stopped", stop_reason="cancelled")
        assert self.store.flush(60), self.store.problem
        before = {n: (c.info, [c.message(m.id) for m in c.tree], c.branch) for n, c in self.chats.items()}
        old = self.store
        if not kill:
            assert old.close(60)
        fresh = Store(self.folder / "chats.db")
        for number, (info, messages, branch) in before.items():
            self.same(fresh.load(number), info, messages, branch)
        if kill:
            assert fresh.close(60)
        else:
            self.store, self.answers, self.removed = fresh, [], []
            self.chats = {n: fresh.load(n) for n in self.chats}

    def same(self, chat: Chat, info: ChatInfo, messages: list[Message], branch: list[Message]) -> None:
        wanted = info if info.leaf is not None else replace(info, leaf=chat.info.leaf)
        assert chat.info == wanted
        assert list(chat.tree) == messages
        if info.leaf is not None:
            assert chat.branch == branch

    @invariant()
    def listed(self) -> None:
        summaries = self.store.chats() + self.store.chats(deleted=True)
        assert {s.info.id: s.n_messages for s in summaries} == {n: len(c.tree) for n, c in self.chats.items() if c.tree}
        shown = [n for n in self.order if self.chats[n].info.deleted is None and self.chats[n].tree]
        assert [s.info.id for s in self.store.chats()] == shown
        assert all(s.info == self.chats[s.info.id].info for s in summaries)

    def teardown(self) -> None:
        self.store.close(60)
        shutil.rmtree(self.folder)


TestUsing = Using.TestCase
TestUsing.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
