"""The comparison of servers on structured answers: its requests, what it reads of a stream, its tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.servers.cases_table import markdown
from scripts.servers.load import Answer, LoadError, _read
from scripts.servers.workload import CASES, requests

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def stream(*events: dict[str, Any]) -> bytes:
    """A streamed answer with chunk sizes between its events."""
    lines = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return HEAD + b"7b\r\n" + lines + b"data: [DONE]\n\n0\r\n\r\n"


def chunk(delta: dict[str, Any], end: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": end}], **more}


def called(name: str | None, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize("case", CASES)
def test_no_request_comes_twice(case: str) -> None:
    asked = requests(case, 100, 50)
    assert len({json.dumps(a.body) for a in asked}) == 100
    assert asked == requests(case, 100, 50)  # the same for everybody
    with pytest.raises(ValueError):
        requests(case, 1000, 50)


def test_text_of_a_chat_stream() -> None:
    done = {"timings": {"predicted_n": 5, "prompt_n": 7, "draft_n": 4, "draft_n_accepted": 3}}
    data = stream(chunk({"role": "assistant", "content": None}), chunk({"content": "a"}), chunk({"content": "b"}))
    data += stream(chunk({}, "stop", **done))[len(HEAD) :]
    answer = _read(data, [(len(HEAD) + 60, 0.1), (len(data), 0.5)], 0.6)
    assert (answer.text, answer.end, answer.tokens, answer.drafted, answer.accepted) == ("ab", "stop", 5, 4, 3)
    assert answer.read == 7 and answer.first == 0.5 and answer.seconds == 0.6


def test_a_streamed_call_is_held_against_its_tool() -> None:
    (asked,) = requests("tools", 1, 50)
    written = '{"query": "tea", "limit": 3}'
    parts = [called("search", ""), called(None, written[:9]), called(None, written[9:])]
    data = stream(*map(chunk, parts), chunk({}, "tool_calls", timings={"predicted_n": 9}))
    answer = _read(data, [(len(data), 0.2)], 0.2)
    assert (answer.call, answer.text) == ("search", written)
    assert asked.held_by(answer)
    assert not asked.held_by(Answer(call="search", text=written[:9]))
    assert not asked.held_by(Answer(call="search", text=written.replace("3", "300")))
    assert not asked.held_by(Answer(call="other", text=written))


def test_an_error_in_a_stream_is_told() -> None:
    with pytest.raises(LoadError, match="boom"):
        _read(stream({"error": {"message": "boom"}}), [], 0.1)
    with pytest.raises(LoadError, match="timings"):
        _read(stream(chunk({"content": "a"}, "stop")), [(1 << 20, 0.1)], 0.1)


def row(name: str, rate: float, case: str = "schema", **more: Any) -> dict[str, Any]:
    usual = {
        "streams": 2,
        "case": case,
        "round": 1,
        "answers": rate / 50,
        "tokens": 100,
        "read": 30,
        "first": [0.1, 0.3],
    }
    usual |= {"held": 2, "asked": 2, "drafted": 0, "accepted": 0}
    return {"name": name, "ours": name == "lcspec", "rate": rate, **usual, **more}


def test_the_best_setting_of_the_medians_counts() -> None:
    ours = [row("lcspec", rate, round=i) for i, rate in enumerate((90.0, 120.0, 500.0))]
    plain = [row("llama-server", rate, round=i) for i, rate in enumerate((100.0, 100.0, 400.0))]
    other = [row("llama-server, ngram", rate, round=i, drafted=8, accepted=6) for i, rate in enumerate((40.0, 50.0))]
    failed = {"name": "llama-server, -fa off", "streams": 2, "error": "it ended with code 1"}
    runs = [*ours, *plain, *other, failed]
    report = markdown({"target": "m.gguf", "threads": 2, "n": 50, "minutes": 1.0, "runs": runs})
    assert "| schema | 1.20 (1.20) |" in report
    assert "| schema | 2 | llama-server, ngram | 45.0 | 40.0..50.0 | 0.90 | 50 | 15 | 0.200 | 4/4 | 75% |" in report
    assert "failed: llama-server, -fa off, 2 streams: it ended with code 1" in report
    alone = markdown({"target": "m.gguf", "threads": 2, "n": 50, "minutes": 1.0, "runs": ours})
    assert "| schema |  |" in alone
