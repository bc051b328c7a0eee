"""A conversation's prompt through the real template and vocabulary of the bundled model."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcspec.answers.text import Piece
from lcspec.session import Session
from lcspec.tui.attachments import Attachment, count_tokens
from lcspec.tui.conversation import ContextFull, build_prompt, measure, opened_by_prompt, to_messages
from lcspec.tui.store import Chat, Store
from tests.running import answer, request

pytestmark = pytest.mark.model


@pytest.fixture
def chat(tmp_path: Path) -> Chat:
    with Store(tmp_path / "chats.db") as store:
        chat = store.create(system="You are a helpful assistant.")
        for i in range(20):
            chat.add_user(f"Question number {i}, please answer it.")
            told = chat.begin_answer()
            told.append([Piece(f"This is the answer to question {i}.", None)])
            told.finish()
        chat.add_user("Hello, how are you today?")
        return chat


def text_of(session: Session, ids: tuple[int, ...]) -> str:
    return session.model.vocab.text(list(ids), special=True)


def test_the_prompt_is_what_the_template_makes_of_the_branch(demo_session: Session, chat: Chat) -> None:
    prompt = build_prompt(demo_session, chat.branch, 8192, system=chat.info.system)
    assert prompt.ids == demo_session.chat_ids(to_messages(chat.branch, chat.info.system))[0]
    text = text_of(demo_session, prompt.ids)
    assert text.startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n")
    assert text.endswith("<|im_start|>user\nHello, how are you today?<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.fill == measure(demo_session, chat.branch, 8192, system=chat.info.system)
    assert prompt.fill.used == len(prompt.ids)
    assert opened_by_prompt(text[-40:]) is None


def test_a_full_context_stops_or_drops(demo_session: Session, chat: Chat) -> None:
    limit = demo_session.engine.context.n_ctx
    assert measure(demo_session, chat.branch, limit, system=chat.info.system).left < 64, "20 turns fill it"
    with pytest.raises(ContextFull, match="drop the oldest turns"):
        build_prompt(demo_session, chat.branch, limit, system=chat.info.system)
    prompt = build_prompt(demo_session, chat.branch, limit, system=chat.info.system, on_full="drop")
    text = text_of(demo_session, prompt.ids)
    assert text.count("<|im_start|>system") == 1 and "how are you today" in text and "number 0," not in text
    assert len(prompt.dropped) % 2 == 0 and prompt.fill.left >= limit // 4
    got = answer(demo_session.engine, request(prompt.ids, n=prompt.fill.left))
    assert got.finished.prompt_tokens == prompt.fill.used, "the engine takes it, with the whole answer"


def test_an_attachment_counts_as_it_will_weigh(demo_session: Session, chat: Chat) -> None:
    file = Attachment("notes.py", "/notes.py", "def area(width, height):\n    return width * height\n" * 20, 1000)
    before = measure(demo_session, chat.branch, 8192).used
    chat.add_user("What does it do?", [file])
    after = measure(demo_session, chat.branch, 8192).used
    plain = len(demo_session.model.vocab.tokenize("What does it do?", special=False))
    weight = count_tokens(file, lambda text: demo_session.model.vocab.tokenize(text, special=False))
    # joined to the question before it, which has no answer: a blank line instead of the template's marks
    assert abs(after - before - plain - weight) <= 4
