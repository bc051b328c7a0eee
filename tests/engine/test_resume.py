"""A request with tokens that were emitted before goes on as it would have gone on then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lcspec.engine.events import Tokens
from lcspec.engine.request import Request
from lcspec.errors import ContextOverflow
from lcspec.llama.grammar import compile_grammar
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session
from tests.running import CODE, SEEDED, answer, options, request

pytestmark = pytest.mark.model

N = 48
SAMPLINGS = {
    "seeded": SEEDED,
    "penalties": replace(SEEDED, repeat_penalty=1.4, presence_penalty=0.5),
    "dry": replace(SEEDED, dry_multiplier=0.8),
    "mirostat": replace(SEEDED, mirostat=2),
    "adaptive-p": replace(SEEDED, adaptive_target=0.6),
}


@pytest.fixture(scope="module", params=[1, 2])
def session(request: pytest.FixtureRequest, demo: tuple[Path, Path]) -> Iterator[Session]:
    with open_session(options(demo[0], slots=request.param, exact=True), demo[1]) as session:
        yield session


def check(session: Session, wanted: Request, *cuts: int) -> None:
    """Emit it in one piece, and after each of the cuts; the caller puts text and tokens together."""
    whole = answer(session.engine, wanted)
    assert len(whole.ids) > max(cuts)
    for cut in cuts:
        parts = [e for e in whole.events if isinstance(e, Tokens)]
        told, before = [], ""
        while parts and len(told) < cut:  # what the last process had told when it died
            event = parts.pop(0)
            told += [info.id for info in event.tokens]
            before += event.text
        rest = answer(session.engine, replace(wanted, emitted=tuple(told)))
        assert told + rest.ids == whole.ids
        assert before + rest.text == whole.text
        assert rest.finished.completion_tokens == whole.finished.completion_tokens
        assert rest.finished.prompt_tokens == whole.finished.prompt_tokens
        assert (rest.reason, rest.finished.stop) == (whole.reason, whole.finished.stop)


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("speculate", ["off", "ngram:branch=2"])
def test_the_text_is_the_same(session: Session, name: str, speculate: str) -> None:
    check(session, request(session.prompt_ids(CODE[0]), speculate, N, sampling=SAMPLINGS[name]), 1, 7, N - 1)


def test_exact_requests_have_the_same_bits(session: Session) -> None:
    wanted = request(session.prompt_ids(CODE[1]), "off", N, sampling=SEEDED, exact=True, logprobs=0)
    whole = answer(session.engine, wanted)
    rest = answer(session.engine, replace(wanted, emitted=tuple(whole.ids[:20])))
    assert rest.bits == whole.bits[20:]


def test_a_stop_string_that_had_begun(session: Session) -> None:
    plain = answer(session.engine, request(session.prompt_ids(CODE[0]), "off", N, sampling=SEEDED))
    # One that ends with a later token than it begins with; at each cut in it a part is held back.
    stop = plain.text[20:40]
    wanted = request(session.prompt_ids(CODE[0]), "off", N, sampling=SEEDED, stop=(stop,))
    found = answer(session.engine, wanted)
    assert found.finished.stop == stop
    check(session, wanted, *range(1, len(found.ids)))


def test_a_grammar_goes_on(session: Session) -> None:
    grammar = compile_grammar(session.model.vocab, 'root ::= "[" [0-9]{20} "]" "ab"')
    sampling = SamplingParams(temperature=0.8, seed=3, grammar=grammar)
    wanted = Request(session.prompt_ids(CODE[2]), sampling, max_tokens=N)
    check(session, wanted, 1, 5)


def test_a_text_that_fills_the_context_is_refused(session: Session) -> None:
    wanted: dict[str, Any] = {"sampling": SEEDED, "emitted": (5,) * 500}
    with pytest.raises(ContextOverflow):
        session.engine.submit(Request((5,) * 12, **wanted))
