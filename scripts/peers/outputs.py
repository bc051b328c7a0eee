"""Reading what llama.cpp's programs print. No processes here, so that tests can feed it recorded output."""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import dataclass
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ENCODED = re.compile(r"encoded\s+(\d+) tokens in\s+([\d.]+) seconds")
_DECODED = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds, speed:\s+([\d.]+|inf) t/s")
_TELLING = re.compile(r"error|fail|assert|unknown|invalid|abort|not supported|removed|too long", re.IGNORECASE)
_COUNT = re.compile(r"^.*?\b(n_drafted|n_accept)\s*= (\d+)\s*$", re.MULTILINE)


class OutputError(Exception):
    """A program's output does not hold what it should; the message says what is missing."""


class LostStatistics(OutputError):
    """The closing statistics are not there, though the program ended well."""


@dataclass(frozen=True)
class Run:
    """One completion made by one program.

    Attributes:
        rate: tokens emitted by decode steps per second of decoding; the same definition for every program.
        tokens: tokens emitted by decode steps (without one that came from the prompt's last row).
        seconds: decode time.
        reported: the program's own tokens per second, which may count the prompt's token as well.
        n_prompt: prompt tokens it saw.
        drafted: tokens drafted, None when it does not say.
        accepted: drafted tokens accepted, None when it does not say.
        text: what it wrote.
        tries: how often it had to run until its statistics arrived.
    """

    rate: float
    tokens: int
    seconds: float
    reported: float
    n_prompt: int
    drafted: int | None = None
    accepted: int | None = None
    text: str = ""
    tries: int = 1


def parse_example(stdout: str, stderr: str, prompt: str, free: int) -> Run:
    """Read the closing statistics of llama-lookup, -lookahead, -speculative and -speculative-simple.

    Args:
        stdout: what it wrote: the prompt, the completion, and in some versions the log as well.
        stderr: the rest of its log.
        prompt: the prompt it was given.
        free: tokens of its count that cost no decode step, because they were sampled from the prompt's last row.

    Raises:
        LostStatistics: they are missing.
        OutputError: they make no sense.
    """
    log = _ANSI.sub("", stdout + "\n" + stderr)
    encoded, decoded = _last(_ENCODED, log), _last(_DECODED, log)
    if encoded is None or decoded is None:
        raise LostStatistics("no 'encoded/decoded N tokens' lines: " + reason_of(stderr or stdout))
    total, speed = int(decoded[1]), float(decoded[3])
    if total <= free or not 0 < speed < math.inf:
        raise OutputError(f"it decoded only {total} tokens in {decoded[2]} s")
    seconds = total / speed  # printed with more digits than the seconds are
    counts = {name: int(value) for name, value in _COUNT.findall(log)}
    return Run(
        rate=(total - free) / seconds,
        tokens=total - free,
        seconds=seconds,
        reported=speed,
        n_prompt=int(encoded[1]),
        drafted=counts.get("n_drafted"),
        accepted=counts.get("n_accept"),
        text=completion_of(stdout, prompt),
    )


def parse_server(answer: dict[str, Any]) -> Run:
    """Read llama-server's reply to /completion.

    Raises:
        OutputError: it holds an error, or no timings.
    """
    if "error" in answer:
        error = answer["error"]
        raise OutputError(str(error.get("message", error) if isinstance(error, dict) else error))
    timings = answer.get("timings")
    if not isinstance(timings, dict) or not timings.get("predicted_ms"):
        raise OutputError("the reply has no timings")
    # Its clock starts when the prompt's token has been sampled, which its count includes.
    tokens, seconds = int(timings["predicted_n"]) - 1, float(timings["predicted_ms"]) / 1e3
    if tokens < 1:
        raise OutputError(f"it decoded only {tokens + 1} tokens")
    return Run(
        rate=tokens / seconds,
        tokens=tokens,
        seconds=seconds,
        reported=float(timings["predicted_per_second"]),
        n_prompt=int(timings["prompt_n"]) + int(timings.get("cache_n", 0)),
        drafted=int(timings.get("draft_n", 0)),
        accepted=int(timings.get("draft_n_accepted", 0)),
        text=str(answer.get("content", "")),
    )


def parse_bench(stdout: str) -> float:
    """Median tokens per second of the one generation test in `llama-bench -o json`.

    Raises:
        OutputError: there is no such test.
    """
    start = stdout.find("[")
    try:
        tests = json.loads(stdout[start:]) if start >= 0 else []
    except ValueError as error:
        raise OutputError(f"llama-bench did not print JSON: {error}") from error
    for test in tests:
        if test.get("n_gen") and test.get("samples_ts"):
            return float(statistics.median(test["samples_ts"]))
    raise OutputError("llama-bench reported no generation test")


def completion_of(stdout: str, prompt: str) -> str:
    """The completion in the standard output of an example program, which echoes the prompt before it."""
    text = _ANSI.sub("", stdout)
    at = text.find(prompt)
    if at < 0:
        return ""
    text = text[at + len(prompt) :]
    end = text.find("\n\nencoded ")
    return text[:end] if end >= 0 else text.rstrip()


def same_text(one: str, other: str) -> bool:
    """Whether two completions agree as far as both go (programs stop a few tokens apart)."""
    one, other = one.rstrip(), other.rstrip()
    n = min(len(one), len(other))
    return n > 0 and one[:n] == other[:n]


def reason_of(log: str) -> str:
    """The line of a failed program's log that most likely says why."""
    lines = [line.strip() for line in _ANSI.sub("", log).splitlines() if line.strip()]
    thrown = [line for line in lines if line.startswith("what():")]
    telling = [line for line in lines if _TELLING.search(line)]
    return (thrown[:1] or telling[:1] or lines[-1:] or ["it printed nothing"])[0][:200]


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return found[-1] if found else None
