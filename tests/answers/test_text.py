"""Streaming text: characters and stop strings that are split over tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.answers.text import Piece, StopStrings, StreamDecoder

fixed = settings(derandomize=True, deadline=None, max_examples=300)


def split(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    return [text[a:b] for a, b in pairwise(borders)] if text else [""]


def run(stops: list[str], pieces: list[str]) -> tuple[str, StopStrings, str]:
    """Text shown while feeding, the finder, and what `finish` adds."""
    finder = StopStrings(stops)
    shown = "".join(p.text for piece in pieces for p in finder.feed(Piece(piece, None)))
    return shown, finder, "".join(p.text for p in finder.finish())


def first_stop(text: str, stops: list[str]) -> tuple[str, str] | None:
    """Text before the stop string that is complete first (the longest of those), and that stop string."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stops if s and text[:end].endswith(s)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return None


WORDS = st.text(alphabet="ab\n", max_size=12)
STOPS = st.lists(st.text(alphabet="ab\n", max_size=4), max_size=3)
CUTS = st.lists(st.integers(0, 20), max_size=8)


@fixed
@given(WORDS, STOPS, CUTS)
def test_the_text_before_the_first_stop_comes_out_however_it_is_split(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    expected = first_stop(text, stops)
    shown, finder, rest = run(stops, split(text, cuts))
    if expected is None:
        assert finder.found is None
        assert shown + rest == text
    else:
        assert (shown, finder.found, rest) == (*expected, "")
        assert finder.feed(Piece("more", None)) == [] and finder.finish() == []


@fixed
@given(WORDS, STOPS, CUTS)
def test_no_more_is_held_back_than_may_begin_a_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    finder = StopStrings(stops)
    seen = shown = ""
    for piece in split(text, cuts):
        seen += piece
        shown += "".join(p.text for p in finder.feed(Piece(piece, None)))
        if finder.found is None:
            held = seen[len(shown) :]
            assert shown + held == seen
            assert held == "" or any(s.startswith(held) for s in stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "found"),
    [
        (["</s>"], ["hello <", "/", "s", "> there"], "hello ", "</s>"),
        (["</s>"], ["a </", "b> </", "s>"], "a </b> ", "</s>"),
        (["aab"], ["a", "a", "a", "b"], "a", "aab"),
        (["ab", "abc"], ["xabc"], "x", "ab"),  # complete first
        (["bcd", "c"], ["abcd"], "ab", "c"),
        (["bcd", "c"], ["a", "b", "c", "d"], "ab", "c"),
        (["abc", "c"], ["xabc"], "x", "abc"),  # complete together: the longer one
        (["\n\n"], ["one\n", "\ntwo"], "one", "\n\n"),
        (["é"], ["caf", "é!"], "caf", "é"),
        (["x"], ["x"], "", "x"),
        ([""], ["never"], "never", None),
        ([], ["a", "", "b"], "ab", None),
    ],
)
def test_stops(stops: list[str], pieces: list[str], shown: str, found: str | None) -> None:
    out, finder, rest = run(stops, pieces)
    assert (out + rest, finder.found) == (shown, found)


def test_a_false_alarm_comes_out_with_the_next_piece_or_at_the_end() -> None:
    finder = StopStrings(["STOP"])
    assert finder.feed(Piece("ST", "ngram")) == []
    assert finder.feed(Piece("AR", None)) == [Piece("ST", "ngram"), Piece("AR", None)]
    assert finder.feed(Piece("xSTO", "model")) == [Piece("x", "model")]
    assert finder.finish() == [Piece("STO", "model")]
    assert finder.finish() == []


def test_pieces_keep_their_drafter_when_they_are_cut() -> None:
    finder = StopStrings(["cd"])
    out = finder.feed(Piece("ab", "a")) + finder.feed(Piece("", "b")) + finder.feed(Piece("xc", "c"))
    out += finder.feed(Piece("d", "d"))
    assert out == [Piece("ab", "a"), Piece("x", "c")]


@fixed
@given(st.one_of(st.binary(max_size=24), st.text(max_size=8).map(str.encode)), CUTS)
def test_the_decoder_loses_nothing(data: bytes, cuts: list[int]) -> None:
    decoder = StreamDecoder()
    borders = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    text = "".join(decoder.feed(data[a:b]) for a, b in pairwise(borders)) + decoder.finish()
    assert text == data.decode("utf-8", "replace")


def test_a_character_comes_with_the_token_that_completes_it() -> None:
    decoder = StreamDecoder()
    smile = "🙂".encode()
    assert [decoder.feed(bytes([b])) for b in b"a" + smile + b"b"] == ["a", "", "", "", "🙂", "b"]
    assert decoder.finish() == ""


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    decoder = StreamDecoder()
    assert decoder.feed("é".encode()[:1]) == ""
    assert decoder.finish() == "\ufffd"
