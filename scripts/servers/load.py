"""Load on an OpenAI-compatible server: a number of streams that work through a list of requests together.

The client runs on the cores that are measured, so it does next to nothing while answers come: it notes when the first
text arrives, keeps the bytes, and reads them when everything is over.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

CHUNK = 65536


class LoadError(Exception):
    """A server did not answer as it should; the message says what came."""


@dataclass
class Answer:
    """One request's answer; seconds are counted from the sending of the request.

    `read` are the prompt's tokens that no cache had; `text` is what was written, of a call its arguments; `call` the
    function's name; `end` the reason of the end.
    """

    first: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    read: int = 0
    text: str = ""
    call: str = ""
    end: str = ""


@dataclass
class Load:
    """A whole run."""

    seconds: float
    answers: list[Answer] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens per second over all streams, prompts included."""
        return sum(a.tokens for a in self.answers) / self.seconds

    def first(self, share: float) -> float:
        """A quantile of the time to the first text, seconds."""
        times = sorted(a.first for a in self.answers)
        if len(times) == 1:
            return times[0]
        return statistics.quantiles(times, n=100, method="inclusive")[round(share * 100) - 1]


def run(
    host: str, port: int, bodies: list[dict[str, Any]], streams: int, timeout: float, path: str = "/v1/completions"
) -> Load:
    """Send every body to `path`, `streams` at a time, and wait for all answers.

    Raises:
        LoadError: one failed, or it took longer than `timeout` seconds.
    """
    return asyncio.run(_run(host, port, bodies, streams, timeout, path))


async def _run(host: str, port: int, bodies: list[dict[str, Any]], streams: int, timeout: float, path: str) -> Load:
    left = list(enumerate(bodies))[::-1]
    raw: dict[int, tuple[bytes, list[tuple[int, float]], float]] = {}

    async def work() -> None:
        while left:
            index, body = left.pop()
            raw[index] = await _ask(host, port, path, json.dumps(body).encode())

    start = time.perf_counter()
    try:
        await asyncio.wait_for(asyncio.gather(*(work() for _ in range(streams))), timeout)
    except asyncio.TimeoutError as error:
        raise LoadError(f"it did not answer within {timeout:.0f} s") from error
    except OSError as error:
        raise LoadError(f"the connection failed: {error}") from error
    seconds = time.perf_counter() - start
    return Load(seconds, [_read(*raw[i]) for i in sorted(raw)])


async def _ask(host: str, port: int, path: str, body: bytes) -> tuple[bytes, list[tuple[int, float]], float]:
    """The bytes of an answer, how many of them there were when (seconds), and when its end came."""
    reader, writer = await asyncio.open_connection(host, port, limit=CHUNK)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    start, data, came = time.perf_counter(), bytearray(), list[tuple[int, float]]()
    try:
        writer.write(head.encode() + body)
        while part := await reader.read(CHUNK):
            data += part
            came.append((len(data), time.perf_counter() - start))
    finally:
        writer.close()
    return bytes(data), came, time.perf_counter() - start


def _read(data: bytes, came: list[tuple[int, float]], seconds: float) -> Answer:
    """What an answer says, and when its first text came: events without text, for control tokens, are none.

    Raises:
        LoadError: it is no stream of events.
    """
    head, _, body = data.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode("latin-1")
    if " 200 " not in status:
        raise LoadError(f"{status}: {body[:300].decode('utf-8', 'replace')}")
    answer, end = Answer(0.0, seconds), len(data) - len(body)
    # With chunked encoding, sizes stand on lines of their own between the events.
    for line in body.split(b"\n"):
        end += len(line) + 1
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise LoadError(str(event["error"]))
        for choice in event.get("choices") or []:
            answer.text += _text_of(choice, answer)
            answer.end = choice.get("finish_reason") or answer.end
        if answer.text and not answer.first:
            answer.first = next(at for length, at in came if length >= min(end, len(data)))
        timings = event.get("timings")
        if timings:
            answer.tokens = int(timings["predicted_n"])
            answer.drafted = int(timings.get("draft_n") or 0)
            answer.accepted = int(timings.get("draft_n_accepted") or 0)
            answer.read = int(timings.get("prompt_n") or 0)
            answer.steps = int(timings.get("target_steps") or 0)
    if not answer.tokens:
        raise LoadError("the stream ended without timings")
    return answer


def _text_of(choice: dict[str, Any], answer: Answer) -> str:
    """What an event adds to the text; the name of a call goes to the answer."""
    delta = choice.get("delta") or {}
    functions = [call.get("function") or {} for call in delta.get("tool_calls") or []]
    answer.call = answer.call or "".join(f.get("name") or "" for f in functions)
    written = [choice.get("text"), delta.get("content"), *(f.get("arguments") for f in functions)]
    return "".join(part for part in written if part)
