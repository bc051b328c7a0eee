"""The web page's files: how they are served, what they may do, and what streams tell its lens."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcspec.answers.deltas import Content, Reasoning
from lcspec.answers.formats import format_of
from lcspec.answers.reader import AnswerReader
from lcspec.answers.text import Piece
from lcspec.server.drafted import Drafted
from lcspec.server.web import FILES, FOLDER, PATHS
from tests.server.running import CODE, MODEL, background

pytestmark = pytest.mark.server

# Addresses in the files that nothing is asked for at: names of formats, and what a link must begin with.
NO_REQUESTS = {"http://www.w3.org/2000/svg"}


def test_every_file_is_served(http: httpx.Client) -> None:
    kinds = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert {path.name for path in FOLDER.iterdir()} == set(FILES)
    for path in PATHS:
        name = path.rpartition("/")[2] or "index.html"
        got = http.get(path)
        assert got.status_code == 200 and got.content == FILES[name].data
        assert got.headers["content-type"].startswith(kinds[name.rpartition(".")[2]])
        assert got.headers["x-content-type-options"] == "nosniff"
        head = http.head(path)
        assert head.status_code == 200 and head.content == b""
        assert head.headers["content-length"] == str(len(got.content))


def test_the_policy_lets_nothing_in(http: httpx.Client) -> None:
    for path in PATHS:
        rules = dict(
            rule.strip().partition(" ")[::2] for rule in http.get(path).headers["content-security-policy"].split(";")
        )
        assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
        assert "unsafe" not in str(rules) and "require-trusted-types-for" in rules


def test_what_is_known_is_not_sent_again(http: httpx.Client) -> None:
    for path in PATHS:
        tag = http.get(path).headers["etag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = http.get(path, headers={"if-none-match": known})
            assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == tag
        assert http.get(path, headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize("name", ["none.js", "..%2fweb.py", "%2e%2e/web.py", "../web.py", "%00"])
def test_nothing_else_is_served(http: httpx.Client, name: str) -> None:
    got = http.get(f"/page/{name}")
    assert got.status_code == 404 and got.json()["error"]["message"]


def test_it_is_small() -> None:
    assert sum(len(file.data) for file in FILES.values()) < 200_000


class Tags(HTMLParser):
    """The page's elements with their attributes, and text within scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in = tag
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self._in in ("script", "style"):
            self.inline += data.strip()


def test_it_asks_no_other_host_and_has_nothing_inline() -> None:
    for name, file in FILES.items():
        text = file.data.decode()
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w[^\s\"'<>]*", text))
        assert addresses <= NO_REQUESTS, name
        if name.endswith(".js"):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
            assert all(path.startswith("./") for path in re.findall(r"^import .* from \"(.*)\"", text, re.M))
    tags = Tags()
    tags.feed(FILES["index.html"].data.decode())
    assert tags.inline == ""
    served = {path.lstrip("/") for path in PATHS}
    for _, attributes in tags.found:
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            address = attributes.get(name)
            assert address is None or address.startswith("#") or address in served


def test_the_page_needs_no_key_and_its_requests_do() -> None:
    with (
        background(api_keys=("secret",), draft=False, warm=False) as server,
        httpx.Client(base_url=server.url, timeout=300) as http,
    ):
        assert all(http.get(path).status_code == 200 for path in PATHS)
        assert http.get("/page/none.js").status_code == 401
        assert http.get("/v1/models").status_code == 401
        assert http.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200


# ---------------------------------------------------------------- who drafted what


def streamed(http: httpx.Client, **more: Any) -> list[dict[str, Any]]:
    """The chunks of an answer that repeats what was said, so that n-grams draft for it."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Repeat this:\n{CODE * 3}"}],
        "temperature": 0,
        "max_tokens": 100,
        "stream": True,
        **more,
    }
    text = http.post("/v1/chat/completions", json=body).raise_for_status().text
    return [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def test_a_stream_names_drafters_when_asked(http: httpx.Client) -> None:
    plain = streamed(http, speculation={"drafters": "ngram"})
    named = streamed(http, speculation={"drafters": "ngram", "name_drafters": True})
    assert text_of(named) == text_of(plain) != ""
    assert all("drafter" not in chunk["choices"][0] for chunk in plain)
    assert {chunk["choices"][0]["drafter"] for chunk in named} == {None, "ngram"}
    timings = named[-1]["timings"]
    drafted = [c for c in named if c["choices"][0]["drafter"] == "ngram"]
    # A token's text may come with a later one's, so there are at most as many chunks as tokens.
    assert 0 < len(drafted) <= timings["draft_n_accepted"]


def test_whole_answers_and_the_client_take_the_field(client: openai.OpenAI) -> None:
    body = {"speculation": {"name_drafters": True}}
    messages: Any = [{"role": "user", "content": "Hello"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5, extra_body=body)
    assert whole.choices[0].message.content is not None
    for chunk in client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=5, stream=True, extra_body=body
    ):
        assert chunk.choices[0].model_extra is not None and "drafter" in chunk.choices[0].model_extra


THINKING = format_of("{% if x %}<think>{% endif %}")
DRAFTERS = st.sampled_from([None, "ngram", "model"])


@given(st.lists(st.tuples(st.sampled_from(["<think>", "</think>", "a", "b c", " ", "\n\n", "é<", "th", ""]), DRAFTERS)))
def test_every_character_keeps_its_drafter(tokens: list[tuple[str, str | None]]) -> None:
    reader, drafted = AnswerReader(THINKING), Drafted(THINKING)
    owners = [name for text, name in tokens for _ in text]
    source = "".join(text for text, _ in tokens)
    whole = AnswerReader(THINKING)
    wanted = [*whole.feed(source), *whole.finish()]
    found = []
    for text, name in tokens:
        piece = Piece(text, name)
        drafted.add([piece])
        found += drafted.split(reader.feed_pieces([piece]))
    found += drafted.split(reader.finish())
    for kind in (Content, Reasoning):
        parts = [(delta, name) for delta, name in found if isinstance(delta, kind)]
        assert "".join(d.text for d, _ in parts) == "".join(d.text for d in wanted if isinstance(d, kind))
        for delta, name in parts:
            assert source[delta.at : delta.at + len(delta.text)] == delta.text
            assert set(owners[delta.at : delta.at + len(delta.text)]) == {name}


def test_control_tokens_that_the_reader_sees_are_counted() -> None:
    drafted, reader = Drafted(THINKING), AnswerReader(THINKING)
    pieces = [Piece("", "ngram", "<think>"), Piece("why", "model"), Piece("", None, "</think>"), Piece("so", "ngram")]
    drafted.add(pieces)
    found = drafted.split([*reader.feed_pieces(pieces), *reader.finish()])
    assert [(type(d), getattr(d, "text", ""), name) for d, name in found] == [
        (Reasoning, "why", "model"),
        (Content, "so", "ngram"),
    ]
