"""Text that a grammar or JSON schema forces (jump-forward): drafted whole, one token short.

Where the grammar leaves a single string (llguidance finds out), no model is needed to know it. How the target would
*tokenize* it is only known up to the last token, which may run on into what follows; so that one is left out.
"""

from __future__ import annotations

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.errors import TokenizeError
from lcspec.spec.token_tree import TokenTree

CERTAINTY = 0.95
# Characters a token stands for at the most, as far as looking ahead is concerned.
CHARACTERS_PER_TOKEN = 6


@register("forced")
class ForcedDrafter(Drafter):
    """Drafts what the request's grammar allows no alternative to."""

    name = "forced"
    default_nodes = 8

    def __init__(self, env: DrafterEnv) -> None:
        self._vocab = env.target.vocab

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Nothing to prepare."""
        spec.check_keys({"nodes"})

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """The forced string's tokens but the last."""
        tree = TokenTree.root(sequence.tokens[-1])
        nodes = min(budget.nodes, budget.depth)
        text = sequence.forced_text((nodes + 1) * CHARACTERS_PER_TOKEN)
        if len(text) < 2:
            return tree
        try:
            tokens = self._vocab.tokenize(text, special=False, parse_special=False)
        except TokenizeError:
            return tree  # the vocabulary lacks some of it: the request will hear of that where it gets there
        if self._vocab.text(tokens) != text:
            return tree  # this tokenizer puts a space in front, say: its tokens are not what follows here
        node = 0
        for token in tokens[:-1][:nodes]:
            node = tree.add(node, token, CERTAINTY, budget.source)
        return tree
