"""A grammar comes before every sampler, and every verifier draws from the distribution that this leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcspec.errors import GrammarFailed
from lcspec.llama.grammar import compile_grammar
from lcspec.llama.sampler import Sampler
from lcspec.llama.vocab import Vocab
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import SamplingParams, inverse_cdf, uniform
from lcspec.session import Session, open_session
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import DRAFT_STREAM, VERIFIERS
from tests.running import answer, options, request, side_by_side
from tests.sampling.test_grammar import EXPLODING

pytestmark = pytest.mark.model

OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
# The model's own favourite is forbidden; what it would be without the grammar is in the issue: p = (.5, .3, .2).
MODEL = {"a": 0.5, "7": 0.3, "4": 0.2 * 0.6, "x": 0.2 * 0.3, "0": 0.2 * 0.1}
GRAMMAR = "root ::= [0-9]+"
ALLOWED = {char: p / (0.3 + 0.2 * 0.7) for char, p in MODEL.items() if char.isdigit()}
SEEDS = 1_500


@pytest.fixture(scope="module")
def vocab(tiny_session: Session) -> Vocab:
    return tiny_session.model.vocab


@cache
def letters(vocab: Vocab) -> dict[str, int]:
    """A token for every single character that has one of its own."""
    pieces = {vocab.piece(token): token for token in reversed(range(vocab.n_tokens))}
    return {piece.decode("ascii"): token for piece, token in pieces.items() if len(piece) == 1 and piece[0] < 128}


def logits(vocab: Vocab) -> np.ndarray:
    row = np.full(vocab.n_tokens, -30.0, dtype=np.float32)
    for char, p in MODEL.items():
        row[letters(vocab)[char]] = np.log(p)
    return row


class OneRow:
    """A target whose every row is the same, as a verifier sees it."""

    def __init__(self, sampler: Sampler, row: np.ndarray) -> None:
        self.sampler, self.row = sampler, row

    def choose(self, node: int, position: int) -> int:
        return self.sampler.choose(self.row, position)

    def distribution(self, node: int, position: int) -> Distribution:
        return self.sampler.distribution(self.row, position)

    def accept(self, token: int) -> bool:
        self.sampler.accept(token)
        return False


def drafted(vocab: Vocab, verifier: str, seed: int) -> TokenTree:
    """A forbidden child and two allowed ones: certain ones, or drawn from a draft model's distribution."""
    tree = TokenTree.root(5)
    tokens = [letters(vocab)[char] for char in "a40"]
    if VERIFIERS[verifier].draws == 0:
        for token in tokens:
            tree.add(0, token, 0.3)
        return tree
    q = Distribution(np.array(tokens, dtype=np.int32), np.array([0.5, 0.2, 0.3]))
    for k in range(min(2, VERIFIERS[verifier].draws)):
        tree.add_sampled(0, inverse_cdf(q, uniform(seed, 9, k, DRAFT_STREAM)), q)
    return tree


def renormalized(probs: Mapping[str, float]) -> dict[str, float]:
    return {char: p / sum(probs.values()) for char, p in probs.items()}


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, ALLOWED),
        ({"top_k": 2}, renormalized({"7": 0.3, "4": 0.12})),
        ({"top_p": 0.9}, renormalized({"7": 0.3, "4": 0.12})),
        ({"top_p": 0.6}, {"7": 1.0}),
        ({"min_p": 0.3}, renormalized({"7": 0.3, "4": 0.12})),
        ({"top_k": 3, "top_p": 0.99, "min_p": 0.01}, ALLOWED),
        ({"temperature": 0.5}, renormalized({char: p**2 for char, p in ALLOWED.items()})),
        ({"temperature": 0.0}, {"7": 1.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize("verifier", ["coupled", "rejection", "multi_step"])
def test_every_verifier_draws_from_the_same_distribution(
    vocab: Vocab, verifier: str, changes: dict[str, Any], expected: dict[str, float]
) -> None:
    params = SamplingParams(**{**OFF, **changes}, grammar=compile_grammar(vocab, GRAMMAR))  # type: ignore[arg-type]
    row, counts = logits(vocab), Counter[int]()
    told = Sampler(vocab, params, 1).distribution(row, 9)
    by_char = {vocab.text([token]): p for token, p in zip(told.ids.tolist(), told.probs.tolist()) if p > 1e-6}
    assert by_char == pytest.approx(expected, rel=1e-4)
    for seed in range(SEEDS):
        sampler = Sampler(vocab, params, seed)
        verdict = VERIFIERS[verifier].verify(drafted(vocab, verifier, seed), OneRow(sampler, row), 9, seed)
        counts[verdict.tokens[0]] += 1
        sampler.close()
    shares = {vocab.text([token]): n / SEEDS for token, n in counts.items()}
    variation = sum(abs(shares.get(c, 0.0) - expected.get(c, 0.0)) for c in {*shares, *expected}) / 2
    assert variation < 0.035


def test_the_favourite_is_the_best_allowed_token(vocab: Vocab) -> None:
    """At temperature 0 one token is looked at first, the mask only if that one is forbidden: the choice is the same."""
    rng = np.random.default_rng(1)
    for changes in ({}, {"repeat_penalty": 1.8}, {"logit_bias": ((70, 4.0),)}):
        grammar = compile_grammar(vocab, "root ::= ([a-f0-3 ]* | [x-z] root)")
        sampler = Sampler(vocab, SamplingParams(temperature=0.0, grammar=grammar, **changes), 1)  # type: ignore[arg-type]
        follow, said = grammar.start(), Counter[int]()
        for step in range(40):
            row = (rng.standard_normal(vocab.n_tokens) * 3).astype(np.float32)
            changed = row.copy()
            for token, bias in changes.get("logit_bias", ()):  # type: ignore[attr-defined]
                changed[token] += bias
            if "repeat_penalty" in changes:
                for token in said:
                    changed[token] = changed[token] / 1.8 if changed[token] > 0 else changed[token] * 1.8
            changed[~follow.mask()] = -np.inf
            token = sampler.choose(row, step)
            assert token == int(changed.argmax())
            if vocab.is_end(token):
                break
            sampler.accept(token)
            follow.accept(token)
            said[token] += 1
        sampler.close()


def test_a_bias_that_forbids_what_the_grammar_wants_is_an_error(tiny_session: Session) -> None:
    vocab = tiny_session.model.vocab
    never = tuple((token, -np.inf) for token in range(vocab.n_tokens) if not vocab.is_end(token))
    for temperature in (0.0, 0.8):
        sampling = SamplingParams(temperature, grammar='root ::= "ab"', logit_bias=never)
        (found,) = side_by_side(tiny_session.engine, [request((5,), sampling=sampling, ignore_end=False)])
        assert isinstance(found.error, GrammarFailed) and "logit bias" in str(found.error)


@pytest.mark.parametrize("strategy", ["off", "forced,ngram:min_n=1", "auto"])
def test_a_mask_over_budget_ends_that_request_and_nobody_else_s(llama: Path, llama_draft: Path, strategy: str) -> None:
    # Exact, because the widths of the steps that `auto` chooses depend on time.
    with open_session(options(llama, slots=3, ctx=1536, attention="measured", exact=True), llama_draft) as session:
        if strategy == "auto" and not session.engine.exact.independent:
            pytest.skip("this machine's kernels give a row other bits at other widths")
        prompt = session.prompt_ids("hello ")
        free = request(prompt, strategy, 40)
        held = request(prompt, strategy, 40, sampling=SamplingParams(0.0, grammar="root ::= [a-z ]{60}"))
        alone = [answer(session.engine, wanted).text for wanted in (free, held)]
        hostile = request(prompt, strategy, 40, sampling=SamplingParams(0.0, grammar=EXPLODING), ignore_end=False)
        found = side_by_side(session.engine, [free, hostile, held])
        assert isinstance(found[1].error, GrammarFailed) and "max is 2000" in str(found[1].error)
        assert [found[0].text, found[2].text] == alone
        (found[1],) = side_by_side(session.engine, [hostile])
        assert isinstance(found[1].error, GrammarFailed)
        assert not session.engine.busy
        assert answer(session.engine, held).text == alone[1]
