"""A model's vocabulary in a program that has not loaded the model. Tables answer what the event loop asks token by
token; tokenizing is done in the child, because the library may abort on an unforeseen text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lcspec.modelfiles.fill_in_middle import FillInMiddle

if TYPE_CHECKING:
    from lcspec.llama.vocab import Vocab

# llama.cpp's LLAMA_TOKEN_ATTR_*: tokens that are written only on request (unknown, control).
HIDDEN = 1 << 0 | 1 << 3


@dataclass(frozen=True, eq=False)
class Tables:
    """The spelling of tokens. Token t is `spelled[ends[t - 1]:ends[t]]`.

    Attributes:
        spelled: the bytes of all tokens, control tokens spelled out; ends: int64 [n_tokens].
        plain: the tokens whose plain text differs from their spelling; most of them have none.
        end_tokens: the tokens that end a generation.
    """

    path: Path
    bos: int
    eos: int
    add_bos: bool
    spelled: bytes
    ends: NDArray[np.int64]
    plain: dict[int, bytes]
    end_tokens: frozenset[int]
    fill_in_middle: FillInMiddle | None

    @classmethod
    def of(cls, vocab: Vocab) -> Tables:
        """Make the tables of a loaded vocabulary."""
        pieces = vocab.spelled()
        return cls(
            vocab.path,
            vocab.bos,
            vocab.eos,
            vocab.add_bos,
            b"".join(pieces),
            np.fromiter(accumulate(map(len, pieces)), np.int64, len(pieces)),
            {token: vocab.piece(token) for token in np.flatnonzero(vocab.attributes & HIDDEN).tolist()},
            vocab.end_tokens,
            vocab.fill_in_middle,
        )


class RemoteVocab:
    """See lcspec.engine_host.TextVocab. Only `tokenize` asks the child, and waits while it is being restarted."""

    def __init__(self, tables: Tables, tokenize: Callable[[str, bool, bool], list[int]]) -> None:
        """Use the child's tables; `tokenize(text, special, parse_special)` asks the child."""
        self.path, self.bos, self.eos, self.add_bos = tables.path, tables.bos, tables.eos, tables.add_bos
        self.n_tokens = len(tables.ends)
        self.end_tokens = tables.end_tokens
        self._fill_in_middle = tables.fill_in_middle
        self._spelled, self._plain = tables.spelled, tables.plain
        self._ends: list[int] = [0, *tables.ends.tolist()]
        self._tokenize = tokenize

    def tokenize(self, text: str, *, special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text` (see lcspec.llama.vocab.Vocab).

        Raises:
            TokenizeError: the vocabulary has no tokens for some of the text, or the text is too long.
            LcspecError: the engine has stopped, or the text has ended it twice.
        """
        return self._tokenize(text, special, parse_special)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one token; control tokens are empty unless `special`."""
        if not special and (plain := self._plain.get(token)) is not None:
            return plain
        if not 0 <= token < self.n_tokens:
            raise IndexError(f"the vocabulary has {self.n_tokens} tokens, so {token} is not one of them")
        return self._spelled[self._ends[token] : self._ends[token + 1]]

    def text(self, tokens: list[int], *, special: bool = False) -> str:
        """Text of `tokens`; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.piece(t, special=special) for t in tokens).decode("utf-8", "replace")

    @cached_property
    def no_end(self) -> tuple[tuple[int, float], ...]:
        """A `logit_bias` that keeps the text from ending by itself."""
        return tuple((token, float("-inf")) for token in sorted(self.end_tokens))

    @property
    def fill_in_middle(self) -> FillInMiddle | None:
        """The tokens for filling in the middle; None if the model was not trained for that."""
        return self._fill_in_middle
