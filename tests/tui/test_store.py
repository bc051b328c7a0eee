"""The store: what is written is read back, in another process's place too; searching, deleting, undoing."""

from __future__ import annotations

import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.answers.text import Piece
from lcspec.tui.attachments import Attachment
from lcspec.tui.store import Chat, Message, NoSuchChat, Span, Store, pieces_of, queries, title_of, writer
from lcspec.tui.store.records import extend_spans

WAIT = 300.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.db"


def talk(chat: Chat, *texts: str) -> list[Message]:
    """Add a user's message and an answer for every two texts; returns the messages."""
    out = []
    for i, text in enumerate(texts):
        if i % 2 == 0:
            out.append(chat.add_user(text))
        else:
            answer = chat.begin_answer(model="demo.gguf", seed=7)
            answer.append([Piece(text, "ngram")], 1)
            out.append(answer.finish(stop_reason="stop"))
    return out


def texts(chat: Chat) -> list[str]:
    return [m.text for m in chat.branch]


def reopened(path: Path, chat: str) -> Chat:
    with Store(path) as store:
        return store.load(chat)


def test_everything_of_a_message_is_read_back(path: Path) -> None:
    file = Attachment("a.py", "/tmp/a.py", "x = 1\n", 6, "utf-8")
    stats = {"tokens_per_second": 12.5, "by_drafter": {"ngram": {"drafted": 3}}, "widths": {"1": 2}}
    with Store(path) as store:
        chat = store.create(system="Be brief.", model="/models/m.gguf", preset="coding")
        asked = chat.add_user("Hello!", [file])
        answer = chat.begin_answer(
            model="m.gguf", sampling={"temperature": 0.8, "top_k": 40}, speculation="auto", seed=2**64 - 1
        )
        answer.append([Piece("Good ", None), Piece("mor", "ngram"), Piece("ning", "ngram"), Piece("!", "model")], 4)
        answer.append([Piece("", "model")], 1)
        told = answer.finish("stopped", stop_reason="cancelled", stats=stats, error="an example")
        assert store.problem is None and store.flush(WAIT)
    again = reopened(path, chat.id)
    assert again.branch == [asked, told] == chat.branch
    assert again.info == chat.info
    assert told.text == "Good morning!" and told.tokens == 5 and told.state == "stopped"
    assert told.spans == (Span(5, 12, "ngram"), Span(12, 13, "model"))
    assert told.seed == 2**64 - 1 and told.stats == stats and told.parent == asked.id
    assert again.info.title == "Hello!" and again.info.system == "Be brief." and again.info.preset == "coding"
    assert again.branch[0].attachments == (file,)
    assert 0 < asked.created <= told.created <= told.updated


def test_an_unused_chat_leaves_nothing_behind(path: Path) -> None:
    with Store(path) as store:
        chat = store.create(title="Nothing yet")
        chat.set(system="x")
        chat.rename("Still nothing")
        assert store.chats() == [] and store.latest() is None and store.flush(WAIT)
    with Store(path) as store, pytest.raises(NoSuchChat):
        store.load(chat.id)
    with Store(path) as store:
        chat = store.create(title="Titled")
        chat.add_user("text")
    assert reopened(path, chat.id).info.title == "Titled"


def test_editing_and_regenerating_make_branches_that_can_be_walked(path: Path) -> None:
    with Store(path) as store:
        chat = store.create()
        asked, told = talk(chat, "one", "first answer")
        again = chat.begin_answer(parent=told.parent)
        again.append([Piece("second answer", None)])
        again.finish()
        assert texts(chat) == ["one", "second answer"] and chat.tree.place(again.id) == (2, 2)
        talk(chat, "two", "answer to two")
        edited = chat.add_user("one, edited", asked.attachments, parent=asked.parent)
        assert texts(chat) == ["one, edited"] and chat.tree.place(edited.id) == (2, 2)
        assert [m.text for m in chat.walk(edited.id, -1)] == ["one", "second answer", "two", "answer to two"]
        assert [m.text for m in chat.walk(told.id, 0)] == ["one", "first answer"]
    chat = reopened(path, chat.id)
    assert texts(chat) == ["one", "first answer"], "the branch shown is remembered"
    assert [m.text for m in chat.walk(told.id, 1)] == ["one", "second answer", "two", "answer to two"]
    assert texts(chat)[-1] == "answer to two" and len(chat.tree) == 6


def test_a_branch_may_be_taken_away_and_brought_back(path: Path) -> None:
    with Store(path) as store:
        chat = store.create()
        _, told, two, _ = talk(chat, "one", "answer", "two", "more")
        gone = chat.remove(two.id)
        assert len(gone) == 2 and texts(chat) == ["one", "answer"] and chat.info.leaf == told.id
        assert chat.remove("unknown") == []
        assert store.flush(WAIT)
        assert texts(reopened(path, chat.id)) == ["one", "answer"]
        assert store.chats()[0].n_messages == 2 and store.search("more") == []
        chat.restore(gone)
        assert texts(chat) == ["one", "answer", "two", "more"]
    assert texts(reopened(path, chat.id)) == ["one", "answer", "two", "more"]


def test_taking_a_message_away_while_its_answer_streams(path: Path) -> None:
    with Store(path) as store:
        chat = store.create()
        asked = chat.add_user("never mind")
        answer = chat.begin_answer()
        gone = chat.remove(asked.id)
        assert gone == [asked.id, answer.id] and chat.branch == [] and store.chats() == []
        answer.append([Piece("late", None)])
        answer.finish("stopped", stop_reason="cancelled")
        assert chat.branch == [] and store.flush(WAIT)
        assert store.chats() == []
        chat.restore(gone)
        assert texts(chat) == ["never mind", "late"]


def test_streaming_text_is_on_disk_soon_and_while_it_streams(path: Path) -> None:
    with Store(path) as store:
        chat = store.create()
        chat.add_user("go")
        answer = chat.begin_answer()
        written = threading.Event()

        def look() -> None:
            while not written.is_set():
                with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
                    row = connection.execute("SELECT text, state FROM message WHERE id = ?", (answer.id,)).fetchone()
                if row is not None and row[0] == "abcdef":
                    assert row[1] == "streaming"
                    written.set()

        for part in ("abc", "def"):
            answer.append([Piece(part, None)], 1)
        reader = threading.Thread(target=look, daemon=True)
        reader.start()
        assert written.wait(WAIT), "nobody called flush or finish"
        assert chat.branch[-1].text == answer.text == "abcdef" and chat.streaming is answer
        answer.finish()
        assert chat.streaming is None


def test_what_is_not_written_yet_is_listed_found_and_loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(path) as store:
        old = store.create()
        talk(old, "old question", "old answer")
        other = store.create()
        talk(other, "other question", "other answer")
        assert store.flush(WAIT)
        with sqlite3.connect(path, isolation_level=None) as blocker:  # nothing can be written from here on
            blocker.execute("BEGIN IMMEDIATE")
            monkeypatch.setattr(writer, "RETRY", 0.05)
            chat = store.create()
            talk(chat, "fresh question", "fresh answer")
            old.add_user("old, continued")
            assert [s.info.id for s in store.chats()] == [old.id, chat.id, other.id]
            assert [s.n_messages for s in store.chats()] == [3, 2, 2]
            assert [s.preview for s in store.chats()] == ["old, continued", "fresh answer", "other answer"]
            assert {h.message for h in store.search("fresh")} >= {chat.branch[0].id, chat.branch[1].id}
            other.set_deleted(True)
            assert [s.info.id for s in store.chats()] == [old.id, chat.id]
            assert [s.info.id for s in store.chats(deleted=True)] == [other.id]
            assert store.search("other answer") == []
            number, wanted = chat.id, texts(chat)
            del chat
            assert texts(store.load(number)) == wanted
            blocker.execute("ROLLBACK")
        blocker.close()
        assert store.flush(WAIT)
        assert [s.n_messages for s in store.chats()] == [3, 2] and store.problem is None


def test_listing_is_in_order_of_use_whatever_the_clock_says(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000, 0, -100))  # it goes back all the time
    from lcspec.tui.store import answer, chat, store

    for module in (answer, chat, store):
        monkeypatch.setattr(module, "now", lambda: float(next(clock)))
    with Store(path) as s:
        first, second = s.create(), s.create()
        talk(first, "first", "answer")
        talk(second, "second", "answer")
        assert s.flush(WAIT)
        assert [x.info.title for x in s.chats()] == ["second", "first"]
        first.add_user("again")
        second.rename("renamed, not used")
        assert [x.info.id for x in s.chats()] == [first.id, second.id]
        latest = s.latest()
        assert latest is not None and latest.id == first.id
    assert [m.text for m in reopened(path, first.id).branch] == ["first", "answer", "again"]


def test_renaming_open_and_closed_chats(path: Path) -> None:
    with Store(path) as store:
        chat = store.create()
        chat.add_user("  # What is\tthe time?  \n\nsecond line")
        assert chat.info.title == "# What is the time?"
        store.rename(chat.id, " A \n better\ttitle ")
        assert chat.info.title == "A better title", "an open chat knows"
        number = chat.id
        del chat
        store.rename(number, "closed")
        store.rename("unknown", "nothing happens")
        assert [s.info.title for s in store.chats()] == ["closed"]
        store.rename(number, "  ")
        assert [s.info.title for s in store.chats()] == ["# What is the time?"]


def test_deleting_is_undone_and_purged_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(path) as store:
        keep, gone = store.create(), store.create()
        talk(keep, "keep", "this")
        talk(gone, "gone", "that")
        store.delete(gone.id)
        assert [s.info.id for s in store.chats()] == [keep.id]
        assert [s.info.id for s in store.chats(deleted=True)] == [gone.id]
        assert store.search("that") == []
    with Store(path) as store:
        assert [s.info.id for s in store.chats(deleted=True)] == [gone.id], "not purged yet"
        store.undelete(gone.id)
        assert {s.info.id for s in store.chats()} == {keep.id, gone.id}
        store.delete(gone.id)
    real = queries.now
    monkeypatch.setattr(queries, "now", lambda: real() + (queries.KEEP_DELETED_DAYS + 1) * 86400)
    with Store(path) as store:
        assert store.chats(deleted=True) == [] and len(store.chats()) == 1
        with pytest.raises(NoSuchChat):
            store.load(gone.id)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM message").fetchone() == (2,)


def test_using_a_deleted_chat_brings_it_back(path: Path) -> None:
    with Store(path) as store:
        chat = store.create()
        talk(chat, "a", "b")
        store.delete(chat.id)
        chat.add_user("still here")
        assert [s.info.id for s in store.chats()] == [chat.id]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("QUICK", "the «Quick» brown fox"),
        ("100%_\\", "it is «100%_\\» sure"),
        ("größe", "Die «GRÖSSE»"),
        ("ÉTÉ", "un bel «été» indien"),
        ("москва", "город «МОСКВА»"),
        ("two\nlines", "over «two lines» here"),
        ("日本", "こんにちは、«日本»"),
    ],
)
def test_search_finds_any_case_and_any_language(path: Path, wanted: str, found: str) -> None:
    lines = [
        "the Quick brown fox",
        "it is 100%_\\ sure",
        "it is 100 or sure",
        "Die GRÖSSE",
        "un bel été indien",
        "город МОСКВА",
        "over two\nlines here",
        "こんにちは、日本",
    ]
    with Store(path) as store:
        chat = store.create(title="-")
        for line in lines:
            chat.add_user(line)
        for _ in range(2):  # pending, then from the file
            hits = store.search(wanted)
            marked = [f"{h.excerpt[: h.start]}«{h.excerpt[h.start : h.end]}»{h.excerpt[h.end :]}" for h in hits]
            if wanted == "größe":  # ß is ss in capitals: found, the place unknown
                assert [h.excerpt for h in hits] == ["Die GRÖSSE"]
            else:
                assert marked == [found]
            assert all(h.message in chat.tree for h in hits)
            assert store.flush(WAIT)


def test_search_shows_titles_first_and_the_text_around(path: Path) -> None:
    with Store(path) as store:
        chat = store.create(title="All about needles")
        chat.add_user("x" * 500 + " needle " + "y" * 500)
        assert store.flush(WAIT)
        title, text = store.search("needle")
        assert title.message is None and title.excerpt == "All about needles"
        assert text.excerpt[text.start : text.end] == "needle" and len(text.excerpt) < 200
        assert text.excerpt.startswith("…x") and text.excerpt.endswith("y…")
        assert store.search("   ") == [] and store.search("nowhere") == []
        assert len(store.search("needle", limit=1)) == 1


def test_two_stores_on_one_file_see_each_other_s_chats(path: Path) -> None:
    with Store(path) as one, Store(path) as two:
        mine, yours = one.create(), two.create()
        talk(mine, "mine", "a")
        talk(yours, "yours", "b")
        assert one.flush(WAIT) and two.flush(WAIT)
        assert {s.info.title for s in one.chats()} == {s.info.title for s in two.chats()} == {"mine", "yours"}
        same = two.load(mine.id)
        same.rename("named by two")
        mine.add_user("continued by one")
        assert one.flush(WAIT) and two.flush(WAIT)
        assert {s.info.title for s in one.chats()} == {"named by two", "yours"}, "only what changed is written"
        answer = mine.begin_answer()
        answer.append([Piece("half an ans", None)])
        assert one.flush(WAIT)
        del same
        seen = two.load(mine.id).branch[-1]
        assert (seen.text, seen.state) == ("half an ans", "streaming"), "its program runs, so it streams"
        answer.finish()


def test_text_that_no_file_can_hold(path: Path) -> None:
    with Store(path) as store:
        chat = store.create(title="t\ud800", system="s\udfff")
        chat.add_user("half \ud83d here", [Attachment("n\udc80", "/p", "x\udc80", 1)])
        answer = chat.begin_answer(model="m\udc80", sampling={"bad\udc80": object()})
        answer.append([Piece("a\x00b", "x"), Piece("\ud83d\ude00", None), Piece("😀", "y")])
        answer.finish(stats={"nan": float("nan"), "path": path}, tokens=10)
        assert store.flush(WAIT) and store.problem is None
    chat = reopened(path, chat.id)
    assert texts(chat) == ["half ? here", "a\x00b??😀"]
    assert pieces_of(chat.branch[1].text, chat.branch[1].spans)[-1] == Piece("😀", "y")


def test_the_file_is_the_user_s_own(path: Path) -> None:
    with Store(path) as store:
        talk(store.create(), "a", "b")
        assert store.flush(WAIT)
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir() if p.is_file()}
    assert modes and all(mode & 0o077 == 0 for mode in modes.values()), modes
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0


def test_the_data_directory_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCSPEC_DATA_DIR", str(tmp_path / "elsewhere"))
    with Store() as store:
        assert store.path == tmp_path / "elsewhere" / "chats.db" and store.path.exists()


def test_closing_twice_and_writing_afterwards(path: Path) -> None:
    store = Store(path)
    chat = store.create()
    talk(chat, "a", "b")
    assert store.close() and store.close()
    chat.add_user("too late, but no error")
    assert store.flush(0.1) is False


def test_500_messages_load_completely(path: Path) -> None:
    with Store(path) as store:
        chat = store.create()
        for i in range(250):
            talk(chat, f"question {i}", "word " * 400)
    again = reopened(path, chat.id)
    assert len(again.branch) == 500 and again.branch == chat.branch


@given(
    st.lists(
        st.lists(
            st.tuples(st.text(max_size=4), st.sampled_from([None, "a", "b"])).map(lambda t: Piece(*t)), max_size=4
        ),
        max_size=8,
    )
)
def test_spans_give_back_who_drafted_what(batches: list[list[Piece]]) -> None:
    spans: list[Span] = []
    length = 0
    for batch in batches:
        length = extend_spans(spans, length, batch)
    flat = [(c, p.drafter) for batch in batches for p in batch for c in p.text]
    text = "".join(c for c, _ in flat)
    assert length == len(text)
    assert [(c, p.drafter) for p in pieces_of(text, spans) for c in p.text] == flat
    assert all(a.end <= b.start for a, b in zip(spans, spans[1:]))


def test_titles() -> None:
    assert title_of("") == "" and title_of("```\n\n  \n") == ""
    assert title_of("\n\n```python\nprint()") == "```python"
    assert title_of("short") == "short"
    long = title_of("This is a rather long first message that goes on and on, and then some more of it")
    assert len(long) <= 60 and long.endswith("…") and long.startswith("This is a rather long")
    assert len(title_of("x" * 500)) == 60


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(alphabet=st.characters(codec=None), max_size=20), min_size=1, max_size=6))
def test_any_text_survives_up_to_half_characters(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("any") / "chats.db"
    with Store(path) as store:
        chat = store.create()
        for line in lines:
            chat.add_user(line)
    cleaned = [line.encode("utf-8", "replace").decode() for line in lines]
    assert texts(reopened(path, chat.id)) == cleaned
