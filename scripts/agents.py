"""Coding agents as they are started without a terminal, with a server of this machine for their model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.tool_answers import Call

# Prompts are long: an agent's own instructions and tools, a token for each byte.
CONTEXT = 131072


@dataclass(frozen=True)
class Place:
    """Where an agent runs: its home, the folder it works in, and the server."""

    home: Path
    work: Path
    url: str


@dataclass(frozen=True)
class Agent:
    """One that is run without a terminal.

    Attributes:
        first, again: what follows the program's name for a conversation, and for going on with it (nothing: it cannot
            without the conversation's name); the prompt comes last.
        write, run: its calls to write a file and to run a command in a shell.
        files, variables: its settings, and its environment.
        program: if it is not the name.
    """

    name: str
    first: tuple[str, ...]
    again: tuple[str, ...]
    write: Callable[[Path, str], Call]
    run: Callable[[str], Call]
    files: Callable[[Place], dict[Path, str]] = lambda place: {}
    variables: Callable[[Place], dict[str, str]] = lambda place: {}
    program: str = ""


def _writes(tool: str, path: str, text: str) -> Callable[[Path, str], Call]:
    return lambda where, what: (tool, {path: str(where), text: what})


def _runs(tool: str, name: str = "command") -> Callable[[str], Call]:
    return lambda command: (tool, {name: command})


def _codex(place: Place) -> dict[Path, str]:
    provider = f'[model_providers.local]\nname = "local"\nbase_url = "{place.url}/v1"\nwire_api = "responses"\n'
    head = 'model = "agent"\nmodel_provider = "local"\napproval_policy = "never"\n'
    head += 'sandbox_mode = "danger-full-access"\nshow_raw_agent_reasoning = true\n'
    return {place.home / ".codex/config.toml": f"{head}\n{provider}"}


def _patch(path: Path, text: str) -> Call:
    """Codex writes files by a command."""
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    patch = f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch"
    return ("exec_command", {"cmd": f"apply_patch <<'END'\n{patch}\nEND"})


def _opencode(place: Place) -> dict[Path, str]:
    model = {"name": "agent", "limit": {"context": CONTEXT, "output": 8192}}
    options = {"baseURL": f"{place.url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "local", "options": options, "models": {"agent": model}}
    settings = {"autoupdate": False, "share": "disabled", "provider": {"local": provider}}
    return {place.work / "opencode.json": json.dumps(settings)}


def _continue(place: Place) -> dict[Path, str]:
    model = {"name": "agent", "provider": "openai", "model": "agent", "apiBase": f"{place.url}/v1", "apiKey": "none"}
    model |= {"roles": ["chat", "edit", "apply"], "capabilities": ["tool_use"]}
    settings = {"name": "local", "version": "1.0.0", "schema": "v1", "models": [model]}
    return {place.home / "config.yaml": json.dumps(settings)}


def _cline(place: Place) -> dict[Path, str]:
    settings = {"provider": "openai-compatible", "apiKey": "none", "model": "agent", "baseUrl": f"{place.url}/v1"}
    known = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    whole = {"version": 1, "lastUsedProvider": "openai-compatible", "modes": {}}
    text = json.dumps(whole | {"providers": {"openai-compatible": known}})
    return {place.home / ".cline/data/settings/providers.json": text}


def _pi(api: str) -> Agent:
    def files(place: Place) -> dict[Path, str]:
        url = place.url if api == "anthropic-messages" else f"{place.url}/v1"
        model = {"id": "agent", "reasoning": True, "contextWindow": CONTEXT}
        settings = {"providers": {"local": {"baseUrl": url, "api": api, "apiKey": "none", "models": [model]}}}
        return {place.home / ".pi/agent/models.json": json.dumps(settings)}

    start = ("--provider", "local", "--model", "agent")
    return Agent(
        f"pi-{api}",
        (*start, "-p"),
        (*start, "--continue", "-p"),
        _writes("write", "path", "content"),
        _runs("bash"),
        files,
        lambda place: {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
        "pi",
    )


CLAUDE = ("--model", "agent", "--dangerously-skip-permissions")
QWEN = ("--auth-type", "openai", "--yolo")
CONTINUE = ("--config", "../home/config.yaml", "--auto")
AGENTS = (
    Agent(
        "codex",
        ("exec", "--skip-git-repo-check"),
        ("exec", "resume", "--last", "--skip-git-repo-check"),
        _patch,
        _runs("exec_command", "cmd"),
        _codex,
    ),
    Agent(
        "claude",
        (*CLAUDE, "-p"),
        (*CLAUDE, "--continue", "-p"),
        _writes("Write", "file_path", "content"),
        _runs("Bash"),
        variables=lambda place: {
            "ANTHROPIC_BASE_URL": place.url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
        },
    ),
    Agent(
        "opencode",
        ("run", "-m", "local/agent"),
        ("run", "-m", "local/agent", "--continue"),
        _writes("write", "filePath", "content"),
        _runs("bash"),
        _opencode,
        lambda place: {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
    ),
    Agent(
        "qwen",
        (*QWEN, "-p"),
        (*QWEN, "--continue", "-p"),
        _writes("write_file", "file_path", "content"),
        _runs("run_shell_command"),
        variables=lambda place: {
            "OPENAI_BASE_URL": f"{place.url}/v1",
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": "agent",
        },
    ),
    Agent(
        "cn",
        (*CONTINUE, "-p"),
        (*CONTINUE, "--resume", "-p"),
        _writes("Write", "filepath", "content"),
        _runs("Bash"),
        _continue,
        lambda place: {"CONTINUE_TELEMETRY_ENABLED": "0"},
    ),
    Agent(
        "cline",
        ("-P", "openai", "-m", "agent"),
        (),
        _writes("editor", "path", "new_text"),
        lambda command: ("run_commands", {"commands": [command]}),
        _cline,
    ),
    _pi("openai-completions"),
    _pi("openai-responses"),
    _pi("anthropic-messages"),
)
