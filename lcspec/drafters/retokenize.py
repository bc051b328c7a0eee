"""One text in two vocabularies: following a growing text, and translating a continuation."""

from __future__ import annotations

from typing import Protocol, Sequence

from lcspec.answers.text import StreamDecoder

# Tokens at the end of the text that may change when more text follows.
UNSETTLED = 16
# Tokens before a continuation that are searched for its start.
ANCHOR = 8


class Tokenizer(Protocol):
    """The part of llama.Vocab that is needed here."""

    bos: int
    add_bos: bool

    def tokenize(self, text: str, *, special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one token."""

    def is_end(self, token: int) -> bool:
        """Whether it ends a generation."""


def puts_space(vocab: Tokenizer) -> bool:
    """Whether the tokenizer puts a space in front of every text, as SentencePiece usually does."""
    return b"".join(map(vocab.piece, vocab.tokenize("a", special=False, parse_special=False))) == b" a"


class GrowingText:
    """A growing text in another vocabulary; only its end is tokenized anew.

    The result may differ from tokenizing the whole text at once in rare places; for a draft model that costs only
    acceptance.

    Attributes:
        tokens: the text so far, after the tokens with which the vocabulary starts a text.
    """

    def __init__(self, vocab: Tokenizer) -> None:
        self.vocab = vocab
        self.tokens: list[int] = [vocab.bos] if vocab.add_bos else []
        self._first = len(self.tokens)
        self._ends: list[int | None] = [0] * self._first  # where each token ends in `_data`; None: unknown
        self._data = bytearray()
        self._decoder = StreamDecoder()
        self._spaced = puts_space(vocab)
        self.held = False  # the text ends inside a character

    def add(self, data: bytes) -> int:
        """Append bytes; returns how many leading tokens did not change.

        Raises:
            TokenizeError: the vocabulary cannot express the bytes.
        """
        text = self._decoder.feed(data)
        self.held = self._decoder.holds
        if not text:
            return len(self.tokens)
        self._data += text.encode()
        keep = self._settled(max(self._first, len(self.tokens) - UNSETTLED))
        start = self._ends[keep - 1] or 0 if keep else 0
        fragment = self._data[start:].decode()
        if self._spaced and start:
            fragment = fragment[1:]  # the tokenizer will add it again
        new = self.vocab.tokenize(fragment, special=False)
        before = self.tokens[keep:]
        same = next((i for i, (a, b) in enumerate(zip(before, new)) if a != b), min(len(before), len(new)))
        self.tokens = self.tokens[:keep] + new
        self._ends = self._ends[:keep] + self._places(new, start)
        return keep + same

    def _settled(self, keep: int) -> int:
        """The largest number of tokens, at most `keep`, after which the text can be cut."""
        while keep > self._first:
            end = self._ends[keep - 1]
            if end is not None and 0 < end < len(self._data):
                byte = self._data[end]
                if byte == 0x20 if self._spaced else byte & 0xC0 != 0x80:
                    return keep
            keep -= 1
        return keep

    def _places(self, tokens: Sequence[int], start: int) -> list[int | None]:
        sizes = [len(self.vocab.piece(t, special=True)) for t in tokens]
        surplus = sum(sizes) - (len(self._data) - start)
        if surplus not in (0, int(self._spaced)):
            return [None] * len(tokens)
        at, out = start - surplus, list[int | None]()
        for size in sizes:
            at += size
            out.append(at)
        return out


def carried_over(vocab: Tokenizer, before: Sequence[int], text: str, spaced: bool) -> list[int]:
    """Tokens of `text` as the continuation of the tokens `before`; empty if they cannot be determined.

    Args:
        vocab: the vocabulary of `before` and of the result.
        before: the text so far.
        text: what follows.
        spaced: `puts_space(vocab)`.
    """
    anchor, known = b"", list(before[-ANCHOR:])
    while known:
        anchor = b"".join(map(vocab.piece, known))
        if anchor and anchor[0] & 0xC0 != 0x80 and all(map(vocab.piece, known)):
            break
        known = known[1:]
    head = anchor.decode("utf-8", "replace")
    if known and len(head.encode()) == len(anchor):
        tokens = vocab.tokenize(head + text, special=False, parse_special=False)
        at = -int(spaced)
        for i, token in enumerate(tokens):
            if at == len(anchor):
                return tokens[i:]
            at += len(vocab.piece(token))
    # The border lies inside a token: start with that token.
    if spaced:
        return vocab.tokenize(text[1:], special=False, parse_special=False) if text[:1] == " " else []
    return vocab.tokenize(text, special=False, parse_special=False)
