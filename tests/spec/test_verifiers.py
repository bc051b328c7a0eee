"""The verifiers emit the target's distribution, whoever drafts and however wrong the draft is.

The joint distribution of the first two tokens (they come from one step or from two) is compared with the target's.
The noise is a pure function of the seed, so every run of these tests sees the same draws.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lcspec.sampling import parameters as sampling
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import (
    coupled_choice,
    coupled_scores,
    coupled_top,
    gumbel_noise,
    inverse_cdf,
    uniform,
)
from lcspec.spec import cutting
from lcspec.spec import verifiers as verify
from lcspec.spec.token_tree import TokenTree, Trial
from lcspec.spec.verifiers import ACCEPT_STREAM, RESAMPLE_STREAM, VERIFIERS, Verdict, coupled, rejection
from tests.oracle import (
    FIRST_POSITION,
    KINDS,
    N_IDS,
    PENDING,
    Draft,
    Model,
    NoiseTables,
    Target,
    assert_sample_of,
    count_texts,
    cut,
    drafting,
    merged,
    sparse,
    total_variation,
)

MANY = 20_000
FEW = 2_000


@pytest.fixture(scope="module")
def tables() -> NoiseTables:
    return NoiseTables(FEW)


@pytest.fixture(autouse=True)
def noise_from_tables(tables: NoiseTables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.install(monkeypatch)


def test_the_tables_hold_the_noise_of_the_real_functions(tables: NoiseTables) -> None:
    for seed in (0, 1, 1_234, FEW - 1):
        for position in (FIRST_POSITION, FIRST_POSITION + 2):
            for stream, n_ids in N_IDS.items():
                ids = np.array([n_ids - 1, 0], dtype=np.int32)
                for token in ids.tolist():
                    assert tables.uniform(seed, position, token, stream) == uniform(seed, position, token, stream)
            assert (tables.gumbel(seed, position, ids) == gumbel_noise(seed, position, ids)).all()
    assert vars(verify)["uniform"] is not uniform
    assert vars(sampling)["gumbel_noise"] is not gumbel_noise


# --- every kind of proposal -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["T", "TTT", "N", "C", "CCC"])
def test_coupled_keeps_the_distribution_whoever_drafts(plan: str) -> None:
    model = Model(6, seed=1)
    assert_sample_of(count_texts(coupled, model, drafting(model, plan, 2), FEW), model.joint(2))


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["T", "TTT", "N", "NN", "SS", "SSS/S", "NS", "SN", "TSTS/S"])
def test_rejection_keeps_the_distribution_whoever_drafts(plan: str) -> None:
    model = Model(6, seed=2)
    assert_sample_of(count_texts(rejection, model, drafting(model, plan, 2), FEW), model.joint(2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_vocab", [4, 16])
def test_rejection_keeps_the_distribution_however_wrong_the_draft(kind: str, n_vocab: int) -> None:
    model = Model(n_vocab, kinds=[kind], seed=3)
    assert_sample_of(count_texts(rejection, model, drafting(model, "S", 1), FEW), model.joint(2))


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
def test_three_tokens_deep(verifier: str) -> None:
    model = Model(4, seed=4)
    draft = drafting(model, "CN" if verifier == "coupled" else "SS", 3)
    assert_sample_of(count_texts(VERIFIERS[verifier].verify, model, draft, FEW, 3), model.joint(3))


def merged_trees(model: Model) -> dict[str, Draft]:
    """Trees of several drafters, and trees that were cut: ways in which draws could get lost or counted twice."""
    certain, sampled = drafting(model, "N", 2), drafting(model, "S", 2)
    return {
        "ngram, then draws": merged(certain, sampled),
        "draws, then ngram": merged(sampled, certain),
        "top two, then two draws": merged(drafting(model, "TT", 1), drafting(model, "SS", 2)),
        "two ngrams around a draw": merged(certain, sampled, drafting(model, "NT", 1)),
        "best 1 of two draws": cut(drafting(model, "SS", 2), lambda tree: cutting.best(tree, 1)),
        "best 2 of two draws": cut(drafting(model, "SS", 2), lambda tree: cutting.best(tree, 2)),
        "best 4 of two draws": cut(drafting(model, "SS", 2), lambda tree: cutting.best(tree, 4)),
        "best 1 of ngram and draw": cut(merged(certain, drafting(model, "S", 1)), lambda tree: cutting.best(tree, 1)),
        "best 1 of draw and ngram": cut(merged(drafting(model, "S", 1), certain), lambda tree: cutting.best(tree, 1)),
        "one leaf of two draws": cut(drafting(model, "SS", 1), lambda tree: cutting.with_leaves(tree, 1)),
        "two leaves of ngram and draws": cut(merged(certain, sampled), lambda tree: cutting.with_leaves(tree, 2)),
        "best 3 of two draws twice": cut(drafting(model, "SS", 2), lambda tree: cutting.best(tree, 3)),
        "best 2 of ngram and two draws": cut(
            merged(drafting(model, "N", 1), drafting(model, "SS", 2)), lambda t: cutting.best(t, 2)
        ),
        "one leaf of draws and ngrams": cut(drafting(model, "SNS/SN", 2), lambda tree: cutting.with_leaves(tree, 1)),
        "best 8 of three levels": cut(drafting(model, "SS", 3), lambda tree: cutting.best(tree, 8)),
        "one draw lost": cut(drafting(model, "SS", 1), lambda tree: cutting.pruned(tree, [1])),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", merged_trees(Model(3)))
def test_rejection_keeps_the_distribution_on_merged_and_cut_trees(name: str) -> None:
    # agreement makes coincidences of draws and n-grams frequent, and those are where merging can go wrong
    model = Model(4, kinds=["equal", "random"], seed=6)
    assert_sample_of(count_texts(rejection, model, merged_trees(model)[name], FEW), model.joint(2))


def test_merging_keeps_a_draw_that_an_ngram_proposed_as_well() -> None:
    p = sparse([0.5, 0.5])
    certain = TokenTree.chain(PENDING, [0])
    sampled = TokenTree.root(PENDING)
    sampled.add_sampled(0, 0, p)
    certain.merge(sampled)
    assert [(t.child, t.draft is None) for t in certain.trials_of(0)] == [(1, True), (1, False)]


# --- the assertion has teeth ------------------------------------------------------------------------------------------


def _walk(
    tree: TokenTree, target: verify.Target, position: int, seed: int, accept: Callable[[Distribution, Trial], float]
) -> Verdict:
    """A verifier with a flaw: children are accepted with probability `accept`, and p itself is sampled after that."""
    node, path, tokens = 0, list[int](), list[int]()
    while True:
        p = target.distribution(node, position)
        child = None
        for k, trial in enumerate(tree.trials_of(node)):
            if uniform(seed, position, k, ACCEPT_STREAM) < accept(p, trial):
                child = trial.child
                break
        if child is None:
            token = inverse_cdf(p, uniform(seed, position, 0, RESAMPLE_STREAM))
        else:
            token = tree.tokens[child]
        tokens.append(token)
        target.accept(token)
        if child is None:
            return Verdict(path, tokens, False)
        path.append(child)
        node, position = child, position + 1


def always_accept(tree: TokenTree, target: verify.Target, position: int, seed: int) -> Verdict:
    return _walk(tree, target, position, seed, lambda p, trial: 1.0)


def no_residual(tree: TokenTree, target: verify.Target, position: int, seed: int) -> Verdict:
    def accept(p: Distribution, trial: Trial) -> float:
        token = tree.tokens[trial.child]
        return p.prob_of(token) / (1.0 if trial.draft is None else trial.draft.prob_of(token))

    return _walk(tree, target, position, seed, accept)


def stuck_position(tree: TokenTree, target: verify.Target, position: int, seed: int) -> Verdict:
    """Coupled, but every token uses the noise of one position: each token is right, their joint distribution is not."""
    node, path, tokens = 0, list[int](), list[int]()
    while True:
        token = coupled_choice(target.distribution(node, position + len(path)), seed, FIRST_POSITION)
        tokens.append(token)
        target.accept(token)
        child = tree.child(node, token)
        if child is None:
            return Verdict(path, tokens, False)
        path.append(child)
        node = child


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "kind"),
    # (no_residual is all but right where the draft is certain of a token that the target never takes)
    [(always_accept, kind) for kind in ("random", "certain", "disjoint", "tiny")]
    + [(no_residual, kind) for kind in ("random", "disjoint", "tiny")],
)
def test_broken_rejection_is_found_out(broken: verify.Verifier, kind: str) -> None:
    model = Model(6, kinds=[kind], seed=3)
    counts = count_texts(broken, model, drafting(model, "S", 1), FEW)
    with pytest.raises(AssertionError):
        assert_sample_of(counts, model.joint(2))


def test_broken_coupling_is_found_out_by_the_joint_distribution_only() -> None:
    model = Model(6, kinds=["random"], seed=1)
    counts = count_texts(stuck_position, model, drafting(model, "T", 1), FEW)
    assert_sample_of(counts.sum(axis=1), model.joint(1))
    with pytest.raises(AssertionError):
        assert_sample_of(counts, model.joint(2))


def test_a_draft_that_lies_about_its_draws_is_found_out() -> None:
    # What llama.cpp's tree example does: the likeliest token, tested as though it had been drawn from q.
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])
    model = Model(3)
    model._known[()] = sparse(p), sparse(q)
    counts = count_texts(rejection, model, drafting(model, "L", 1), FEW, 1)
    assert total_variation(counts, np.array([0.5 / 0.6, 0.0, 1 - 0.5 / 0.6])) < 0.02
    with pytest.raises(AssertionError):
        assert_sample_of(counts, p)
    for honest in ("S", "T", "TT", "SS"):
        assert_sample_of(count_texts(rejection, model, drafting(model, honest, 1), FEW, 1), p)


# --- many draws -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verifier", "plan", "n_vocab", "broken"),
    [
        pytest.param("coupled", "C", 8, stuck_position, id="coupled-chain"),
        pytest.param("coupled", "CCN/C", 5, stuck_position, id="coupled-tree"),
        pytest.param("rejection", "S", 8, always_accept, id="rejection-chain"),
        pytest.param("rejection", "TSS/S", 5, always_accept, id="rejection-tree"),
    ],
)
def test_the_first_two_tokens_have_the_target_s_joint_distribution(
    verifier: str, plan: str, n_vocab: int, broken: verify.Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many draws that a verifier which goes wrong in one of 20 texts is found out."""
    NoiseTables(MANY).install(monkeypatch)
    model, one_of_20 = Model(n_vocab), range(0, MANY, 20)
    draft, real = drafting(model, plan, 2), VERIFIERS[verifier].verify
    others = count_texts(real, model, draft, (seed for seed in range(MANY) if seed % 20))
    assert_sample_of(others + count_texts(real, model, draft, one_of_20), model.joint(2))
    with pytest.raises(AssertionError):
        assert_sample_of(others + count_texts(broken, model, draft, one_of_20), model.joint(2))


# --- what a verdict says ----------------------------------------------------------------------------------------------


class Scripted:
    """A target that always wants the next token of a script, and ends the text at `end`."""

    def __init__(self, script: list[int], end: int | None = None) -> None:
        self.script, self.end = script, end
        self.accepted: list[int] = []

    def choose(self, node: int, position: int) -> int:
        return self.script[len(self.accepted)]

    @property
    def greedy(self) -> bool:
        return True

    def distribution(self, node: int, position: int) -> Distribution:
        return Distribution(np.array([self.script[len(self.accepted)]], dtype=np.int32), np.ones(1))

    def unscaled(self, node: int) -> Distribution:
        return self.distribution(node, 0)

    def accept(self, token: int) -> bool:
        self.accepted.append(token)
        return token == self.end

    def ends(self, token: int) -> bool:
        return token == self.end

    def fork(self) -> Scripted:
        fork = Scripted(self.script, self.end)
        fork.accepted = list(self.accepted)
        return fork


@pytest.mark.parametrize("verifier", ["coupled", "rejection", "multi_step", "typical", "lenient"])
class TestVerdicts:
    tree = TokenTree.chain(PENDING, [1, 2, 3])

    def walk(self, verifier: str, tree: TokenTree, target: Scripted) -> Verdict:
        verdict = VERIFIERS[verifier].verify(tree, target, FIRST_POSITION, 0)
        assert target.accepted == verdict.tokens
        return verdict

    def test_full_acceptance_gives_a_bonus(self, verifier: str) -> None:
        assert self.walk(verifier, self.tree, Scripted([1, 2, 3, 4])) == Verdict([1, 2, 3], [1, 2, 3, 4], True)

    def test_a_rejection_gives_a_recovered_token(self, verifier: str) -> None:
        assert self.walk(verifier, self.tree, Scripted([1, 7])) == Verdict([1], [1, 7], False)

    def test_nothing_drafted_is_no_bonus(self, verifier: str) -> None:
        assert self.walk(verifier, TokenTree.root(PENDING), Scripted([4])) == Verdict([], [4], False)

    def test_the_end_of_the_text_ends_the_walk(self, verifier: str) -> None:
        assert self.walk(verifier, self.tree, Scripted([1, 2, 3, 4], end=2)) == Verdict([1], [1, 2], False)

    def test_the_second_branch_is_found(self, verifier: str) -> None:
        tree = TokenTree.chain(PENDING, [1, 2])
        tree.add(tree.add(0, 5), 6)
        assert self.walk(verifier, tree, Scripted([5, 6, 8])) == Verdict([3, 4], [5, 6, 8], True)


def test_coupled_text_depends_on_nothing_but_the_seed() -> None:
    model = Model(8)
    plans = [drafting(model, plan, depth) for plan, depth in (("", 0), ("C", 3), ("CCN", 2), ("T", 1))]

    def text(draft: Draft, seed: int) -> tuple[int, ...]:
        out: tuple[int, ...] = ()
        while len(out) < 6:
            tree = draft(out, seed)
            out += tuple(coupled(tree, Target(model, out, tree, seed), FIRST_POSITION + len(out), seed).tokens)
        return out[:6]

    texts = [[text(draft, seed) for draft in plans] for seed in range(200)]
    assert all(len(set(row)) == 1 for row in texts)
    assert len({row[0] for row in texts}) > 50


def test_a_coupled_draft_that_agrees_is_always_accepted() -> None:
    model = Model(8, kinds=["equal"])
    for seed in range(300):
        tree = drafting(model, "C", 3)((), seed)
        assert coupled(tree, Target(model, (), tree, seed), FIRST_POSITION, seed).bonus


@pytest.mark.parametrize(("plan", "kind"), [("S", "random"), ("S", "disjoint"), ("N", "random")])
def test_rejection_accepts_as_often_as_theory_says(plan: str, kind: str) -> None:
    # Leviathan et al.: a draw is accepted with probability sum min(p, q); a fixed token t with p(t)
    model = Model(6, kinds=[kind], seed=3)
    p, q = model.target(()), model.draft(())
    theory = sum(min(x, q.prob_of(int(t))) for t, x in zip(*p)) if plan == "S" else p.prob_of(1)
    draft = drafting(model, plan, 1)
    n = FEW
    hits = 0
    for seed in range(n):
        tree = draft((), seed)
        hits += len(rejection(tree, Target(model, (), tree, seed), FIRST_POSITION, seed).path)
    assert abs(hits / n - theory) < 4.5 * (theory * (1 - theory) / n) ** 0.5


def test_candidates_the_target_does_not_have_are_rejected() -> None:
    q = sparse([0.2, 0.3, 0.5])
    target = Scripted([7] * 10)
    tree = TokenTree.root(PENDING)
    for token in (2, 0, 1):
        tree.add_sampled(0, token, q)
    assert rejection(tree, target, FIRST_POSITION, 1) == Verdict([], [7], False)


def test_the_registry_says_what_is_lossless() -> None:
    assert VERIFIERS["coupled"].lossless and VERIFIERS["coupled"].draws == 0
    assert VERIFIERS["rejection"].lossless and VERIFIERS["rejection"].draws == 1


def test_the_coupled_drafts_of_these_tests_are_those_of_coupled_top() -> None:
    model = Model(6)
    q = model.draft(())
    tree = drafting(model, "CC", 1)((), 3)
    assert tree.tokens[1:] == q.ids[coupled_top(coupled_scores(q, 3, FIRST_POSITION), 2)].tolist()
