"""Typical and lenient acceptance: formulas, limits, options, and how far they depart from the target."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lcspec.engine.target_rows import TargetRows
from lcspec.errors import UsageError
from lcspec.llama.sampler import Sampler
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import VERIFIERS, Verdict, coupled, lenient, make_verifier, rejection, typical
from tests.oracle import (
    FIRST_POSITION,
    PENDING,
    Model,
    NoiseTables,
    Target,
    assert_sample_of,
    count_texts,
    dense,
    drafting,
)

pytestmark = pytest.mark.slow

fixed = settings(derandomize=True, deadline=None, max_examples=200)
FloatTable = NDArray[np.float64]
PROBS = st.lists(st.floats(0.001, 1.0), min_size=2, max_size=8).map(lambda w: np.array(w) / sum(w))


class Rows:
    """A target with the same distribution everywhere; its own choice is the most probable token unless told."""

    def __init__(
        self, probs: Sequence[float] | FloatTable, own: int | None = None, end: int | None = None, greedy: bool = True
    ) -> None:
        self.probs = np.asarray(probs, dtype=np.float64)
        self.own, self.end, self.greedy = own, end, greedy
        self.accepted: list[int] = []

    def choose(self, node: int, position: int) -> int:
        return int(self.probs.argmax()) if self.own is None else self.own

    def distribution(self, node: int, position: int) -> Distribution:
        return self.unscaled(node)

    def unscaled(self, node: int) -> Distribution:
        return Distribution(np.arange(self.probs.size, dtype=np.int32), self.probs)

    def accept(self, token: int) -> bool:
        self.accepted.append(token)
        return token == self.end

    def ends(self, token: int) -> bool:
        return token == self.end

    def fork(self) -> Rows:
        fork = copy.copy(self)
        fork.accepted = list(self.accepted)
        return fork


class ByText(Rows):
    """A target whose distribution depends on the text accepted so far; what is not said is uniform over six tokens."""

    def __init__(self, table: dict[tuple[int, ...], Sequence[float]], end: int | None = None) -> None:
        super().__init__(np.full(6, 1 / 6), end=end, greedy=False)
        self.table = table

    def distribution(self, node: int, position: int) -> Distribution:
        assert position == 5 + len(self.accepted)
        probs = self.table.get(tuple(self.accepted), self.probs)
        return Distribution(np.arange(6, dtype=np.int32), np.asarray(probs, dtype=np.float64))


def children(*tokens: int) -> TokenTree:
    tree = TokenTree.root(99)
    for token in tokens:
        tree.add(0, token)
    return tree


def accepted(verify: Any, probs: FloatTable, token: int, **options: float) -> bool:
    verdict = verify(children(token), Rows(probs), 5, 0, **options)
    return bool(verdict.path)


def threshold(probs: FloatTable, epsilon: float, delta: float) -> float:
    """min(epsilon, delta exp(-H)), written out."""
    entropy = -sum(float(p) * math.log(float(p)) for p in probs if p > 0)
    return min(epsilon, delta * math.exp(-entropy))


@fixed
@given(PROBS, st.floats(0, 1), st.floats(0, 1))
def test_typical_accepts_what_is_above_its_threshold(probs: FloatTable, epsilon: float, delta: float) -> None:
    bar = threshold(probs, epsilon, delta)
    for token, p in enumerate(probs):
        if abs(p - bar) > 1e-9:
            assert accepted(typical, probs, token, epsilon=epsilon, delta=delta) == (p > bar)


def test_typical_s_defaults_are_medusa_s() -> None:
    certain, open_ = np.array([0.95, 0.04, 0.01]), np.full(50, 0.02)
    assert not accepted(typical, certain, 1)  # 0.04 is below epsilon 0.09
    assert accepted(typical, open_, 7)  # but 0.02 is above 0.3 exp(-H) = 0.006
    assert threshold(open_, 0.09, 0.3) == pytest.approx(0.3 / 50)


def test_impossible_tokens_do_not_spoil_the_entropy() -> None:
    assert accepted(typical, np.array([0.5, 0.5, 0.0]), 1)
    assert not accepted(typical, np.array([0.5, 0.5, 0.0]), 2)


@fixed
@given(PROBS, st.floats(0, 1))
def test_lenient_accepts_what_is_nearly_as_good_as_the_best(probs: FloatTable, lenience: float) -> None:
    for token, p in enumerate(probs):
        bar = lenience * probs.max()
        if abs(p - bar) > 1e-9:
            assert accepted(lenient, probs, token, lenience=lenience) == (p >= bar)


@fixed
@given(PROBS, st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True))
def test_lenience_one_is_greedy(probs: FloatTable, tokens: list[int]) -> None:
    verdict = lenient(children(*tokens), Rows(probs), 5, 0, lenience=1.0)
    top = int(probs.argmax())  # of several as probable, the first
    assert verdict.tokens[0] == top and bool(verdict.path) == (top in tokens)


@fixed
@given(PROBS, st.integers(0, 7), st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), st.floats(0, 1))
def test_lenient_takes_nothing_that_the_samplers_left_out_for_being_too_probable(
    probs: FloatTable, own: int, tokens: list[int], lenience: float
) -> None:
    """Typical-p and XTC at temperature 0: the choice is not the most probable token."""
    own %= probs.size
    verdict = lenient(children(*tokens), Rows(probs, own=own), 5, 0, lenience=lenience)
    assert probs[verdict.tokens[0]] <= probs[own]
    assert verdict.tokens[0] == own or (lenience < 1 and probs[verdict.tokens[0]] >= lenience * probs[own])


LEAVING_OUT: tuple[dict[str, Any], ...] = (
    {"typical_p": 0.3},
    {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    {"typical_p": 0.5, "xtc_probability": 0.5, "xtc_threshold": 0.02, "repeat_penalty": 1.4, "top_k": 20},
)


@pytest.mark.model
@pytest.mark.parametrize("changes", LEAVING_OUT, ids=str)
def test_lenience_one_is_the_greedy_choice_of_llama_cpp_s_samplers(tiny_session: Session, changes: Any) -> None:
    vocab = tiny_session.model.vocab
    params = SamplingParams(temperature=0.0, **changes)
    rng = np.random.default_rng(6)
    left_out = 0
    for seed in range(60):
        rows = rng.normal(scale=2.0, size=(2, vocab.n_tokens)).astype(np.float32)
        # The likeliest of each row as children: among them what the samplers leave out, and what they leave.
        tree = TokenTree.root(PENDING)
        for token in np.argsort(-rows[0])[:8].tolist():
            tree.add(0, token)
        row_of = [0, *[1] * (len(tree.tokens) - 1)]
        verdicts = []
        for verify in (coupled, make_verifier("lenient:lenience=1").verify):
            sampler = Sampler(vocab, params, seed)
            verdicts.append(verify(tree, TargetRows(rows, row_of, sampler, frozenset(), False), 5, seed))
            sampler.close()
        assert verdicts[0].tokens == verdicts[1].tokens and verdicts[0].path == verdicts[1].path
        left_out += verdicts[0].tokens[0] != rows[0].argmax()
    assert left_out > 20


@fixed
@given(PROBS, st.integers(0, 7), st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_a_laxer_factor_accepts_no_less(probs: FloatTable, token: int, factors: list[float]) -> None:
    lax, strict = sorted(factors)
    assert accepted(lenient, probs, token, lenience=lax) >= accepted(lenient, probs, token, lenience=strict)
    assert accepted(typical, probs, token, epsilon=lax) >= accepted(typical, probs, token, epsilon=strict)
    assert accepted(typical, probs, token, delta=lax) >= accepted(typical, probs, token, delta=strict)


def forked_tree(*, below_first: int = 0) -> TokenTree:
    """Child 1 (a leaf, but for `below_first`), and child 2 with 3 and 4 one below the other."""
    tree = children(1, 2)
    tree.add(tree.add(2, 3), 4)
    if below_first:
        tree.add(1, below_first)
    return tree


def test_typical_takes_the_longest_path_not_the_most_probable_child() -> None:
    # Medusa, section 2.3.1: "the longest accepted prefix". Children .5 (a leaf) and .45 with two typical tokens below.
    tree = forked_tree()
    target = ByText({(): [0.05, 0.5, 0.45, 0, 0, 0], (2,): [0, 0, 0, 0.9, 0.1, 0], (2, 3): [0.1, 0, 0, 0, 0.9, 0]})
    verdict = typical(tree, target, 5, 0)
    assert verdict == Verdict([2, 3, 4], [2, 3, 4, 0], bonus=True)
    assert target.accepted == [2, 3, 4, 0], "looking down the other path left no trace"


def test_of_the_longest_typical_paths_the_most_probable_is_kept() -> None:
    tree = children(1, 2)
    tree.add(1, 3)
    tree.add(2, 3)
    better = {(): [0, 0.55, 0.45, 0, 0, 0], (1,): [0.6, 0, 0, 0.4, 0, 0], (2,): [0, 0, 0, 1.0, 0, 0]}
    assert typical(tree, ByText(better), 5, 0).path == [2, 4]  # .45 * 1 against .55 * .4
    assert typical(tree, ByText({**better, (2,): [0.6, 0, 0, 0.4, 0, 0]}), 5, 0).path == [1, 3]


def test_what_lies_beyond_an_end_of_text_makes_no_path_longer() -> None:
    table = {(): [0, 0.5, 0.5, 0, 0, 0], (2,): [0, 0, 0, 1.0, 0, 0], (2, 3): [0, 0, 0, 0, 1.0, 0]}
    table[1,] = [0, 0, 0, 0, 0, 1.0]
    assert typical(forked_tree(below_first=5), ByText(table, end=2), 5, 0).tokens[:2] == [1, 5]
    assert typical(forked_tree(), ByText(table, end=3), 5, 0).tokens == [2, 3]


def test_typical_at_temperature_0_is_greedy_decoding() -> None:
    # There the distribution is one point.
    tree = children(1, 2)
    assert typical(tree, Rows([0.0, 0.0, 1.0]), 5, 0).path == [2]
    assert typical(tree, Rows([1.0, 0.0, 0.0]), 5, 0) == Verdict([], [0], bonus=False)


# --- lenience at a temperature ----------------------------------------------------------------------------------------


def emitted_leniently(p: FloatTable, q: FloatTable, lenience: float) -> FloatTable:
    """One token's distribution by Leviathan et al., A.5: accept with min(1, p / (l q)), else norm(max(p - q, 0))."""
    kept = np.minimum(q, p / lenience)
    residual = np.maximum(p - q, 0.0)
    out: FloatTable = kept + (1.0 - kept.sum()) * (residual / residual.sum() if residual.sum() else p)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("lenience", [0.3, 0.7, 1.0])
@pytest.mark.parametrize("kind", ["random", "disjoint", "certain"])
def test_lenient_sampling_follows_the_paper(kind: str, lenience: float, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 4_000
    NoiseTables(n).install(monkeypatch)
    model = Model(6, kinds=[kind], seed=3)
    p, q = dense(model.target(()), 6), dense(model.draft(()), 6)
    expected = emitted_leniently(p, q, lenience)
    assert (expected <= p / lenience + 1e-12).all(), "no token comes more than 1/l times as often as it should"
    verify = make_verifier(f"lenient:lenience={lenience}").verify
    counts = count_texts(verify, model, drafting(model, "S", 1), n, 1)
    assert_sample_of(counts, expected)
    if kind == "random" and lenience < 0.5:
        with pytest.raises(AssertionError):
            assert_sample_of(counts, p)


def test_lenience_one_is_lossless_at_a_temperature() -> None:
    model = Model(6, seed=2)
    for seed in range(200):
        tree = drafting(model, "SS/S", 2)((), seed)
        strict = rejection(tree, Target(model, (), tree, seed), FIRST_POSITION, seed)
        assert lenient(tree, Target(model, (), tree, seed), FIRST_POSITION, seed, lenience=1.0) == strict


def test_a_laxer_factor_accepts_no_less_at_a_temperature() -> None:
    model = Model(6, kinds=["random"], seed=2)
    accepted_of = {}
    for lenience in (0.0, 0.7, 1.0):
        kept = []
        for seed in range(200):
            tree = drafting(model, "S", 1)((), seed)
            kept.append(bool(lenient(tree, Target(model, (), tree, seed), 5, seed, lenience=lenience).path))
        accepted_of[lenience] = sum(kept)
    assert accepted_of[1.0] < accepted_of[0.7] <= accepted_of[0.0] == 200


# --- the walk ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", [typical, lenient])
def test_of_several_children_the_most_probable_is_kept(verify: Any) -> None:
    tree = children(2, 1, 0)
    verdict = verify(tree, Rows([0.3, 0.4, 0.3]), 5, 0)
    assert verdict.tokens[0] == 1 and verdict.path == [tree.child(0, 1)]


@pytest.mark.parametrize("verify", [typical, lenient])
def test_the_walk_ends_with_a_token_of_the_target(verify: Any) -> None:
    target = Rows([0.4, 0.6, 0.0], own=1)
    verdict = verify(TokenTree.chain(99, [1, 0, 2, 0]), target, 5, 0)
    assert verdict == Verdict([1, 2], [1, 0, 1], bonus=False)
    assert target.accepted == verdict.tokens
    whole = verify(TokenTree.chain(99, [1, 0]), Rows([0.4, 0.6, 0.0], own=1), 5, 0)
    assert whole == Verdict([1, 2], [1, 0, 1], bonus=True)
    bare = verify(TokenTree.root(99), Rows([0.4, 0.6, 0.0], own=1), 5, 0)
    assert bare == Verdict([], [1], bonus=False)


@pytest.mark.parametrize("verify", [typical, lenient])
def test_an_accepted_end_of_text_ends_the_walk(verify: Any) -> None:
    verdict = verify(TokenTree.chain(99, [1, 0, 0]), Rows([0.6, 0.4], end=1), 5, 0)
    assert verdict.tokens == [1]


# --- how far they depart ----------------------------------------------------------------------------------------------


def emitted_distribution(verify: Any, p: FloatTable, q: FloatTable, **options: float) -> FloatTable:
    """What one token's distribution becomes when a draft samples it from `q` and the target from `p`, exactly."""
    kept = np.array([accepted(verify, p, token, **options) for token in range(p.size)])
    out: FloatTable = np.where(kept, q, 0.0) + q[~kept].sum() * p
    return out


def departure(verify: Any, p: FloatTable, q: FloatTable, **options: float) -> float:
    """Total variation between that and `p`."""
    return 0.5 * float(np.abs(emitted_distribution(verify, p, q, **options) - p).sum())


PAIRS = {
    "equal": (np.array([0.5, 0.25, 0.15, 0.1]), np.array([0.5, 0.25, 0.15, 0.1])),
    "flatter draft": (np.array([0.7, 0.2, 0.07, 0.03]), np.array([0.4, 0.3, 0.2, 0.1])),
    "sharper draft": (np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.9, 0.06, 0.03, 0.01])),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("verify", [typical, lenient])
def test_they_depart_from_the_target_but_never_further_than_the_draft_does(verify: Any, name: str) -> None:
    p, q = PAIRS[name]
    out = emitted_distribution(verify, p, q)
    assert out.sum() == pytest.approx(1.0)
    assert departure(verify, p, q, **({"lenience": 0.0} if verify is lenient else {"epsilon": 0.0})) == pytest.approx(
        0.5 * float(np.abs(q - p).sum())
    )
    # They are called lossy for a reason: somewhere the distribution is another.
    assert departure(verify, *PAIRS["sharper draft"]) > 0.1


def test_typical_at_its_defaults_on_the_sharper_draft_in_figures() -> None:
    p, q = PAIRS["sharper draft"]
    # All four pass min(0.09, 0.3 exp(-1.28)) = 0.083, so the draft's distribution is what comes out.
    assert departure(typical, p, q) == pytest.approx(0.5)
    # At lenience 0.8 only the favourite passes; the rest is drawn anew: 0.9 + 0.1 * 0.4 instead of 0.4.
    assert departure(lenient, p, q, lenience=0.8) == pytest.approx(0.54)


# --- names and options ------------------------------------------------------------------------------------------------


def test_lossy_verifiers_say_so() -> None:
    assert {name for name, info in VERIFIERS.items() if not info.lossless} == {"typical", "lenient"}
    assert not make_verifier("typical:epsilon=0.2").lossless


def test_options_reach_the_verifier() -> None:
    probs = np.array([0.7, 0.3])
    assert make_verifier("lenient:lenience=0.4").verify(children(1), Rows(probs), 5, 0).path == [1]
    assert make_verifier("lenient:lenience=0.5").verify(children(1), Rows(probs), 5, 0).path == []
    both = make_verifier("typical:epsilon=0.9:delta=0.9").verify
    assert both(children(1), Rows(probs), 5, 0).path == []
    assert make_verifier("typical").verify(children(1), Rows(probs), 5, 0).path == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown verifier ''"),
        ("Typical", "choose from coupled, lenient"),
        ("typical:", "has no option ''|must be a number"),
        ("typical:epsilon", "epsilon must be a number from 0 to 1, not ''"),
        ("typical:epsilon=x", "epsilon must be a number"),
        ("typical:epsilon=nan", "epsilon must be a number"),
        ("typical:epsilon=-0.1", "epsilon must be a number"),
        ("typical:delta=1.01", "delta must be a number"),
        ("typical:delta=inf", "delta must be a number"),
        ("typical:lenience=0.5", "typical has no option 'lenience'; it knows epsilon, delta"),
        ("lenient:epsilon=0.5", "lenient has no option 'epsilon'; it knows lenience"),
        ("coupled:x=0.5", "coupled has no option 'x'; it knows none"),
    ],
)
def test_wrong_names_and_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_verifier(text)
