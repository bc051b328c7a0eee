"""The model of every engine's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiny_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model without a chat template."""
    found = tmp_path_factory.mktemp("model") / "llama.gguf"
    tiny_gguf.write_llama(found)
    return found
