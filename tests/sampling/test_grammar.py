"""Grammars over a vocabulary of bytes and words: what they allow, what they force, and what ends them."""

from __future__ import annotations

import random
import re

import pytest
from llguidance.gbnf_to_lark import RuleRefNode

from lcspec.errors import GrammarError, GrammarFailed
from lcspec.sampling import grammar_depth
from lcspec.sampling.grammar import Constraint, GrammarTokenizer, to_lark

BYTES = [bytes([i]) for i in range(256)]
WORDS = [b'{"', b'":', b' "', b"true", b"fal", b"se", b"name", b"ab", b"abc", b"end", b"12", b"\xc3\xa9", b" the"]
TOKENS = [b"<s>", b"</s>", b"<|end|>", b"", *BYTES, *WORDS]
ENDS = (1, 2)
# Ambiguous at every character: each is one of 300 rules, which go on in two ways.
EXPLODING = "root ::= " + " | ".join(f"r{i}" for i in range(300)) + "\n"
EXPLODING += "\n".join(f"r{i} ::= [a-z] r{(i * 7 + 1) % 300} | [a-z] r{(i * 3 + 2) % 300} | [a-z]" for i in range(300))


@pytest.fixture(scope="module")
def tokenizer() -> GrammarTokenizer:
    return GrammarTokenizer(TOKENS, special=(0,), ends=ENDS)


def ids(text: str) -> list[int]:
    return [4 + byte for byte in text.encode()]


def accepts(tokenizer: GrammarTokenizer, grammar: str, text: str) -> bool:
    constraint = tokenizer.compile(grammar).start()
    for token in ids(text):
        if not constraint.allows(token):
            return False
        constraint.accept(token)
    return constraint.allows(ENDS[0])


@pytest.mark.parametrize(
    "grammar, right, wrong",
    [
        ('root ::= "a" | "b"\n', ["a", "b"], ["", "c", "ab"]),
        ('root ::= [a-z]* "end"', ["end", "xend", "endxend"], ["en", "endx"]),
        ('root ::= w " " w\nw ::= [a-z ]+', ["a a", "a b c"], ["a", "ab"]),
        ('root ::= "(" root? ")"', ["()", "((()))"], ["(", "())"]),
        ('root ::= "x" . "y"', ["x\ny", "xéy", "x.y"], ["xy"]),
        ('root ::= ".root" my-root\nmy-root ::= "]" ["[.]', [".root][", ".root]."], [".root", ".root]x"]),
        ("root ::= [\\u00e9\\U0001F600-\\U0001F64F\\x41]", ["é", "😀", "A"], ["e", "B"]),
        ('root ::= "\\x22\\u005c\\n/" [^/]', ['"\\\n/x', '"\\\n/\n'], ['"\\\n//']),
        ('# a comment with "quotes\nroot ::= ("a"{2,3} | # another\n "b"+)', ["aa", "aaa", "b", "bbb"], ["a", "aaaa"]),
        ("start: /ab+/ | JSON\nJSON: /[0-9]+/", ["ab", "abb", "12"], ["a", "x"]),
        ('root ::= ""', [""], ["x"]),
    ],
)
def test_what_a_grammar_allows(tokenizer: GrammarTokenizer, grammar: str, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert accepts(tokenizer, grammar, text), text
    for text in wrong:
        assert not accepts(tokenizer, grammar, text), text


def walk(constraint: Constraint, seed: int, limit: int = 60) -> list[int]:
    chosen, dice = list[int](), random.Random(seed)
    for _ in range(limit):
        allowed = [int(t) for t in constraint.mask().nonzero()[0]]
        token = dice.choice(allowed)
        if token in ENDS:
            break
        constraint.accept(token)
        chosen.append(token)
    return chosen


@pytest.mark.parametrize(
    "grammar",
    [
        "start: %json {}",
        'start: %json {"properties": {"name": {"type": "string", "maxLength": 4}, "n": {"maximum": 9}}}',
        'root ::= item ("," item)*\nitem ::= [0-9]+ | "(" root ")" | "é" | "abc"',
    ],
)
def test_one_token_is_allowed_exactly_if_it_is_in_the_mask(tokenizer: GrammarTokenizer, grammar: str) -> None:
    """Looking at one token, at the mask, and at what is forced never changes anything."""
    for seed in range(4):
        constraint, dice = tokenizer.compile(grammar).start(), random.Random(seed)
        for _ in range(40):
            mask = constraint.mask()
            assert mask.size == len(TOKENS) and mask.any()
            assert not mask[0] and not mask[3]  # a control token and an empty one
            forced = constraint.forced()
            assert [constraint.allows(t) for t in range(len(TOKENS))] == mask.tolist()
            assert (constraint.mask() == mask).all() and constraint.forced() == forced
            if forced:  # a token fits if and only if it agrees with what is forced
                for token in mask.nonzero()[0]:
                    n = min(len(forced), len(TOKENS[token]))
                    assert TOKENS[token][:n] == forced[:n]
            token = int(dice.choice(mask.nonzero()[0]))
            if token in ENDS:
                break
            constraint.accept(token)


def test_every_end_ends_a_text_and_only_a_complete_one(tokenizer: GrammarTokenizer) -> None:
    constraint = tokenizer.compile('root ::= "ab"').start()
    assert not any(constraint.mask()[list(ENDS)])
    assert constraint.forced() == b"ab"
    constraint.accept(TOKENS.index(b"ab"))
    assert constraint.mask().nonzero()[0].tolist() == list(ENDS)


def test_texts_that_start_from_one_grammar_do_not_meet(tokenizer: GrammarTokenizer) -> None:
    compiled = tokenizer.compile("root ::= [a-z]{3} [0-9]")
    first, second = compiled.start(), compiled.start()
    for token in ids("abc"):
        first.accept(token)
    assert first.allows(*ids("7")) and not first.allows(*ids("a"))
    assert second.allows(*ids("a")) and not second.allows(*ids("7"))
    fork = first.fork()
    first.accept(*ids("7"))
    assert fork.allows(*ids("8")) and not first.allows(*ids("8"))


def test_a_vocabulary_may_lack_bytes() -> None:
    without = [b"</s>", *(bytes([i]) for i in range(0x20, 0x7F) if chr(i) not in "xé")]
    tokenizer = GrammarTokenizer(without, special=(), ends=(0,))
    constraint = tokenizer.compile('root ::= ("a" | "x") "y"').start()
    assert [without[t] for t in constraint.mask().nonzero()[0]] == [b"a"]
    with pytest.raises(GrammarError, match="no token that fits"):
        tokenizer.compile('root ::= "é"')
    constraint = tokenizer.compile('root ::= "a" "x"').start()
    constraint.accept(without.index(b"a"))
    with pytest.raises(GrammarFailed, match="no token that fits"):
        constraint.mask()


@pytest.mark.parametrize(
    "grammar, problem",
    [
        ("", "root"),
        ("root", "::="),
        ('root ::= "a', "end of input"),
        ('other ::= "a"', "root"),
        ("root ::= missing", "'missing' not found"),
        ('root ::= root "a"', "no text follows"),
        ('root ::= "a"{5,2}', "range"),
        ("root ::= " + "(" * 9000, "deep"),
        ('root ::= "\\U00110000"', "U\\+110000"),
        ("x" * (1 << 21), "longer than"),
        ("start: nope", "nope"),
        ("start: /(/", "regex"),
    ],
)
def test_what_is_no_grammar_is_refused_in_one_line(tokenizer: GrammarTokenizer, grammar: str, problem: str) -> None:
    with pytest.raises(GrammarError, match=problem) as error:
        tokenizer.compile(grammar)
    assert "\n" not in str(error.value) and "lcspec-root" not in str(error.value)


HOSTILE = {
    "doubling": "root ::= a0\n"
    + "\n".join(f"a{i} ::= a{i + 1} a{i + 1} | a{i + 1}?" for i in range(40))
    + "\na40 ::= [x]?",
    "many options": "root ::= " + " ".join(["[a-z]?"] * 500),
    "options of options": "root ::= ([a-z]? [a-z]?){500}",
    "endless options": "root ::= x*\nx ::= " + "[a-z]* " * 6,
    "90 bytes": "root ::= (([a-z]? [b-y]? [c-x]?){9} (([a-z]+ [a-y]+)* [a-x]+)*)*",
    "ambiguous": 'root ::= e\ne ::= e e | [a-z] | ""',
    "very ambiguous": 'root ::= s\ns ::= s s s | s s | "a" | "b" | [a-c]',
    "long memory": 'root ::= x y\nx ::= [ab]* [a] [ab]{60}\ny ::= "c" y | "d"',
    "rules": EXPLODING,
    "repeats": 'root ::= ("a" [b] c){100000}\nc ::= "d" c | "e"',
    "long": "root ::= [a-z]{1,1000000000}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_grammar_takes_more_than_its_budget(tokenizer: GrammarTokenizer, name: str) -> None:
    """The library counts its steps: a grammar goes on, or ends with an error, and never just goes on thinking."""
    try:
        walk(tokenizer.compile(HOSTILE[name]).start(), seed=1, limit=200)
    except GrammarError as error:
        assert str(error) and "\n" not in str(error)


def chain(n: int) -> str:
    """Rules one below the other."""
    return "root ::= r0\n" + "\n".join(f'r{i} ::= r{i + 1} | "{i}"' for i in range(n)) + f'\nr{n} ::= "x"'


GROUPS = '("x" | ' * 30
DEEP = {
    "rules without recursion": chain(4_000),
    "rules": chain(4_000).replace('"x"', '"x" r0?'),
    "groups": "root ::= r0\n"
    + "\n".join(f"r{i} ::= {GROUPS}r{i + 1}{')' * 30} r0?" for i in range(350))
    + "\nr350 ::= r0",
    "Lark": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(8_000)) + "\nr8000: r0",
    "names that look like something else": "start: a-\n"
    + "".join(f'a{i}: <"> <"> "\\"" /"/ a{i}\n' for i in range(5_000)),
}


@pytest.mark.parametrize("name", DEEP)
def test_rules_one_below_the_other_end_before_the_stack_does(tokenizer: GrammarTokenizer, name: str) -> None:
    """The library calls itself for each: a few thousand of them ended the process."""
    with pytest.raises(GrammarError, match=r"\d rules, .*the limit is 1000"):
        tokenizer.compile(DEEP[name])


def test_what_counts_as_a_level() -> None:
    for lark, levels in {
        'start: "a"': 1,
        "start: a b\na: [(b)]\nB-2 : /x/\n": 5,
        '// a: b\nstart: "(((: a:" /(a:(/ <a:(> b # c: ((\nb:"x"': 2,
        'start: "a" %json {"a:": {"(": []}}': 4,
        'start: %json {"items": {"$ref": "#"}} | %json {"$ref": "#/items", "items": {"items": {}}}': 1 + 4 + 5,
        'start: %json {"$ref": "#x", "anyOf": [null, {"$ref": "other"}]}': 1 + 3 + 3 + 3,
    }.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grammar_depth, "MAX_LEVELS", levels)
            grammar_depth.check_depth(lark)
            patch.setattr(grammar_depth, "MAX_LEVELS", levels - 1)
            with pytest.raises(GrammarError, match=f"{levels} deep"):
                grammar_depth.check_depth(lark)


def test_the_converter_takes_two_passes_over_the_rules() -> None:
    """One marks all rules without recursion, the other finds no more; rules that come too early cost a pass each."""
    looks = 0

    def counted(node: RuleRefNode) -> bool:
        nonlocal looks
        looks += 1
        return node.target is not None and node.target.rule_is_terminal

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RuleRefNode, "is_terminal", counted)
        lark = to_lark(chain(500) + '\nother ::= "a" other | r7')
    assert looks <= 2 * 504 and "R499:" in lark and "other:" in lark


def test_a_grammar_over_its_budget_says_so(tokenizer: GrammarTokenizer) -> None:
    constraint = tokenizer.compile(EXPLODING).start()
    with pytest.raises(GrammarFailed, match="max is 2000"):
        constraint.accept(*ids("a"))
    with pytest.raises(GrammarFailed):
        constraint.mask()


def test_what_is_not_allowed_cannot_be_accepted(tokenizer: GrammarTokenizer) -> None:
    with pytest.raises(GrammarFailed):
        tokenizer.compile('root ::= "a"').start().accept(*ids("b"))


def test_the_converter_s_language_is_taken_as_it_is() -> None:
    assert re.search(r"(?m)^start:", to_lark('root ::= "a"'))
