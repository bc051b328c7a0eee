"""Jump-forward: drafts the text that a grammar or JSON schema forces, without its last token.

Where the grammar allows a single string (llguidance finds it), no model is needed to know the text. But its last token
may merge with what follows, so the *tokens* are certain only before it; the last one is left out.
"""

from __future__ import annotations

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.errors import TokenizeError
from lcspec.spec.token_tree import TokenTree

CERTAINTY = 0.95
# An upper bound for the characters of a token, to decide how far to look ahead.
CHARACTERS_PER_TOKEN = 6


@register("forced")
class ForcedDrafter(Drafter):
    """Drafts the text to which the request's grammar leaves no alternative."""

    name = "forced"
    default_nodes = 8

    def __init__(self, env: DrafterEnv) -> None:
        self._vocab = env.target.vocab

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Nothing to prepare."""
        spec.check_keys({"nodes"})

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """The tokens of the forced string, without the last one."""
        tree = TokenTree.root(sequence.tokens[-1])
        nodes = min(budget.nodes, budget.depth)
        text = sequence.forced_text((nodes + 1) * CHARACTERS_PER_TOKEN)
        if len(text) < 2:
            return tree
        try:
            tokens = self._vocab.tokenize(text, special=False, parse_special=False)
        except TokenizeError:
            return tree  # the vocabulary lacks part of it; the request fails with an error when it gets there
        if self._vocab.text(tokens) != text:
            return tree  # the tokenizer added something in front, such as a space, so these tokens do not follow
        node = 0
        for token in tokens[:-1][:nodes]:
            node = tree.add(node, token, CERTAINTY, budget.source)
        return tree
