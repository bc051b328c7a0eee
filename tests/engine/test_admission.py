"""What a request must pass before it is queued, and the queue."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lcspec.config import DrafterSpec, SpeculationParams
from lcspec.engine.admission import check_request, check_writes, possible
from lcspec.engine.events import Finished
from lcspec.engine.request import Request
from lcspec.engine.request_queue import RequestQueue
from lcspec.errors import ContextOverflow, LcspecError, SamplingError, UnsupportedModel, UsageError
from lcspec.llama import Branching, Context
from lcspec.sampling.parameters import SamplingParams

GOOD = Request((1, 2, 3))
YES_OR_NO = SamplingParams(grammar='root ::= "yes" | "no"')


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"prompt": ()}, UsageError, "the prompt is empty"),
        ({"prompt": (1,) * 64}, ContextOverflow, "is too long: 64 tokens > 63 .the maximum context length is 64"),
        ({"prompt": (1, 100)}, UsageError, "holds token 100, but the vocabulary ends at 99"),
        ({"prompt": (-1, 5)}, UsageError, "holds token -1"),
        ({"max_tokens": -1}, UsageError, "0 or more, not -1"),
        ({"sampling": SamplingParams(logit_bias=((100, 1.0),))}, SamplingError, "ids from 0 to 99"),
        ({"sampling": YES_OR_NO, "speculation": SpeculationParams(verifier="typical")}, UsageError, "use coupled"),
        ({"sampling": YES_OR_NO, "speculation": SpeculationParams(verifier="lenient")}, UsageError, "use coupled"),
    ],
)
def test_what_cannot_run_is_refused(changes: dict[str, Any], error: type[LcspecError], said: str) -> None:
    with pytest.raises(error, match=said):
        check_request(replace(GOOD, **changes), 64, 100)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prompt": (0, 99)},
        {"prompt": (1,) * 63},
        {"max_tokens": 0},
        {"sampling": SamplingParams(logit_bias=((99, -math.inf),))},
        {"sampling": YES_OR_NO, "speculation": SpeculationParams(verifier="rejection")},
        {"speculation": SpeculationParams(verifier="typical")},
    ],
)
def test_what_can_run_is_not(changes: dict[str, Any]) -> None:
    check_request(replace(GOOD, **changes), 64, 100)


def context(branching: Branching = Branching.TREE, exists: bool = True) -> Context:
    model = SimpleNamespace(options=SimpleNamespace(path=Path("/models/my.gguf")))
    memory = SimpleNamespace(branching=branching, exists=exists)
    return cast(Context, SimpleNamespace(memory=memory, model=model))


NGRAM = SpeculationParams(drafters=(DrafterSpec("ngram"),), auto=False)
AUTO = SpeculationParams(drafters=(DrafterSpec("ngram"), DrafterSpec("suffix")), auto=True)


def test_an_encoder_writes_nothing() -> None:
    with pytest.raises(UnsupportedModel, match="my.gguf is an encoder and generates no text"):
        check_writes(context(exists=False))
    with pytest.raises(UnsupportedModel, match="embeddings"):
        possible(context(exists=False), NGRAM)
    check_writes(context())


@pytest.mark.parametrize("branching", [Branching.TREE, Branching.CHAIN])
@pytest.mark.parametrize("wanted", [NGRAM, AUTO, SpeculationParams(verifier="typical")])
def test_where_drafts_can_be_taken_back_they_are_as_asked(branching: Branching, wanted: SpeculationParams) -> None:
    assert possible(context(branching), wanted) is wanted


def test_where_nothing_can_be_taken_back_auto_is_plain_decoding_and_names_are_refused() -> None:
    nothing = context(Branching.NONE)
    assert possible(nothing, AUTO) == replace(AUTO, drafters=(), auto=False)
    with pytest.raises(UnsupportedModel, match="start again with --speculate auto"):
        possible(nothing, NGRAM)
    off = SpeculationParams(drafters=(), auto=False)
    assert possible(nothing, off) is off


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        ("typical", "changes the text"),
        ("lenient", "changes the text"),
        ("rejection", "depends on the drafts"),  # the same distribution, but another text with other drafters
        ("multi_step", "depends on the drafts"),
    ],
)
def test_an_exact_text_cannot_have_a_verifier_that_changes_it(verifier: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"{verifier} .*{reason}"):
        possible(context(), replace(NGRAM, verifier=verifier, exact=True))
    assert possible(context(), replace(NGRAM, verifier=verifier)).verifier == verifier


# --- who waits --------------------------------------------------------------------------------------------------------


def test_requests_wait_in_the_order_in_which_they_came() -> None:
    queue = RequestQueue()
    assert not queue
    assert [queue.add(GOOD) for _ in range(3)] == [1, 2, 3]
    assert queue and [number for number, _ in queue.waiting] == [1, 2, 3]


def test_one_that_is_cancelled_while_it_waits_is_told_of_its_end_once() -> None:
    queue = RequestQueue()
    for seed in (None, 7, None):
        queue.add(replace(GOOD, sampling=SamplingParams(seed=seed)))
    assert queue.cancel(2) == 1 and queue.cancel(2) == 0 and queue.cancel(9) == 0
    assert [number for number, _ in queue.waiting] == [1, 3]
    (event,) = queue.take_cancelled()
    assert isinstance(event, Finished)
    assert (event.request, event.reason, event.prompt_tokens, event.seed) == (2, "cancelled", 3, 7)
    assert queue.take_cancelled() == []
    assert queue.cancel() == 2 and not queue.waiting
    assert queue, "two have yet to be told"
    assert len(queue.take_cancelled()) == 2 and not queue


def test_numbers_are_not_used_twice() -> None:
    queue = RequestQueue()
    queue.add(GOOD)
    queue.cancel()
    assert queue.add(GOOD) == 2
