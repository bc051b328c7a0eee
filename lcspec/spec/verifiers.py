"""Verifiers: they walk a token tree and keep the longest valid path plus one token of the target's own.

    coupled     the child is kept if it *is* the target's choice at that position; lossless, keeps seeds
    rejection   speculative sampling: accept with min(1, p/q), else resample the residual; lossless in distribution
    multi_step  the same walk over several sampled children of a node (SpecInfer); lossless in distribution
    typical     keep the longest path of tokens that the target finds typical (Medusa); lossy
    lenient     speculative sampling that accepts more often than it should; lossy

Numpy only. A verifier reads the target through `Target`, row by row and only along the accepted path (typical: along
the paths that it may accept). Stateful samplers advance exactly once per emitted token.
"""

from __future__ import annotations

import functools
import math
from typing import Callable, NamedTuple, Protocol

import numpy as np

from lcspec.errors import UsageError
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import inverse_cdf, normalized, uniform
from lcspec.spec.token_tree import TokenTree, Trial

# Streams of the counter-based noise (stream 0 is the target's choice, see sampling.coupled_choice).
ACCEPT_STREAM = 1
RESAMPLE_STREAM = 2
DRAFT_STREAM = 3


class Target(Protocol):
    """The target as a verifier sees it. Calls come in text order: `choose` or `distribution`, then `accept`."""

    @property
    def greedy(self) -> bool:
        """Whether the target always chooses the most probable token."""

    def choose(self, node: int, position: int) -> int:
        """The target's coupled choice after `node`, for the token at absolute `position`."""

    def distribution(self, node: int, position: int) -> Distribution:
        """The distribution after `node` from which the target samples the token at absolute `position`; one point if
        the target is greedy."""

    def unscaled(self, node: int) -> Distribution:
        """The distribution after `node` without temperature and truncation (bias and penalties act)."""

    def accept(self, token: int) -> bool:
        """Advance past an emitted token; True when it ends the text."""

    def ends(self, token: int) -> bool:
        """Whether `token` would end the text."""

    def fork(self) -> Target:
        """A copy that advances by itself, to follow a path that may not be accepted."""


class Verdict(NamedTuple):
    """The result of a verification.

    Attributes:
        path: accepted nodes in order, without node 0.
        tokens: emitted token ids, `len(path) + 1` of them: the accepted ones, then the target's own.
        bonus: whether the last token followed a full acceptance (else it is the recovered token after a rejection, or
            the only token of a step without drafts).
    """

    path: list[int]
    tokens: list[int]
    bonus: bool


def coupled(tree: TokenTree, target: Target, position: int, seed: int) -> Verdict:
    """Accept a child exactly when it equals the target's own choice.

    Args:
        tree: the drafted tree; node 0 is the pending token.
        target: the target's rows.
        position: absolute position of the token after the pending one.
        seed: not used (the target's choice depends on it); part of the common signature.
    """
    node = 0
    path: list[int] = []
    tokens: list[int] = []
    while True:
        token = target.choose(node, position)
        tokens.append(token)
        ended = target.accept(token)
        child = tree.child(node, token)
        if ended or child is None:
            return Verdict(path, tokens, bonus=bool(path) and not tree.children(node))
        path.append(child)
        node, position = child, position + 1


class _Outcome(NamedTuple):
    child: int | None
    residual: Distribution


def _attempt(p: Distribution, tree: TokenTree, trial: Trial, u: float) -> _Outcome:
    """One speculative-sampling test (Leviathan et al. 2023, arXiv:2211.17192, A.1; Chen et al. 2023, arXiv:2302.01318).

    A child drawn from q is accepted with probability min(1, p/q): if u < p/q for `u` uniform in [0, 1]. A rejection
    leaves norm(max(p - q, 0)). A deterministic child is the case of a one-point q: it is accepted with probability p,
    and a rejection leaves p without it.
    """
    token = tree.tokens[trial.child]
    if trial.draft is None:
        if u < p.prob_of(token):
            return _Outcome(trial.child, p)
        weights = np.where(p.ids == token, 0.0, p.probs)
    else:
        if u * trial.draft.prob_of(token) < p.prob_of(token):
            return _Outcome(trial.child, p)
        q = np.zeros(p.probs.size)
        order = p.ids.argsort(kind="stable")
        at = p.ids.searchsorted(trial.draft.ids, sorter=order)
        at = order[np.minimum(at, p.ids.size - 1)]
        known = p.ids[at] == trial.draft.ids
        q[at[known]] = trial.draft.probs[known]
        weights = np.maximum(p.probs - q, 0.0)
    if weights.sum() <= 0.0:
        # Only rounding leads here: no mass is left outside the rejected token. Nothing better than p is known.
        return _Outcome(None, p)
    return _Outcome(None, normalized(p.ids, weights))


def _sample(tree: TokenTree, target: Target, position: int, seed: int, lenience: float) -> Verdict:
    """Speculative sampling. The uniform number of each test is from [0, lenience]; 1 is the lossless algorithm."""
    node = 0
    path: list[int] = []
    tokens: list[int] = []
    while True:
        p = target.distribution(node, position)
        child = None
        for k, trial in enumerate(tree.trials_of(node)):
            u = lenience * uniform(seed, position, k, ACCEPT_STREAM)
            child, p = _attempt(p, tree, trial, u)
            if child is not None:
                break
        if child is None:
            token = inverse_cdf(p, uniform(seed, position, 0, RESAMPLE_STREAM))
            bonus = bool(path) and not tree.children(node)
        else:
            token = tree.tokens[child]
            bonus = False
        tokens.append(token)
        if target.accept(token) or child is None:
            return Verdict(path, tokens, bonus)
        path.append(child)
        node, position = child, position + 1


def rejection(tree: TokenTree, target: Target, position: int, seed: int) -> Verdict:
    """Speculative sampling with residual resampling; the children of a node are tried one after the other.

    With one sampled child per node this is the algorithm of Leviathan et al. and Chen et al. Several children, each
    tested against the residual of the rejections before it, are SpecInfer's multi-step speculative sampling (Miao et
    al. 2023, arXiv:2305.09781, algorithm 2).
    """
    return _sample(tree, target, position, seed, 1.0)


def typical(
    tree: TokenTree, target: Target, position: int, seed: int, *, epsilon: float = 0.09, delta: float = 0.3
) -> Verdict:
    """Medusa's typical acceptance (Cai et al. 2024, arXiv:2401.10774, section 2.3.1). LOSSY.

    A token is typical if p(token) > min(epsilon, delta * exp(-entropy of p)), where p is the target's sampling
    distribution, temperature included. The longest path of typical tokens is accepted (of several, the most probable),
    and the target's own choice follows. At temperature 0 this is greedy decoding.
    """
    path = _longest_path(tree, target, position, epsilon, delta)
    tokens: list[int] = []
    node = 0
    for i, child in enumerate(path):
        target.distribution(node, position + i)  # stateful samplers learn the distribution a token was accepted under
        token = tree.tokens[child]
        tokens.append(token)
        if target.accept(token):
            return Verdict(path[:i], tokens, bonus=False)
        node = child
    token = target.choose(node, position + len(path))
    target.accept(token)
    return Verdict(path, [*tokens, token], bonus=bool(path) and not tree.children(node))


def _longest_path(tree: TokenTree, target: Target, position: int, epsilon: float, delta: float) -> list[int]:
    """The longest path of typical tokens below node 0; of several, the most probable."""
    best: tuple[int, float, list[int]] = (0, 0.0, [])
    open_paths: list[tuple[list[int], float, Target]] = [([], 0.0, target)]
    while open_paths:
        path, likelihood, here = open_paths.pop()
        if (len(path), likelihood) > best[:2]:
            best = len(path), likelihood, path
        node = path[-1] if path else 0
        if not (children := tree.children(node)) or (path and target.ends(tree.tokens[node])):
            continue
        p = here.distribution(node, position + len(path))
        positive = p.probs[p.probs > 0]
        threshold = min(epsilon, delta * math.exp(float((positive * np.log(positive)).sum())))
        for child in children:
            token = tree.tokens[child]
            if (probability := p.prob_of(token)) > threshold:
                fork = here.fork()
                fork.accept(token)
                open_paths.append(([*path, child], likelihood + math.log(probability), fork))
    return best[2]


def lenient(tree: TokenTree, target: Target, position: int, seed: int, *, lenience: float = 0.5) -> Verdict:
    """Speculative sampling with the lenience of Leviathan et al. 2023 (arXiv:2211.17192, A.5). LOSSY.

    A child drawn from q is accepted with probability min(1, p / (lenience * q)), that is if u < p/q for u uniform in
    [0, lenience]; a rejection resamples as in `rejection`. So no token comes more often than 1/lenience times its due,
    and 1 is lossless. At temperature 0 the target's own choice is kept, or else the most probable child if it is at
    least `lenience` times as probable, before temperature and truncation; 1 is greedy decoding. Children that are more
    probable than the choice do not count: the samplers have left them out.
    """
    if not target.greedy:
        return _sample(tree, target, position, seed, lenience)
    node = 0
    path: list[int] = []
    tokens: list[int] = []
    while True:
        token = target.choose(node, position)
        child = tree.child(node, token)
        if child is None and tree.children(node) and lenience < 1.0:
            child = _near(tree, target.unscaled(node), node, token, lenience)
        if child is not None:
            token = tree.tokens[child]
        tokens.append(token)
        if target.accept(token) or child is None:
            return Verdict(path, tokens, bonus=bool(path) and child is None and not tree.children(node))
        path.append(child)
        node, position = child, position + 1


def _near(tree: TokenTree, p: Distribution, node: int, choice: int, lenience: float) -> int | None:
    """The most probable child of `node` that is no more probable than `choice`, if it is nearly as probable."""
    chosen = p.prob_of(choice)
    ranked = [(p.prob_of(tree.tokens[child]), -child) for child in tree.children(node)]
    best, at = max((one for one in ranked if one[0] <= chosen), default=(0.0, 0))
    return -at if best > 0.0 and best >= lenience * chosen else None


Verifier = Callable[[TokenTree, Target, int, int], Verdict]

MANY = 1_000


class VerifierInfo(NamedTuple):
    """A registered verifier: the function, whether it is lossless, its options, and how many children of a node a
    model drafter should *draw* for it at temperature > 0 (0: it wants the most probable tokens instead)."""

    verify: Callable[..., Verdict]
    lossless: bool
    draws: int
    options: tuple[str, ...] = ()


VERIFIERS: dict[str, VerifierInfo] = {
    "coupled": VerifierInfo(coupled, lossless=True, draws=0),
    "rejection": VerifierInfo(rejection, lossless=True, draws=1),
    "multi_step": VerifierInfo(rejection, lossless=True, draws=MANY),
    "typical": VerifierInfo(typical, lossless=False, draws=0, options=("epsilon", "delta")),
    "lenient": VerifierInfo(lenient, lossless=False, draws=1, options=("lenience",)),
}


@functools.lru_cache(maxsize=64)
def make_verifier(text: str) -> VerifierInfo:
    """The verifier for `name` or `name:option=number`.

    Raises:
        UsageError: there is no such verifier, or it has no such option.
    """
    name, *rest = text.split(":")
    if name not in VERIFIERS:
        raise UsageError(f"unknown verifier {name!r}: choose from {', '.join(sorted(VERIFIERS))}")
    info = VERIFIERS[name]
    options: dict[str, float] = {}
    for item in rest:
        key, _, value = item.partition("=")
        try:
            options[key] = float(value)
        except ValueError:
            raise UsageError(f"{name}:{key} must be a number from 0 to 1, not {value!r}") from None
        if key not in info.options:
            raise UsageError(f"{name} has no option {key!r}; it knows {', '.join(info.options) or 'none'}")
        if not 0.0 <= options[key] <= 1.0:
            raise UsageError(f"{name}:{key} must be a number from 0 to 1, not {value!r}")
    return info._replace(verify=functools.partial(info.verify, **options)) if options else info
