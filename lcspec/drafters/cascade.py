"""Cascades: n-grams draft for the draft model, and continue where it stops.

Chen et al. 2023 ("Cascade Speculative Drafting", arXiv:2312.11462). *Vertical*: the draft model does not decode its
chain token by token but verifies the n-grams' guesses, several tokens in a decode. The chain is the same, with fewer
decodes. *Horizontal*: the draft model drafts the first positions, which are accepted most often; n-grams, which cost
nothing, draft those after them, which are seldom reached.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.drafters.draft_model import ModelDrafter
from lcspec.drafters.suffix import NgramDrafter
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

GUESSES = 3
TAIL = 3


@register("cascade")
class CascadeDrafter(Drafter):
    """A draft model (the first `--draft`), with n-grams as its own drafter and after its chain."""

    name = "cascade"
    default_nodes = 8
    costly = True

    def __init__(self, env: DrafterEnv) -> None:
        """Load the draft model.

        Raises:
            LcspecError: as ModelDrafter does.
        """
        self.strong = ModelDrafter(replace(env, ahead=False))
        self.cheap = NgramDrafter(env)
        self._shape: dict[int, tuple[int, int]] = {}  # sequence -> guesses in a decode, nodes of the tail

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Options: `guesses` (tokens that the draft model verifies along with each of its own; 0: none), `tail` (n-gram
        nodes after its chain; 0: none), `p_min` as for `model`, `max_n` and `min_n` as for `ngram`.
        """
        spec.check_keys({"guesses", "max_n", "min_n", "nodes", "p_min", "tail"})
        guesses, tail = spec.integer("guesses", GUESSES, 0, 15), spec.integer("tail", TAIL, 0, 64)
        self._shape[sequence.id] = guesses, tail
        self.cheap.begin(sequence, _part(spec, "ngram", ("max_n", "min_n")))
        self.strong.begin(sequence, _part(spec, "model", ("p_min",)), self._guess if guesses else None)

    def _guess(self, sequence: SequenceView, drafted: Sequence[int]) -> Sequence[int]:
        return self.cheap.continuation(sequence, drafted, self._shape[sequence.id][0])[0]

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """The draft model's chain, with an n-gram continuation below its end."""
        return self.draft_batch([sequence], [budget])[0]

    def draft_batch(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[TokenTree]:
        """`draft` for several sequences, which share the draft model's decodes."""
        tails = [min(self._shape[s.id][1], budget.nodes - 1) for s, budget in zip(sequences, budgets)]
        chains = [replace(budget, nodes=budget.nodes - tail, branch=1) for budget, tail in zip(budgets, tails)]
        drafted = self.strong.draft_batch(sequences, chains)
        return [self._with_tail(*each) for each in zip(sequences, budgets, tails, drafted)]

    def _with_tail(self, sequence: SequenceView, budget: Budget, tail: int, chain: TokenTree) -> TokenTree:
        tree = TokenTree.root(sequence.tokens[-1])
        tree.merge(chain)
        node = len(tree) - 1
        drafted = [tree.tokens[v] for v in tree.path_to(node)[1:]]
        room = min(tail, budget.depth - tree.depths[node])
        tokens, matched = self.cheap.continuation(sequence, drafted, room)
        for token in tokens:
            node = tree.add(node, token, matched / (matched + 1), budget.source)
        return tree

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Tell both drafters what was emitted."""
        self.strong.observe(sequence, tree, verdict)
        self.cheap.observe(sequence, tree, verdict)

    def end(self, sequence: SequenceView) -> None:
        """The request is over."""
        self._shape.pop(sequence.id, None)
        self.strong.end(sequence)
        self.cheap.end(sequence)

    def forget(self) -> None:
        """Drop both drafters' caches of ended texts."""
        self.strong.forget()

    def close(self) -> None:
        """Free the draft model."""
        self.strong.close()
        self.cheap.close()


def _part(spec: DrafterSpec, name: str, keys: Sequence[str]) -> DrafterSpec:
    return DrafterSpec(name, {k: v for k, v in spec.options.items() if k in keys})
