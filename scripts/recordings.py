"""Recorded drafts: the answers of one model, and for every position of a text what each drafter proposes there."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from lcspec.spec.token_tree import TokenTree

# Nodes of a recorded tree, one list each: parents, tokens, the drafter's estimates.
Tree = tuple[list[int], list[int], list[float]]


@dataclass
class Answer:
    """One text: `tokens` with the prompt's `n_prompt`, and drafts[name][i], the tree below token n_prompt + i."""

    kind: str
    n_prompt: int
    tokens: list[int]
    drafts: dict[str, list[Tree]]

    @property
    def n_answer(self) -> int:
        """Tokens after the first, which the prompt's own step emits."""
        return len(self.tokens) - self.n_prompt - 1


@dataclass
class Recording:
    """Answers of one model. `costly`: drafters that run a model, with a step of theirs over one of the target."""

    name: str
    costly: dict[str, float]
    answers: list[Answer]

    def save(self, path: Path) -> None:
        """Write it as gzipped JSON lines."""
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write(json.dumps({"name": self.name, "costly": self.costly}) + "\n")
            for a in self.answers:
                file.write(json.dumps([a.kind, a.n_prompt, a.tokens, a.drafts], separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what `save` wrote."""
        with gzip.open(path, "rt", encoding="utf-8") as file:
            head, *lines = file
        found = json.loads(head)
        return cls(found["name"], found["costly"], [Answer(*json.loads(line)) for line in lines])


def rows_of(tree: TokenTree) -> Tree:
    """The drafted nodes of a tree as they are recorded."""
    probs = [round(p, 4) for p in tree.probs[1:]]
    return tree.parents[1:], tree.tokens[1:], probs
