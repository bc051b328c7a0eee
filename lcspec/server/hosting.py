"""Where the server's engines run: each in a process of its own, unless it was asked for otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lcspec.config import DraftFiles, ModelOptions
from lcspec.engine_host import EngineHost
from lcspec.engine_process.heartbeat import LIMIT
from lcspec.engine_process.parent import EngineProcess
from lcspec.engine_thread import EngineThread
from lcspec.session import Progress


def start_engine(
    o: Mapping[str, Any], options: ModelOptions, draft: DraftFiles, progress: Progress | None
) -> EngineHost:
    """An engine that begins to load, with the options of `lcspec serve`."""
    history, verbose = not o["no_history"], bool(o.get("verbose"))
    if not o.get("in_process"):
        limit = float(o.get("hang_limit", LIMIT))
        return EngineProcess(options, draft, progress, history, verbose=verbose, limit=limit)
    from lcspec.llama import log_to_stderr

    log_to_stderr(verbose)
    return EngineThread(options, draft, progress, history)
