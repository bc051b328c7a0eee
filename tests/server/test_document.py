"""Whatever the OpenAPI document allows, and what it does not, the server answers without failing."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation.meta import TestPhase
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from lcspec.server.lifecycle import Background
from tests.server.running import HELLO, background, service_of

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def small(tiny_model: Path) -> Iterator[Background]:
    """A random model with a short context, so that every answer is short."""
    # Unknown parameters are ignored, or almost everything would be refused at the door.
    with background(tiny_model, ctx=96, slots=2, queue=4, max_body=1 << 20, ignore_unknown=True) as server:
        yield server
        assert service_of(server).worker.alive
        assert service_of(server).capacity.at_hand == 0


TURNS = defaultdict[tuple[str, bool], Iterator[int]](itertools.count)
EXPLORING = bool(os.environ.get("LCSPEC_EXPLORE"))
ANSWERED: Counter[tuple[str, int]] = Counter()
CONNECTION = requests.Session()  # a connection for all requests


def filter_case(_context: object, case: schemathesis.Case) -> bool:
    """Beside the random cases there are ten thousand that go through the document, field by field: of a path's wrong
    ones every hundredth is sent, of the others every eighth."""
    meta = case.meta
    if meta is None or meta.phase.name != TestPhase.COVERAGE or EXPLORING:
        return True
    wrong = meta.generation.mode.is_negative
    return next(TURNS[case.path, wrong]) % (100 if wrong else 8) == 0


@pytest.fixture
def api(small: Background) -> object:
    """The service's own document."""
    document = schemathesis.openapi.from_url(f"{small.url}/openapi.json")
    document.hook(filter_case)
    return document


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_makes_the_server_fail(case: schemathesis.Case) -> None:
    if isinstance(case.body, dict):
        case.body.pop("model", None)
        if case.path == "/v1/embeddings" and case.body.get("input") == "":
            case.body["input"] = "a"  # nearly all have an empty one, which is refused
    response = case.call(session=CONNECTION, timeout=300)
    ANSWERED[case.path, response.status_code] += 1
    holds = [content_type_conformance, response_schema_conformance] if response.status_code == 200 else []
    case.validate_response(response, checks=[not_a_server_error, *holds])
    if response.status_code >= 400:
        error = response.json()["error"]
        assert error if case.path.startswith("/api/") else error["message"] and error["type"]
        assert response.status_code in (400, 404, 405, 413, 429)


VALUES: dict[str, tuple[Any, ...]] = {
    "temperature": (0, 1e-320, 1e-30, 1e-4, 0.7, 2, 100),
    "top_p": (0, 1e-300, 0.5, 1),
    "top_k": (-(2**31), -1, 0, 1, 40, 2**31 - 1),
    "min_p": (0, 1e-300, 0.5, 1),
    "typical_p": (0, 1e-300, 0.5, 1),
    "repeat_penalty": (1e-300, 0.01, 1, 100),
    "repeat_last_n": (-1, 0, 64, 2**31 - 1),
    "frequency_penalty": (-2, 0, 2),
    "presence_penalty": (-2, 0, 2),
    "dry_multiplier": (0, 1, 100),
    "dry_base": (0, 1, 1.75, 100),
    "dry_sequence_breakers": ([], ["\n"], ["x" * 256, "\u00e9"]),
    "top_n_sigma": (-1, 0, 1e-300, 1.5, 100),
    "dynatemp_range": (0, 1e-300, 0.5, 100),
    "dynatemp_exponent": (0, 1, 100),
    "mirostat": (0, 1, 2),
    "mirostat_tau": (0, 1e-300, 5, 100),
    "mirostat_eta": (0, 0.1, 1),
    "adaptive_target": (-1, 0, 0.5, 1),
    "adaptive_decay": (0, 0.9, 0.99),
    "dry_allowed_length": (0, 2, 2**31 - 1),
    "dry_penalty_last_n": (-1, 0, 2**31 - 1),
    "xtc_probability": (0, 0.5, 1),
    "xtc_threshold": (0, 1e-300, 0.3, 1),
    "seed": (-(2**63), -1, 0, 2**63 - 1),
    "max_tokens": (0, 1, 7, 2**31 - 1),
    "logprobs": (0, 5, 20),
    "logit_bias": ({}, {"5": 100}, {str(t): -100 for t in range(280)}, {"0": 0.5, "7": -3}),
    "n": (1, 2),
    "stop": ("", "a", ["a", "b\n", ""], "\u00e9"),
    "stream": (True, False),
    "echo": (False, True),
    "prompt": ("", "abc", " " * 20, "\x00", "<|im_start|>user", [1, 2, 3], ["a", "b"], "\U0001f600\u0301"),
    "prediction": (
        {"type": "content", "content": ""},
        {"type": "content", "content": "abcabcabc"},
        {"type": "content", "content": [{"type": "text", "text": "\x00\uffff"}]},
    ),
    "speculation": (
        {},
        {"off": True},
        {"drafters": "ngram", "max_draft": 0},
        {"drafters": ["ngram", "suffix"], "max_draft": 255},
        {"drafters": "ngram:nodes=255", "verifier": "rejection"},
        {"drafters": "suffix,ngram", "verifier": "typical"},
        {"verifier": "multi_step", "drafters": "ngram:branch=4"},
    ),
    "grammar": ('root ::= "yes" | "no"', 'root ::= ""', "root ::= [^x]*", "root ::= root2\nroot2 ::= [a-z]{3}"),
}
BODIES = st.fixed_dictionaries(
    {"prompt": st.sampled_from(VALUES.pop("prompt"))},
    optional={name: st.sampled_from(values) for name, values in VALUES.items()},
)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(BODIES)
# Logits of tokens said before become infinite: they are the most probable, not banned.
@example({"prompt": "y", "grammar": VALUES["grammar"][0], "repeat_penalty": 1e-300})
@example({"prompt": "y", "grammar": VALUES["grammar"][0], "repeat_penalty": 1e-300, "adaptive_target": 0.5})
@example({"prompt": "yn", "grammar": VALUES["grammar"][0], "logit_bias": {"110": 100, "121": 100}, "stream": True})
def test_extreme_values_are_answered(small: Background, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{small.url}/v1/completions", json=body, timeout=300)
    if "grammar" in body and body.get("speculation", {}).get("verifier") == "typical":
        assert answer.status_code == 400
        return
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert len(answer.json()["choices"]) == body.get("n", 1) * (2 if body["prompt"] == ["a", "b"] else 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_bias_of_minus_100_on_every_token_changes_no_text_that_a_grammar_holds(
    small: Background, stream: bool
) -> None:
    """As in OpenAI's API it is added to the logits: where every token has it, none is less likely than before."""

    def text(**more: Any) -> str:
        body = {"prompt": "abc", "grammar": "root ::= [a-z]{12}", "temperature": 0.7, "seed": 5, "stream": stream}
        answer = httpx.post(f"{small.url}/v1/completions", json=body | more, timeout=300)
        assert answer.status_code == 200, answer.text
        if not stream:
            return str(answer.json()["choices"][0]["text"])
        events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line[6:] not in ("", "[DONE]")]
        return "".join(event["choices"][0]["text"] for event in events)

    assert len(text()) == 12
    assert text() == text(logit_bias={str(token): -100 for token in range(288)})


def test_the_document_names_every_endpoint_and_no_422(small: Background) -> None:
    document = httpx.get(f"{small.url}/openapi.json").json()
    assert {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/models",
        "/v1/messages",
        "/v1/rerank",
        "/api/chat",
        "/completion",
        "/infill",
        "/health",
        "/metrics",
        "/tokenize",
        "/detokenize",
        "/apply-template",
    } <= set(document["paths"])
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = operation["responses"]["200"]["content"]
            assert all(kind["schema"] for kind in shown.values()), (path, method)
            assert path == "/metrics" or "$ref" in str(shown["application/json"]["schema"]), (path, method)
    assert all("422" not in op["responses"] for path in document["paths"].values() for op in path.values())
    assert httpx.post(f"{small.url}/v1/chat/completions", json={"messages": HELLO, "max_tokens": 1}).is_success


def test_some_of_them_were_answered() -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize"):
        assert ANSWERED[path, 200] > 0, (path, ANSWERED)
