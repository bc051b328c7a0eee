"""Grammars over a loaded model's vocabulary."""

from __future__ import annotations

import threading
import weakref

from lcspec.llama.vocab import Vocab
from lcspec.sampling.grammar import CompiledGrammar, GrammarTokenizer

# llama.cpp's LLAMA_TOKEN_ATTR_*: tokens that are no text.
UNKNOWN, UNUSED, CONTROL, USER_DEFINED = 1 << 0, 1 << 1, 1 << 3, 1 << 4

_tokenizers: weakref.WeakKeyDictionary[Vocab, GrammarTokenizer] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def compile_grammar(vocab: Vocab, text: str) -> CompiledGrammar:
    """A grammar (GBNF or Lark, see lcspec.sampling.grammar) for texts of this model; from any thread.

    The first one for a model takes some tenths of a second for 150 000 tokens.

    Raises:
        GrammarError: it is none, it is too large, or no text follows it.
    """
    return grammar_tokenizer(vocab).compile(text)


def grammar_tokenizer(vocab: Vocab) -> GrammarTokenizer:
    """The vocabulary as grammars see it."""
    with _lock:
        found = _tokenizers.get(vocab)
        if found is None:
            tokens, attributes = vocab.spelled(), vocab.attributes.tolist()
            special = [token for token in range(vocab.n_tokens) if _is_special(attributes[token], tokens[token])]
            ends = sorted(vocab.end_tokens) or [max(vocab.eos, 0)]
            found = _tokenizers[vocab] = GrammarTokenizer(tokens, special, ends)
        return found


def _is_special(attributes: int, piece: bytes) -> bool:
    if attributes & (UNKNOWN | UNUSED | CONTROL):
        return True
    # `<tool_call>` and the like: what stands in an answer for text must not be read as the beginning of a call.
    return bool(attributes & USER_DEFINED) and piece.startswith(b"<") and piece.endswith(b">")
