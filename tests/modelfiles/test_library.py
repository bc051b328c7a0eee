"""Finding models: where other programs keep them, what their headers say, which can draft for which."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcspec import disk_cache
from lcspec.modelfiles import library
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, bundled_heads
from lcspec.modelfiles.library import (
    Found,
    LastModel,
    LibraryModel,
    Place,
    bundled,
    describe,
    drafts_for,
    format_count,
    last_model,
    models,
    places,
    remember_model,
    same_vocabulary,
    scan,
)
from tests import tiny_gguf as tiny
from tests.modelfiles.test_modelfile import write_split


@pytest.fixture(autouse=True)
def _own_directories(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's is found or written."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("LCSPEC_DATA_DIR", str(tmp_path_factory.mktemp("data")))


def touch(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def labels(*where: Place) -> list[str]:
    return [found.label for found in scan(where)]


def found(path: Path) -> Found:
    return Found(path, "folder", path.name, path.stat().st_size)


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "env", "made", "source"),
    [
        ("linux", {}, ".cache/huggingface/hub", "huggingface"),
        ("darwin", {}, ".cache/huggingface/hub", "huggingface"),
        ("linux", {"XDG_CACHE_HOME": "xdg"}, "xdg/huggingface/hub", "huggingface"),
        ("linux", {"HF_HOME": "hf"}, "hf/hub", "huggingface"),
        ("linux", {"HF_HUB_CACHE": "hub", "HF_HOME": "hf"}, "hub", "huggingface"),
        ("linux", {"HUGGINGFACE_HUB_CACHE": "hub"}, "hub", "huggingface"),
        ("linux", {}, ".cache/llama.cpp", "llama.cpp"),
        ("linux", {"XDG_CACHE_HOME": "xdg"}, "xdg/llama.cpp", "llama.cpp"),
        ("darwin", {}, "Library/Caches/llama.cpp", "llama.cpp"),
        ("linux", {"LLAMA_CACHE": "llama"}, "llama", "llama.cpp"),
        ("linux", {}, ".lmstudio/models", "lmstudio"),
        ("darwin", {}, ".cache/lm-studio/models", "lmstudio"),
        ("linux", {}, ".ollama/models", "ollama"),
        ("darwin", {}, ".ollama/models", "ollama"),
        ("linux", {"OLLAMA_MODELS": "mine"}, "mine", "ollama"),
    ],
)
def test_where_other_programs_keep_models(
    tmp_path: Path, platform: str, env: dict[str, str], made: str, source: str
) -> None:
    (tmp_path / made).mkdir(parents=True)
    environ = {name: str(tmp_path / value) for name, value in env.items()}
    assert places([], environ, tmp_path, platform) == [Place(source, tmp_path / made)]  # type: ignore[arg-type]


def test_places_that_are_not_there_or_there_twice(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "models")
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    touch(tmp_path / "file")
    given_folders = [tmp_path / name for name in ("models", "link", "missing", "file", "ring")]
    assert places(given_folders, {"HF_HUB_CACHE": str(tmp_path / "models")}, tmp_path, "linux") == [
        Place("folder", tmp_path / "models")
    ]


def test_lm_studio_where_it_was_moved(tmp_path: Path) -> None:
    (tmp_path / "disk" / "models").mkdir(parents=True)
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{tmp_path / 'disk'}\n")
    assert places([], {}, tmp_path, "linux") == [Place("lmstudio", tmp_path / "disk" / "models")]
    (tmp_path / ".lmstudio-home-pointer").write_bytes(b"\xff\x00")
    assert places([], {}, tmp_path, "linux") == []


# --- scanning ---------------------------------------------------------------------------------------------------------


def test_folders_are_walked_and_what_is_no_model_skipped(tmp_path: Path) -> None:
    for name in (
        "b.gguf",
        "A.GGUF",
        "deep/er/c.gguf",
        "big-00001-of-00003.gguf",
        "big-00002-of-00003.gguf",
        "big-00003-of-00003.gguf",
        "mmproj-model-f16.gguf",
        "model.mmproj-Q8_0.gguf",
        "notes.txt",
        "d.gguf.part",
        ".git/e.gguf",
        "node_modules/f.gguf",
        "new\nline \udc80.gguf",
    ):
        touch(tmp_path / name)
    (tmp_path / "folder.gguf").mkdir()
    touch(tmp_path / "folder.gguf" / "inside.gguf")
    assert sorted(labels(Place("folder", tmp_path))) == [
        "A.GGUF",
        "b.gguf",
        "big-00001-of-00003.gguf",
        "deep/er/c.gguf",
        "folder.gguf/inside.gguf",
        "new?line ?.gguf",
    ]


def test_links_are_followed_once(tmp_path: Path) -> None:
    real = touch(tmp_path / "store" / "real.gguf")
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.gguf").symlink_to(real)
    (folder / "again.gguf").symlink_to(real)
    os.link(real, folder / "hard.gguf")
    (folder / "nothing.gguf").symlink_to(tmp_path / "missing")
    (folder / "ring.gguf").symlink_to(folder / "ring.gguf")
    (folder / "sub" / "up").symlink_to(folder)
    (folder / "sub" / "self").symlink_to(folder / "sub")
    assert labels(Place("folder", folder)) == ["again.gguf"]
    assert labels(Place("folder", folder), Place("folder", tmp_path / "store")) == ["again.gguf"]


def test_a_very_deep_directory_ends(tmp_path: Path) -> None:
    at = tmp_path
    for _ in range(30):
        at = at / "d"
    touch(at / "deep.gguf")
    touch(tmp_path / "d" / "near.gguf")
    assert labels(Place("folder", tmp_path)) == ["d/near.gguf"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_what_may_not_be_read_is_passed_over(tmp_path: Path) -> None:
    touch(tmp_path / "closed" / "a.gguf")
    touch(tmp_path / "open.gguf")
    (tmp_path / "closed").chmod(0)
    try:
        assert labels(Place("folder", tmp_path)) == ["open.gguf"]
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_the_hugging_face_cache(tmp_path: Path) -> None:
    repo = tmp_path / "models--some-org--Some-Model-GGUF"
    blob = touch(repo / "blobs" / "abcdef")
    for revision in ("r1", "r2"):
        (repo / "snapshots" / revision / "Q4").mkdir(parents=True)
        (repo / "snapshots" / revision / "Q4" / "some-q4.gguf").symlink_to(blob)
    assert labels(Place("huggingface", tmp_path)) == ["some-org/Some-Model-GGUF/Q4/some-q4.gguf"]


def test_lm_studio_s_folders_name_publisher_and_model(tmp_path: Path) -> None:
    touch(tmp_path / "publisher" / "model" / "file.gguf")
    assert labels(Place("lmstudio", tmp_path)) == ["publisher/model/file.gguf"]


def manifest(root: Path, name: str, *layers: dict[str, object]) -> Path:
    path = root / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "layers": list(layers)}))
    return path


def model_layer(digest: str) -> dict[str, object]:
    return {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": 3}


def test_ollama_s_manifests_name_blobs(tmp_path: Path) -> None:
    license_layer = {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "f" * 64}
    names = {
        "registry.ollama.ai/library/llama3.2/1b": "llama3.2:1b",
        "registry.ollama.ai/someone/tuned/latest": "someone/tuned:latest",
        "hf.co/org/Model-GGUF/Q4_K_M": "hf.co/org/Model-GGUF:Q4_K_M",
    }
    for i, name in enumerate(names):
        manifest(tmp_path, name, license_layer, model_layer(str(i) * 64))
        touch(tmp_path / "blobs" / f"sha256-{str(i) * 64}")
    touch(tmp_path / "blobs" / ("sha256-" + "9" * 64))
    result = list(scan([Place("ollama", tmp_path)]))
    assert {f.label for f in result} == set(names.values())
    assert all(f.path.parent == tmp_path / "blobs" and f.size == 10 and f.source == "ollama" for f in result)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"layers": 3}',
        b'{"layers": [3]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 3}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../etc/passwd"}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:aaaaaaaaaaaa"}]}',
        b"\xff\xfe",
        b"[" * 100_000,
        b" " * (2 << 20),
    ],
)
def test_bad_manifests_are_passed_over(tmp_path: Path, content: bytes) -> None:
    good = manifest(tmp_path, "registry.ollama.ai/library/good/latest", model_layer("a" * 64))
    touch(tmp_path / "blobs" / ("sha256-" + "a" * 64))
    good.with_name("bad").write_bytes(content)
    assert labels(Place("ollama", tmp_path)) == ["good:latest"]


def test_scanning_is_lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        touch(tmp_path / f"d{i}" / "m.gguf")
    opened = []
    real = os.scandir

    def scandir(path: str) -> object:
        opened.append(Path(path).name)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    first = next(iter(scan([Place("folder", tmp_path)])))
    assert first.label == "d0/m.gguf" and opened == [tmp_path.name, "d0"]


def test_a_scan_can_be_given_up(tmp_path: Path) -> None:
    for i in range(5):
        touch(tmp_path / f"d{i}" / "m.gguf")
    seen: list[str] = []
    for item in scan([Place("folder", tmp_path), Place("folder", tmp_path / "d4")], stop=lambda: len(seen) >= 2):
        seen.append(item.label)
    assert seen == ["d0/m.gguf", "d1/m.gguf"]
    assert list(scan([Place("folder", tmp_path)], stop=lambda: True)) == []


@pytest.mark.skipif(not Path("/proc/self/root").exists(), reason="no /proc")
def test_the_system_s_own_trees_are_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (entered.append(str(path)), real(path))[1])
    for name in ("proc", "sys", "dev"):
        (tmp_path / name).symlink_to(f"/{name}")
    (tmp_path / "dosdevices").mkdir()
    (tmp_path / "dosdevices" / "z:").symlink_to("/")
    touch(tmp_path / "m.gguf")
    assert labels(Place("folder", tmp_path)) == ["m.gguf"] and entered == [str(tmp_path)]


# --- headers ----------------------------------------------------------------------------------------------------------


def test_what_a_header_says(tmp_path: Path) -> None:
    path = tiny.write_llama(tmp_path / "m.gguf", quant="Q8_0", width=96, n_ctx=2048, chat_template="{{ messages }}")
    model = describe(found(path))
    assert (model.architecture, model.name, model.quantization, model.context) == ("llama", "tiny llama", "Q8_0", 2048)
    assert (model.size, model.n_vocab, model.tokenizer) == (path.stat().st_size, 288, "gpt2/gpt-2")
    assert model.usable and model.has_template and model.n_params > 100_000
    assert model.summary.endswith(" · 2k context") and "llama · Q8_0 · " in model.summary


def test_headers_are_read_once_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.write_llama(tmp_path / "m.gguf")
    reads = []
    real = library.read_header
    monkeypatch.setattr(library, "read_header", lambda p: (reads.append(p), real(p))[1])
    first = describe(found(path))
    assert describe(found(path)) == first and len(reads) == 1
    (tmp_path / "link.gguf").symlink_to(path)
    assert replace(describe(found(tmp_path / "link.gguf")), path=path, label="m.gguf") == first and len(reads) == 1
    tiny.write_llama(path, n_layer=3)
    assert describe(found(path)).n_params > first.n_params and len(reads) == 2
    for file in (disk_cache.cache_dir() / "library").iterdir():
        file.write_text(json.dumps({"format": disk_cache.FORMAT, "value": {"n_params": "many"}}))
    assert describe(found(path)).usable and len(reads) == 3, "nonsense in the cache is read again"


def test_broken_files_are_listed_with_what_is_wrong(tmp_path: Path) -> None:
    touch(tmp_path / "garbage.gguf")
    touch(tmp_path / "empty.gguf", 0)
    tiny.write_truncated_data(tmp_path / "cut.gguf")
    tiny.write_without_tokenizer(tmp_path / "mute.gguf")
    good = tiny.write_llama(tmp_path / "good.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    described = {m.label: m for m in map(describe, scan([Place("folder", tmp_path)]))}
    assert set(described) == {"garbage.gguf", "empty.gguf", "cut.gguf", "mute.gguf", "good.gguf"}
    for label, model in described.items():
        assert model.usable == (model.path == good), label
        assert model.usable or (model.problem and "\n" not in model.problem and model.summary == model.problem)
    gone = describe(Found(tmp_path / "gone.gguf", "folder", "gone", 3))
    assert gone.problem is not None and "does not exist" in gone.problem
    # A problem is not remembered: the download went on.
    shutil.copyfile(good, tmp_path / "cut.gguf")
    assert describe(found(tmp_path / "cut.gguf")).usable


@given(st.binary(max_size=200))
def test_any_bytes_are_described(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + data)
    assert not describe(found(path)).usable


def test_names_in_headers_cannot_reach_the_terminal(tmp_path: Path) -> None:
    path = tiny.write_llama(tmp_path / "m.gguf", extra={"general.name": "evil\x1b[31m\nname"})
    name = describe(found(path)).name
    assert name is not None and name.isprintable()


def test_split_models_are_one(tmp_path: Path) -> None:
    parts = write_split(tmp_path / "split")
    (one,) = map(describe, scan([Place("folder", tmp_path)]))
    assert one.path == parts[0] and one.usable and one.size == sum(part.stat().st_size for part in parts)
    parts[1].unlink()
    broken = describe(found(parts[0]))
    assert broken.problem is not None and f"{parts[1].name} is missing" in broken.problem, "not remembered as whole"


def test_the_bundled_pair_is_always_first(tmp_path: Path) -> None:
    tiny.write_llama(tmp_path / "mine.gguf")
    listed = models([tmp_path])
    assert [m.label for m in listed] == [DEMO_TARGET, DEMO_DRAFT, "mine.gguf"]
    target, draft = bundled()
    assert target.usable and draft.usable and target.source == "bundled" and target.n_params > 2 * draft.n_params
    folder = target.path.parent
    heads = [path.name for path in bundled_heads()]
    assert [m.label for m in models([folder])] == [DEMO_TARGET, DEMO_DRAFT, *heads], "not twice"


def test_counts() -> None:
    wanted = {999: "999", 1000: "1K", 1500: "1.5K", 135_000_000: "135M", 1_100_000_000: "1.1B", 70_600_000_000: "71B"}
    assert {n: format_count(n) for n in wanted} == wanted
    assert format_count(8192, 1024) == "8K" and format_count(131072, 1024) == "128K"


# --- drafts -----------------------------------------------------------------------------------------------------------


def test_drafts_share_the_vocabulary_and_are_smaller(tmp_path: Path) -> None:
    made = {
        "target": tiny.write_llama(tmp_path / "target.gguf", n_layer=8),
        "draft": tiny.write_llama(tmp_path / "draft.gguf", n_layer=1),
        "middle": tiny.write_llama(tmp_path / "middle.gguf", n_layer=2),
        "as large": tiny.write_llama(tmp_path / "large.gguf", n_layer=7),
        "permuted": tiny.write_llama(tmp_path / "permuted.gguf", n_layer=1, vocab=tiny.byte_bpe_vocab(permutation=1)),
        "sentencepiece": tiny.write_llama(tmp_path / "spm.gguf", n_layer=1, vocab=tiny.spm_vocab()),
    }
    garbage = touch(tmp_path / "garbage.gguf")
    described = {name: describe(found(path)) for name, path in made.items()}
    candidates = [*described.values(), describe(found(garbage))]
    matching = drafts_for(described["target"], candidates)
    assert [m.path for m in matching] == [made["draft"], made["middle"]]
    assert drafts_for(described["draft"], candidates) == []
    assert drafts_for(describe(found(garbage)), candidates) == []
    assert drafts_for(bundled()[0], bundled()) == [bundled()[1]]


def test_vocabularies_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tiny.write_llama(tmp_path / "a.gguf"), tiny.write_llama(tmp_path / "b.gguf", seed=1)
    other = tiny.write_llama(tmp_path / "c.gguf", vocab=tiny.byte_bpe_vocab(permutation=1))
    padded = tiny.byte_bpe_vocab()
    padded = replace(
        padded, tokens=(*padded.tokens, "<pad0>", "<pad1>"), types=(*padded.types, tiny.CONTROL, tiny.CONTROL)
    )
    pad = tiny.write_llama(tmp_path / "pad.gguf", vocab=padded)
    verdicts = [same_vocabulary(a, b), same_vocabulary(a, other), same_vocabulary(a, pad), same_vocabulary(pad, a)]
    assert verdicts == [True, False, True, True]
    assert not same_vocabulary(a, tmp_path / "missing.gguf") and not same_vocabulary(a, touch(tmp_path / "x.gguf"))

    def fail(_: Path) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(library, "read_vocabulary", fail)
    monkeypatch.setattr(library, "read_header", fail)
    assert [same_vocabulary(a, b), same_vocabulary(a, other)] == [True, False]


# --- the model used last ----------------------------------------------------------------------------------------------


def test_the_pair_used_last_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert last_model() is None
    model, draft = touch(tmp_path / "m.gguf"), touch(tmp_path / "d.gguf")
    assert remember_model(model, draft) and last_model() == LastModel(model, draft)
    draft.unlink()
    assert last_model() == LastModel(model, None)
    monkeypatch.chdir(tmp_path)
    assert remember_model(Path("m.gguf")) and last_model() == LastModel(model, None)
    model.unlink()
    assert last_model() is None
    odd = touch(tmp_path / "odd \udc80\n name.gguf")
    assert remember_model(odd) and last_model() == LastModel(odd, None)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"model": 3}', b'{"model": "a\\u0000b"}', b"\xff", b"[" * 99999]
)
def test_a_broken_state_file_is_nothing(content: bytes) -> None:
    path = Path(os.environ["LCSPEC_DATA_DIR"]) / "state.json"
    path.write_bytes(content)
    assert last_model() is None
    assert remember_model(path) and last_model() == LastModel(path, None)


def test_a_state_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCSPEC_DATA_DIR", str(touch(tmp_path / "file")))
    assert remember_model(tmp_path) is False and last_model() is None


def test_no_model_library_is_loaded() -> None:
    code = (
        "import sys, lcspec.modelfiles.library as l; list(l.models()); "
        "print('llama_cpp' in sys.modules, 'textual' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["False", "False"]


def test_models_without_a_problem_have_one_line() -> None:
    assert LibraryModel(Path("x"), "folder", "x", 1, problem="broken").summary == "broken"
