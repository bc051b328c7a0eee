"""A real server on a free port of this machine, with the bundled pair."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from lcspec.server.lifecycle import Background
from tests import tiny_gguf as tiny
from tests.server.running import WAIT, background


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    """httpx gives up after five seconds if nothing is said, and a busy machine may take longer."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("get", "post", "options", "head", "delete", "request", "stream"):
            patch.setattr(httpx, name, functools.partial(getattr(httpx, name), timeout=WAIT))
        yield


@pytest.fixture(scope="session", autouse=True)
def _garbage_of_the_tests_stays() -> Iterator[None]:
    """A model that is unloaded has the collector look at everything, which here is half a second of test modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[Background]:
    """Four slots, the bundled pair, speculation as the planner likes it."""
    with background(slots=4, queue=32, max_body=1 << 20) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Background) -> Iterator[openai.OpenAI]:
    """The official client."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=WAIT) as client:
        yield client


@pytest.fixture(scope="session")
def http(server: Background) -> Iterator[httpx.Client]:
    """A plain client for what the official one would not send."""
    with httpx.Client(base_url=server.url, timeout=WAIT) as client:
        yield client


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a chat template."""
    path = tmp_path_factory.mktemp("models") / "llama.gguf"
    tiny.write_llama(path, chat_template=tiny.CHATML_TEMPLATE)
    return path
