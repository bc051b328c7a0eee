"""Every lossless verifier emits what llama.cpp's samplers leave of the target: chi-square of the first two tokens.

The target is a real sampler over logits that depend on the text; the drafter's distribution is another one, and knows
tokens that the target's top-k, top-p or min-p leaves out. With samplers that have a state, or look at the position,
there are so many draws that 3 % of the probability in the wrong place would be seen.
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
from lcspec.sampling.parameters import XTC_STREAM, SamplingParams, coupled_choice
from lcspec.session import Session
from lcspec.spec import verifiers
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import DRAFT_STREAM, VERIFIERS
from tests.oracle import NoiseTables, assert_sample_of, chi_square_p, noise_of_seeds

pytestmark = [pytest.mark.model, pytest.mark.slow]

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
WORDS = np.arange(40, 45, dtype=np.int32)  # what a text here is made of
START = 7  # position of the first token
PENDING = 60
# Draws with XTC, Mirostat and adaptive-p, and with the others, whose distributions other tests look at one by one.
MANY, FEW = 16_000, 2_000
# Of so many texts one has its sampler asked although the answer is known.
ASKED_AGAIN = 64
# A case fails if exact draws would differ as much less often than this. The draws are the same in every run.
LEAST_P = 1e-4
DRAWN: dict[tuple[int, ...], list[list[int]]] = {}


class Case:
    """Logits after every text of up to two words, and a draft distribution that disagrees."""

    def __init__(self, vocab: Vocab, params: SamplingParams) -> None:
        self.vocab, self.params = vocab, params
        rng = np.random.default_rng(5)
        self.rows: dict[tuple[int, ...], NDArray[np.float32]] = {}
        self.drafts: dict[tuple[int, ...], Distribution] = {}
        self.answers: dict[tuple[Any, ...], Distribution] = {}
        self.certain: dict[tuple[int, ...], TokenTree] = {}
        for text in [(), *((int(t),) for t in WORDS), *product(WORDS.tolist(), repeat=2)]:
            row = np.full(vocab.n_tokens, -60.0, dtype=np.float32)
            row[WORDS] = rng.permutation([2.0, 1.6, 0.9, 0.2, -0.8])
            self.rows[text] = row
            self.drafts[text] = Distribution(WORDS, rng.dirichlet(np.full(WORDS.size, 0.8)))

    def drawn(self, text: tuple[int, ...]) -> list[list[int]]:
        """What is drawn after `text` with every seed and number: the same in every case."""
        if text not in DRAWN:
            noise = noise_of_seeds(MANY, START + len(text), DRAFT_STREAM, 20)
            cumulative = self.drafts[text].probs.cumsum()
            DRAWN[text] = WORDS[cumulative.searchsorted(noise * cumulative[-1], side="right")].tolist()
        return DRAWN[text]

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


class Text:
    """A text on its way, and all that its sampler has been asked and told.

    What it answers is remembered for all texts on which it was asked and told the same, and XTC should act at the same
    places: they are few.
    """

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.seed = case, seed
        self.tokens: tuple[int, ...] = ()
        probability = case.params.xtc_probability
        self.history: tuple[Any, ...] = tuple(noise[seed] <= probability for noise in XTC_NOISE)

    def asked(self) -> Distribution:
        """The sampler's distribution here."""
        self.history += (None,)
        known = self.case.answers.get(self.history)
        if known is not None and self.seed % ASKED_AGAIN:
            return known
        answer = self.case.answers[self.history] = self._answer()
        if known is not None:
            assert np.array_equal(answer.ids, known.ids) and np.array_equal(answer.probs, known.probs)
        return answer

    def told(self, token: int) -> None:
        self.history += (token,)
        self.tokens += (token,)

    def _answer(self) -> Distribution:
        sampler = self.case.sampler(self.seed)
        text: tuple[int, ...] = ()
        for event in self.history[len(XTC_NOISE) :]:
            if event is None:
                dist = sampler.distribution(self.case.rows[text], START + len(text))
            else:
                sampler.accept(event)
                text += (event,)
        choice = sampler.choose(self.case.rows[text], START + len(text))
        assert choice == coupled_choice(dist, self.seed, START + len(text))
        sampler.close()
        likely = dist.probs > 1e-12  # the others would cost their time in every draw
        return Distribution(dist.ids[likely], dist.probs[likely])


class SamplerTarget:
    """A verifier's target over a Case."""

    greedy = False

    def __init__(self, text: Text) -> None:
        self.text = text

    def choose(self, node: int, position: int) -> int:
        return coupled_choice(self.distribution(node, position), self.text.seed, position)

    def distribution(self, node: int, position: int) -> Distribution:
        assert position == START + len(self.text.tokens)
        return self.text.asked()

    def unscaled(self, node: int) -> Distribution:
        raise AssertionError("that is for temperature 0")

    def accept(self, token: int) -> bool:
        self.text.told(token)
        return False

    def ends(self, token: int) -> bool:
        return False

    def fork(self) -> SamplerTarget:
        raise AssertionError("lossless verifiers look down no path they may not take")


def draft(case: Case, text: tuple[int, ...], seed: int, draws: int) -> TokenTree:
    """A word that depends on the text alone and `draws` drawn ones (0: the two likeliest), two levels deep; one drawn
    word at most on the second level."""
    tree, level = TokenTree.root(PENDING), {0: text}
    for wanted in (draws, min(draws, 1))[: 2 - len(text)]:
        below: dict[int, tuple[int, ...]] = {}
        for node, here in level.items():
            q = case.drafts[here]
            tree.add(node, int(WORDS[sum(here) % WORDS.size]), 0.3)
            for word in case.drawn(here)[seed][node * 4 : node * 4 + wanted] if wanted else ():
                tree.add_sampled(node, word, q)
            if not draws:
                for place in np.argsort(-q.probs)[:2]:
                    tree.add(node, int(q.ids[place]), float(q.probs[place]))
            below |= {child: (*here, tree.tokens[child]) for child in tree.children(node)}
        level = below
    return tree


@pytest.fixture(scope="module")
def vocab(tiny_session: Session) -> Vocab:
    return tiny_session.model.vocab


TABLES = NoiseTables(MANY)
XTC_NOISE = [noise_of_seeds(MANY, START + i, XTC_STREAM, 1)[:, 0].tolist() for i in range(3)]
VERIFIED = (("coupled", 0), ("rejection", 1), ("multi_step", 3))
# A verifier sees a distribution, wherever it comes from: all of them with samplers that keep something between tokens,
# and one with the others.
STATEFUL: tuple[dict[str, Any], ...] = (
    {"repeat_penalty": 1.6, "presence_penalty": 0.5},
    {"xtc_probability": 0.5, "xtc_threshold": 0.2},
    {"mirostat": 2, "mirostat_tau": 1.6, "mirostat_eta": 1.0},  # leaves 3 words, then 4, 3 or 2
    {"adaptive_target": 0.3, "adaptive_decay": 0.5, "min_p": 0.02},
)
EVERYWHERE: tuple[dict[str, Any], ...] = ({}, {"top_k": 4, "top_p": 0.9, "min_p": 0.1, "temperature": 1.4}, *STATEFUL)
LEARNING = ("xtc_probability", "mirostat", "adaptive_target")
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
    vocab: Vocab, verifier: str, draws: int, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifiers, "uniform", TABLES.uniform)
    assert VERIFIERS[verifier].lossless
    case = Case(vocab, SamplingParams(**{**OFF, **changes}))
    counts = np.zeros((WORDS.size, WORDS.size), dtype=np.int64)
    accepted = 0
    n = MANY if any(name in changes for name in LEARNING) else FEW
    for seed in range(n):
        text = Text(case, seed)
        while len(text.tokens) < 2:
            tree = case.certain.get(text.tokens) or draft(case, text.tokens, seed, draws)
            if not draws:
                case.certain[text.tokens] = tree
            verdict = VERIFIERS[verifier].verify(tree, SamplerTarget(text), START + len(text.tokens), seed)
            accepted += len(verdict.path)
        counts[text.tokens[0] - WORDS[0], text.tokens[1] - WORDS[0]] += 1
    expected = case.joint()
    assert abs(expected.sum() - 1) < 1e-6
    expected /= expected.sum()
    assert_sample_of(counts, expected)
    assert chi_square_p(counts, expected) > LEAST_P
    assert 0.1 * n < accepted < 2 * n


@pytest.mark.parametrize("changes", STATEFUL[1:], ids=str)
def test_three_hundredths_in_the_wrong_place_would_be_seen(vocab: Vocab, changes: dict[str, Any]) -> None:
    """Where it is hardest to see: a little of every probability, in turn up and down."""
    expected = Case(vocab, SamplingParams(**{**OFF, **changes})).joint()
    expected /= expected.sum()
    p = expected.ravel()
    up = (-p).argsort().argsort() % 2 == 0
    wrong = np.where(up, p * (1 + 0.03 / p[up].sum()), p * (1 - 0.03 / p[~up].sum()))
    assert np.abs(wrong - p).sum() / 2 == pytest.approx(0.03)
    draws = np.random.default_rng(1).multinomial(MANY, wrong, size=50)
    seen = [chi_square_p(counts, p) < LEAST_P for counts in draws]
    assert np.mean(seen) > 0.9


def test_every_lossless_verifier_is_among_them() -> None:
    assert {name for name, info in VERIFIERS.items() if info.lossless} == {"coupled", "rejection", "multi_step"}
