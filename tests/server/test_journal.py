"""The server's log: every answer has a line with its status, also where the service itself failed."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
from starlette.types import Message, Receive, Scope, Send

from lcspec.server.journal import Journal

SCOPE = {"type": "http", "method": "POST", "path": "/v1/responses"}


class Counted:
    """Stands in for the metrics, which only count."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, int]] = []

    def answered(self, path: str, status: int) -> None:
        self.answers.append((path, status))


async def fails(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise AttributeError("a bug")


async def answers(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 201})


async def leaves(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """The client went away, and nothing was sent."""


@pytest.mark.parametrize(("app", "status", "shown"), [(fails, 500, "500"), (answers, 201, "201"), (leaves, 0, "gone")])
def test_every_answer_has_its_line(
    app: Any, status: int, shown: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics: Any = Counted()
    journal = Journal(app, metrics, str)

    async def receive() -> Message:
        raise AssertionError("nobody reads")

    async def send(_: Message) -> None:
        return None

    async def call() -> None:
        if app is fails:
            with pytest.raises(AttributeError):
                await journal(SCOPE, receive, send)
        else:
            await journal(SCOPE, receive, send)

    monkeypatch.setattr(logging.getLogger("lcspec.server"), "propagate", True)
    with caplog.at_level(logging.INFO, logger="lcspec.server"):
        anyio.run(call)
    assert metrics.answers == [("/v1/responses", status)]
    assert f"POST /v1/responses {shown} " in caplog.text
