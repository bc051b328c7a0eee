"""`lcspec chat --connect`: against a real `lcspec serve` with the bundled pair, and against servers that know less."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from textual.widgets import Button, Static

from lcspec.errors import UsageError
from lcspec.server.lifecycle import Background
from lcspec.tui.app import ChatOptions, Server
from lcspec.tui.connecting import server_of
from lcspec.tui.screens.chat import ChatScreen
from lcspec.tui.screens.loading import LoadingScreen
from lcspec.tui.screens.picker import PickerScreen
from lcspec.tui.server_client import ServerClient, ServerError
from lcspec.tui.source import UNKNOWN
from lcspec.tui.widgets.answer import AnswerView
from lcspec.tui.widgets.notice import Notice
from tests import forks
from tests import tiny_gguf as tiny
from tests.running import Brake
from tests.server.running import background, engine_of

from .conftest import Driver, Start

pytestmark = pytest.mark.tui

GREEDY = {"temperature": 0.0, "seed": 7, "max_tokens": 24}
HELLO = "Hello, how are you today?"


@pytest.fixture(scope="module")
def server() -> Iterator[Background]:
    """The bundled pair, served."""
    with background(slots=2, ctx=512, here=True, models=("demo", "other-name")) as running:
        yield running


@pytest.fixture()
def connected(server: Background) -> Callable[..., ChatOptions]:
    """Options for a chat with the server."""
    return lambda **more: ChatOptions(server=Server(server.url), overrides={**GREEDY, **more})


def text_on(screen: Any, name: str) -> str:
    return str(screen.query_one(name, Static).render())


def notices(driver: Driver) -> str:
    return "\n".join(n.text for n in driver.chat.transcript.query(Notice))


def told(driver: Driver) -> str:
    return "\n".join(n.message for n in driver.app._notifications)


async def failed(driver: Driver) -> str:
    """Wait for the loading screen to fail; what it says."""
    await driver.until(lambda: isinstance(driver.app.screen, LoadingScreen) and driver.app.screen.failed)
    return text_on(driver.app.screen, "#loading-error")


# --- a real server ----------------------------------------------------------------------------------------------------


async def test_answer_is_the_servers(start: Start, connected: Callable[..., ChatOptions], server: Background) -> None:
    async with start(options=connected()) as driver:
        chat = await driver.ready()
        assert text_on(chat, "#head").endswith(f"demo at {server.url.removeprefix('http://')}")
        assert chat.loaded.n_ctx == 512
        message = await driver.answer(HELLO)
        body = {"messages": [{"role": "user", "content": HELLO}], **GREEDY}
        theirs = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300).json()
        assert message.text == theirs["choices"][0]["message"]["content"]
        assert (message.model, message.state, message.seed) == ("demo", "done", 7)
        assert message.tokens == theirs["usage"]["completion_tokens"]
        assert chat.fill.used == theirs["usage"]["prompt_tokens"] + message.tokens
        assert message.stats["tokens_per_second"] > 0
        again = await driver.again("ctrl+t")
        assert again.text == message.text


async def test_seed_is_drawn_once_and_repeats(start: Start, connected: Callable[..., ChatOptions]) -> None:
    async with start(options=connected(temperature=1.0, seed=None)) as driver:
        await driver.ready()
        first = await driver.answer(HELLO)
        assert first.seed is not None
        assert (await driver.again("ctrl+t")).text == first.text
        assert (await driver.again("ctrl+r")).seed != first.seed


async def test_stopped_answer_is_kept_and_frees_the_server(
    start: Start, connected: Callable[..., ChatOptions], server: Background
) -> None:
    brake = Brake()
    engine_of(server).call(brake.install).result(300)
    async with start(options=connected(max_tokens=400)) as driver:
        await driver.ready()
        await driver.send("Write a python function to find the maximum of a list of numbers.")
        brake.allow(6)
        await driver.some_text()
        await driver.press("escape")
        message = await driver.finished()
        brake.release()
        assert (message.state, message.stop_reason) == ("stopped", "cancelled")
        assert message.text
        running = lambda: httpx.get(f"{server.url}/health", timeout=300).json()["running"]  # noqa: E731
        await driver.until(lambda: running() == 0, "the server stops as well")


async def test_cut_answer_goes_on(start: Start, connected: Callable[..., ChatOptions]) -> None:
    async with start(options=connected(max_tokens=6)) as driver:
        await driver.ready()
        cut = await driver.answer(HELLO)
        assert cut.stop_reason == "length"
        driver.chat.choices.hold(max_tokens=12)
        await driver.send("/continue")
        await driver.until(lambda: driver.chat.chat.branch[-1].text != cut.text)
        whole = await driver.finished()
        assert whole.id == cut.id
        assert whole.text.startswith(cut.text) and len(whole.text) > len(cut.text)
        assert (whole.tokens or 0) > (cut.tokens or 0)


async def test_too_long_message_comes_back(start: Start, connected: Callable[..., ChatOptions]) -> None:
    async with start(options=connected()) as driver:
        chat = await driver.ready()
        await driver.send("word " * 900)
        await driver.until(lambda: "back in the input" in notices(driver))
        assert chat.prompt.text.startswith("word word")
        assert not chat.chat.branch


async def test_what_needs_an_engine_here_says_so(start: Start, connected: Callable[..., ChatOptions]) -> None:
    async with start(options=connected(lens=True)) as driver:
        chat = await driver.ready()
        assert not chat.transcript.lens
        for key in ("f2", "f3", "f4"):
            driver.app.clear_notifications()
            await driver.press(key)
            await driver.until(lambda: "need a local model" in told(driver), key)
        assert driver.app.screen is chat
        assert not chat.transcript.lens and not chat.query_one("#inspector").display
        assert "drafters" not in text_on(chat, "#status")


async def test_another_name_of_the_servers(start: Start, connected: Callable[..., ChatOptions]) -> None:
    async with start(options=connected()) as driver:
        await driver.ready()
        driver.chat.prompt.give_back("/model other-name")
        await driver.press("enter")
        await driver.until(
            lambda: isinstance(driver.app.screen, ChatScreen) and driver.chat.loaded.name == "other-name"
        )
        assert (await driver.answer(HELLO)).model == "other-name"
        driver.chat.prompt.give_back("/model nobody")
        await driver.press("enter")
        assert "has no model nobody: it has demo" in await failed(driver)
        chat = driver.app.chat_screen
        await driver.press("escape")
        await driver.until(lambda: isinstance(driver.app.screen, PickerScreen))
        await driver.press("escape")
        await driver.until(lambda: driver.app.screen is chat and driver.chat.source is driver.app.source)
        assert (await driver.answer(HELLO)).model == "other-name", "back to the one before"


async def test_reasoning_is_told_apart(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "thinker.gguf"
    tiny.write_llama(path, chat_template=tiny.CHATML_TEMPLATE + "{% if add_generation_prompt %}<think>\n{% endif %}")
    with background(path, slots=1, ctx=256) as running:
        options = ChatOptions(server=Server(running.url), overrides={**GREEDY, "max_tokens": 8})
        async with start(options=options) as driver:
            chat = await driver.ready()
            message = await driver.answer("Hi")
            assert message.text.startswith("<think>\n")
            view = chat.transcript.views[-1]
            assert isinstance(view, AnswerView) and view.thought
            chat.choices.hold(think=False)
            assert not (await driver.answer("Hi")).text.startswith("<think>")


async def test_key(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\nsesame\n", encoding="utf-8")
    with background(slots=1, ctx=256, api_keys=("sesame",)) as running:
        given = {"connect": running.url}
        async with start(options=ChatOptions(server=server_of(given))) as driver:
            assert "wants an API key: set LCSPEC_API_KEY" in await failed(driver)
        monkeypatch.setenv("LCSPEC_API_KEY", "abracadabra")
        async with start(options=ChatOptions(server=server_of(given))) as driver:
            assert "refuses the API key" in await failed(driver)
        options = ChatOptions(server=server_of({**given, "api_key_file": file}), overrides=GREEDY)
        assert "sesame" not in repr(options)
        async with start(options=options) as driver:
            await driver.ready()
            assert (await driver.answer(HELLO)).state == "done"


async def test_server_that_is_away_and_comes_back(start: Start, server: Background) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        port = taken.getsockname()[1]
        async with start(options=ChatOptions(server=Server(f"http://127.0.0.1:{port}"), overrides=GREEDY)) as driver:
            assert f"no server answers at http://127.0.0.1:{port}/v1: start it" in await failed(driver)
            driver.app._server = Server(server.url)
            await driver.until(lambda: isinstance(driver.app.focused, Button) and driver.app.focused.name == "retry")
            await driver.press("enter")
            await driver.ready()


def test_text_from_a_pipe(server: Background, tmp_path: Path) -> None:
    command = ("chat", "--connect", server.url, "--temp", "0", "-n", "12")
    environ = {**os.environ, "LCSPEC_DATA_DIR": str(tmp_path)}
    done = forks.server.run(command, HELLO.encode(), environ)
    body = {"messages": [{"role": "user", "content": HELLO}], "temperature": 0, "max_tokens": 12}
    theirs = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300).json()
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == theirs["choices"][0]["message"]["content"] + "\n"
    wrong = forks.server.run([*command, "--ctx", "99"], HELLO.encode())
    assert wrong.returncode == 2
    assert b"--ctx: with --connect the server has the model" in wrong.stderr


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LCSPEC_API_KEY", raising=False)
    assert server_of({"connect": "host:1", "model": Path("a/b")}) == Server("host:1", None, "a/b")
    with pytest.raises(UsageError, match="--connect URL as well"):
        server_of({"api_key_file": Path("key")})
    with pytest.raises(UsageError, match="--draft, --threads"):
        server_of({"connect": "host:1", "threads": 2, "draft": ()})


@pytest.mark.parametrize(
    ("url", "base", "root"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("https://host.example/api/v1", "https://host.example/api/v1", "https://host.example/api"),
    ],
)
def test_addresses(url: str, base: str, root: str) -> None:
    client = ServerClient(url)
    assert (client.base, client.root) == (base, root)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://[::", "http://host:port"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ServerError, match="is no address"):
        ServerClient(url)


# --- servers that know less -------------------------------------------------------------------------------------------

PLAIN = {"role": "assistant"}
Lines = list[str]


def sse(*deltas: dict[str, Any], reason: str | None = "stop") -> Lines:
    """Chunks of an answer."""
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in ({**PLAIN}, *deltas)]
    if reason is not None:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        chunks.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}})
    return [f"data: {json.dumps(c)}\n\n" for c in chunks] + (["data: [DONE]\n\n"] if reason is not None else [])


class OtherServer:
    """Speaks the least of OpenAI's API; tests say what it answers."""

    def __init__(self) -> None:
        self.status, self.answer = 200, "".join(sse({"content": "Hi."}))
        self.models: Any = {"object": "list", "data": [{"id": "big/model"}, {"id": "small"}]}
        self.asked: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def reply(self, status: int, kind: str, text: str) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.end_headers()
                self.wfile.write(text.encode())

            def do_GET(self) -> None:
                status = 200 if self.path == "/v1/models" else 404
                self.reply(status, "application/json", json.dumps(outer.models))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path != "/v1/chat/completions":
                    self.reply(404, "text/plain", "not here")
                    return
                outer.asked.append(body)
                kind = "text/event-stream" if outer.status == 200 else "application/json"
                self.reply(outer.status, kind, outer.answer)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture()
def other() -> Iterator[OtherServer]:
    running = OtherServer()
    yield running
    running.close()


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_any_server(start: Start, other: OtherServer, name: str) -> None:
    other.answer = "".join(sse({name: "They "}, {name: "greet."}, {"content": "Good "}, {"content": "day."}))
    async with start(options=ChatOptions(server=Server(other.url), overrides={"top_k": 7})) as driver:
        chat = await driver.ready()
        assert chat.loaded.n_ctx == UNKNOWN
        assert "small; /model NAME chooses another" in notices(driver)
        message = await driver.answer("Hi")
        assert message.text == "<think>\nThey greet.\n</think>\n\nGood day."
        assert (message.model, message.tokens, message.stop_reason) == ("big/model", 5, "stop")
        assert text_on(chat, "#status").startswith("context 14 tokens")
        body = other.asked[0]
        assert body["model"] == "big/model"
        assert body["messages"] == [{"role": "user", "content": "Hi"}]
        # what is as usual is not sent: there are servers that refuse what they do not know
        sent = {"model", "messages", "stream", "stream_options", "seed", "temperature", "top_p", "top_k"}
        assert set(body) == sent and body["top_k"] == 7
        await driver.answer("And you?")
        assert other.asked[1]["messages"][1] == {"role": "assistant", "content": "Good day."}
        chat.choices.hold(think=False)
        await driver.answer("And now?")
        assert set(other.asked[2]) == sent | {"chat_template_kwargs", "reasoning_effort"}
        assert other.asked[2]["chat_template_kwargs"] == {"enable_thinking": False}


async def test_answers_that_fail(start: Start, other: OtherServer) -> None:
    async with start(options=ChatOptions(server=Server(other.url))) as driver:
        chat = await driver.ready()
        other.answer = "".join(sse({"content": "Half an"}, reason=None))
        message = await driver.answer("Hi")
        assert (message.state, message.text) == ("failed", "Half an")
        assert "ended the answer before it was complete" in (message.error or "")
        other.answer = 'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n'
        assert "out of memory" in ((await driver.answer("Hi")).error or "")
        other.answer = "data: nonsense\n\n"
        assert "does not stream" in ((await driver.answer("Hi")).error or "")
        other.status, other.answer = 429, '{"error": {"message": "too many"}}'
        assert "answered 429: too many" in ((await driver.answer("Hi")).error or "")
        error = {"message": "at most 5 tokens", "code": "context_length_exceeded"}
        other.status, other.answer = 400, json.dumps({"error": error})
        before = len(chat.chat.branch)
        await driver.send("A long message")
        await driver.until(lambda: "back in the input" in notices(driver))
        assert chat.prompt.text == "A long message"
        assert len(chat.chat.branch) == before


async def test_no_api_there(start: Start, other: OtherServer) -> None:
    other.models = ["what?"]
    async with start(options=ChatOptions(server=Server(other.url))) as driver:
        assert "does not speak OpenAI's API" in await failed(driver)
    async with start(options=ChatOptions(server=Server(f"{other.url}/elsewhere"))) as driver:
        assert "there is no OpenAI API at" in await failed(driver)
