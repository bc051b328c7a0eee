"""The log: a line for every answer; prompts and answers only when the operator asks for them."""

from __future__ import annotations

import logging
import re
import secrets
import time
from typing import TYPE_CHECKING, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lcspec.server.checked_calls import VALID, check_call
from lcspec.server.unknown import HEADER, MAX_NAMES, STATE

if TYPE_CHECKING:
    from lcspec.server.answer import Text
    from lcspec.server.job import Job
    from lcspec.server.metrics import HttpMetrics
    from lcspec.server.service import Service

log = logging.getLogger("lcspec.server")
JOB = "lcspec.job"
REQUEST_ID = b"x-request-id"
PLAIN_ID = re.compile(rb"[\w.:-]{1,64}")
QUIET_PATHS = ("/health", "/v1/health", "/metrics")


class Journal:
    """Middleware: logs every answer (id, method, path, status, seconds, tokens, speed-up), and counts it.

    Nothing the client wrote beyond the path of an endpoint that exists, and an id of its own for the request, is logged
    or becomes a label.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, paths: Callable[[str], str]) -> None:
        self.app = app
        self.metrics = metrics
        self.paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note the status on its way out."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, identity = time.perf_counter(), 0, request_id(scope)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                more = [(REQUEST_ID, identity.encode())]
                if ignored := scope.get(STATE):
                    more.append((HEADER.encode(), ", ".join(ignored[:MAX_NAMES]).encode()))
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception:
            status = status or 500  # what the handler of last resort, which is outside, will answer
            raise
        finally:
            path = self.paths(scope["path"])
            self.metrics.answered(path, status)
            level = logging.DEBUG if path in QUIET_PATHS else logging.INFO
            seconds = time.perf_counter() - start
            spent = spent_on(scope.get(JOB))
            log.log(level, "%s %s %s %s %.3f s%s", identity, scope["method"], path, status or "gone", seconds, spent)


def request_id(scope: Scope) -> str:
    """The client's own id for the request, if it is a plain one, else a new one."""
    for name, value in scope.get("headers", ()):
        if name == REQUEST_ID and PLAIN_ID.fullmatch(value):
            return str(value.decode())
    return f"req_{secrets.token_hex(8)}"


def spent_on(job: Job | None) -> str:
    """Tokens and speed-up of a request, for its line in the log."""
    if job is None:
        return ""
    speedup = job.service.speedup
    return f", {job.read} + {job.written} tokens" + (f", {speedup:.2f} times plain" if speedup is not None else "")


def note_prompt(service: Service, text: str) -> None:
    """Log a prompt, if that was asked for."""
    if service.settings.log_prompts:
        log.info("prompt: %r", text)


def note_answer(service: Service, text: str) -> None:
    """Log an answer, if that was asked for."""
    if service.settings.log_prompts:
        log.info("answer: %r", text)


async def note_calls(service: Service, text: Text) -> None:
    """Count an answer's tool calls by whether their arguments follow the tools' schemas; log those that do not."""
    if not text.calls or text.reason != "stop":  # what was cut is not whole
        return
    found = await service.in_thread(lambda: [check_call(text.functions, *call) for call in text.calls])
    for outcome, keyword in found:
        service.metrics.called(outcome)
        if outcome != VALID:
            # Neither names nor values: they are the client's.
            log.warning("a tool call is %s%s", outcome.replace("_", " "), f" (violates `{keyword}`)" if keyword else "")
