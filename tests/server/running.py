"""Starting servers for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lcspec.config import ModelOptions
from lcspec.engine_thread import EngineThread
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.server.app import create_app
from lcspec.server.lifecycle import Background
from lcspec.server.service import Service
from lcspec.server.settings import ServerSettings

MODEL = "demo"
CHAT = "Hello, how are you today?"
CODE = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return "
HELLO = [{"role": "user", "content": CHAT}]


@contextlib.contextmanager
def background(
    path: Path | None = None, *, slots: int = 2, ctx: int = 512, draft: bool = True, warm: bool = True, **settings: Any
) -> Iterator[Background]:
    """A server over `path`, or the bundled pair."""
    options = ModelOptions(path or demo_path(DEMO_TARGET), ctx=ctx, slots=slots, threads=1, exact=True)
    worker = EngineThread(options, demo_path(DEMO_DRAFT) if draft and path is None else None)
    try:
        app = create_app(worker, ServerSettings(**{"models": (MODEL,), **settings}))
        if warm:
            app.state.service.warm_up()
        running = Background(app)
        try:
            yield running
        finally:
            running.close()
    finally:
        assert worker.close(timeout=60)


def service_of(running: Background) -> Service:
    """What the endpoints share."""
    return running.server.service
