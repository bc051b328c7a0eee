"""The screenless half of the chat loads neither a screen nor a model library."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("module", ["store", "settings", "attachments", "conversation", "reasoning"])
def test_nothing_heavy_is_loaded(module: str) -> None:
    code = f"import sys, lcspec.tui.{module}; print({{'textual', 'llama_cpp', 'fastapi'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "set()"
