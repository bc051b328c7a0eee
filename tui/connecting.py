"""`lcspec chat --connect URL`: from the command line to a server, and an answer of it without a screen."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Callable, Mapping

from lcspec.config import SpeculationParams
from lcspec.engine.events import Failed, Tokens
from lcspec.errors import UsageError
from lcspec.server.auth import read_keys
from lcspec.tui.app import Server
from lcspec.tui.choices import Choices
from lcspec.tui.conversation import build_prompt
from lcspec.tui.remote import ServerSource
from lcspec.tui.settings import Settings, SettingsFile
from lcspec.tui.source import Question
from lcspec.tui.start import THE_SERVERS
from lcspec.tui.store.records import Message, new_id

LOOK_EVERY = 0.02


def server_of(given: Mapping[str, Any]) -> Server:
    """The server to connect to: `model` is then its name for a model, and the key comes from
    --api-key-file or LCSPEC_API_KEY.

    Raises:
        UsageError: the key cannot be read, or an option is for a model on this machine.
    """
    url, file = given.get("connect"), given.get("api_key_file")
    if url is None:
        raise UsageError("--api-key-file is the key of a server: give --connect URL as well")
    theirs = sorted(name for name in given if name in THE_SERVERS)
    if theirs:
        names = ", ".join("--" + name.replace("_", "-") for name in theirs)
        raise UsageError(f"{names}: with --connect the server has the model; say it where `lcspec serve` starts")
    keys = read_keys(None if file is not None else os.environ.get("LCSPEC_API_KEY") or None, file)
    model = given.get("model")
    return Server(url, keys[0] if keys else None, str(model) if model is not None else None)


def answer_from_server(given: Mapping[str, Any], settings: Settings, text: str, show: Callable[[str], None]) -> None:
    """Hand a server's answer to `text` to `show`, as it comes.

    Raises:
        LcspecError: an option is wrong, or the server is away or refuses.
    """
    server = server_of(given)
    asyncio.run(_answer(ServerSource(server.url, server.key, server.model), settings, text, show))


async def _answer(source: ServerSource, settings: Settings, text: str, show: Callable[[str], None]) -> None:
    await source.ready()
    loaded = await source.prepare(SpeculationParams())
    message = Message(new_id(), "", None, "user", text)
    prompt = build_prompt(source.tokenizer, [message], loaded.n_ctx, system=settings.system, think=settings.think)
    question = Question(prompt, settings.sampling, SpeculationParams(), settings.max_tokens)
    running = (await source.ask(question)).running
    while not running.done:
        await asyncio.sleep(LOOK_EVERY)
        for item in running.drain():
            if isinstance(item, Tokens):
                show(item.text)
            elif isinstance(item, Failed):
                raise item.error
    source.close()


def print_answer(given: Mapping[str, Any], overrides: Mapping[str, Any], text: str) -> None:
    """Print a server's answer to `text`.

    Raises:
        LcspecError: an option is wrong, or the server is away or refuses.
    """
    settings = Choices(SettingsFile(), overrides).now
    answer_from_server(given, settings, text, lambda part: print(part, end="", flush=True))
    print(flush=True)
