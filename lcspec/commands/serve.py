"""`lcspec serve`: a model begins to load, in a process of its own, before the web server is imported, a second each."""

from __future__ import annotations

from typing import Any

from lcspec.loading import model_options
from lcspec.model_choice import paired
from lcspec.server.hosting import start_engine
from lcspec.session import loading_line


def run(**o: Any) -> int:
    """Run the command with the options of `cli.serve`; returns the exit code.

    Raises:
        LcspecError: with a message for the user.
    """
    if o["model"] is None or o["models_dir"] or o["pin"]:
        from lcspec.commands.serving import serve_several

        return serve_several(o)
    pairing = paired(o)
    options = model_options(pairing.pair.target, o, exact=o["exact"], slots=o["slots"], batch=o["batch"])
    worker = start_engine(o, options, pairing.pair.draft, loading_line())
    try:
        from lcspec.commands.serving import serve_one

        code = serve_one(o, pairing, worker)
    except BaseException:
        worker.close(timeout=0)  # it may still be loading
        raise
    worker.close(timeout=10.0)
    return code
