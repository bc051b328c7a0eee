"""What the README and the documents name exists: commands, options, files."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import click
import pytest

from lcspec.cli import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"^ {4}(?:\.venv/bin/)?lcspec (.+?)(?: {2,}.*)?$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def command_lines() -> list[tuple[str, str]]:
    """(page, arguments) of every indented lcspec command in the documents, continued lines joined."""
    found = []
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
        found += [(page.name, m[1].split("  #")[0].strip()) for m in COMMAND.finditer(text)]
    return found


def options_of(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """The click command that is meant, and what follows its name."""
    command: click.Command = cli
    while isinstance(command, click.Group) and arguments and arguments[0] in command.commands:
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return command, arguments


def test_the_documents_show_commands() -> None:
    assert len(command_lines()) > 20


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_commands_and_options_exist(page: str, line: str) -> None:
    if line.startswith("COMMAND"):
        return
    command, rest = options_of(shlex.split(line.replace("...", "")))
    assert not isinstance(command, click.Group), f"{page}: lcspec {line}"
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    used = [word.split("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)]
    assert set(used) <= known, f"{page}: lcspec {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_useful_options_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(--[a-z-]+)", text)) | set(re.findall(r"^ {4}(--[a-z-]+)", text, re.MULTILINE))
    everywhere: set[str] = set()
    stack: list[click.Command] = [cli]
    while stack:
        command = stack.pop()
        everywhere |= {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
        stack += command.commands.values() if isinstance(command, click.Group) else []
    assert named and named <= everywhere


def test_the_first_answer_is_timed_with_the_commands_of_the_readme() -> None:
    """scripts/first_answer.py times what the README tells to type."""
    script = (ROOT / "scripts" / "first_answer.py").read_text(encoding="utf-8")
    listed = next(node.value for node in ast.parse(script).body if isinstance(node, ast.Assign))
    commands = ast.literal_eval(listed)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(commands) == 4 and [c for c in commands if f"    {c}\n" not in text] == []


def test_the_readme_stays_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert text.count("![") == 2, "one picture of the chat, one chart"
