"""Clients of other people, each in an environment of its own (`make clients`): what they need contradicts itself.

`openai`, `anthropic` and `ollama` are tests of their own (test_chat.py, test_anthropic.py, test_ollama.py ...).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lcspec.server.lifecycle import Background
from tests.server.running import background

pytestmark = pytest.mark.server

SCRIPTS = sorted((Path(__file__).parent / "clients").glob("*.py"))
INSTALLED = Path(os.environ.get("LCSPEC_CLIENTS") or Path(__file__).parents[2] / "work" / "clients")
# They ask nobody but the server.
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1", "LANGSMITH_TRACING": "false", "NO_PROXY": "*"}


@pytest.fixture(scope="module")
def server() -> Iterator[Background]:
    """The bundled pair, with room for what agents say before they begin."""
    with background(slots=2, ctx=2048) as running:
        yield running


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_client(server: Background, script: Path, tmp_path: Path) -> None:
    python = INSTALLED / script.stem / "bin" / "python"
    if not (INSTALLED / script.stem / ".installed").exists():
        pytest.skip(f"{script.stem} is not installed: make clients")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "ANTHROPIC"))}
    environment |= QUIET | {"HOME": str(tmp_path)}
    got = subprocess.run(
        [str(python), str(script), server.url], capture_output=True, text=True, timeout=400, env=environment
    )
    assert got.returncode == 0 and got.stdout.strip().endswith("served"), got.stderr[-3000:]
