"""Drafts of several sequences: one decode of the draft model per level, and the trees that each gets alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lcspec.config import DraftFiles
from lcspec.drafters.base import Budget, SequenceView
from lcspec.drafters.draft_model import ModelDrafter
from lcspec.session import Session, open_session
from lcspec.spec.token_tree import TokenTree
from tests.running import ROUNDS_ALIKE, SAMPLINGS, decodes_counted, options, request, side_by_side

pytestmark = pytest.mark.model

TEXTS = ("the cat and the ", "a dog or a cat or a ", "one, two, three, ", "def f(x): return x")
LEVELS = 4


@pytest.fixture(scope="module")
def four(llama: Path, llama_draft: Path) -> Iterator[Session]:
    with open_session(options(llama, slots=4, ctx=1024), DraftFiles((llama_draft,))) as session:
        yield session


@pytest.mark.parametrize("strategy", ["model:p_min=0", "model:branch=3:nodes=9:p_min=0", "cascade:tail=0"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_level_of_all_trees_is_one_decode(
    four: Session, strategy: str, sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, int]] = []  # sequences, decodes, levels of the deepest tree
    real = ModelDrafter.draft_batch

    def counted(self: ModelDrafter, sequences: list[SequenceView], budgets: list[Budget]) -> list[TokenTree]:
        with decodes_counted(self.context) as decodes:
            trees = real(self, sequences, budgets)
        asked.append((len(sequences), decodes[0], max(max(tree.depths) for tree in trees)))
        return trees

    monkeypatch.setattr(ModelDrafter, "draft_batch", counted)
    wanted = [
        request(four.prompt_ids(text), strategy, 48, sampling=sampling, max_draft=LEVELS, draft=DraftFiles())
        for text in TEXTS
    ]
    side_by_side(four.engine, wanted)
    together = [(decodes, levels) for n, decodes, levels in asked if n == len(TEXTS)]
    assert len(together) >= 3
    # The first decode reads the pending token; what the last one finds may not be among the best.
    assert all(decodes <= levels + 1 for decodes, levels in together), together


@pytest.mark.skipif(not ROUNDS_ALIKE, reason="several together round in another way")
def test_trees_are_those_that_each_gets_alone(four: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    drafted: dict[bool, dict[tuple[int, ...], list[int]]] = {True: {}, False: {}}
    real = ModelDrafter.draft_batch
    for together in (True, False):

        def recorded(
            self: ModelDrafter, sequences: list[SequenceView], budgets: list[Budget], together: bool = together
        ) -> list[TokenTree]:
            if together:
                trees = real(self, sequences, budgets)
            else:
                trees = [tree for s, b in zip(sequences, budgets) for tree in real(self, [s], [b])]
            for sequence, tree in zip(sequences, trees):
                drafted[together][tuple(sequence.tokens)] = sorted(zip(tree.depths, tree.tokens))  # type: ignore[arg-type]
            return trees

        monkeypatch.setattr(ModelDrafter, "draft_batch", recorded)
        wanted = [
            request(four.prompt_ids(text), "model:branch=2:nodes=6:p_min=0", 24, draft=DraftFiles()) for text in TEXTS
        ]
        texts = [found.ids for found in side_by_side(four.engine, wanted)]
        drafted[together][()] = [token for ids in texts for token in ids]
    assert drafted[True] == drafted[False] and len(drafted[True]) > 20


def test_a_draft_model_of_another_vocabulary_is_asked_for_all_at_once(
    llama: Path, other_vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, real = list[int](), ModelDrafter.draft_batch

    def counted(self: ModelDrafter, sequences: list[SequenceView], budgets: list[Budget]) -> list[TokenTree]:
        asked.append(len(sequences))
        return real(self, sequences, budgets)

    monkeypatch.setattr(ModelDrafter, "draft_batch", counted)
    files = DraftFiles((other_vocabulary,))
    with open_session(options(llama, slots=4, ctx=1024), files) as session:
        wanted = [request(session.prompt_ids(text), "model:p_min=0", 16, draft=files) for text in TEXTS]
        together = side_by_side(session.engine, wanted)
        alone = [side_by_side(session.engine, [one])[0] for one in wanted]
    assert sum(n > 2 for n in asked) >= 3, "those whose text ends within a character wait"
    assert [found.ids for found in together] == [found.ids for found in alone] or not ROUNDS_ALIKE
