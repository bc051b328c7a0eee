"""Verifiers: they walk a token tree and keep the longest valid path plus one token of the target's own.

    coupled     the child is kept if it *is* the target's choice at that position; lossless, keeps seeds
    rejection   speculative sampling: accept with min(1, p/q), else resample the residual; lossless in distribution
    multi_step  the same walk over several sampled children a node (SpecInfer); lossless in distribution
    typical     keep what the target finds typical enough (Medusa); lossy
    lenient     keep what the target finds nearly as good as its favourite; lossy

Numpy only. A verifier sees the target through `Target`, row by row and only along the accepted path, so at most
`accepted + 1` rows are ever turned into distributions and stateful samplers advance exactly once per emitted token.
"""

from __future__ import annotations

import functools
from typing import Callable, NamedTuple, Protocol

import numpy as np

from lcspec.errors import UsageError
from lcspec.sampling import inverse_cdf, normalized, uniform_noise
from lcspec.tree import Distribution, TokenTree, Trial

# Streams of the counter-based noise (stream 0 is the target's choice, see sampling.coupled_choice).
ACCEPT_STREAM = 1
RESAMPLE_STREAM = 2
DRAFT_STREAM = 3


class Target(Protocol):
    """The target as a verifier sees it. Calls come in text order: `choose` or `distribution`, then `accept`."""

    def choose(self, node: int, position: int) -> int:
        """The target's coupled choice after `node`, as the token at absolute `position`."""

    def distribution(self, node: int) -> Distribution:
        """The target's sampling distribution after `node`."""

    def raw(self, node: int) -> Distribution:
        """The model's own distribution after `node`, before sampling parameters (lossy verifiers only)."""

    def accept(self, token: int) -> bool:
        """Advance past an emitted token; True when it ends the text."""


class Verdict(NamedTuple):
    """What a verification found.

    Attributes:
        path: accepted nodes in order, node 0 not included.
        tokens: emitted token ids, `len(path) + 1` of them: the accepted ones, then the target's own.
        bonus: the last token followed a full acceptance (else it is a recovered token after a rejection,
            or the only token of a step that drafted nothing).
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
        seed: unused here (the target's choice already carries it); part of the common signature.
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

    A child drawn from q is accepted with probability min(1, p/q), leaving norm(max(p - q, 0)) behind a rejection.
    A deterministic child is the case of a one-point q: accepted with probability p, and p without it is left.
    """
    token = tree.tokens[trial.child]
    if trial.draft is None:
        if u < p.prob_of(token):
            return _Outcome(trial.child, p)
        weights = np.where(p.ids == token, 0.0, p.probs)
    else:
        if u * trial.draft.prob_of(token) < p.prob_of(token):
            return _Outcome(trial.child, p)
        q = np.zeros_like(p.probs)
        order = np.argsort(p.ids, kind="stable")
        at = np.searchsorted(p.ids, trial.draft.ids, sorter=order)
        at = order[np.minimum(at, p.ids.size - 1)]
        known = p.ids[at] == trial.draft.ids
        q[at[known]] = trial.draft.probs[known]
        weights = np.maximum(p.probs - q, 0.0)
    if weights.sum() <= 0.0:
        # Only rounding gets here: the mass outside the rejected token vanished. Nothing better than p is known.
        return _Outcome(None, p)
    return _Outcome(None, normalized(p.ids, weights))


def rejection(tree: TokenTree, target: Target, position: int, seed: int) -> Verdict:
    """Speculative sampling with residual resampling; the children of a node are tried one after the other.

    With one sampled child a node this is the algorithm of Leviathan et al. and Chen et al.; several children,
    each tested against what the rejections before it left over, is SpecInfer's multi-step speculative sampling
    (Miao et al. 2023, arXiv:2305.09781, algorithm 2).
    """
    node = 0
    path: list[int] = []
    tokens: list[int] = []
    while True:
        p = target.distribution(node)
        child = None
        for k, trial in enumerate(tree.trials_of(node)):
            u = float(uniform_noise(seed, position, [k], ACCEPT_STREAM)[0])
            child, p = _attempt(p, tree, trial, u)
            if child is not None:
                break
        if child is None:
            token = inverse_cdf(p, float(uniform_noise(seed, position, [0], RESAMPLE_STREAM)[0]))
            bonus = bool(path) and not tree.children(node)
        else:
            token = tree.tokens[child]
            bonus = False
        tokens.append(token)
        if target.accept(token) or child is None:
            return Verdict(path, tokens, bonus)
        path.append(child)
        node, position = child, position + 1


def _walk_best_children(
    tree: TokenTree, target: Target, position: int, good_enough: Callable[[float, Distribution], bool]
) -> Verdict:
    """Keep each node's most probable child while `good_enough(its probability, p)`; then the target's own choice."""
    node = 0
    path: list[int] = []
    tokens: list[int] = []
    while True:
        child = None
        if tree.children(node):
            p = target.raw(node)
            best, candidate = max((p.prob_of(tree.tokens[c]), c) for c in tree.children(node))
            child = candidate if good_enough(best, p) else None
        token = tree.tokens[child] if child is not None else target.choose(node, position)
        tokens.append(token)
        if target.accept(token) or child is None:
            return Verdict(path, tokens, bonus=bool(path) and not tree.children(node))
        path.append(child)
        node, position = child, position + 1


def typical(
    tree: TokenTree, target: Target, position: int, seed: int, *, epsilon: float = 0.09, delta: float = 0.3
) -> Verdict:
    """Medusa's typical acceptance (Cai et al. 2024, arXiv:2401.10774, section 2.3.1). LOSSY.

    A child is accepted when the model gives it more than min(epsilon, delta * exp(-entropy)); of several, the most
    probable one. The last token is the target's own choice.
    """

    def good_enough(probability: float, p: Distribution) -> bool:
        positive = p.probs[p.probs > 0]
        return probability > min(epsilon, delta * float(np.exp((positive * np.log(positive)).sum())))

    return _walk_best_children(tree, target, position, good_enough)


def lenient(tree: TokenTree, target: Target, position: int, seed: int, *, lenience: float = 0.5) -> Verdict:
    """Accept a child unless the model finds it much worse than its favourite. LOSSY (lenience 1 is greedy decoding).

    The lenience factor of Leviathan et al. 2023 (arXiv:2211.17192, A.5) in its argmax form: a drafted token is kept
    when its probability is at least `lenience` times the largest one.
    """
    return _walk_best_children(tree, target, position, lambda best, p: best >= lenience * float(p.probs.max()))


Verifier = Callable[[TokenTree, Target, int, int], Verdict]

MANY = 1_000


class VerifierInfo(NamedTuple):
    """A registered verifier: the function, whether it is lossless, its options, and how many children of a node a
    model drafter should *draw* for it at temperature > 0 (0: it wants the most probable ones)."""

    verify: Callable[..., Verdict]
    lossless: bool
    draws: int
    options: tuple[str, ...] = ()


VERIFIERS: dict[str, VerifierInfo] = {
    "coupled": VerifierInfo(coupled, lossless=True, draws=0),
    "rejection": VerifierInfo(rejection, lossless=True, draws=1),
    "multi_step": VerifierInfo(rejection, lossless=True, draws=MANY),
    "typical": VerifierInfo(typical, lossless=False, draws=0, options=("epsilon", "delta")),
    "lenient": VerifierInfo(lenient, lossless=False, draws=0, options=("lenience",)),
}


@functools.lru_cache(maxsize=64)
def make_verifier(text: str) -> VerifierInfo:
    """The verifier that `text` names, `name` or `name:option=number`.

    Raises:
        UsageError: there is none, or it has no such option.
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
