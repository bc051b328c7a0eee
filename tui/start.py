"""`lcspec chat`: from the command line to the application."""

from __future__ import annotations

import os
import sys
from typing import Any

from lcspec.commands.offer import offer_starter
from lcspec.commands.pairing import paired
from lcspec.config import DraftFiles
from lcspec.errors import UsageError
from lcspec.tui.app import ChatApp, ChatOptions
from lcspec.tui.choices import MODEL, OTHER, SAMPLING, SPECULATION

# The engine thread needs the interpreter for a moment after every decode; it must not wait 5 ms for it.
SWITCH_SECONDS = 0.0005


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
    pairing = paired(given)
    files = pairing.pair.draft
    drafts = files.models if given.get("model") else tuple(given.get("draft", ()))
    return ChatOptions(
        model=given.get("model"),
        draft=drafts[0] if drafts else None,
        more=DraftFiles(drafts[1:], given.get("store"), files.heads),
        no_draft=bool(given.get("no_draft")),
        notice=pairing.line,
        history=not given.get("no_history"),
        resume=bool(given.get("resume")),
        overrides=overrides(given),
        dark=dark_terminal(),
    )


def run(given: dict[str, Any]) -> int:
    """Run the application; returns the exit code. `given` holds the options that were really given.

    Raises:
        LcspecError: an option is wrong.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the chat needs a terminal: for one answer in a script use lcspec generate --chat")
    from lcspec.llama import log_to_stderr

    log_to_stderr(False)
    if "model" not in given and "connect" not in given:
        starter = offer_starter()
        if starter is not None:
            given = {**given, "model": starter}
    app = ChatApp(chat_options(given))
    sys.setswitchinterval(SWITCH_SECONDS)
    code = app.run() or 0
    if not app.shut_down():
        # A decode that does not end cannot be interrupted from here; nothing of the user's is lost by leaving.
        os._exit(code)
    return code
