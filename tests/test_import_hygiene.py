"""`lcspec --help` must be instant: importing the command line loads no model library and no user interface."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lcspec

HEAVY = ("llama_cpp", "textual", "gguf", "torch", "fastapi", "flask", "starlette", "uvicorn", "aiohttp", "http.server")


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print('\\n'.join(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["lcspec", "lcspec.cli", "lcspec.config", "lcspec.errors"])
def test_importing_the_command_line_loads_nothing_heavy(module: str) -> None:
    loaded = loaded_after(f"import {module}")
    assert module in loaded
    assert not loaded.intersection(HEAVY)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_help_loads_nothing_heavy(command: str) -> None:
    loaded = loaded_after(f"import lcspec.cli as c; c.cli.main([{command!r}, '--help'], standalone_mode=False)")
    assert "lcspec.cli" in loaded
    assert not loaded.intersection(HEAVY)


@pytest.mark.parametrize(
    "module",
    [
        "spec.token_tree",
        "spec.verifiers",
        "sampling.parameters",
        "planner.base",
        "planner.auto",
        "profiles.cost_curve",
        "planner.acceptance",
        "answers.text",
    ],
)
def test_what_is_tested_with_arrays_knows_nothing_of_the_library(module: str) -> None:
    assert "llama_cpp" not in loaded_after(f"import lcspec.{module}")


def test_a_server_does_not_load_the_library() -> None:
    """Its engine's process does: an abort of the library must not end the server."""
    loaded = loaded_after("import lcspec.commands.serve, lcspec.commands.serving")
    assert {"fastapi", "lcspec.server.app"} <= loaded and "llama_cpp" not in loaded


def test_the_engine_s_process_starts_before_the_server_is_imported() -> None:
    assert not loaded_after("import lcspec.commands.serve").intersection(
        {"llama_cpp", "fastapi", "starlette", "uvicorn"}
    )


def test_only_one_package_imports_the_library() -> None:
    root = Path(lcspec.__file__).parent
    importing = {
        path.relative_to(root).parts[0]
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.split()[:2] in (["import", "llama_cpp"], ["from", "llama_cpp"], ["from", "llama_cpp.llama_grammar"])
    }
    assert importing == {"llama"}
