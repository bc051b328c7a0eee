"""A new drafter is one class in one file and one line that registers it; this is one, in thirty lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lcspec.config import DrafterSpec
from lcspec.drafters.base import REGISTRY, Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.session import Session, open_session
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict
from tests.models.running import SAMPLINGS, answer, options, request


class EchoDrafter(Drafter):
    """Proposes the tokens that came `back` places ago, one after another."""

    name = "echo"
    default_nodes = 4

    def __init__(self, env: DrafterEnv) -> None:
        self.back: dict[int, int] = {}
        self.seen = 0

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        spec.check_keys({"back", "nodes"})
        self.back[sequence.id] = spec.integer("back", 3, 1, 1000)

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        tree, node = TokenTree.root(sequence.tokens[-1]), 0
        back = min(self.back[sequence.id], len(sequence.tokens))
        for token in list(sequence.tokens[-back:])[: min(budget.nodes, budget.depth)]:
            node = tree.add(node, token, 0.5, budget.source)
        return tree

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        self.seen += len(verdict.tokens)

    def end(self, sequence: SequenceView) -> None:
        del self.back[sequence.id]


@pytest.fixture
def session(llama: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setitem(REGISTRY, "echo", EchoDrafter)  # what @register("echo") does
    with open_session(options(llama)) as session:
        yield session


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_it_drafts_and_the_text_stays(session: Session, sampling: object) -> None:
    ids = session.prompt_ids("the cat and the dog and the cat and the dog")
    plain = answer(session.engine, request(ids, n=48, sampling=sampling))  # type: ignore[arg-type]
    found = answer(session.engine, request(ids, "echo:back=2", 48, sampling=sampling))  # type: ignore[arg-type]
    assert found.ids == plain.ids
    drafter = session.engine.drafting.drafters["echo"]
    assert isinstance(drafter, EchoDrafter)
    assert drafter.seen > 0 and not drafter.back
    both = answer(session.engine, request(ids, "echo,ngram", 48, sampling=sampling))  # type: ignore[arg-type]
    assert both.ids == plain.ids


def test_the_decorator_registers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(REGISTRY, "echo", raising=False)
    register("echo")(EchoDrafter)
    assert REGISTRY.pop("echo") is EchoDrafter
