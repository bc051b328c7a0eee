"""`lcspec serve`: from the command line to a running server."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from lcspec.commands.options import model_options
from lcspec.commands.pairing import paired, say_paired
from lcspec.config import ModelOptions
from lcspec.engine_thread import EngineThread
from lcspec.errors import UsageError
from lcspec.server.app import create_app
from lcspec.server.auth import read_keys
from lcspec.server.hosts import LOCAL
from lcspec.server.lifecycle import is_loopback, listen, serve
from lcspec.server.prompts import OWN_NAMES
from lcspec.server.settings import MIB, ServerSettings
from lcspec.session import ModelPair, loading_line, parse_speculation


def run(**o: Any) -> int:
    """Run the command with the options of `cli.serve`; returns the exit code.

    Raises:
        LcspecError: with a message for the user.
    """
    from lcspec.llama import log_to_stderr

    log_to_stderr(o["verbose"])
    pairing = paired(o)
    pair = pairing.pair
    settings = read_settings(o, pair.target)
    # Malformed strategies are said before the model is loaded.
    parse_speculation(
        settings.speculate,
        pair.draft,
        max_draft=settings.max_draft,
        verifier=settings.verifier,
        exact=settings.exact,
    )
    options = model_options(pair.target, o, exact=o["exact"], slots=o["slots"], batch=o["batch"])
    set_up_log(o["log_level"])
    sock = listen(o["host"], o["port"])
    settings = replace(settings, hosts=names_of(o, is_loopback(sock)))
    try:
        worker = EngineThread(options, pair.draft, loading_line(), history=not o["no_history"])
        try:
            app = create_app(worker, settings)
            app.state.service.warm_up()
            say_paired(o["model"], pairing)
            say_ready(app.state.service.n_ctx, options, pair, settings, sock)
            return serve(app, sock)
        finally:
            worker.close(timeout=10.0)
    finally:
        sock.close()


def read_settings(o: dict[str, Any], target: Path) -> ServerSettings:
    """The settings that the options mean.

    Raises:
        UsageError: a value is out of its range, or a key cannot be read.
    """
    names = tuple(o["alias"]) + (target.stem, target.name)
    return ServerSettings(
        models=tuple(dict.fromkeys(names)),
        api_keys=read_keys(o["api_key"], o["api_key_file"]),
        queue=o["queue"],
        max_body=int(o["max_body"] * MIB),
        cors=tuple(o["cors"]),
        log_prompts=o["log_prompts"],
        strict=o["strict"],
        ignore_unknown=o["ignore_unknown"],
        speculate=o["speculate"],
        max_draft=o["max_draft"],
        verifier=o["verifier"],
        exact=bool(o["exact"]),
        chat_template=read_template(o["chat_template"], o["chat_template_file"]),
        template_kwargs=read_kwargs(o["chat_template_kwargs"]),
    )


def names_of(o: dict[str, Any], local: bool) -> tuple[str, ...]:
    """Names the server may be called by; empty = any, where others than this machine reach it and none is given."""
    given = tuple(o["allowed_host"])
    if "*" in given or not (given or local):
        return ()
    return (*LOCAL, o["host"], *given)


def read_template(text: str | None, file: Path | None) -> str | None:
    """The chat template that was given, if any.

    Raises:
        UsageError: both are given, or the file cannot be read.
    """
    if text is not None and file is not None:
        raise UsageError("give --chat-template or --chat-template-file, not both")
    if file is None:
        return text
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the chat template {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the chat template {file} is not UTF-8 text") from error


def read_kwargs(text: str | None) -> dict[str, Any]:
    """What every request gives the chat template.

    Raises:
        UsageError: it is no JSON object, or has a name that is not free.
    """
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--chat-template-kwargs is not valid JSON ({error}): write '{{\"name\": value}}'") from error
    if not isinstance(found, dict):
        raise UsageError("--chat-template-kwargs must be a JSON object: write '{\"name\": value}'")
    for name in found:
        if name in OWN_NAMES:
            raise UsageError(f"--chat-template-kwargs: {name} is not yours to set")
    return found


def set_up_log(level: str) -> None:
    """Log to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    for name in ("lcspec.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level.upper() if name == "lcspec.server" else logging.WARNING)


def say_ready(n_ctx: int, options: ModelOptions, pair: ModelPair, settings: ServerSettings, sock: Any) -> None:
    """One line on stderr: what is served, and where."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    draft = "".join(f" with {path.name}" for path in pair.draft.named(pair.target))
    click.echo(
        f"lcspec: serving {settings.models[0]}{draft}, {options.slots} slots of {n_ctx} tokens, "
        f"speculation {settings.speculate}, at http://{shown}:{port}/v1",
        err=True,
    )
    if not is_loopback(sock) and not settings.api_keys:
        click.echo("lcspec: warning: everyone who can reach this address can use the model; set --api-key", err=True)
    sys.stderr.flush()
