"""HTTP to a server that speaks OpenAI's API: which models it has, what a text counts, an answer as it comes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import httpx
from httpx_sse import SSEError, aconnect_sse

from lcspec.errors import ContextOverflow, LcspecError

# Seconds until a server that does not take a connection, or does not answer a short question, counts as away.
CONNECT_SECONDS = 5.0
SHORT_SECONDS = 30.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Bytes of a token where nobody counts, and tokens that a message's frame takes.
BYTES_A_TOKEN = 4
FRAME = 6


class ServerError(LcspecError):
    """The server is away, refuses the key, or answered with an error; the message says what to do."""


@dataclass(frozen=True)
class ServerModel:
    """A model of the server: its name, other names, and positions of its context (None: it does not say)."""

    name: str
    aliases: tuple[str, ...] = ()
    n_ctx: int | None = None


class ServerClient:
    """One server. Methods without `async` wait, and may be called from any thread."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """`url`: as the user wrote it, with or without /v1.

        Raises:
            ServerError: it is no address.
        """
        try:
            parsed = httpx.URL(url if "://" in url else f"http://{url}")
        except httpx.InvalidURL as error:
            raise ServerError(f"{url!r} is no address ({error}): write it like http://127.0.0.1:8080") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ServerError(f"{url!r} is no address: write it like http://127.0.0.1:8080")
        path = parsed.path.rstrip("/")
        self.base = str(parsed.copy_with(path=path or "/v1", query=None, fragment=None))
        self.root = str(parsed.copy_with(path=path.removesuffix("/v1") or "/", query=None, fragment=None)).rstrip("/")
        self.place = parsed.netloc.decode("ascii").rpartition("@")[2]
        self.model = ""
        self.counts = False  # whether it has /tokenize and /apply-template
        self._has_key = key is not None
        self._options: dict[str, Any] = {
            "headers": {"authorization": f"Bearer {key}"} if key is not None else {},
            "trust_env": parsed.host not in LOOPBACK,  # a proxy knows nothing of this machine
        }
        self._client = httpx.Client(**self._options, timeout=httpx.Timeout(SHORT_SECONDS, connect=CONNECT_SECONDS))

    def models(self) -> list[ServerModel]:
        """The server's models.

        Raises:
            ServerError: it cannot be asked.
        """
        found = self._json("GET", f"{self.base}/models")
        entries = found.get("data") if isinstance(found, dict) else None
        if not isinstance(entries, list):
            raise ServerError(f"{self.base} does not speak OpenAI's API: give the address up to /v1")
        return [_model(e) for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str)]

    def look_for_counting(self) -> None:
        """Find out whether the server counts tokens."""
        try:
            self._count("a")
            self._template([{"role": "user", "content": "a"}])
        except LcspecError:
            return
        self.counts = True

    def chat_ids(
        self, messages: Sequence[Mapping[str, object]], think: bool = True
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """As many ids as the conversation has tokens (about as many, where the server does not count).

        Raises:
            ServerError: it cannot be asked, or refuses the messages.
        """
        if self.counts:
            return tuple(self._count(self._template(messages))), ()
        guess = sum(len(str(m.get("content", "")).encode()) // BYTES_A_TOKEN + FRAME for m in messages)
        return tuple(range(guess)), ()

    def tokenize(self, text: str) -> Sequence[int]:
        """As many ids as the text has tokens (about as many, where the server does not count).

        Raises:
            ServerError: it cannot be asked.
        """
        return self._count(text) if self.counts else range(len(text.encode()) // BYTES_A_TOKEN + 1)

    def _count(self, text: str) -> Sequence[int]:
        tokens = self._json("POST", f"{self.root}/tokenize", {"content": text}).get("tokens")
        if not isinstance(tokens, list):
            raise ServerError("the server does not count tokens")
        return range(len(tokens))

    def _template(self, messages: Sequence[Mapping[str, object]]) -> str:
        prompt = self._json("POST", f"{self.root}/apply-template", {"messages": list(messages)}).get("prompt")
        if not isinstance(prompt, str):
            raise ServerError("the server does not apply templates")
        return prompt

    def _json(self, method: str, url: str, body: object = None) -> Any:
        try:
            response = self._client.request(method, url, json=body)
            if response.is_error:
                raise self.refusal(response)
            found = response.json()
        except httpx.HTTPError as error:
            raise self.away(error) from error
        except ValueError as error:
            raise ServerError(f"{self.base} does not speak OpenAI's API: give the address up to /v1") from error
        return found if isinstance(found, dict) else {}

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The chunks of an answer to a body of /chat/completions, as they come.

        Raises:
            ContextOverflow: the server says that the conversation does not fit.
            ServerError: anything else that goes wrong, before or within the answer.
        """
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)  # a long prompt takes its time
        ended = False
        try:
            async with (
                httpx.AsyncClient(**self._options, timeout=timeout) as client,
                aconnect_sse(client, "POST", f"{self.base}/chat/completions", json=dict(body)) as events,
            ):
                if events.response.is_error:
                    await events.response.aread()
                    raise self.refusal(events.response)
                async for event in events.aiter_sse():
                    if event.data.strip() == "[DONE]":
                        return
                    chunk = json.loads(event.data)
                    if not isinstance(chunk, dict):
                        continue
                    if chunk.get("error"):
                        raise _refused(_message(chunk) or "no reason given", chunk["error"])
                    ended = ended or any(c.get("finish_reason") for c in chunk.get("choices") or ())
                    yield chunk
        except httpx.HTTPError as error:
            raise self.away(error) from error
        except (SSEError, ValueError) as error:
            raise ServerError(f"the server at {self.place} does not stream as OpenAI's API does: {error}") from error
        if not ended:
            raise ServerError(f"the server at {self.place} ended the answer before it was complete")

    def away(self, error: httpx.HTTPError) -> ServerError:
        """An error for a server that cannot be reached."""
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            text = f"no server answers at {self.base}: start it (lcspec serve MODEL), or mend the address"
        elif isinstance(error, httpx.TimeoutException):
            text = f"the server at {self.place} did not answer in {SHORT_SECONDS:.0f} seconds: try again"
        else:
            text = f"the connection to {self.place} was lost: see whether the server still runs, and try again"
        return ServerError(text)

    def refusal(self, response: httpx.Response) -> LcspecError:
        """An error for what the server refused."""
        status = response.status_code
        if status == 401:
            what = "refuses the API key" if self._has_key else "wants an API key"
            return ServerError(f"the server at {self.place} {what}: set LCSPEC_API_KEY, or give --api-key-file FILE")
        try:
            found = response.json()
        except ValueError:
            found = None
        message = _message(found) or response.reason_phrase or "no reason given"
        if status == 404 and response.request.url.path.endswith("/models"):
            return ServerError(f"there is no OpenAI API at {self.base}: give the address up to /v1")
        return _refused(
            f"the server at {self.place} answered {status}: {message}", found.get("error") if found else None
        )

    def close(self) -> None:
        """No more questions."""
        self._client.close()


def _model(entry: Mapping[str, Any]) -> ServerModel:
    """A model as lcspec, llama-server (`meta`) and vLLM (`max_model_len`) describe it."""
    meta = entry.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    aliases = meta.get("aliases") or entry.get("aliases") or ()
    n_ctx = meta.get("n_ctx") or entry.get("max_model_len")
    return ServerModel(entry["id"], tuple(map(str, aliases)), n_ctx if isinstance(n_ctx, int) and n_ctx > 0 else None)


def _message(found: object) -> str:
    """The words of an error's body."""
    error = found.get("error", found.get("message", found.get("detail"))) if isinstance(found, dict) else None
    text = error.get("message") if isinstance(error, dict) else error
    return text if isinstance(text, str) else ""


def _refused(text: str, error: object) -> LcspecError:
    code = error.get("code") if isinstance(error, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    too_long = "context_length_exceeded" in (code, kind) or kind == "exceed_context_size_error"
    return ContextOverflow(text) if too_long else ServerError(text)
