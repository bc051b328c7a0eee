"""From the options of `lcspec serve` to a running server."""

from __future__ import annotations

import json
import logging
import ssl
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Sequence

import click

from lcspec.commands.generate import read_text
from lcspec.engine_host import EngineHost
from lcspec.errors import UsageError
from lcspec.model_choice import Pairing, say_paired
from lcspec.modelfiles.library import LibraryModel, describe
from lcspec.modelfiles.places import Found
from lcspec.sampling.parameters import MADE, SamplingParams
from lcspec.server.app import app_over, create_app
from lcspec.server.auth import read_keys
from lcspec.server.errors import ApiError
from lcspec.server.hosts import LOCAL
from lcspec.server.library import Library, usual_of
from lcspec.server.lifecycle import BACKLOG, UNIX, is_loopback, leave, listen, serve
from lcspec.server.model_entry import Entry
from lcspec.server.models import Models
from lcspec.server.prompts import OWN_NAMES
from lcspec.server.settings import MIB, ServerSettings
from lcspec.session import ModelPair, parse_speculation


def serve_one(o: dict[str, Any], pairing: Pairing, worker: EngineHost) -> int:
    """Serve the model that `worker` loads, until a signal; returns the exit code.

    Raises:
        LcspecError: with a message for the user.
    """
    pair = pairing.pair
    settings = read_settings(o, pair.target)
    _check_speculation(settings, pair)
    set_up_log(o["log_level"])
    sock = listen(place_of(o), o["port"])
    settings = replace(settings, hosts=names_of(o, is_loopback(sock)))
    try:
        app = create_app(worker, settings)
        app.state.models.only.warm_up()
        say_paired(o["model"], pairing)
        draft = "".join(f" with {path.name}" for path in pair.draft.named(pair.target))
        say_ready(f"{settings.models[0]}{draft}", app.state.models.only.n_ctx, o, settings, sock)
        return serve(app, sock)
    finally:
        leave(sock, place_of(o))


def serve_several(o: dict[str, Any]) -> int:
    """Serve models that are loaded on demand; one that is named, and those that are pinned, at once. Returns the exit
    code.

    Raises:
        LcspecError: with a message for the user.
    """
    named = Path(o["model"]) if o["model"] is not None else None
    settings = read_settings(o, named)
    _check_speculation(settings, ModelPair.resolve(named, o.get("draft") or (), o.get("store"), o.get("heads")))
    set_up_log(o["log_level"])
    sock = listen(place_of(o), o["port"])
    settings = replace(settings, hosts=names_of(o, is_loopback(sock)))
    try:
        first = None
        if named is not None:
            first = Entry(settings.models, named, describe_file(named), pinned=True)
        library = Library(o, settings, o["models_dir"], first)
        entries = library.entries()
        # Requests that name none get a pinned model, if there is one (see Models.usual).
        default = first.name if first is not None else None if o["pin"] else usual_of(entries)
        models = Models(entries, settings, library, default, answers_all=first is not None)
        try:
            for entry in pinned_of(models, o["pin"]):
                say_loading(entry)
                others = models.loaded
                entry.service = library.load(entry, others, lambda what, fraction: None)
                entry.state = "loaded"
            what = f"{len(entries)} models on demand ({len(models.loaded)} loaded)"
            app = app_over(models)
            say_ready(what, o["ctx"] or None, o, settings, sock)
            usual = models.usual()
            if usual is not None and first is None:
                click.echo(f"lcspec: requests that name no model get {usual.name}", err=True)
            return serve(app, sock)
        finally:
            models.close_engines(timeout=10.0)
    finally:
        leave(sock, place_of(o))


def pinned_of(models: Models, names: Sequence[str]) -> list[Entry]:
    """The models that are always loaded.

    Raises:
        UsageError: there is no such model, or there are more than may be loaded.
    """
    for name in names:
        try:
            entry = models.find(name)
        except ApiError as error:
            raise UsageError(f"--pin: {error.message}") from error
        if entry is None:
            raise UsageError(f"--pin: there is no model {name!r} (lcspec models lists those of this machine)")
        entry.pinned = True
    found = [entry for entry in models.entries if entry.pinned]
    if len(found) > models.settings.max_loaded:
        raise UsageError(f"{len(found)} models are pinned and --max-loaded is {models.settings.max_loaded}: raise it")
    return found


def describe_file(path: Path) -> LibraryModel | None:
    """What a named file's header says; what is wrong with it is said when it is loaded."""
    return describe(Found(path, "folder", path.name, path.stat().st_size)) if path.is_file() else None


def _check_speculation(settings: ServerSettings, pair: ModelPair) -> None:
    """Malformed strategies are said before a model is loaded.

    Raises:
        UsageError: this one is.
    """
    parse_speculation(
        settings.speculate,
        pair.draft,
        max_draft=settings.max_draft,
        verifier=settings.verifier,
        exact=settings.exact,
    )


def read_settings(o: dict[str, Any], target: Path | None) -> ServerSettings:
    """The settings that the options mean.

    Raises:
        UsageError: a value is out of its range, or a key cannot be read.
    """
    if target is None and o["alias"]:
        raise UsageError("--alias names one model: give that model, or leave --alias out")
    check_tls(o["tls_cert"], o["tls_key"])
    names = tuple(o["alias"]) + ((target.stem, target.name) if target is not None else ("lcspec",))
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
        max_loaded=o["max_loaded"],
        idle_unload=o["idle_unload"],
        reasoning_budget=o["reasoning_budget"],
        sampling={f.name: o[f.name] for f in fields(SamplingParams) if f.name not in MADE},
        request_seconds=o["timeout"],
        tls_cert=o["tls_cert"],
        tls_key=o["tls_key"],
    )


def place_of(o: dict[str, Any]) -> str:
    """Where to listen: an address, or `unix:` and a file.

    Raises:
        UsageError: two places are given.
    """
    if o.get("uds") is None:
        return str(o["host"])
    if o["host"] != "127.0.0.1":
        raise UsageError("give --host or --uds, not both")
    return f"{UNIX}{o['uds']}"


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Refuse a certificate that cannot be used before a model is loaded.

    Raises:
        UsageError: it cannot be read, or the key is missing or another one's.
    """
    if key is not None and cert is None:
        raise UsageError("--tls-key needs --tls-cert: give the certificate as well")
    if cert is None:
        return
    for file in (cert, key or cert):
        if not file.is_file():
            raise UsageError(f"there is no file {file}: give PEM files to --tls-cert and --tls-key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise UsageError(
            f"the certificate {cert} cannot be used ({error.strerror or error}): --tls-cert and --tls-key must be PEM "
            "files that belong together, the key without a password"
        ) from error


def names_of(o: dict[str, Any], local: bool) -> tuple[str, ...]:
    """Names the server may be called by; empty = any, where others than this machine reach it and none is given."""
    given = tuple(o["allowed_host"])
    if place_of(o).startswith(UNIX) or "*" in given or not (given or local):
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
    return read_text(file, "the chat template")


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


def say_loading(entry: Entry) -> None:
    """On a terminal, that something takes a while."""
    if sys.stderr.isatty():
        click.echo(f"lcspec: loading {entry.name} ...", err=True)


def say_ready(what: str, n_ctx: int | None, o: dict[str, Any], settings: ServerSettings, sock: Any) -> None:
    """One line on stderr: what is served, and where. Who connects from now on is served."""
    sock.listen(BACKLOG)
    slots = f"{o['slots']} slot{'' if o['slots'] == 1 else 's'}" + (f" of {n_ctx} tokens" if n_ctx is not None else "")
    where = url_of(sock, settings)
    click.echo(f"lcspec: serving {what}, {slots}, speculation {settings.speculate}, at {where}/v1", err=True)
    if not is_loopback(sock) and not settings.api_keys:
        click.echo("lcspec: warning: everyone who can reach this address can use the model; set --api-key", err=True)
    sys.stderr.flush()


def url_of(sock: Any, settings: ServerSettings) -> str:
    """Where a socket is reached."""
    name = sock.getsockname()
    if isinstance(name, str):
        return f"{UNIX}{name}, http://localhost"
    shown = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{'https' if settings.tls_cert is not None else 'http'}://{shown}:{name[1]}"
