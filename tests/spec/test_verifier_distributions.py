"""Every lossless verifier emits what llama.cpp's samplers leave of the target: total variation of two tokens.

The target is a real sampler over logits that depend on the text; the drafter's distribution is another one, and knows
tokens that the target's top-k, top-p or min-p leaves out.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lcspec.llama.sampler import Sampler
from lcspec.llama.vocab import Vocab
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import SamplingParams, inverse_cdf, uniform_noise
from lcspec.session import Session
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import DRAFT_STREAM, VERIFIERS
from tests.oracle import assert_sample_of

pytestmark = [pytest.mark.model, pytest.mark.slow]

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
WORDS = np.arange(40, 45, dtype=np.int32)  # what a text here is made of
START = 7  # position of the first token
N = 1_000
PENDING = 60


class Case:
    """Logits after every text of up to two words, and a draft distribution that disagrees."""

    def __init__(self, vocab: Vocab, params: SamplingParams) -> None:
        self.vocab, self.params = vocab, params
        rng = np.random.default_rng(5)
        self.rows: dict[tuple[int, ...], NDArray[np.float32]] = {}
        self.drafts: dict[tuple[int, ...], Distribution] = {}
        for text in [(), *((int(t),) for t in WORDS), *product(WORDS.tolist(), repeat=2)]:
            row = np.full(vocab.n_tokens, -60.0, dtype=np.float32)
            row[WORDS] = rng.permutation([2.0, 1.6, 0.9, 0.2, -0.8])
            self.rows[text] = row
            self.drafts[text] = Distribution(WORDS, rng.dirichlet(np.full(WORDS.size, 0.8)))

    def sampler(self, seed: int, params: SamplingParams | None = None) -> Sampler:
        sampler = Sampler(self.vocab, params or self.params, seed)
        sampler.accept(int(WORDS[0]), generated=False)  # a prompt, for the penalties
        return sampler

    def joint(self) -> NDArray[np.float64]:
        """Probability of every two words, float64 [5, 5]."""
        p = self.params
        on, off = replace(p, xtc_probability=1.0), replace(p, xtc_probability=0.0)
        ways = [(p.xtc_probability, on), (1.0 - p.xtc_probability, off)]
        out = np.zeros((WORDS.size, WORDS.size))
        for (w1, first), (w2, second) in product(ways, ways):
            one = self.words(self.sampler(1, first), ())
            for i, token in enumerate(WORDS.tolist()):
                if w1 * w2 * one[i] > 0:
                    sampler = self.sampler(1, second)
                    # what a stateful sampler learns from a token follows from the distribution it came from
                    sampler.distribution(self.rows[()], START)
                    sampler.accept(token)
                    out[i] += w1 * w2 * one[i] * self.words(sampler, (token,))
        return out

    def words(self, sampler: Sampler, text: tuple[int, ...]) -> NDArray[np.float64]:
        dist = sampler.distribution(self.rows[text], START + len(text))
        return np.array([dist.prob_of(int(t)) for t in WORDS])


class SamplerTarget:
    """A verifier's target over a Case."""

    greedy = False

    def __init__(self, case: Case, sampler: Sampler, text: tuple[int, ...]) -> None:
        self.case, self.sampler, self.text = case, sampler, text

    def choose(self, node: int, position: int) -> int:
        return self.sampler.choose(self.case.rows[self.text], position)

    def distribution(self, node: int, position: int) -> Distribution:
        return self.sampler.distribution(self.case.rows[self.text], position)

    def unscaled(self, node: int) -> Distribution:
        raise AssertionError("that is for temperature 0")

    def accept(self, token: int) -> bool:
        self.sampler.accept(token)
        self.text += (token,)
        return False

    def ends(self, token: int) -> bool:
        return False

    def fork(self) -> SamplerTarget:
        raise AssertionError("lossless verifiers look down no path they may not take")


def draft(case: Case, text: tuple[int, ...], seed: int, draws: int) -> TokenTree:
    """A word that depends on the text alone and `draws` drawn ones (0: the two likeliest), two levels deep."""
    tree, level = TokenTree.root(PENDING), {0: text}
    for _ in range(2 - len(text)):
        below: dict[int, tuple[int, ...]] = {}
        for node, here in level.items():
            q = case.drafts[here]
            tree.add(node, int(WORDS[sum(here) % WORDS.size]), 0.3)
            for i in range(draws):
                at = [node * 8 + i]
                u = float(uniform_noise(seed, START + len(here), at, DRAFT_STREAM)[0])
                tree.add_sampled(node, inverse_cdf(q, u), q)
            if not draws:
                for place in np.argsort(-q.probs)[:2]:
                    tree.add(node, int(q.ids[place]), float(q.probs[place]))
            below |= {child: (*here, tree.tokens[child]) for child in tree.children(node)}
        level = below
    return tree


@pytest.fixture(scope="module")
def vocab(tiny_session: Session) -> Vocab:
    return tiny_session.model.vocab


VERIFIED = (("coupled", 0), ("rejection", 1), ("multi_step", 3))
# A verifier sees a distribution, wherever it comes from: all of them with samplers that keep something between tokens,
# and one with the others.
STATEFUL: tuple[dict[str, Any], ...] = (
    {"repeat_penalty": 1.6, "presence_penalty": 0.5},
    {"xtc_probability": 0.5, "xtc_threshold": 0.2},
    {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5},
    {"adaptive_target": 0.3, "adaptive_decay": 0.5, "min_p": 0.02},
)
EVERYWHERE: tuple[dict[str, Any], ...] = ({}, {"top_k": 4, "top_p": 0.9, "min_p": 0.1, "temperature": 1.4}, *STATEFUL)
ONCE: tuple[dict[str, Any], ...] = (
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.3},
    {"typical_p": 0.6},
    {"top_n_sigma": 0.13},
)
CASES = [*product(EVERYWHERE, VERIFIED), *((changes, ("rejection", 1)) for changes in ONCE)]


@pytest.mark.parametrize(
    ("changes", "verifier", "draws"), [(changes, *verified) for changes, verified in CASES], ids=str
)
def test_two_tokens_have_the_target_s_joint_distribution(
    vocab: Vocab, verifier: str, draws: int, changes: dict[str, Any]
) -> None:
    assert VERIFIERS[verifier].lossless
    case = Case(vocab, SamplingParams(**{**OFF, **changes}))
    counts = np.zeros((WORDS.size, WORDS.size), dtype=np.int64)
    accepted = 0
    for seed in range(N):
        sampler, text = case.sampler(seed), ()
        while len(text) < 2:
            target = SamplerTarget(case, sampler, text)
            verdict = VERIFIERS[verifier].verify(draft(case, text, seed, draws), target, START + len(text), seed)
            accepted += len(verdict.path)
            text = target.text
        sampler.close()
        counts[text[0] - WORDS[0], text[1] - WORDS[0]] += 1
    expected = case.joint()
    assert abs(expected.sum() - 1) < 1e-6
    assert_sample_of(counts, expected / expected.sum())
    assert 0.1 * N < accepted < 2 * N


def test_every_lossless_verifier_is_among_them() -> None:
    assert {name for name, info in VERIFIERS.items() if info.lossless} == {"coupled", "rejection", "multi_step"}
