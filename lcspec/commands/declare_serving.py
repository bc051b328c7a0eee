"""The options of the commands that listen on a port: serve, worker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from lcspec.commands.config_file import load_serve_defaults
from lcspec.commands.options import (
    MODEL_NAME,
    MODEL_PATH,
    engine_options,
    lora_options,
    pairing_options,
    sampling_options,
    speculation_options,
)


def _serve_config(ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Take the defaults of `serve` from a file; options on the command line win."""
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **load_serve_defaults(path, ctx.command)}
    return path


@click.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option(
    "--slots", type=click.IntRange(1, 64), default=4, show_default=True, help="The most requests that run at a time."
)
@click.option(
    "--cache-ram",
    "-cram",
    type=click.IntRange(min=0),
    metavar="MIB",
    help="Main memory for texts that gave way to others (default: an eighth of what is free, 2048 at most).",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any free one.")
@click.option(
    "--models-dir", multiple=True, type=MODEL_PATH, help="Serve the models of this folder on demand (repeatable)."
)
@click.option(
    "--max-loaded", type=click.IntRange(min=1), default=3, show_default=True, help="The most models loaded at a time."
)
@click.option(
    "--idle-unload",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Unload a model after so many seconds without a request (0: never).",
)
@click.option(
    "--pin", multiple=True, metavar="NAME", help="Load this model at the start and keep it loaded (repeatable)."
)
@click.option("--uds", type=MODEL_PATH, help="Listen on this Unix socket instead (or --host unix:/path).")
@click.option("--tls-cert", type=MODEL_PATH, help="Certificate (PEM) to serve https with.")
@click.option("--tls-key", type=MODEL_PATH, help="Its key (PEM), if it is in another file.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="The most seconds that a request may take (0: no limit).",
)
@click.option("--allowed-host", multiple=True, help="Host name that clients may use for it (repeatable; *: any).")
@click.option("--api-key", envvar="LCSPEC_API_KEY", help="Key that requests must send (or LCSPEC_API_KEY).")
@click.option("--api-key-file", type=MODEL_PATH, help="File with keys, one on each line.")
@click.option("--alias", multiple=True, help="Another name of the model for clients, besides its file's (repeatable).")
@click.option("--queue", type=click.IntRange(min=0), default=32, show_default=True, help="Requests that may wait.")
@click.option("--batch", type=click.IntRange(min=2), default=512, show_default=True, help="Tokens in a prompt chunk.")
@click.option(
    "--max-body",
    type=click.FloatRange(min=0.001),
    default=4.0,
    show_default=True,
    help="The most MiB in a request's body.",
)
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Web origin that may call this server (repeatable).")
@click.option("--chat-template", metavar="JINJA", help="Chat template instead of the model's own; or `chatml`.")
@click.option("--chat-template-file", type=MODEL_PATH, help="File with that template.")
@click.option("--chat-template-kwargs", metavar="JSON", help="Variables for the template, as a JSON object.")
@click.option(
    "--reasoning-budget",
    type=click.IntRange(min=-1),
    default=-1,
    show_default=True,
    help="The most tokens of reasoning, which is then closed; 0: none, -1: no limit.",
)
@click.option("--strict", is_flag=True, help="Refuse unknown parameters and model names instead of ignoring them.")
@click.option("--ignore-unknown", is_flag=True, help="Ignore unknown parameters even if they would change the text.")
@click.option(
    "--in-process",
    is_flag=True,
    help="Run the engine in the server's own process; if the library aborts, the server dies with it.",
)
@click.option(
    "--hang-limit",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Seconds without a sign of life after which an engine is started again (0: never).",
)
@click.option("--log-prompts", is_flag=True, help="Write prompts and answers to the log.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.option(
    "--config",
    type=MODEL_PATH,
    is_eager=True,
    expose_value=False,
    callback=_serve_config,
    help="TOML file with defaults for these options.",
)
@sampling_options
@lora_options
@pairing_options
@engine_options
@speculation_options
@click.option("--verbose", is_flag=True, help="Show llama.cpp's own log.")
def serve(**options: Any) -> None:
    """Serve a model over HTTP with the APIs of OpenAI, Anthropic, Ollama and llama-server. Without MODEL it serves
    every model of this machine, and loads one when a request names it."""
    from lcspec.commands.serve import run

    sys.exit(run(**options))


@click.command()
@click.option("--listen", default="127.0.0.1:50052", show_default=True, metavar="HOST:PORT", help="Port 0: any free.")
@click.option("--device", metavar="NAME[,NAME...]|cpu", help="Devices to lend (default: the GPUs, or the CPU).")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores).")
@click.option(
    "--allow-network", is_flag=True, help="Listen on an address that other machines can reach; there is no password."
)
@click.option("--keep-weights", is_flag=True, help="Keep large weights in the cache folder for the next start.")
@click.option("--verbose", is_flag=True, help="Show llama.cpp's own log.")
def worker(**options: Any) -> None:
    """Lend this machine to lcspec on another machine, which loads a model with --workers; it computes some layers."""
    from lcspec.commands.worker import run

    run(**options)
