"""Reasoning told from answers: whole texts, and every beginning of them as they stream."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lcspec.answers.text import Piece
from lcspec.tui.conversation import answer_text, opened_by_prompt, split_reasoning


def parts(text: str, streaming: bool = False) -> list[tuple[str, str, bool]]:
    return [(p.kind, text[p.start : p.end], p.closed) for p in split_reasoning(text, streaming=streaming)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("plain", [("answer", "plain", False)]),
        ("<think>a</think>b", [("reasoning", "a", True), ("answer", "b", False)]),
        ("  \n<think>\na\n</think>\n\nb",
         [("answer", "  \n", True), ("reasoning", "\na\n", True), ("answer", "\n\nb", False)]),
        ("<think>never ends", [("reasoning", "never ends", False)]),
        ("<think></think>b", [("answer", "b", False)]),
        ("<think>", []),
        ("<thinking>a</thinking>b", [("reasoning", "a", True), ("answer", "b", False)]),
        ("[THINK]a[/THINK]b", [("reasoning", "a", True), ("answer", "b", False)]),
        ("<think>a</thinking>b</think>c", [("reasoning", "a</thinking>b", True), ("answer", "c", False)]),
        ("<think>a <think> b</think>c", [("reasoning", "a <think> b", True), ("answer", "c", False)]),
        ("The tag <think> opens.", [("answer", "The tag <think> opens.", False)]),
        ("`<think>` opens.", [("answer", "`<think>` opens.", False)]),
        ("a</think>b", [("answer", "a</think>b", False)]),
        ("```\n<think>x</think>\n```\n", [("answer", "```\n<think>x</think>\n```\n", False)]),
        ("~~~\n```\n<think>x\n~~~\nb", [("answer", "~~~\n```\n<think>x\n~~~\nb", False)]),
        ("````\n```\n<think>\n````\n<think>r</think>b",
         [("answer", "````\n```\n<think>\n````\n", True), ("reasoning", "r", True), ("answer", "b", False)]),
        ("```inline``` x\n<think>r</think>",
         [("answer", "```inline``` x\n", True), ("reasoning", "r", True)]),
        ("<think>```\ncode</think>b", [("reasoning", "```\ncode", True), ("answer", "b", False)]),
        ("a\n<think>r</think>b\n<think>s</think>c",
         [("answer", "a\n", True), ("reasoning", "r", True), ("answer", "b\n", True), ("reasoning", "s", True),
          ("answer", "c", False)]),
    ],
)  # fmt: skip
def test_splitting_whole_texts(text: str, wanted: list[tuple[str, str, bool]]) -> None:
    assert parts(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<", []),
        ("<thi", []),
        ("  <thinkin", []),
        ("<thx", [("answer", "<thx", False)]),
        ("abc\n<think", [("answer", "abc\n", False)]),
        ("abc <think", [("answer", "abc <think", False)]),
        ("<think>a</thi", [("reasoning", "a", False)]),
        ("<think>a</thx", [("reasoning", "a</thx", False)]),
        ("<think>a<", [("reasoning", "a", False)]),
        ("```\n<thi", [("answer", "```\n<thi", False)]),
    ],
)
def test_what_may_become_a_tag_is_held_back(text: str, wanted: list[tuple[str, str, bool]]) -> None:
    assert parts(text, streaming=True) == wanted


def test_the_answer_alone() -> None:
    assert answer_text("<think>\nhm\n</think>\n\nYes.\n") == "Yes."
    assert answer_text("  as it is \n") == "  as it is \n"
    assert answer_text("<think>only that") == ""


def test_reasoning_opened_by_the_template() -> None:
    assert opened_by_prompt("<|im_start|>assistant\n<think>\n") == Piece("<think>\n", None)
    assert opened_by_prompt("<|im_start|>assistant\n[THINK]") == Piece("[THINK]\n", None)
    assert opened_by_prompt("<|im_start|>assistant\n<think>\n\n</think>\n\n") is None
    assert opened_by_prompt("") is None


PIECES = ["<think>", "</think>", "<thinking>", "</thinking>", "[THINK]", "[/THINK]", "<thi", "</", "```", "```py",
          "~~~", "````", "`", "\n", "\n\n", " ", "\t", "a", "word ", "<", ">", "é"]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


@given(TEXTS)
def test_parts_are_in_order_and_only_tags_lie_between(text: str) -> None:
    found = split_reasoning(text)
    at = 0
    for part in found:
        assert at <= part.start < part.end <= len(text)
        assert text[at : part.start].count("\n") == 0 and len(text[at : part.start]) <= 2 * len("</thinking><thinking>")
        at = part.end
    assert all(part.closed for part in found[:-1])
    left = text[at:]
    assert not left or left.startswith(("<", "["))
    if not any(tag in text for tag in ("<think>", "<thinking>", "[THINK]")):
        assert [(p.kind, p.start, p.end) for p in found] == ([("answer", 0, len(text))] if text else [])


@given(TEXTS)
@example("\n```\n<think>")
@example("```x`\n<think>a</think>")
def test_what_was_shown_while_streaming_stays(text: str) -> None:
    """Each beginning of a text shows a beginning of what the whole text shows."""

    def shown(upto: str, streaming: bool) -> list[tuple[str, str]]:
        """One entry a character, so that a part may grow and be followed by others."""
        return [(p.kind, f"{i}") for p in split_reasoning(upto, streaming=streaming) for i in range(p.start, p.end)]

    whole = shown(text, False)
    for n in range(len(text) + 1):
        part = shown(text[:n], True)
        assert part == whole[: len(part)], text[:n]


@given(TEXTS)
def test_little_is_held_back(text: str) -> None:
    end = max((p.end for p in split_reasoning(text)), default=0)
    streamed = max((p.end for p in split_reasoning(text, streaming=True)), default=0)
    assert end - streamed <= len("</thinking>") or not text[streamed:end].strip(" \t<>[/]THINKthinkgreaso")
