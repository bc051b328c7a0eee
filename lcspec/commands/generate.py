"""`lcspec generate`: one completion, streamed or as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from lcspec.commands.explain import Explainer
from lcspec.engine.events import Event, Finished, RequestStats, Started, TokenInfo, Tokens
from lcspec.errors import UsageError
from lcspec.loading import model_options
from lcspec.model_choice import paired, say_paired
from lcspec.sampling.json_schema import schema_to_lark
from lcspec.sampling.parameters import MADE, SamplingParams
from lcspec.session import Session, loading_line, open_session, parse_speculation

if TYPE_CHECKING:
    from lcspec.engine.request import Request

# Colours of the lens, in the order in which drafters first appear in an answer.
LENS_COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")


def run(**o: Any) -> int:
    """Run the command with the options of `cli.generate`; returns the exit code.

    Raises:
        LcspecError: with a message for the user.
    """
    from lcspec.llama import log_to_stderr

    log_to_stderr(o["verbose"])
    if o["system"] and not o["chat"]:
        raise UsageError("--system needs --chat: a plain prompt has no system message")
    prompt = read_prompt(o["prompt"], o["prompt_file"])
    grammar = read_grammar(o["grammar_file"], o["json_schema"])
    named = (f.name for f in fields(SamplingParams) if f.name not in MADE)
    sampling = SamplingParams(**{name: o[name] for name in named}, grammar=grammar)
    prediction = read_text(o["prediction"], "the prediction") if o["prediction"] is not None else ""
    pairing = paired(o)
    pair = pairing.pair
    speculation = parse_speculation(
        o["speculate"],
        pair.draft,
        has_grammar=grammar is not None,
        has_prediction=o["prediction"] is not None,
        max_draft=o["max_draft"],
        verifier=o["verifier"],
        exact=bool(o["exact"]),
    )
    options = model_options(pair.target, o, exact=o["exact"])
    from lcspec.engine.request import Request

    show_heads_note(o["heads"], pair.target)
    with open_session(options, pair.draft, loading_line(), history=not o["no_history"]) as session:
        if not o["as_json"]:
            say_paired(o["model"], pairing)
        stop = tuple(o["stop"])
        if o["chat"]:
            messages = [{"role": "system", "content": o["system"]}] if o["system"] else []
            think = o["think"] and grammar is None  # a grammar has no room for reasoning
            ids, template_stop = session.chat_ids([*messages, {"role": "user", "content": prompt}], think)
            stop += template_stop
        else:
            ids = session.prompt_ids(prompt)
        request = Request(
            prompt=ids,
            sampling=sampling,
            speculation=speculation,
            max_tokens=o["max_tokens"],
            stop=stop,
            logprobs=0 if o["as_json"] else None,
            ignore_end=o["ignore_eos"],
            prediction=tuple(session.model.vocab.tokenize(prediction, special=False)) if prediction else (),
        )
        printer = JsonPrinter() if o["as_json"] else TextPrinter(o["lens"])
        explainer = Explainer(session.model.vocab) if o["explain"] else None
        finished = stream(session, request, printer, explainer)
        printer.close(finished)
        if explainer is not None:
            explainer.close()
        if o["stats"]:
            click.echo(stats_text(finished), err=True)
    return 130 if finished.reason == "cancelled" else 0


def show_heads_note(heads: Path | None, target: Path) -> None:
    """Check `--heads` before a large model is loaded, and say how they fit if that is worth a line on stderr.

    Raises:
        LcspecError: they do not fit.
    """
    if heads is None:
        return
    from lcspec.drafters.medusa.file import check_heads

    note = check_heads(heads, target)
    if note:
        click.echo(note, err=True)


class TextPrinter:
    """Text as it comes, optionally tinted by drafter."""

    def __init__(self, lens: bool) -> None:
        self.lens = lens and "NO_COLOR" not in os.environ
        self.colours: dict[str, str] = {}
        self.ended_line = True

    def show(self, event: Event) -> None:
        """Print what became safe to show."""
        if not isinstance(event, Tokens):
            return
        for piece in event.pieces:
            text = piece.text
            if self.lens and piece.drafter is not None:
                colour = self.colours.setdefault(piece.drafter, LENS_COLOURS[len(self.colours) % len(LENS_COLOURS)])
                text = click.style(text, fg=colour)
            sys.stdout.write(text)
            self.ended_line = piece.text.endswith("\n")
        sys.stdout.flush()

    def close(self, finished: Finished) -> None:
        """End the last line; on stderr, say that a text is not plain decoding's, and name the lens's colours."""
        if not self.ended_line or finished.completion_tokens == 0:
            sys.stdout.write("\n")
        sys.stdout.flush()
        if not finished.lossless:
            click.echo("the verifier is lossy: this is not the text that plain decoding gives", err=True)
        if self.lens:
            legend = " ".join(click.style(name, fg=colour) for name, colour in self.colours.items())
            click.echo(f"[drafted by: {legend or 'nobody'}; plain: the target's own]", err=True, color=True)


class JsonPrinter:
    """Collects everything and prints one object at the end."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.tokens: list[TokenInfo] = []

    def show(self, event: Event) -> None:
        """Collect."""
        if isinstance(event, Tokens):
            self.text.append(event.text)
            self.tokens += event.tokens

    def close(self, finished: Finished) -> None:
        """Print the object."""
        click.echo(json.dumps(self.result(finished), ensure_ascii=False))

    def result(self, finished: Finished) -> dict[str, Any]:
        """The documented object."""
        return {
            "text": "".join(self.text),
            "tokens": [t.id for t in self.tokens],
            "logprobs": [t.logprob for t in self.tokens],
            "finish_reason": finished.reason,
            "prompt_tokens": finished.prompt_tokens,
            "completion_tokens": finished.completion_tokens,
            "seed": finished.seed,
            "lossless": finished.lossless,
            "stats": finished.stats.as_dict(),
        }


def stream(
    session: Session, request: Request, printer: TextPrinter | JsonPrinter, explainer: Explainer | None = None
) -> Finished:
    """Run the request; Ctrl-C ends it after the current step, a second one at once."""
    engine = session.engine
    number: int | None = None

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if number is None:
            raise KeyboardInterrupt
        engine.cancel(number)

    previous = signal.signal(signal.SIGINT, interrupt)
    finished: Finished | None = None
    try:
        for event in engine.run(request):
            if isinstance(event, Started):
                number = event.request
            elif isinstance(event, Finished):
                finished = event
            printer.show(event)
            if explainer is not None:
                explainer.show(event)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert finished is not None  # run() ends with Finished or raises
    return finished


def stats_text(finished: Finished) -> str:
    """A few lines for people."""
    s: RequestStats = finished.stats
    share = f"{s.accepted / s.drafted:.0%}" if s.drafted else "-"
    lines = [
        f"{finished.completion_tokens} tokens, {s.tokens_per_second:.1f} tokens/s, ended by {finished.reason}; "
        f"prompt {finished.prompt_tokens} tokens in {s.prefill_seconds:.2f} s; seed {finished.seed}",
        f"{s.target_steps} target steps, {s.mean_acceptance_length:.2f} tokens each; "
        f"drafted {s.drafted}, accepted {s.accepted} ({share})",
    ]
    for name, tally in s.by_drafter.items():
        lines.append(f"  {name}: drafted {tally['drafted']}, accepted {tally['accepted']}")
    if s.decode_seconds:
        parts = {"target": s.target_seconds, "drafting": s.draft_seconds, "Python": s.overhead_seconds}
        lines.append(
            "time: " + ", ".join(f"{name} {sec:.2f} s ({sec / s.decode_seconds:.1%})" for name, sec in parts.items())
        )
    return "\n".join(lines)


def read_prompt(prompt: str | None, path: Path | None) -> str:
    """The prompt from -p, -f or stdin.

    Raises:
        UsageError: none or two of them, or the file cannot be read as text.
    """
    if prompt is not None and path is not None:
        raise UsageError("give the prompt with -p or with -f, not both")
    if prompt is not None:
        return prompt
    if path is not None:
        return read_text(path, "the prompt file")
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError('there is no prompt: use -p "TEXT", -f FILE, or pipe it in')
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError("the prompt on stdin is not UTF-8 text") from error


def read_text(path: Path, what: str) -> str:
    """A UTF-8 file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path} is not UTF-8 text") from error


def read_grammar(grammar_file: Path | None, schema: str | None) -> str | None:
    """The grammar (GBNF or Lark) the options ask for, if any.

    Raises:
        UsageError: both were given, or they cannot be read or converted.
    """
    if grammar_file is not None and schema is not None:
        raise UsageError("give --grammar-file or --json-schema, not both")
    if grammar_file is not None:
        return read_text(grammar_file, "the grammar")
    if schema is None:
        return None
    if not schema.lstrip().startswith(("{", "[")):  # a list is no schema, and no file's name
        schema = read_text(Path(schema), "the JSON schema")
    return schema_to_lark(schema)
