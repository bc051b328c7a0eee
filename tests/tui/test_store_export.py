"""Exporting a chat: Markdown to read, JSON that comes back as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lcspec.answers.text import Piece
from lcspec.tui.attachments import Attachment
from lcspec.tui.screens.export import write_export
from lcspec.tui.store import Chat, ChatInfo, ExportError, Message, Store, file_name, from_json, to_json, to_markdown
from lcspec.tui.store.export import JSON_VERSION


@pytest.fixture
def chat(tmp_path: Path) -> Chat:
    """Two branches, an attachment, a lens, an answer that was cut."""
    with Store(tmp_path / "chats.db") as store:
        chat = store.create(system="Be brief.", model="/m.gguf")
        asked = chat.add_user("What is ``` in `this`?", [Attachment("notes.md", "/n.md", "a\n```\nb\n", 8)])
        for text in ("first", "<think>hm</think>\n\nsecond\n"):
            answer = chat.begin_answer(parent=asked.id, model="m.gguf", seed=2**63 + 1, sampling={"top_k": 4})
            answer.append([Piece(text[:3], "ngram"), Piece(text[3:], None)], 2)
            answer.finish("stopped", stop_reason="cancelled", stats={"drafted": 3})
        return chat


def like(message: Message) -> Message:
    """Without what an export may not keep."""
    return replace(message, id="", chat="", parent="")


def test_markdown_has_the_branch_shown(chat: Chat) -> None:
    text = to_markdown(chat)
    assert text.startswith("# What is ``` in `this`?\n") and text.endswith("\n") and not text.endswith("\n\n")
    order = [
        "## System\n\nBe brief.",
        "## You\n\n",
        "File: notes.md\n````markdown\na\n```\nb\n````",
        "\nWhat is",
        "second",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "## Assistant (m.gguf)" in text and "*(stopped)*" in text and "first" not in text


@pytest.mark.parametrize("name", ["talk.md", "talk.json"])
def test_an_export_replaces_exports_only(chat: Chat, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for before in ("", to_markdown(chat), to_json(chat)):
        path.write_text(before, encoding="utf-8")
        write_export(chat, path)
        assert "lcspec-chat" in path.read_text() if name.endswith("json") else path.read_text() == to_markdown(chat)
    for before in ("# Notes\n\nmine\n", '{"mine": 1}\n'):
        path.write_text(before)
        with pytest.raises(FileExistsError, match="give another name"):
            write_export(chat, path)
        assert path.read_text() == before
    with pytest.raises(FileExistsError):
        write_export(chat, Path("/dev/null"))


def test_an_empty_chat_can_be_exported(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        chat = store.create()
        assert to_markdown(chat).startswith("# Chat\n")
        info, messages = from_json(to_json(chat))
        assert messages == [] and info.title == ""


def test_json_comes_back_as_it_was(chat: Chat, tmp_path: Path) -> None:
    text = to_json(chat)
    assert json.loads(text)["format"] == "lcspec-chat" and text.isprintable() is False
    with Store(tmp_path / "other.db") as store:
        again = store.import_json(text)
        number = again.id
        assert number != chat.id
        store.import_json(text)  # and once more: every id is new
        assert [s.n_messages for s in store.chats()] == [3, 3]
    with Store(tmp_path / "other.db") as store:
        again = store.load(number)
        assert [like(m) for m in again.branch] == [like(m) for m in chat.branch]
        assert [like(m) for m in again.tree] == [like(m) for m in chat.tree]
        assert again.tree.place(again.branch[-1].id) == (2, 2)
        wanted = replace(chat.info, id=again.id, leaf=again.info.leaf, updated=again.info.updated)
        assert again.info == wanted
    assert from_json(to_json(again))[0].title == chat.info.title


def test_a_removed_message_is_not_exported(chat: Chat) -> None:
    chat.remove(chat.branch[-1].id)
    assert "second" not in to_json(chat) and "first" in to_json(chat)


def test_an_answer_that_streams_is_exported_as_far_as_it_came(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        chat = store.create()
        chat.add_user("go")
        answer = chat.begin_answer()
        answer.append([Piece("so far", None)])
        assert "so far" in to_markdown(chat)
        message = from_json(to_json(chat))[1][-1]
        assert (message.text, message.state, message.stop_reason) == ("so far", "stopped", "interrupted")
        answer.finish()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("# A title\n", "not valid JSON"),
        ("[" * 100_000, "not"),
        ("[]", 'no "format"'),
        ('{"format": "other"}', 'no "format"'),
        (f'{{"format": "lcspec-chat", "version": {JSON_VERSION + 1}}}', "newer lcspec"),
        ('{"format": "lcspec-chat"}', "newer lcspec"),
    ],
)
def test_what_is_no_export_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ExportError, match=words) as caught:
        from_json(text)
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
FIELDS = ("id", "parent", "role", "text", "state", "spans", "attachments", "seed", "tokens", "stats", "created")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.one_of(JSON, st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=8), max_size=4)),
    st.dictionaries(st.sampled_from(("title", "leaf", "system", "model", "created")), JSON),
)
def test_nonsense_in_an_export_is_left_out_and_can_be_written(
    tmp_path_factory: pytest.TempPathFactory, messages: Any, info: Any
) -> None:
    text = json.dumps({"format": "lcspec-chat", "version": 1, "chat": info, "messages": messages})
    with Store(tmp_path_factory.mktemp("nonsense") / "chats.db") as store:
        chat = store.import_json(text)
        assert store.flush(30), store.problem
        assert to_markdown(chat) and from_json(to_json(chat))
        number, kept = chat.id, list(chat.tree)
        del chat
        if kept:
            assert list(store.load(number).tree) == kept


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("", "chat.md"),
        ("What is the time?", "What-is-the-time.md"),
        ("../../etc/passwd", "etc-passwd.md"),
        ("a/b\\c:d*e\0f\ng", "a-b-c-d-e-f-g.md"),
        (".hidden", "hidden.md"),
        ("-rf", "rf.md"),
        ("日本語 です", "日本語-です.md"),
        ("....", "chat.md"),
    ],
)
def test_file_names_are_safe(title: str, name: str) -> None:
    assert file_name(ChatInfo("x", title), ".md") == name


@given(st.text(max_size=300))
def test_every_title_gives_a_file_name(title: str) -> None:
    name = file_name(ChatInfo("x", title), ".json")
    assert name.endswith(".json") and len(name.encode()) <= 90 and "/" not in name and not name.startswith((".", "-"))
