"""From a branch to a prompt: what the model sees, and what is dropped when the context is full. The tokenizer here
counts words, so that every number can be checked by hand; test_chat_prompt.py has the real one."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcspec.errors import ContextOverflow
from lcspec.tui.attachments import Attachment
from lcspec.tui.conversation import ContextFill, ContextFull, build_prompt, measure, to_messages
from lcspec.tui.store import Message


class Words:
    """A token a word, two for each message's frame, one to open the answer."""

    def __init__(self) -> None:
        self.calls: list[list[dict[str, Any]]] = []
        self.think: bool | None = None

    def chat_ids(
        self, messages: Sequence[Mapping[str, object]], think: bool = True
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        self.think = think
        self.calls.append([dict(m) for m in messages])
        n = sum(2 + len(str(m["content"]).split()) for m in messages) + 1
        return tuple(range(n)), ("<stop>",)


def branch(*texts: str) -> list[Message]:
    """Turns: the user and the model by turns, the user first."""
    roles = ("user", "assistant")
    return [Message(f"m{i}", "c", f"m{i - 1}" if i else None, roles[i % 2], text) for i, text in enumerate(texts)]  # type: ignore[arg-type]


def words(n: int) -> str:
    return " ".join(["word"] * n)


# --- messages ---------------------------------------------------------------------------------------------------------


def test_what_the_template_gets() -> None:
    asked, told, again = branch("Hi", "<think>hm</think>\n\nHello.", "And?")
    asked = Message("m0", "c", None, "user", "Hi", (Attachment("a.py", "/a.py", "x\n", 2),))
    assert to_messages([asked, told, again], "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "File: a.py\n```python\nx\n```\n\nHi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And?"},
    ]
    assert to_messages([again], "  \n") == [{"role": "user", "content": "And?"}]
    assert to_messages([], "") == []


@pytest.mark.parametrize("think", [True, False])
def test_whether_the_model_may_think(think: bool) -> None:
    tokenizer = Words()
    assert build_prompt(tokenizer, branch("Hi"), 100, think=think).think is tokenizer.think is think


def test_roles_take_turns_whatever_happened() -> None:
    empty = [m["role"] for m in to_messages(branch("one", "", "two", "<think>cut", "three"))]
    assert empty == ["user"], "answers that never came are left out, the questions joined"
    assert to_messages(branch("one", "", "two"))[0]["content"] == "one\n\ntwo"
    two_answers = [*branch("one", "a"), Message("x", "c", "m1", "assistant", "b")]
    assert to_messages(two_answers)[1] == {"role": "assistant", "content": "a\n\nb"}
    assert to_messages(branch("half \ud800"))[0]["content"] == "half ?"


# --- the context ------------------------------------------------------------------------------------------------------


def test_fill() -> None:
    fill = ContextFill(30, 100)
    assert (fill.left, fill.fraction) == (70, 0.3)
    assert fill.plus(80) == ContextFill(110, 100) and fill.plus(80).left == 0
    assert ContextFill(0, 0).fraction == 1.0
    assert measure(Words(), branch(words(5)), 100, system=words(2)) == ContextFill(7 + 4 + 1, 100)
    assert measure(Words(), [], 100) == ContextFill(0, 100)


def test_what_fits_is_taken_whole() -> None:
    talk = branch(words(10), words(10), words(10))
    prompt = build_prompt(Words(), talk, 200, system="sys")
    assert len(prompt.ids) == prompt.fill.used == 3 * 12 + 3 + 1 and prompt.fill.limit == 200
    assert (prompt.stop, prompt.dropped, prompt.first, prompt.notice) == (("<stop>",), (), "m0", None)


def test_stop_refuses_and_says_what_to_do() -> None:
    talk = branch(words(30), words(30), words(30))
    with pytest.raises(ContextFull) as caught:
        build_prompt(Words(), talk, 100)
    assert isinstance(caught.value, ContextOverflow) and caught.value.fill == ContextFill(97, 100)
    for word in ("97 of 100", "leaves 3", "25", "drop the oldest", "new chat", "larger context"):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ContextFull, match="12[79] tokens and the context holds 100"):
        build_prompt(Words(), branch(words(30), words(30), words(62)), 100)
    with pytest.raises(ContextFull, match="shorten the message"):
        build_prompt(Words(), branch(words(90)), 100)


def test_drop_leaves_out_whole_turns_and_says_so() -> None:
    talk = branch(*[words(10)] * 15)  # 15 messages of 12 tokens
    prompt = build_prompt(Words(), talk, 150, on_full="drop", min_answer=20, system="never dropped")
    assert prompt.fill.left >= 150 // 4, "room for more than one answer, so that the next turn need not drop again"
    kept = talk[len(prompt.dropped) :]
    assert kept[0].role == "user" and prompt.first == kept[0].id
    assert list(prompt.dropped) == talk[: len(prompt.dropped)]
    assert prompt.notice is not None and f"{len(prompt.dropped)} oldest messages were" in prompt.notice
    more = build_prompt(Words(), talk[len(prompt.dropped) - 2 :], 150, system="never dropped", min_answer=1)
    assert more.fill.left < 150 // 4, "no more than needed was dropped"


def test_the_system_prompt_and_the_newest_turn_always_stay() -> None:
    tokenizer = Words()
    talk = branch(words(40), words(40), words(40), words(40), "short question")
    prompt = build_prompt(tokenizer, talk, 60, on_full="drop", system="be kind")
    assert all(call[0] == {"role": "system", "content": "be kind"} for call in tokenizer.calls)
    assert prompt.fill.used == 4 + 4 + 1
    assert [m.id for m in prompt.dropped] == ["m0", "m1", "m2", "m3"] and prompt.first == "m4"
    with pytest.raises(ContextFull) as caught:
        build_prompt(tokenizer, [*talk[:4], Message("m4", "c", "m3", "user", words(70))], 60, on_full="drop")
    assert "shorten the message" in str(caught.value) and caught.value.fill.used == 73


def test_what_was_dropped_stays_dropped_until_more_must_go() -> None:
    talk = branch(*[words(10)] * 15)
    first = build_prompt(Words(), talk, 150, on_full="drop", min_answer=20)
    longer = [*talk, Message("m15", "c", "m14", "assistant", "a b"), Message("m16", "c", "m15", "user", "c d")]
    second = build_prompt(Words(), longer, 150, on_full="drop", min_answer=20, keep_from=first.first)
    assert second.first == first.first, "the cached prefix serves again"
    fresh = build_prompt(Words(), longer, 150, on_full="drop", min_answer=20)
    assert fresh.first != first.first, "and would not without keep_from"
    assert build_prompt(Words(), talk[:3], 150, on_full="drop", keep_from=first.first).dropped == ()
    assert build_prompt(Words(), longer, 1500, on_full="drop", keep_from=first.first).dropped == (), "all fits again"


def test_a_small_context_can_still_be_used() -> None:
    assert build_prompt(Words(), branch(words(5)), 16).fill.left == 8


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=25),
    st.integers(1, 200),
    st.integers(1, 80),
    st.integers(0, 10),
    st.one_of(st.none(), st.integers(0, 24)),
)
def test_dropping_never_loses_the_newest_turn_nor_more_than_whole_turns(
    sizes: list[int], limit: int, min_answer: int, system: int, keep: int | None
) -> None:
    talk = branch(*[words(n) for n in sizes])
    keep_from = None if keep is None else f"m{keep}"
    try:
        prompt = build_prompt(
            Words(), talk, limit, system=words(system), on_full="drop", min_answer=min_answer, keep_from=keep_from
        )
    except ContextFull as full:
        wanted = max(1, min(min_answer, limit // 4))
        last = max(i for i, m in enumerate(talk) if m.role == "user")
        # the turn of the newest question begins after the last answer that came
        assert full.fill.left < wanted
        assert measure(Words(), talk[last:], limit, system=words(system)).left < wanted
        return
    assert prompt.fill.left >= max(1, min(min_answer, limit // 4))
    assert list(prompt.dropped) == talk[: len(prompt.dropped)] and len(prompt.dropped) < len(talk)
    kept = talk[len(prompt.dropped) :]
    assert kept[0].role == "user" and kept[0].id == prompt.first
    assert prompt.fill == measure(Words(), kept, limit, system=words(system))
    assert (prompt.notice is None) == (not prompt.dropped)
