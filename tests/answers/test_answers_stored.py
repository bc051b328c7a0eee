"""Answers as one text with <think> tags: every family's reasoning, and who drafted which characters."""

from __future__ import annotations

import pytest

from lcspec.answers.formats import FORMATS, GENERIC
from lcspec.answers.openings import opened_by
from lcspec.answers.stored import ThinkTags
from lcspec.answers.text import Piece

NAMED = {form.name: form for form in (*FORMATS, GENERIC)}
CASES = {
    "hermes": "<think>\nhm\n</think>\n\nA.",
    "gpt-oss": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>A.",
    "gemma4": "<|channel>thought\nhm<channel|>A.",
    "command-r7b": "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>A.<|END_RESPONSE|>",
    "mistral": "[THINK]hm[/THINK]A.",
    "seed": "<seed:think>hm</seed:think>A.",
}


@pytest.mark.parametrize("name", CASES)
def test_reasoning_of_every_family_is_kept_between_the_same_tags(name: str) -> None:
    tags = ThinkTags(NAMED[name])
    pieces = [Piece(char, "ngram" if i % 2 else None) for i, char in enumerate(CASES[name])]
    out = [*tags.opening, *(p for piece in pieces for p in tags.feed([piece])), *tags.finish()]
    assert "".join(p.text for p in out) == "<think>\nhm\n</think>\n\nA."
    text = CASES[name]
    for char in "A.":
        place = text.rindex(char)
        assert [p.drafter for p in out if p.text == char] == ["ngram" if place % 2 else None]


def test_control_tokens_lend_no_text_and_keep_drafters_in_place() -> None:
    tags = ThinkTags(NAMED["gpt-oss"])
    pieces = [Piece("", None, "<|channel|>"), Piece("analysis", "model"), Piece("", None, "<|message|>"),
              Piece("hm", "model"), Piece("", None, "<|end|>"), Piece("", None, "<|start|>"), Piece("assistant", None),
              Piece("", None, "<|channel|>"), Piece("final", None), Piece("", "model", "<|message|>"),
              Piece("A", "ngram"), Piece(".", None)]  # fmt: skip
    out = [*tags.feed(pieces), *tags.finish()]
    assert out == [Piece("<think>\n", None), Piece("hm", "model"), Piece("\n</think>\n\n", None), Piece("A", "ngram"),
                   Piece(".", None)]  # fmt: skip


def test_reasoning_opened_by_the_prompt_and_cut_off() -> None:
    form = NAMED["hermes"]
    tags = ThinkTags(form, opened_by(form, "<|im_start|>assistant\n<think>\n"))
    out = [*tags.opening, *tags.feed([Piece("hm, ", None), Piece("so", None)]), *tags.finish(False)]
    assert "".join(p.text for p in out) == "<think>\nhm, so"


def test_text_without_reasoning_is_as_it_was() -> None:
    text = "\n  A <b> [TOOL_CALLS] {x}\n\n<think>inside</think> \n"
    tags = ThinkTags(GENERIC)
    out = [*(p for char in text for p in tags.feed([Piece(char, None)])), *tags.finish()]
    assert "".join(p.text for p in out) == text
