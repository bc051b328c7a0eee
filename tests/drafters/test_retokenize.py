"""Following a text in another vocabulary, against tokenizing it whole (a toy tokenizer with greedy longest match)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.drafters.retokenize import GrowingText, carried_over, puts_space

fixed = settings(derandomize=True, deadline=None, max_examples=300)
LETTERS = "ab cé日"


@dataclass
class Toy:
    """Longest match from the left over `words` and all bytes; `spaced` puts a space in front, as SentencePiece does."""

    words: tuple[str, ...]
    spaced: bool = False
    bos: int = 0
    add_bos: bool = False
    pieces: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.pieces = [b"<s>", *(bytes([b]) for b in range(256)), *(w.encode() for w in self.words)]

    def tokenize(self, text: str, *, special: bool = True, parse_special: bool = True) -> list[int]:
        data, out = ((" " if self.spaced and text else "") + text).encode(), list[int]()
        ranked = sorted(range(1, len(self.pieces)), key=lambda t: -len(self.pieces[t]))
        while data:
            token = next(t for t in ranked if data.startswith(self.pieces[t]))
            out.append(token)
            data = data[len(self.pieces[token]) :]
        return ([self.bos] if special and self.add_bos else []) + out

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return b"" if token == 0 and not special else self.pieces[token]

    def is_end(self, token: int) -> bool:
        return False

    def text(self, tokens: list[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode()


PLAIN = Toy(("a", "ab", "ab ab", " b", "é日"))
SPACED = Toy((" a", " ab", "b", " ", "日", "é "), spaced=True, add_bos=True)
OTHER = Toy(("ba", "b ", "aa", " a b", "日日"))


def test_who_puts_a_space_in_front() -> None:
    assert puts_space(SPACED) and not puts_space(PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [PLAIN, SPACED], ids=["plain", "spaced"])
def test_the_text_is_followed_byte_by_byte(vocab: Toy) -> None:
    @fixed
    @given(st.lists(st.text(LETTERS, max_size=12), max_size=30), st.integers(1, 3))
    def check(parts: list[str], cut: int) -> None:
        growing = GrowingText(vocab)
        whole = ""
        data = "".join(parts).encode()
        for i in range(0, len(data), cut):
            before = list(growing.tokens)
            kept = growing.add(data[i : i + cut])
            assert growing.tokens[:kept] == before[:kept]
            whole = data[: i + cut].decode("utf-8", "ignore")
            shown = vocab.text(growing.tokens)
            assert shown == (" " if vocab.spaced and whole else "") + whole
            assert growing.held is (data[: i + cut] != whole.encode())
        assert growing.tokens[: int(vocab.add_bos)] == [0] * int(vocab.add_bos)

    check()


def test_only_the_end_is_tokenized_anew() -> None:
    growing = GrowingText(PLAIN)
    growing.add(b"ab a " * 100)
    before = list(growing.tokens)
    assert len(before) - growing.add(b"ab") <= 16
    growing.add(b"")
    assert growing.add("é".encode()[:1]) == len(growing.tokens) and growing.held


@pytest.mark.parametrize("vocab", [PLAIN, SPACED, OTHER], ids=["plain", "spaced", "other"])
def test_a_continuation_in_another_vocabulary_is_the_same_text(vocab: Toy) -> None:
    checked = 0

    @fixed
    @given(st.text(LETTERS, max_size=20), st.text(LETTERS, min_size=1, max_size=12))
    def check(before: str, text: str) -> None:
        nonlocal checked
        tokens = vocab.tokenize(before, special=False)
        found = carried_over(vocab, tokens, text, vocab.spaced)
        if found:
            assert vocab.text(found) == text
            checked += 1

    check()
    assert checked > 100


def test_a_continuation_begins_where_the_text_ends() -> None:
    # Tokenized whole, "b" and " " would be one token; the text ends between them, so that what follows begins anew.
    before = OTHER.tokenize("a", special=False) + OTHER.tokenize("b", special=False)
    assert OTHER.text(carried_over(OTHER, before, " a", False)) == " a"
    # Where the border is kept, the tokens are those of the whole text.
    whole = OTHER.tokenize("ba aa b", special=False)
    assert carried_over(OTHER, whole[:1], " aa b", False) == whole[1:]
