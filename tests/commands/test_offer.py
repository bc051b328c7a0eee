"""SmolLM2 offered at a bare `lcspec chat`: only where there is nothing else, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from lcspec.commands import offer, pull
from lcspec.commands.pull import remember
from lcspec.errors import DownloadError
from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.modelfiles.library import last_model, remember_model
from lcspec.modelfiles.starter import STARTER, starter_path
from tests import tiny_gguf as tiny


@pytest.fixture(autouse=True)
def _empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("HF_", "LCSPEC_", "XDG_", "OLLAMA", "LLAMA_"))]:
        monkeypatch.delenv(name)
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LCSPEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have the kernels compiled in this empty cache."""
    asked: list[str] = []
    for module in (offer, pull):
        monkeypatch.setattr(module, "compile_meanwhile", lambda: asked.append("kernels"))
    return asked


def answer(monkeypatch: pytest.MonkeyPatch, yes: bool) -> list[str]:
    asked: list[str] = []

    def confirm(question: str, default: bool) -> bool:
        asked.append(question)
        return yes

    monkeypatch.setattr(click, "confirm", confirm)
    return asked


def test_an_empty_machine_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]) -> None:
    asked = answer(monkeypatch, True)
    monkeypatch.setattr(offer, "download_starter", lambda: tmp_path / "got.gguf")
    assert offer.offer_starter() == tmp_path / "got.gguf"
    assert len(asked) == 1 and "98 MB" in asked[0]
    assert compiled == ["kernels"]


def test_no_is_no(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compiled: list[str]) -> None:
    answer(monkeypatch, False)
    assert offer.offer_starter() is None and compiled == []
    told = capsys.readouterr().out
    assert "toy" in told and "lcspec pull smollm2" in told


def test_offline_the_chat_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Path:
        raise DownloadError("is this machine online?")

    answer(monkeypatch, True)
    monkeypatch.setattr(offer, "download_starter", fails)
    assert offer.offer_starter() is None and "online" in capsys.readouterr().out
    assert offer.starter_or_reason() == "is this machine online?"


@pytest.mark.parametrize("what", ["a model here", "a model used before"])
def test_who_has_a_model_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    asked = answer(monkeypatch, True)
    if what == "a model here":
        tiny.write_llama(tmp_path / "work" / "mine.gguf", n_layer=1)
    else:
        remember_model(demo_path(DEMO_TARGET))
    assert offer.offer_starter() is None and asked == []


def test_what_was_pulled_opens_next_unless_another_was_used(tmp_path: Path) -> None:
    first, second = (tiny.write_llama(tmp_path / name, n_layer=1) for name in ("first.gguf", "second.gguf"))
    remember_model(demo_path(DEMO_TARGET))
    remember(first, None)  # the toy gives way
    remember(second, None)
    last = last_model()
    assert last is not None and last.model == first


def test_kernels_are_compiled_while_a_model_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    def download(name: str, quiet: bool) -> Path:
        assert compiled == ["kernels"]
        return tiny.write_llama(starter_path(name), n_layer=1)

    monkeypatch.setattr(pull, "download_starter", download)
    starter_path().parent.mkdir(parents=True)
    for _ in range(2):  # it is downloaded once
        pull.run(STARTER, None, as_json=True)
        assert compiled == ["kernels"]
