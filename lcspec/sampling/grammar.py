"""Grammars a text must follow, through llguidance: compiled once, then a set of allowed tokens at every place.

    GrammarTokenizer    the model's tokens as bytes; made once for a vocabulary
    CompiledGrammar     a grammar over them, ready to be followed by any number of texts
    Constraint          one text on its way through it

The library bounds its work by counted steps, not by time, so what is refused does not depend on the machine. Masks hold
every token whose bytes the grammar allows next, however the text would be tokenized otherwise (`no_forcing`).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import Any, Iterator, Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import ASTNode, GrammarParser, RuleNode, RuleRefNode, is_lark_syntax, resolve
from numpy.typing import NDArray

from lcspec.errors import GrammarError, GrammarFailed
from lcspec.sampling.grammar_breadth import check_breadth
from lcspec.sampling.grammar_depth import check_depth

# With RUST_BACKTRACE set, the library would look at its whole stack for every rule that an error passes: seconds.
os.environ.setdefault("RUST_LIB_BACKTRACE", "0")

HEADER = '%llguidance {"no_forcing": true}\n'
# A grammar's text in bytes, with the square of which the time may grow, and parentheses in each other: the converter is
# recursive. The converter of GBNF, in Python, takes a second for so many bytes.
MAX_TEXT = 1 << 18
MAX_GBNF = 96 << 10
MAX_NESTING = 100
# The library's own bounds, in steps of its lexer and parser: a mask of 150 000 tokens stays below a tenth of a second.
# Compiling takes at most about a second (with MAX_OPTIONAL), enough for a schema of a thousand properties.
LIMITS = LLParserLimits(
    initial_lexer_fuel=120_000,
    max_grammar_size=12_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_items_in_row=2_000,
    verbose_errors=False,
)
# How the library says that a grammar exceeds one of them.
EXCEEDED = re.compile(r"too big \(limit|fuel exhausted|too many lexer states")
TOO_BIG = "it takes more steps to compile than there are for it: make it smaller, or split it into several requests"
NO_TOKEN = "the model has no token that fits the grammar here"
# The byte that marks a token as no text: control tokens can never be part of an answer.
SPECIAL = b"\xff"
QUOTED = re.compile(r'("(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|#[^\n]*)', re.DOTALL)
CODE_POINT = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
ROOT = re.compile(r"(?<![\w-])root(?![\w-])")
BODY = "lcspec-root"


class _Tokens:
    """What the library asks of a tokenizer. It never has to split a text here: masks are over all tokens."""

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int], end: int) -> None:
        self.tokens, self.special_token_ids = list(tokens), list(special)
        self.eos_token_id, self.bos_token_id = end, None

    def __call__(self, text: Any) -> list[int]:
        return []


class GrammarTokenizer:
    """The tokens of one vocabulary. Safe to use from any thread."""

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int], ends: Sequence[int]) -> None:
        """Takes about a second for 150 000 tokens.

        Args:
            tokens: the bytes of each token; empty ones are never allowed.
            special: ids of the tokens that are no text (control tokens); only those in `ends` are ever allowed.
            ends: ids of the tokens that end a text, at least one.
        """
        marked = list(tokens)
        for token in {*special, *ends}:
            marked[token] = SPECIAL + (tokens[token] or b"end")
        self.n_tokens = len(marked)
        self.ends = frozenset(ends)
        wrapped = TokenizerWrapper(_Tokens(marked, sorted({*special, *ends}), min(ends)))
        self.handle = LLTokenizer(wrapped, eos_token=sorted(ends))

    def unpacked(self, bits: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """The library's mask as bool [n_tokens]."""
        mask: NDArray[np.bool_] = np.unpackbits(bits, count=self.n_tokens, bitorder="little").view(np.bool_)
        return mask

    def compile(self, text: str) -> CompiledGrammar:
        """A grammar (GBNF or Lark) over these tokens.

        Raises:
            GrammarError: it is none, it is too large, or no text follows it.
        """
        _check_length(text)
        lark = text if is_lark_syntax(text) else to_lark(text)
        check_depth(lark)
        check_breadth(lark)
        grammar = LLMatcher.grammar_from_lark(HEADER + lark)
        matcher = LLMatcher(self.handle, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            said = _said(matcher)
            raise GrammarError(TOO_BIG if EXCEEDED.search(said) else f"the grammar is not valid: {said}")
        compiled = CompiledGrammar(self, matcher)
        try:
            compiled.start().mask()
        except GrammarFailed as error:
            raise GrammarError(f"the grammar cannot be used, no text follows it or too many do: {error}") from None
        return compiled


class CompiledGrammar:
    """A grammar ready for use; it never changes, so many requests may start from one."""

    def __init__(self, tokenizer: GrammarTokenizer, matcher: LLMatcher) -> None:
        self.tokenizer = tokenizer
        self._matcher = matcher

    def start(self) -> Constraint:
        """A text's way through it, from the beginning (microseconds)."""
        return Constraint(self.tokenizer, self._matcher.deep_copy())


class Constraint:
    """What the grammar allows one text to go on with."""

    free = False  # it says something about every token

    def __init__(self, tokenizer: GrammarTokenizer, matcher: LLMatcher) -> None:
        self._tokenizer = tokenizer
        self._matcher = matcher

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may come next, bool [n_tokens]; at least one.

        Raises:
            GrammarFailed: to find out takes more steps than there are for it, or none of the tokens fits.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise _failure(self._matcher)
        allowed: NDArray[np.bool_] = self._tokenizer.unpacked(bits)
        if not allowed.any():
            raise GrammarFailed(NO_TOKEN)
        return allowed

    def allows(self, token: int) -> bool:
        """Whether `token` may come next: the same as in `mask`, in a microsecond."""
        if token in self._tokenizer.ends:
            return bool(self._matcher.is_accepting())
        return bool(self._matcher.validate_tokens([token]) == 1)

    def accept(self, token: int) -> None:
        """Go on past `token`, which is no end of the text.

        Raises:
            GrammarFailed: it is not allowed here, or what may follow has too many ways.
        """
        if not self._matcher.consume_token(token):
            raise _failure(self._matcher)

    def fork(self) -> Constraint:
        """One that goes on by itself from here."""
        return Constraint(self._tokenizer, self._matcher.deep_copy())

    def forced(self) -> bytes:
        """The bytes the grammar allows no alternative to from here on; often empty. Changes nothing."""
        return bytes(self._matcher.compute_ff_bytes())


def _check_length(text: str) -> None:
    """Refuse a text that would take too long.

    Raises:
        GrammarError: it is.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_TEXT:
        raise GrammarError(f"the grammar is longer than {MAX_TEXT} bytes ({size}): shorten it")


def to_lark(text: str) -> str:
    """A GBNF grammar in llguidance's language.

    Terminals (rules without recursion) match as much as they can, as in a lexer; `root` becomes one where it can.

    Raises:
        GrammarError: it is no GBNF, too long, or nested too deeply.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_GBNF:
        raise GrammarError(
            f"a grammar in GBNF may have {MAX_GBNF} bytes and this one has {size}: shorten it, or write it in Lark, "
            f"where the limit is {MAX_TEXT}"
        )
    parts = QUOTED.split(text)
    depth = 0
    for char in "".join(parts[::2]):
        depth += (char == "(") - (char == ")")
        if depth > MAX_NESTING:
            raise GrammarError(f"the grammar has parentheses more than {MAX_NESTING} deep")
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = CODE_POINT.sub(_character, part)
        else:
            # The converter knows no `.`, and makes terminals of every rule but the first.
            parts[i] = ROOT.sub(BODY, part).replace(".", "([^\\n] | [\\n])")
    try:
        rules = _bottom_up(GrammarParser().parse("".join(parts) + f"\nroot ::= {BODY}\n"))
        resolve(rules)
        return "\n".join(str(rule) for rule in rules.values())
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply") from None
    except Exception as error:  # the converter raises whatever it trips over
        raise GrammarError(
            f"the grammar is not valid GBNF ({str(error).replace(BODY, 'root')}): it needs a rule named root; see "
            "llama.cpp's grammars guide"
        ) from error


def _bottom_up(rules: dict[str, RuleNode]) -> dict[str, RuleNode]:
    """The rules without recursion first, each after those it is made of, as the converter takes the fewest passes."""
    needs = {name: set(_referred(rule)) for name, rule in rules.items()}
    users: dict[str, list[str]] = defaultdict(list)
    for name, needed in needs.items():
        for other in needed:
            users[other].append(name)
    ready = [name for name, needed in needs.items() if not needed]
    for name in ready:  # it grows on the way
        for user in users[name]:
            needs[user].discard(name)
            if not needs[user]:
                ready.append(user)
    return {name: rules[name] for name in (*ready, *rules)}


def _referred(node: ASTNode) -> Iterator[str]:
    """The names of rules in a part of a rule."""
    if isinstance(node, RuleRefNode):
        yield node.name
    for inner in node.children():
        yield from _referred(inner)


def _character(found: re.Match[str]) -> str:
    """The character of an escape: the converter gets most of them wrong."""
    code = int(found[2] or found[3] or found[4], 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise GrammarError(f"the grammar names U+{code:04X}, which is no character")
    plain = chr(code).isalnum() or code >= 0x80
    return found[1] + (chr(code) if plain else f"\\x{code:02x}")


def _failure(matcher: LLMatcher) -> GrammarFailed:
    said = _said(matcher)
    if said == NO_TOKEN:
        return GrammarFailed(said)
    return GrammarFailed(f"the text cannot go on under its grammar ({said}): make the grammar less ambiguous")


def _said(matcher: LLMatcher) -> str:
    """What the library says is wrong, on one line and without its inner state."""
    text = str(matcher.get_error()).partition("\n<")[0]
    if text.startswith("NoExtensionBias"):
        return NO_TOKEN
    lines = [line.strip() for line in text.splitlines() if not re.match(r"\s*\d+ \||\s*\^\s*$", line)]
    return " ".join(line for line in lines if line)[:400].replace(BODY.replace("-", "_").upper(), "root")
