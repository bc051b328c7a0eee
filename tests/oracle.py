"""What the tests of verifiers and sampling share: array-backed targets and drafters, noise for many seeds at once,
and the one assertion "these counts are a sample of that distribution".
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lcspec.sampling import parameters as sampling
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import coupled_choice, coupled_scores, coupled_top, inverse_cdf
from lcspec.spec import verifiers as verify
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import ACCEPT_STREAM, DRAFT_STREAM, RESAMPLE_STREAM, Verifier

Text = tuple[int, ...]
FloatTable = NDArray[np.float64]

FIRST_POSITION = 5
PENDING = 99  # the token of node 0; no vocabulary here is that large


# --- distributions that depend on the text ----------------------------------------------------------------------------

KINDS = ("random", "certain", "disjoint", "tiny", "equal")


def sparse(probs: Sequence[float] | FloatTable, order: Sequence[int] | None = None) -> Distribution:
    """A Distribution of the positive entries of `probs`, in `order` (default: the likeliest first, as samplers do)."""
    p = np.asarray(probs, dtype=np.float64)
    ids = np.argsort(-p, kind="stable") if order is None else np.asarray(order)
    ids = ids[p[ids] > 0]
    return Distribution(ids.astype(np.int32), p[ids] / p[ids].sum())


def dense(dist: Distribution, n_vocab: int) -> FloatTable:
    """Probabilities by token id, float64 [n_vocab]."""
    out = np.zeros(n_vocab)
    out[dist.ids] = dist.probs
    return out


def pair(kind: str, n_vocab: int, rng: np.random.Generator) -> tuple[FloatTable, FloatTable]:
    """Target and draft probabilities, float64 [n_vocab] each, that disagree in the way `kind` says."""
    p = rng.dirichlet(np.full(n_vocab, 0.7)) + 0.01
    q = rng.dirichlet(np.full(n_vocab, 0.7)) + 0.01
    some = int(rng.integers(n_vocab))
    half = rng.permutation(n_vocab)
    if kind == "certain":  # the draft is all but certain of a token that the target never takes
        p[some] = 0.0
        q = np.full(n_vocab, 0.02 / n_vocab)
        q[some] = 0.98
    elif kind == "disjoint":  # one token in common
        p[half[: n_vocab // 2]] = 0.0
        q[half[n_vocab // 2 + 1 :]] = 0.0
    elif kind == "tiny":  # the draft all but rules out what the target likes
        q[np.argsort(-p)[: n_vocab // 2]] = 1e-9
    elif kind == "equal":
        q = p.copy()
    return p / p.sum(), q / q.sum()


class Model:
    """Target and draft distributions after every text; the kind of disagreement changes with the text."""

    def __init__(self, n_vocab: int, kinds: Sequence[str] = KINDS, seed: int = 0) -> None:
        self.n_vocab, self.kinds, self.seed = n_vocab, kinds, seed
        self._known: dict[Text, tuple[Distribution, Distribution]] = {}

    def _pair(self, text: Text) -> tuple[Distribution, Distribution]:
        if text not in self._known:
            rng = np.random.default_rng([self.seed, zlib.crc32(bytes(text)), len(text)])
            kind = self.kinds[(sum(text) + len(text)) % len(self.kinds)]
            p, q = pair(kind, self.n_vocab, rng)
            self._known[text] = sparse(p), sparse(q, rng.permutation(self.n_vocab).tolist())
        return self._known[text]

    def target(self, text: Text) -> Distribution:
        """The target's distribution after `text`."""
        return self._pair(text)[0]

    def draft(self, text: Text) -> Distribution:
        """The drafter's distribution after `text`."""
        return self._pair(text)[1]

    def joint(self, n: int) -> FloatTable:
        """Probability of every first `n` tokens, float64 [n_vocab] * n."""
        out = np.ones((1,) * 0)
        for depth in range(n):
            rows = [dense(self.target(text), self.n_vocab) for text in np.ndindex(*(self.n_vocab,) * depth)]
            out = out[..., None] * np.reshape(rows, (self.n_vocab,) * (depth + 1))
        return out


class Target:
    """`verify.Target` over a Model. Checks the order in which a verifier calls it."""

    def __init__(self, model: Model, text: Text, tree: TokenTree, seed: int) -> None:
        self.model, self.text, self.tree, self.seed = model, text, tree, seed
        self.start = len(text)

    def _check(self, node: int) -> None:
        # The rows of a tree are those of the texts that its paths spell.
        assert self.tree.depths[node] == len(self.text) - self.start
        assert node == 0 or self.tree.tokens[node] == self.text[-1]

    def choose(self, node: int, position: int) -> int:
        self._check(node)
        assert position == FIRST_POSITION + len(self.text)
        return coupled_choice(self.model.target(self.text), self.seed, position)

    @property
    def greedy(self) -> bool:
        return False

    def distribution(self, node: int, position: int) -> Distribution:
        self._check(node)
        assert position == FIRST_POSITION + len(self.text)
        return self.model.target(self.text)

    def unscaled(self, node: int) -> Distribution:
        raise AssertionError("that is for temperature 0")

    def accept(self, token: int) -> bool:
        self.text += (token,)
        return False

    def ends(self, token: int) -> bool:
        return False

    def fork(self) -> Target:
        return copy.copy(self)


# --- drafters ---------------------------------------------------------------------------------------------------------

Draft = Callable[[Text, int], TokenTree]


def drafting(model: Model, plan: str, depth: int) -> Draft:
    """A drafter that gives every node above `depth` the children that `plan` lists, in order; levels apart: "SS/S".

    S  a token drawn from the draft distribution (with replacement, recorded)
    T  the most probable token of the draft; a second T the second most probable, and so on
    N  a token that depends on nothing but the text before it, as an n-gram's continuation
    C  the best of log q + Gumbel with the target's own noise; a second C the second best
    L  a liar: the most probable token, recorded as if it had been drawn (what llama.cpp's tree example does)
    """

    plans = plan.split("/")

    def draft(text: Text, seed: int) -> TokenTree:
        tree = TokenTree.root(PENDING)
        texts = {0: text}
        level = [0]
        for step in range(depth):
            position = FIRST_POSITION + len(text) + step
            draws = 0
            symbols = plans[min(step, len(plans) - 1)]
            for node in level:
                q = model.draft(texts[node])
                top = q.ids[np.argsort(-q.probs, kind="stable")] if "T" in symbols or "L" in symbols else q.ids
                coupled = (
                    q.ids[coupled_top(coupled_scores(q, seed, position), symbols.count("C"))]
                    if "C" in symbols
                    else q.ids
                )
                for i, symbol in enumerate(symbols):
                    nth = symbols[:i].count(symbol)
                    if symbol == "S":
                        # A counter of its own for every draw at a position, on whichever branch: `best` may drop one
                        # branch because of what another drew, which must say nothing about its own draws.
                        # (Looked up in the module, because the tests read this noise from tables.)
                        u = sampling.uniform(seed, position, draws, DRAFT_STREAM)
                        draws += 1
                        tree.add_sampled(node, inverse_cdf(q, u), q)
                    elif symbol == "L":
                        tree.add_sampled(node, int(top[0]), q)
                    elif symbol == "N":
                        tree.add(node, (sum(texts[node]) + 1 + nth) % model.n_vocab, 0.4)
                    else:
                        best = top if symbol == "T" else coupled
                        if nth < best.size:
                            tree.add(node, int(best[nth]), q.prob_of(int(best[nth])))
                for child in tree.children(node):
                    texts[child] = texts[node] + (tree.tokens[child],)
            level = [child for node in level for child in tree.children(node)]
        return tree

    return draft


def merged(*drafts: Draft) -> Draft:
    """The trees of several drafters merged, as the engine does it."""

    def draft(text: Text, seed: int) -> TokenTree:
        tree = TokenTree.root(PENDING)
        for one in drafts:
            tree.merge(one(text, seed))
        return tree

    return draft


def cut(draft: Draft, change: Callable[[TokenTree], TokenTree]) -> Draft:
    """`draft` with its tree changed by `change`."""
    return lambda text, seed: change(draft(text, seed))


# --- noise for many seeds ---------------------------------------------------------------------------------------------

# Ids that occur at one position: tokens, trials of a node, 0, draws of a drafter of these tests.
N_IDS = {0: 16, ACCEPT_STREAM: 6, RESAMPLE_STREAM: 1, DRAFT_STREAM: 12}


def noise_of_seeds(n_seeds: int, position: int, stream: int, n_ids: int) -> FloatTable:
    """`uniform_noise` of the seeds 0 .. n_seeds - 1 and the ids 0 .. n_ids - 1, float64 [n_seeds, n_ids]."""
    golden, mix = sampling._GOLDEN, sampling._mix
    key = mix(mix(np.arange(n_seeds, dtype=np.uint64) + golden) ^ ((position * golden + stream) % sampling.SEED_LIMIT))
    bits = mix(key[:, None] + (np.arange(n_ids, dtype=np.uint64) + np.uint64(1)) * golden)
    out: FloatTable = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return out


class NoiseTables:
    """The noise of lcspec.sampling, read from tables: the same bits, an order of magnitude sooner."""

    def __init__(self, n_seeds: int) -> None:
        self.n_seeds = n_seeds
        self._uniform: dict[tuple[int, int], FloatTable] = {}
        self._gumbel: dict[int, FloatTable] = {}

    def uniform(self, seed: int, position: int, token: int, stream: int = 0) -> float:
        table = self._uniform.get((position, stream))
        if table is None:
            table = self._uniform[position, stream] = noise_of_seeds(self.n_seeds, position, stream, N_IDS[stream])
        return table.item(seed, token)

    def gumbel(self, seed: int, position: int, ids: Any) -> FloatTable:
        table = self._gumbel.get(position)
        if table is None:
            table = self._gumbel[position] = -np.log(-np.log(noise_of_seeds(self.n_seeds, position, 0, N_IDS[0])))
        out: FloatTable = table[seed][ids]
        return out

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let the code under test read these tables."""
        patch.setattr(verify, "uniform", self.uniform)
        patch.setattr(sampling, "uniform", self.uniform)
        patch.setattr(sampling, "gumbel_noise", self.gumbel)


# --- the experiment and its assertion ---------------------------------------------------------------------------------


def count_texts(
    verifier: Verifier, model: Model, draft: Draft, seeds: int | Iterable[int], n_tokens: int = 2
) -> NDArray[np.int64]:
    """How often each first `n_tokens` tokens come out, over these seeds or that many; int64 [n_vocab] * n_tokens."""
    counts = np.zeros((model.n_vocab,) * n_tokens, dtype=np.int64)
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        text: Text = ()
        while len(text) < n_tokens:
            tree = draft(text, seed)
            target = Target(model, text, tree, seed)
            verdict = verifier(tree, target, FIRST_POSITION + len(text), seed)
            assert len(verdict.tokens) == len(verdict.path) + 1
            assert [tree.tokens[v] for v in verdict.path] == verdict.tokens[:-1]
            text += tuple(verdict.tokens)
            assert target.text == text
        counts[text[:n_tokens]] += 1
    return counts


def total_variation(counts: NDArray[np.int64], expected: FloatTable) -> float:
    """Half the sum of |share - probability|."""
    return float(np.abs(counts / counts.sum() - expected).sum()) / 2


def noise_floor(expected: FloatTable, n: int) -> float:
    """The total variation to expect of `n` exact draws: E|X/n - p| is about sqrt(2 p (1 - p) / (pi n)) in each cell."""
    return float(np.sqrt(expected * (1 - expected) * 2 / (math.pi * n)).sum()) / 2


def chi_square_p(counts: NDArray[np.int64], expected: FloatTable) -> float:
    """P(chi-square at least this large) for exact draws; cells that expect fewer than 5 are pooled.

    By the approximation of Wilson and Hilferty (1931), which is within a few per cent of the exact tail here.
    """
    mean, seen = expected.ravel() * counts.sum(), counts.ravel()
    small = mean < 5
    cells = list(zip(mean[~small], seen[~small]))
    if mean[small].sum() > 1:
        cells.append((mean[small].sum(), seen[small].sum()))
    degrees = len(cells) - 1
    if degrees < 1:
        return 1.0
    statistic = sum((o - m) ** 2 / m for m, o in cells)
    spread = 2 / (9 * degrees)
    z = ((statistic / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2)) / 2


def assert_sample_of(counts: NDArray[np.int64], expected: FloatTable) -> None:
    """Fail unless `counts` could be independent draws from `expected`."""
    assert abs(expected.sum() - 1) < 1e-9
    impossible = counts[expected == 0].sum()
    assert impossible == 0, f"{impossible} draws of probability 0"
    n = int(counts.sum())
    tv, floor = total_variation(counts, expected), noise_floor(expected, n)
    assert tv < 3 * floor, f"total variation {tv:.5f}, noise floor {floor:.5f}, {n} draws"
    p = chi_square_p(counts, expected)
    assert p > 1e-6, f"chi-square p = {p:.2g} (total variation {tv:.5f}, noise floor {floor:.5f}, {n} draws)"
