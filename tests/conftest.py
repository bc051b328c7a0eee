"""What holds for all tests; and models for them: tiny random ones of every kind, and the bundled pair in several
quantizations.

tests/ has the rooms of lcspec/. Markers say what a test needs: `model`, `server`, `tui`, and `slow` for seconds of
work. What has none of them is `make test-fast`.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import trustme
from hypothesis import settings

from lcspec.engine import engine
from lcspec.llama import init
from lcspec.llama.lib import C, _on_log
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.session import Session, open_session
from scripts.scale_model import quantize
from tests import tiny_gguf as tiny
from tests.running import hasty_measuring, options

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
    everybody = tmp_path_factory.getbasetemp()  # all processes share what is measured of this machine
    everybody = everybody.parent if "PYTEST_XDIST_WORKER" in os.environ else everybody
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(OF_THE_USER)]:
            patch.delenv(name)
        patch.setenv("LCSPEC_CACHE_DIR", str(everybody / "cache"))
        patch.setenv("LCSPEC_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("LCSPEC_NO_HISTORY", "1")  # no test's texts reach another one
        # Every client of httpx reads it, and for all authorities of the world that takes a twentieth of a second.
        authority = tmp_path_factory.mktemp("authority") / "only.pem"
        trustme.CA().cert_pem.write_to_path(str(authority))
        patch.setenv("SSL_CERT_FILE", str(authority))
        with hasty_measuring():
            yield


class Seeds:
    """Seeds for requests that name none: the same ones in every run of a test."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.numbers = itertools.count(1)

    def randbits(self, bits: int) -> int:
        return zlib.crc32(b"%d" % next(self.numbers)) >> (32 - bits)


SEEDS = Seeds()


@pytest.fixture(scope="session", autouse=True)
def _seeds_of_a_counter() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "secrets", SEEDS)
        yield


@pytest.fixture(autouse=True)
def _same_seeds() -> None:
    SEEDS.start()


# The files that take longest, the longest first: about a minute each, alone on a core.
LONG = (
    "test_family_matrix.py", "test_document.py", "test_page_browser.py", "test_lifecycle.py", "test_models.py",
    "test_conversation_app.py", "test_verifiers.py", "test_wheel.py", "test_medusa.py", "test_same_text.py",
    "test_checkpoints.py", "test_verifier_distributions.py", "test_snapshots.py", "test_exactness.py",
)  # fmt: skip


def pytest_collection_finish() -> None:
    """What was imported and collected lasts as long as the process: the garbage collector need not look at it."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """After one search for garbage, what is left goes with the process: pytest and Python would search it often."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, then those with slow tests: with several processes the last file to end should be short."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    place = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: (place.get(item.path.name, len(LONG)), item.path not in slow, str(item.path)))


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _log_of_the_library(request: pytest.FixtureRequest) -> Iterator[None]:
    """Some modules give the library a log function of their own, which does not outlive them."""
    if request.node.get_closest_marker("model") is None:
        yield
        return
    init()
    C.llama_log_set(_on_log, ctypes.c_void_p(0))
    yield
    C.llama_log_set(_on_log, ctypes.c_void_p(0))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models of this run are written."""
    return tmp_path_factory.mktemp("models")


def _written(folder: Path, name: str, write: Callable[[Path], object]) -> Path:
    path = folder / name
    if not path.exists():
        write(path)
    return path


@pytest.fixture(scope="session")
def llama(folder: Path) -> Path:
    """Plain attention, with a chat template."""
    return _written(folder, "llama.gguf", lambda p: tiny.write_llama(p, chat_template=tiny.CHATML_TEMPLATE))


@pytest.fixture(scope="session")
def llama_draft(folder: Path) -> Path:
    """A draft model that agrees with `llama` about nine times in ten."""
    return _written(folder, "draft.gguf", lambda p: tiny.write_llama(p, noise=0.02))


@pytest.fixture(scope="session")
def other_vocabulary(folder: Path) -> Path:
    """As large a vocabulary as `llama`'s, in another order."""
    vocab = tiny.byte_bpe_vocab(permutation=1)
    return _written(folder, "other.gguf", lambda p: tiny.write_llama(p, vocab=vocab))


@pytest.fixture(scope="session")
def sliding_window(folder: Path) -> Path:
    """Every second layer sees 16 positions."""
    return _written(folder, "sliding_window.gguf", tiny.write_sliding_window)


@pytest.fixture(scope="session")
def recurrent(folder: Path) -> Path:
    """No attention at all; cannot be rolled back."""
    return _written(folder, "recurrent.gguf", tiny.write_recurrent)


@pytest.fixture(scope="session")
def hybrid(folder: Path) -> Path:
    """Short convolutions and attention; can be rolled back within the latest decode."""
    return _written(folder, "hybrid.gguf", tiny.write_hybrid)


@pytest.fixture(scope="session")
def hybrid_draft(folder: Path) -> Path:
    """A draft model for `hybrid`."""
    return _written(folder, "hybrid-draft.gguf", lambda p: tiny.write_hybrid(p, noise=0.02))


@pytest.fixture(scope="session")
def demo() -> tuple[Path, Path]:
    """The bundled target and draft."""
    return demo_path(DEMO_TARGET), demo_path(DEMO_DRAFT)


@pytest.fixture(scope="session")
def demo_as(folder: Path, demo: tuple[Path, Path]) -> Callable[[str], Path]:
    """The bundled target in a quantization of your choice."""

    def make(quantization: str) -> Path:
        if quantization == "Q8_0":
            return demo[0]
        return _written(folder, f"demo-{quantization}.gguf", lambda p: quantize(demo[0], p, quantization, n_threads=1))

    return make


@pytest.fixture(scope="module")
def tiny_session(llama: Path, llama_draft: Path) -> Iterator[Session]:
    """`llama` with its draft, for tests that leave nothing behind."""
    with open_session(options(llama), llama_draft) as session:
        yield session


@pytest.fixture(scope="module")
def demo_session(demo: tuple[Path, Path]) -> Iterator[Session]:
    """The bundled pair."""
    with open_session(options(demo[0]), demo[1]) as session:
        yield session


@pytest.fixture(scope="session")
def bad_files(folder: Path) -> dict[str, Path]:
    """Files that cannot be used as models, by what is wrong with them."""
    files = {
        "truncated data": _written(folder, "cut-data.gguf", tiny.write_truncated_data),
        "truncated header": _written(folder, "cut-header.gguf", tiny.write_truncated_header),
        "not a GGUF": _written(folder, "note.gguf", tiny.write_not_gguf),
        "no tokenizer": _written(folder, "untokenized.gguf", tiny.write_without_tokenizer),
        "no vocabulary": _written(folder, "no-vocab.gguf", tiny.write_no_vocab),
        "duplicate token": _written(folder, "duplicate.gguf", tiny.write_duplicate_token),
        "missing": folder / "nothing-here.gguf",
        "a directory": folder,
    }
    empty = folder / "empty.gguf"
    empty.touch()
    files["empty"] = empty
    unknown = folder / "unknown-architecture.gguf"
    if not unknown.exists():
        writer = gguf.GGUFWriter(unknown, "nosuchthing")
        for key, value in tiny.byte_bpe_vocab().metadata().items():
            tiny._add(writer, key, value)
        writer.add_tensor("token_embd.weight", np.zeros((288, 32), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    files["unknown architecture"] = unknown
    return files
