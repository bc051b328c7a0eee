"""A model's vocabulary: tokenizing, pieces, special tokens, and comparing two vocabularies."""

from __future__ import annotations

import ctypes
import hashlib
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lcspec.errors import TokenizeError, VocabularyMismatch
from lcspec.llama.lib import C, token_to_piece
from lcspec.llama.lifetime import Lifetime
from lcspec.modelfiles.fill_in_middle import FillInMiddle
from lcspec.modelfiles.modelfile import ByteCoverage, byte_coverage


class Vocab:
    """Text to token ids and back, for one loaded model; from any thread.

    Once the model is closed, whatever would have to ask the library raises ModelClosed.
    """

    def __init__(self, handle: ctypes.c_void_p, path: Path, coverage: ByteCoverage | None = None) -> None:
        self.handle = handle
        self.path = path
        self.alive = Lifetime(path.name)  # to be entered wherever `handle` is used
        self.n_tokens = int(C.llama_vocab_n_tokens(handle))
        self.bos = int(C.llama_vocab_bos(handle))
        self.eos = int(C.llama_vocab_eos(handle))
        self.add_bos = bool(C.llama_vocab_get_add_bos(handle))
        # llama.cpp aborts the whole process on text it has no bytes for, so that is found out before.
        self.coverage = coverage or byte_coverage(path)
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._spellings: dict[int, tuple[bytes, str]] = {}

    def take_over(self, fresh: Vocab) -> None:
        """Ask the model of another vocabulary of the same file from now on."""
        self.handle = fresh.handle
        self.alive = fresh.alive  # last: whoever enters it finds the handle that it guards

    def tokenize(self, text: str, *, special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        Args:
            text: any text.
            special: add what the model wants around a text (usually BOS).
            parse_special: read `<|...|>` and the like as special tokens.

        Raises:
            TokenizeError: the vocabulary has no tokens for some of the text, or the text is too long.
            ModelClosed: it belongs to no model any more.
        """
        self.coverage.check(text)
        data = text.encode()
        room = len(data) + 16
        buffer = (ctypes.c_int32 * room)()
        with self.alive:
            n = C.llama_tokenize(self.handle, data, len(data), buffer, room, special, parse_special)
            if n < 0:
                if n == -(2**31):
                    raise TokenizeError("the text is too long to tokenize: split it")
                room = -n
                buffer = (ctypes.c_int32 * room)()
                n = C.llama_tokenize(self.handle, data, len(data), buffer, room, special, parse_special)
        return list(buffer[: max(0, n)])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one token; control tokens are empty unless `special`."""
        key = (token, special)
        found = self._pieces.get(key)
        if found is None:
            size = 64
            with self.alive:
                while True:
                    buffer = ctypes.create_string_buffer(size)
                    n = C.llama_token_to_piece(self.handle, token, buffer, size, 0, special)
                    if n >= 0:
                        break
                    size = -n
            found = self._pieces[key] = buffer.raw[:n]
        return found

    def spelled(self) -> list[bytes]:
        """The bytes of all tokens, control tokens spelled out."""
        room, at, ends = 8 * self.n_tokens, 0, [0]
        with self.alive:
            handle = ctypes.cast(self.handle, ctypes.c_void_p).value
            buffer = ctypes.create_string_buffer(room)
            start = ctypes.addressof(buffer)
            for token in range(self.n_tokens):
                while (n := token_to_piece(handle, token, start + at, room - at, 0, True)) < 0:
                    room = 2 * room - n
                    ctypes.resize(buffer, room)
                    start = ctypes.addressof(buffer)
                at += n
                ends.append(at)
            data = ctypes.string_at(start, at)
        return [data[begin:end] for begin, end in zip(ends, ends[1:])]

    def spelling(self, token: int) -> tuple[bytes, str]:
        """`piece`, and how a control token is spelled ("" for tokens with text of their own)."""
        found = self._spellings.get(token)
        if found is None:
            data = self.piece(token)
            control = "" if data else self.piece(token, special=True).decode("utf-8", "replace")
            found = self._spellings[token] = data, control
        return found

    def text(self, tokens: list[int], *, special: bool = False) -> str:
        """Text of `tokens`; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.piece(t, special=special) for t in tokens).decode("utf-8", "replace")

    def is_end(self, token: int) -> bool:
        """Whether `token` ends a generation (EOS, end of turn, ...)."""
        return token in self.end_tokens

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Ids of the tokens that end a generation."""
        return frozenset(np.flatnonzero(self.end_mask).tolist())

    @cached_property
    def no_end(self) -> tuple[tuple[int, float], ...]:
        """A `logit_bias` under which the text never ends by itself, as llama.cpp's --ignore-eos sets it."""
        return tuple((token, float("-inf")) for token in sorted(self.end_tokens))

    @cached_property
    def end_mask(self) -> NDArray[np.bool_]:
        """bool [n_tokens]: tokens that end a generation."""
        with self.alive:
            return np.array([C.llama_vocab_is_eog(self.handle, t) for t in range(self.n_tokens)], dtype=np.bool_)

    @cached_property
    def control_tokens(self) -> frozenset[int]:
        """Ids of the tokens that only templates write: where messages begin and end."""
        return frozenset(np.flatnonzero(self.attributes & C.LLAMA_TOKEN_ATTR_CONTROL).tolist())

    @cached_property
    def attributes(self) -> NDArray[np.int32]:
        """llama.cpp's LLAMA_TOKEN_ATTR_* of every token, int32 [n_tokens]."""
        with self.alive:
            attribute, handle = C.llama_vocab_get_attr, self.handle
            return np.array([attribute(handle, token) for token in range(self.n_tokens)], dtype=np.int32)

    @cached_property
    def fill_in_middle(self) -> FillInMiddle | None:
        """The tokens for filling in the middle; None if the model was not trained for that."""
        with self.alive:
            found = FillInMiddle(
                int(C.llama_vocab_fim_pre(self.handle)),
                int(C.llama_vocab_fim_suf(self.handle)),
                int(C.llama_vocab_fim_mid(self.handle)),
                int(C.llama_vocab_fim_rep(self.handle)),
                int(C.llama_vocab_fim_sep(self.handle)),
            )
        return found if min(found.prefix, found.suffix, found.middle) >= 0 else None

    def fingerprint(self) -> list[bytes]:
        """Every token's text as stored in the file, in order; two models may pair up when these agree."""
        with self.alive:
            return [C.llama_vocab_get_text(self.handle, t) or b"" for t in range(self.n_tokens)]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the fingerprint: what is stored as token ids is only good for a vocabulary with the same one."""
        return hashlib.sha256(b"\0".join(self.fingerprint())).hexdigest()


# Padding the output matrix to a round size is common, so trailing entries may be missing on one side.
MAX_PADDING = 1024


def check_same_vocabulary(target: Vocab, draft: Vocab) -> None:
    """Compare two vocabularies piece by piece.

    Trailing entries that only one of them has (padding) are allowed up to MAX_PADDING.

    Raises:
        VocabularyMismatch: naming the first entry that differs and what to do.
    """
    advice = "pick a draft model of the same family, or leave --draft out (n-gram drafting needs none)"
    names = f"{draft.path.name} cannot draft for {target.path.name}"
    if abs(target.n_tokens - draft.n_tokens) > MAX_PADDING:
        raise VocabularyMismatch(f"{names}: {draft.n_tokens} vocabulary entries against {target.n_tokens}; {advice}")
    ours, theirs = target.fingerprint(), draft.fingerprint()
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            shown = f"{b.decode('utf-8', 'replace')!r} against {a.decode('utf-8', 'replace')!r}"
            raise VocabularyMismatch(f"{names}: their vocabularies differ at entry {i} ({shown}); {advice}")
    if (target.add_bos, target.bos if target.add_bos else -1) != (draft.add_bos, draft.bos if draft.add_bos else -1):
        raise VocabularyMismatch(f"{names}: they begin a text differently (BOS); {advice}")
