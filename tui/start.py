"""`lcspec chat`: from the command line to the application."""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping

from click.core import ParameterSource

from lcspec.commands.offer import offer_starter
from lcspec.config import DraftFiles
from lcspec.errors import UsageError
from lcspec.loading import loras
from lcspec.model_choice import paired
from lcspec.modelfiles.library import last_model
from lcspec.tui.app import ChatApp, ChatOptions
from lcspec.tui.choices import MODEL, OTHER, SAMPLING, SPECULATION

# Options that say how a model is loaded or speculated: with a server they are its own.
THE_SERVERS = SPECULATION | MODEL | {"draft", "lora", "store", "heads", "no_draft", "no_history", "speculate"}


def given_for(options: Mapping[str, tuple[Any, ParameterSource | None]]) -> dict[str, Any]:
    """The options that were really given; with a server, those of a model here only where they were typed, so that a
    configuration file does not get in the way."""
    given = {name: value for name, (value, source) in options.items() if source is not ParameterSource.DEFAULT}
    if "connect" in given:
        typed = {name for name, (_, source) in options.items() if source is ParameterSource.COMMANDLINE}
        given = {name: value for name, value in given.items() if name in typed or name not in THE_SERVERS}
    return given


def overrides(given: dict[str, Any]) -> dict[str, Any]:
    """Settings by name from the options that were really given."""
    named = {"drafters": given["speculate"]} if "speculate" in given else {}
    if "folder" in given:
        named["folders"] = tuple(str(f) for f in given["folder"])
    known = SAMPLING | SPECULATION | MODEL | OTHER
    return {**{k: v for k, v in given.items() if k in known}, **named}


def dark_terminal() -> bool:
    """Whether the terminal is dark, where it says so (COLORFGBG, as rxvt, Konsole and others set it)."""
    background = os.environ.get("COLORFGBG", "").rsplit(";", 1)[-1]
    return not (background.isdigit() and (int(background) == 7 or int(background) >= 9))


def chat_options(given: dict[str, Any]) -> ChatOptions:
    """What the options mean, with the draft model and heads that are paired without being named.

    Raises:
        LcspecError: an option is wrong.
    """
    if "connect" in given or "api_key_file" in given:
        from lcspec.tui.connecting import server_of  # HTTP takes a while to import

        server = server_of(given)
        return ChatOptions(
            server=server, resume=bool(given.get("resume")), overrides=overrides(given), dark=dark_terminal()
        )
    if given.get("lora") and not given.get("model"):
        raise UsageError("--lora changes one model: name that model")
    pairing = paired(given)
    files = pairing.pair.draft
    model = given.get("model")
    drafts = files.named(model) if model else tuple(given.get("draft", ()))
    return ChatOptions(
        model=given.get("model"),
        draft=drafts[0] if drafts else None,
        more=DraftFiles(drafts[1:], given.get("store"), files.heads),
        no_draft=bool(given.get("no_draft")),
        notice=pairing.line,
        lora=loras(given.get("lora")),
        history=not given.get("no_history"),
        resume=bool(given.get("resume")),
        overrides=overrides(given),
        dark=dark_terminal(),
    )


def piped_text() -> str | None:
    """What came on standard input, if it is no terminal and there is anything."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    return text.rstrip("\n") if text.strip() else None


def usual_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Model and draft for an answer without a screen: what was named, else what the chat used last, else nothing (which
    is the bundled pair)."""
    last = last_model() if options.get("model") is None else None
    if last is None:
        return {}
    draft = tuple(options.get("draft") or ()) or ((last.draft,) if last.draft is not None else ())
    return {"model": last.model, "draft": draft}


def parting(app: ChatApp) -> str | None:
    """The line that is left in the terminal: how to go on with what was used last; None when nothing was said."""
    screen = app.chat_screen
    if screen is None:
        return None
    if screen.chat.branch and app.store.problem is not None:
        return f"lcspec: {app.store.problem.message}"
    last = screen.chat.info if screen.chat.branch else app.store.latest()
    if last is None or last.updated < app.begun:
        return None
    return f"{last.title or 'The conversation'!r} is saved. lcspec chat --resume goes on with it."


def run(given: dict[str, Any]) -> int:
    """Run the application; returns the exit code. `given` holds the options that were really given.

    Raises:
        LcspecError: an option is wrong.
    """
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the chat needs a terminal: for one answer in a script, echo text | lcspec chat > file")
    from lcspec.llama import log_to_stderr

    log_to_stderr(False)
    if "model" not in given and "connect" not in given:
        starter = offer_starter()
        if starter is not None:
            given = {**given, "model": starter}
    app = ChatApp(chat_options(given))
    code = app.run() or 0
    line = parting(app)
    saved = app.shut_down()
    if line is not None:
        print(line, flush=True)
    if not saved:
        # A decode that does not end cannot be interrupted from here; nothing of the user's is lost by leaving.
        os._exit(code)
    return code
