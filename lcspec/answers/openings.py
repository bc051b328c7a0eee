"""Reasoning that a prompt has begun for the answer, and how a template is told about reasoning."""

from __future__ import annotations

from lcspec.answers.formats import Format, Tags
from lcspec.answers.source import compiled

# What templates call the switch for reasoning.
SWITCHES = ("enable_thinking", "thinking")


def opened_by(form: Format, prompt: str) -> Tags | None:
    """The tags of reasoning that a prompt ends in, so that the answer begins within it; None if it does not."""
    tail = prompt[-256:].rstrip()
    return next((t for t in form.reasoning if tail.endswith(t.literal.rstrip())), None)


def closed(prompt: str, opened: Tags | None) -> str:
    """A prompt after which there is no reasoning, where it has `opened` some."""
    if opened is None:
        return prompt
    blank = "\n\n" if opened.literal.startswith("<") and "|" not in opened.literal else ""
    return f"{prompt.rstrip()}{blank}{opened.end}{blank}"


def continued_by(form: Format, prompt: str, written: str) -> Tags | None:
    """The tags of reasoning that `written`, an answer's beginning that the prompt ends with, is within; None if it is
    within none."""
    end = len(prompt) - len(written) - 2
    found = [(prompt.rfind(t.literal, max(0, end - len(t.literal))), t) for t in form.reasoning]
    at, opened = max(found, key=lambda entry: entry[0], default=(-1, None))
    if opened is None or at < 0 or compiled(opened.closing).search(prompt, at + len(opened.literal)):
        return None
    return opened
