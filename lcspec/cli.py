"""The command line. Commands import what they need when they run: `lcspec --help` loads no model library."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn, cast

import click

from lcspec import __version__
from lcspec.commands.config_file import load_defaults
from lcspec.commands.declare_drafts import draft
from lcspec.commands.declare_measurements import bench, calibrate, verify
from lcspec.commands.declare_models import doctor, inspect, models, pull
from lcspec.commands.declare_serving import serve, worker
from lcspec.commands.options import (
    MODEL_NAME,
    MODEL_PATH,
    engine_options,
    lora_options,
    pairing_options,
    sampling_options,
    speculation_options,
    think_option,
)
from lcspec.errors import LcspecError, UsageError

CONFIG_NAME = "config.toml"


def _config_path() -> Path:
    import platformdirs

    return Path(platformdirs.user_config_dir("lcspec")) / CONFIG_NAME


def _load_defaults(ctx: click.Context, path: Path | None) -> dict[str, Any]:
    """Defaults of the command from a TOML file: a table per command, keys named like the options."""
    chosen = path or _config_path()
    if not chosen.exists():
        if path is not None:
            raise UsageError(f"there is no configuration file {path}")
        return {}
    return load_defaults(chosen, cast(click.Group, ctx.command), ctx.invoked_subcommand)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "LCSPEC"})
@click.version_option(__version__, prog_name="lcspec")
@click.option("--config", type=MODEL_PATH, help="TOML file with defaults for the options of each command.")
@click.pass_context
def cli(ctx: click.Context, config: Path | None) -> None:
    """Faster answers from the GGUF model you already have, with the same text."""
    ctx.default_map = _load_defaults(ctx, config)


@cli.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("-p", "--prompt", help="The prompt.")
@click.option("-f", "--file", "prompt_file", type=MODEL_PATH, help="Read the prompt from a file.")
@click.option("--chat", is_flag=True, help="Treat the prompt as a user's message in the model's chat template.")
@click.option("--system", help="System message, with --chat.")
@think_option
@click.option("-n", "--max-tokens", type=click.IntRange(min=0), help="The most tokens to generate.")
@click.option("--stop", multiple=True, help="End the text at this string (repeatable).")
@click.option("--grammar-file", type=MODEL_PATH, help="Grammar (GBNF or Lark) the text must follow.")
@click.option("--json-schema", help="JSON schema (or a file with one) the text must follow.")
@click.option("--prediction", type=MODEL_PATH, help="File with the text you expect, to draft from.")
@sampling_options
@lora_options
@pairing_options
@engine_options
@speculation_options
@click.option("--ignore-eos", is_flag=True, help="Continue after the model's end token.")
@click.option("--lens", is_flag=True, help="Colour accepted tokens by the drafter that proposed them.")
@click.option("--stats", is_flag=True, help="Print statistics to stderr.")
@click.option(
    "--explain", is_flag=True, help="Print to stderr what the planner compared, expected and measured in every step."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@click.option("--verbose", is_flag=True, help="Show llama.cpp's own log.")
def generate(**options: Any) -> None:
    """Complete a prompt (or answer it, with --chat). Without MODEL it uses the bundled demonstration pair."""
    from lcspec.commands.generate import run

    sys.exit(run(**options))


@cli.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--connect", metavar="URL", is_eager=True, help="Talk to a server (lcspec serve, or any with that API).")
@click.option("--api-key-file", type=MODEL_PATH, help="File with the server's key (or LCSPEC_API_KEY).")
@click.option("--resume", is_flag=True, help="Continue the conversation that was used last.")
@click.option("--folder", multiple=True, type=MODEL_PATH, help="Also search this folder for models (repeatable).")
@click.option("--system", help="System prompt of new conversations.")
@think_option
@click.option("-n", "--max-tokens", type=click.IntRange(min=1), help="The most tokens of an answer.")
@sampling_options
@lora_options
@pairing_options
@engine_options
@speculation_options
@click.pass_context
def chat(ctx: click.Context, /, **options: Any) -> None:
    """Talk to a model in the terminal. Without MODEL it opens the one used last, or a list of models. With --connect,
    MODEL is the server's name for one.

    It answers text on standard input (echo text | lcspec chat) as `lcspec generate --chat` does.
    """
    if not options["connect"] and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        from lcspec.engine_process.spawn import start_early

        start_early()  # it loads the library while the screen is imported, half a second
    from lcspec.tui.start import given_for, overrides, piped_text, run, usual_files

    given = given_for({k: (v, ctx.get_parameter_source(k)) for k, v in options.items()})
    text = piped_text()
    if text is not None and "connect" in given:
        from lcspec.tui.connecting import print_answer

        print_answer(given, overrides(given), text)
        return
    if text is not None:
        known = {str(p.name) for p in generate.params}
        passed = {k: v for k, v in options.items() if k in known}
        ctx.invoke(generate, **{**passed, **usual_files(options), "prompt": text, "chat": True})
    sys.exit(run(given))


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script with which a shell completes lcspec's commands and options (see docs/chat.md)."""
    from lcspec.commands.completion import run

    run(cli, shell)


for command in (models, pull, doctor, inspect, calibrate, verify, bench, serve, worker, draft):
    cli.add_command(command)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """A Ctrl-C that came while llama.cpp called Python cannot be raised there: it comes again a little later."""
    if not issubclass(what.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(what)
        return
    again = threading.Timer(0.05, _thread.interrupt_main)
    again.daemon = True
    again.start()


def main() -> NoReturn:
    """Entry point: prints one line for an expected error; exit codes: 2 usage, 1 run time, 130 interrupted."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (`>&-`): nobody reads it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (to the end)
    sys.unraisablehook = _unraisable
    try:
        cli.main(standalone_mode=False)
        code = 0
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except LcspecError as error:
        click.echo(f"lcspec: {error}", err=True)
        code = error.exit_code
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`): print nothing, and flush nothing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except (OSError, MemoryError) as error:
        click.echo(f"lcspec: {error or 'out of memory: try a smaller model or --ctx'}", err=True)
        code = 1
    except Exception as error:  # a bug in lcspec: show a traceback only on request
        if os.environ.get("LCSPEC_DEBUG"):
            traceback.print_exc()
        click.echo(f"lcspec: internal error: {error!r}; LCSPEC_DEBUG=1 shows where. Please report it.", err=True)
        code = 1
    gc.freeze()  # everything goes with the process: the interpreter need not search it for garbage at its end
    sys.exit(code)
