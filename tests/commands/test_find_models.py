"""Which draft model or heads a command takes by itself, `--no-draft`, and names instead of files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lcspec.commands.models import as_dict, lines, table
from lcspec.config import DraftFiles
from lcspec.errors import UsageError
from lcspec.model_choice import find_model, paired
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.modelfiles.library import models
from lcspec.modelfiles.memory import Memory
from lcspec.modelfiles.places import Place, here, places
from tests import tiny_gguf as tiny
from tests.tiny_families import write_family
from tests.tiny_heads import write_eagle


@pytest.fixture(autouse=True)
def _own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's is found or written."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("cache", "data", "home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LCSPEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("LCSPEC_MODELS", raising=False)
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny.write_llama(tmp_path / "files" / "big.gguf", n_layer=4, width=128, n_ff=256)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return tiny.write_llama(tmp_path / "files" / "small.gguf", n_layer=1)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()


def test_the_draft_beside_a_model_is_paired(target: Path, draft: Path) -> None:
    found = paired({"model": target})
    assert found.pair.draft.models == (draft,)
    assert found.line == "paired with small.gguf (--no-draft leaves it out)"


def test_a_draft_is_found_where_models_are_kept(tmp_path: Path, target: Path, draft: Path) -> None:
    (tmp_path / "home" / "models").mkdir()
    moved = Path(shutil.move(draft, tmp_path / "home" / "models"))
    assert paired({"model": target}).pair.draft.models == (moved,)


def test_what_leaves_it_out(tmp_path: Path, target: Path, draft: Path) -> None:
    assert paired({"model": target, "no_draft": True}).pair.draft == DraftFiles()
    for strategy in ("off", "ngram", "ngram,model"):
        assert paired({"model": target, "speculate": strategy}).pair.draft == DraftFiles()
    assert paired({"model": target, "speculate": "auto"}).pair.draft.models == (draft,)
    named = tiny.write_llama(tmp_path / "other.gguf", n_layer=1)
    assert paired({"model": target, "draft": (named,)}).pair.draft.models == (named,)
    with pytest.raises(UsageError, match="not both"):
        paired({"model": target, "draft": (named,), "no_draft": True})
    assert paired({"model": target, "draft": (target,)}).pair.draft.models == (target,)


def test_what_does_not_go_with_it_is_not_paired(tmp_path: Path, target: Path) -> None:
    tiny.write_llama(tmp_path / "files" / "twin.gguf", n_layer=4, width=128, n_ff=256)  # as large as the target
    tiny.write_llama(tmp_path / "files" / "stranger.gguf", n_layer=1, vocab=tiny.byte_bpe_vocab(permutation=1))
    (tmp_path / "files" / "broken.gguf").write_bytes(b"GGUF")
    # the library may not know it, and nobody asked for it
    tiny.write_llama(tmp_path / "files" / "unknown.gguf", n_layer=1, extra={"general.architecture": "nosuch"})
    found = paired({"model": target})
    assert found.pair.draft == DraftFiles() and found.line == ""


def test_a_model_that_takes_nothing_back_is_no_draft(tmp_path: Path) -> None:
    target = tiny.write_recurrent(tmp_path / "files" / "big.gguf", width=128, n_layer=4)
    tiny.write_recurrent(tmp_path / "files" / "small.gguf", n_layer=1)
    assert paired({"model": target}).pair.draft == DraftFiles()


def test_a_missing_or_broken_model_is_left_to_the_loader(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"nonsense")
    for name in ("missing.gguf", "broken.gguf"):
        assert paired({"model": tmp_path / name}).pair.target == tmp_path / name


def test_no_memory_for_both(target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcspec.modelfiles.memory.machine_memory", lambda: Memory(1000, 1000))
    found = paired({"model": target})
    assert found.pair.draft == DraftFiles() and "no memory for both" in found.line


def test_the_bundled_pair() -> None:
    assert paired({}).pair.draft.models == (demo_path(DEMO_DRAFT),)
    assert paired({"no_draft": True}).pair.draft.models == ()
    assert [p.name for p in paired({"model": demo_path(DEMO_TARGET)}).pair.draft.models] == [DEMO_DRAFT]


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_of_models(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCSPEC_MODELS", str(target.parent))
    assert find_model(Path("big")) == find_model(Path("BIG")) == target
    assert find_model(Path("nobody")) == Path("nobody")
    assert find_model(Path("big.gguf")) == Path("big.gguf")  # a file name stays one
    hub = tmp_path / "home" / ".cache/huggingface/hub/models--acme--Tiny-GGUF/snapshots/abc"
    hub.mkdir(parents=True)
    for name in ("Tiny-Q4_0.gguf", "Tiny-Q8_0.gguf"):
        shutil.copy(target, hub / name)
    assert find_model(Path("acme/Tiny-GGUF:q8_0")) == hub / "Tiny-Q8_0.gguf"
    with pytest.raises(UsageError, match="may be one of"):
        find_model(Path("acme/Tiny-GGUF"))


def test_the_chat_takes_names_as_well(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lcspec.cli import chat

    monkeypatch.setenv("LCSPEC_MODELS", str(target.parent))
    assert chat.make_context("chat", ["big"]).params["model"] == target
    served = chat.make_context("chat", ["big", "--connect", "http://127.0.0.1:1"])
    assert served.params["model"] == Path("big"), "a server names its models itself"


# --- the list ---------------------------------------------------------------------------------------------------------


def test_where_models_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for name in ("models/deep", "Downloads/one/two", "a", "b"):
        (home / name).mkdir(parents=True)
    (tmp_path / "work" / "below").mkdir()
    (tmp_path / "data" / "models").mkdir()
    listed = f"~/a{os.pathsep}{home / 'b'}{os.pathsep}"
    found = places([], {"LCSPEC_MODELS": listed}, home, "linux", near=here())
    assert found == [
        Place("folder", home / "a"),
        Place("folder", home / "b"),
        Place("folder", tmp_path / "work", 0),
        Place("pulled", tmp_path / "data" / "models"),
        Place("folder", home / "models"),
        Place("folder", home / "Downloads", 1),
    ]
    for folder in ("models/deep", "Downloads/one", "Downloads/one/two"):
        tiny.write_llama(home / folder / f"{folder.replace('/', '-')}.gguf", n_layer=1)
    for folder in ("work", "work/below"):
        tiny.write_llama(tmp_path / folder / f"{folder.replace('/', '-')}.gguf", n_layer=1)
    names = {m.path.name for m in models(near=here())} - {DEMO_TARGET, DEMO_DRAFT}
    assert names == {"models-deep.gguf", "Downloads-one.gguf", "work.gguf"}


def test_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert here() == ()


def test_the_table(tmp_path: Path, target: Path, draft: Path) -> None:
    (target.parent / "broken.gguf").write_bytes(b"GGUF")
    found = list(models([target.parent]))
    text = "\n".join(lines(table(found, Memory(10**12, 10**12))))
    assert "big.gguf" in text and "F32" in text and "a toy" in text
    rows = {row.model.path.name: row for row in table(found, Memory(10**12, 10**12))}
    assert rows["big.gguf"].fits is True and rows["small.gguf"].files == DraftFiles()
    assert rows["big.gguf"].files == DraftFiles((draft,))
    assert str(target.parent) in text, "of a file in a folder people want to know which"
    order = [row.model.source for row in table(found, None) if row.model.usable]
    assert order == ["folder", "folder", "bundled", "bundled"]
    assert rows["broken.gguf"].model.problem in text.replace("\n  ", "\n") or "broken.gguf: " in text
    small = {row.model.path.name: row.fits for row in table(found, Memory(1000, 1000))}
    assert small["big.gguf"] is False
    unknown = {row.model.path.name: row.fits for row in table(found, None)}
    assert unknown["big.gguf"] is None


def test_heads_are_listed_with_the_model_they_belong_to(tmp_path: Path) -> None:
    llama, qwen = (write_family(name, tmp_path / "files" / f"{name}.gguf") for name in ("llama", "qwen35"))
    eagle = write_eagle(tmp_path / "files" / "llama-eagle3.gguf")
    rows = {row.model.path.name: row for row in table(list(models([tmp_path / "files"])), None)}
    assert as_dict(rows[llama.name])["eagle"] == str(eagle) and as_dict(rows[llama.name])["mtp"] is None
    assert as_dict(rows[qwen.name])["mtp"] == str(qwen) and as_dict(rows[qwen.name])["draft"] is None
    told = {line.split()[0]: line for line in lines(list(rows.values())) if line.strip()}
    assert "llama-eagle3.gguf" in told[llama.name] and "its own MTP layers" in told[qwen.name]


def test_an_empty_machine_is_offered_the_assistant() -> None:
    assert "lcspec pull smollm2" in lines(table(list(models()), None))[-1]
