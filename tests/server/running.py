"""Starting servers for tests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from lcspec.config import ModelOptions
from lcspec.engine_host import EngineHost
from lcspec.engine_process.parent import EngineProcess
from lcspec.engine_thread import EngineThread
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.server.app import app_over, create_app
from lcspec.server.library import Library
from lcspec.server.lifecycle import Background
from lcspec.server.models import Models
from lcspec.server.service import Service
from lcspec.server.settings import ServerSettings

MODEL = "demo"
CHAT = "Hello, how are you today?"
CODE = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return "
HELLO = [{"role": "user", "content": CHAT}]
# Servers that do not say where their engine runs have it in this process, which is quicker and can be looked into;
# with LCSPEC_TEST_CHILD=1 in a process of its own, as `lcspec serve` has it.
IN_PROCESS = not os.environ.get("LCSPEC_TEST_CHILD")
WAIT = 300.0  # seconds; nobody who is answered waits that long


def lines_of(answer: httpx.Response) -> Iterator[str]:
    """Lines of a streamed answer, as they come.

    Not httpx's iter_lines nor splitlines: they also end lines at U+2028, U+0085 and the like, which an answer may well
    contain.
    """
    rest = b""
    for piece in answer.iter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode() for line in lines)
    if rest:
        yield rest.decode()


@contextlib.contextmanager
def background(
    path: Path | None = None,
    *,
    slots: int = 2,
    ctx: int = 512,
    draft: bool = True,
    warm: bool = True,
    here: bool = IN_PROCESS,
    prelude: Callable[[], None] | None = None,
    **settings: Any,
) -> Iterator[Background]:
    """A server over `path`, or the bundled pair. `here`: its engine is in this process; else in one that begins with
    `prelude`."""
    options = ModelOptions(path or demo_path(DEMO_TARGET), ctx=ctx, slots=slots, threads=1, exact=True)
    drafts = demo_path(DEMO_DRAFT) if draft and path is None else None
    worker: EngineHost = EngineThread(options, drafts) if here else EngineProcess(options, drafts, prelude=prelude)
    try:
        app = create_app(worker, ServerSettings(**{"models": (MODEL,), **settings}))
        if warm:
            app.state.models.only.warm_up()
        running = Background(app)
        try:
            yield running
        finally:
            running.close()
    finally:
        assert worker.close(timeout=WAIT)


def service_of(running: Background) -> Service:
    """What the endpoints share."""
    return running.server.service


def engine_of(running: Background) -> EngineThread:
    """The engine of a server that has it in this process."""
    worker = service_of(running).worker
    assert isinstance(worker, EngineThread)
    return worker


def options(**given: Any) -> dict[str, Any]:
    """Options of `lcspec serve` for models that are loaded on demand."""
    usual: dict[str, Any] = {"slots": 2, "ctx": 256, "batch": 512, "threads": 1, "gpu_layers": 0, "kv_type": "f16"}
    usual |= {"exact": True, "speculate": "auto", "max_draft": None, "no_history": True, "no_draft": True}
    usual |= {"in_process": IN_PROCESS, "verbose": False}
    usual |= {"draft": (), "heads": None, "store": None, "chat_template": None, "chat_template_file": None}
    return usual | given


@contextlib.contextmanager
def several(
    *folders: Path, loader: type[Library] = Library, o: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Background]:
    """A server over the models of `folders`, loaded on demand."""
    given = ServerSettings(**{"idle_unload": 0.0, **settings})
    library = loader(o or options(), given, folders)
    models = Models(library.entries(), given, library)
    running = Background(app_over(models))
    try:
        yield running
    finally:
        running.close()
        models.close_engines(WAIT)
        assert not any(entry.users for entry in models.entries)
