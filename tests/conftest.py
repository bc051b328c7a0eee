"""What holds for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples in every run, or a change fails for what it has nothing to do with. LCSPEC_EXPLORE=1 looks for new
# ones; what it finds becomes an @example.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("explore" if os.environ.get("LCSPEC_EXPLORE") else "same")

# Threads that spin while they wait would slow the tests beside these thirty-fold. Read when the libraries are loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

OF_THE_USER = ("LCSPEC_", "HF_", "HUGGINGFACE_", "OLLAMA_", "LLAMA_", "XDG_", "NO_COLOR", "COLORFGBG")


@pytest.fixture(scope="session", autouse=True)
def _own_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's is read or written: neither what lcspec learned here before, nor a configuration."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(OF_THE_USER)]:
            patch.delenv(name)
        patch.setenv("LCSPEC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("LCSPEC_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("LCSPEC_NO_HISTORY", "1")  # no test's texts reach another one
        yield
