"""Whatever the OpenAPI document allows, and what it does not, the server answers without failing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

from lcspec.server.lifecycle import Background
from tests.server.running import HELLO, background, service_of


@pytest.fixture(scope="module")
def small(tiny_model: Path) -> Iterator[Background]:
    """A random model with a short context, so that every answer is short."""
    # Unknown parameters are ignored, or almost everything would be refused at the door.
    with background(tiny_model, ctx=96, slots=2, queue=4, max_body=1 << 20, ignore_unknown=True) as server:
        yield server
        assert service_of(server).worker.alive
        assert service_of(server).capacity.at_hand == 0


@pytest.fixture
def api(small: Background) -> object:
    """The service's own document."""
    return schemathesis.openapi.from_url(f"{small.url}/openapi.json")


ANSWERED: Counter[tuple[str, int]] = Counter()
schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_makes_the_server_fail(case: schemathesis.Case) -> None:
    if isinstance(case.body, dict):
        case.body.pop("model", None)
    response = case.call(timeout=120)
    ANSWERED[case.path, response.status_code] += 1
    case.validate_response(response, checks=[not_a_server_error])
    if response.status_code >= 400:
        error = response.json()["error"]
        assert error["message"] and error["type"]
        assert response.status_code in (400, 404, 405, 413, 429)


def test_the_document_names_every_endpoint_and_no_422(small: Background) -> None:
    document = httpx.get(f"{small.url}/openapi.json").json()
    assert {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/models",
        "/health",
        "/metrics",
        "/tokenize",
        "/detokenize",
        "/apply-template",
    } <= set(document["paths"])
    assert all("422" not in op["responses"] for path in document["paths"].values() for op in path.values())
    assert httpx.post(f"{small.url}/v1/chat/completions", json={"messages": HELLO, "max_tokens": 1}).is_success


def test_some_of_them_were_answered() -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize"):
        assert ANSWERED[path, 200] > 10, ANSWERED
