"""The API key: compared in constant time, never logged."""

from __future__ import annotations

import hmac
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from lcspec.errors import UsageError
from lcspec.server.errors import ApiError
from lcspec.server.limits import discard_body
from lcspec.server.web import PATHS

OPEN_PATHS = ("/health", "/v1/health", *PATHS)


def read_keys(key: str | None, file: Path | None) -> tuple[str, ...]:
    """The accepted keys: the one given, or the lines of a file (blank lines and lines that begin with # are skipped).

    Raises:
        UsageError: both are given, the file cannot be read, or a key is empty or not ASCII.
    """
    if key is not None and file is not None:
        raise UsageError("give --api-key or --api-key-file, not both")
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except OSError as error:
            raise UsageError(f"cannot read the key file {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"the key file {file} is not UTF-8 text") from error
        keys = tuple(line for line in lines if line and not line.startswith("#"))
        if not keys:
            raise UsageError(f"the key file {file} holds no key: write one a line")
    else:
        keys = () if key is None else (key,)
    if any(not k.strip() or not k.isascii() or not k.isprintable() for k in keys):
        raise UsageError("an API key must be printable ASCII and not empty")
    return keys


class KeyCheck:
    """Middleware: answers 401 unless the request carries one of the keys."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self.app = app
        self.keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then go on."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self.knows(_given(scope)):
            await self.app(scope, receive, send)
            return
        await discard_body(scope, receive)
        error = ApiError(
            401,
            "the API key is missing or wrong: send it as `Authorization: Bearer KEY` or `X-Api-Key: KEY`",
            code="invalid_api_key",
            # The clients of OpenAI and Anthropic read the second one; Claude Code would try a wrong key for minutes.
            headers={"WWW-Authenticate": "Bearer", "x-should-retry": "false"},
        )
        await error.response(scope["path"])(scope, receive, send)

    def knows(self, given: bytes) -> bool:
        """Whether `given` is one of the keys; every key is compared, so the time says nothing."""
        found = [hmac.compare_digest(given, key) for key in self.keys]
        return any(found)


def _given(scope: Scope) -> bytes:
    """The key in `Authorization: Bearer KEY` or `X-Api-Key: KEY`."""
    for name, value in scope["headers"]:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return bytes(value[7:].strip())
        if name == b"x-api-key":
            return bytes(value.strip())
    return b""
