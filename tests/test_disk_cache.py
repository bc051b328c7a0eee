"""The cache directory: atomic writes; what cannot be read or written costs a re-measurement, never an error."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from lcspec import disk_cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_directory_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path))
    assert disk_cache.cache_dir() == tmp_path
    for empty in (lambda: monkeypatch.setenv("LCSPEC_CACHE_DIR", ""), lambda: monkeypatch.delenv("LCSPEC_CACHE_DIR")):
        empty()
        assert disk_cache.cache_dir().name == "lcspec"


def test_what_was_saved_is_loaded(folder: Path) -> None:
    value = {"a": [1, 2.5, None], "b": {"1": "x"}}
    assert disk_cache.load("kind", "key") is None
    assert disk_cache.save("kind", "key", value)
    assert disk_cache.load("kind", "key") == value
    assert disk_cache.load("other", "key") is None
    assert disk_cache.save("kind", "key", 7) and disk_cache.load("kind", "key") == 7
    assert [p.name for p in (folder / "kind").iterdir()] == ["key.json"], "no temporary file stays behind"


def test_some_values_last_for_a_while(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(disk_cache.time, "time", lambda: clock[0])
    assert disk_cache.save("kind", "key", 7, 60.0) and disk_cache.save("kind", "good", 8)
    for now, found in ((1000.0, 7), (1060.0, 7), (1061.0, None), (999.0, None), (1010.0, 7)):
        clock[0] = now
        assert disk_cache.load("kind", "key") == found, "a clock that was set back counts as too late"
        assert disk_cache.load("kind", "good") == 8


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[1, 2]",
        b'"text"',
        b'{"value": 1}',
        b'{"format": 0, "value": 1}',
        b'{"format": "1", "value": 1}',
        b'{"format": 1}',
        b'{"format": 1, "seconds": "x", "value": 1}',
        b'{"format": 1, "since": null, "seconds": 60, "value": 1}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_a_corrupt_file_is_nothing(folder: Path, content: bytes) -> None:
    (folder / "kind").mkdir(parents=True)
    (folder / "kind" / "key.json").write_bytes(content)
    assert disk_cache.load("kind", "key") is None
    assert disk_cache.save("kind", "key", 3) and disk_cache.load("kind", "key") == 3


def test_a_write_that_fails_half_way_leaves_the_old_value(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk_cache.save("kind", "key", "old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    assert disk_cache.save("kind", "key", "new") is False
    monkeypatch.undo()
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(folder))
    assert disk_cache.load("kind", "key") == "old"
    assert [p.name for p in (folder / "kind").iterdir()] == ["key.json"]


def test_the_file_appears_complete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    replace = os.replace

    def look(source: str, target: Path) -> None:
        seen.append((json.loads(Path(source).read_text())["value"], Path(target).exists()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    disk_cache.save("kind", "key", [1, 2])
    assert seen == [([1, 2], False)]


def test_a_place_that_cannot_be_written_is_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "file"))
    assert disk_cache.save("kind", "key", 1) is False
    assert disk_cache.load("kind", "key") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_false(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o500)
    assert disk_cache.save("kind", "key", 1) is False


def test_keys_tell_their_parts_apart() -> None:
    keys = [
        disk_cache.key_of(*parts) for parts in [("a", "b"), ("ab",), ("a", "b", ""), ("b", "a"), ("a", 1), ("a", None)]
    ]
    assert len(set(keys)) == len(keys)
    assert disk_cache.key_of("a", 1) == disk_cache.key_of("a", "1")
    assert all(key.isalnum() for key in keys)


def test_a_file_s_identity_changes_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"abc")
    os.utime(file, ns=(1, 1))
    first = disk_cache.file_identity(file)
    link = tmp_path / "link.gguf"
    link.symlink_to(file)
    assert disk_cache.file_identity(link) == first
    os.utime(file, ns=(2, 2))
    second = disk_cache.file_identity(file)
    file.write_bytes(b"abcd")
    os.utime(file, ns=(2, 2))
    assert len({first, second, disk_cache.file_identity(file)}) == 3


def test_a_temporary_folder_is_removed_by_those_who_come_later(folder: Path) -> None:
    with disk_cache.temporary_folder("large-") as first:
        (first / "file").write_bytes(b"much")
        assert first.parent == folder
    assert not first.exists()
    for name, age in (("large-killed", 4000), ("large-running", 60), ("other", 4000)):
        (folder / name).mkdir()
        (folder / name / "file").touch()
        os.utime(folder / name, (then := time.time() - age, then))
    with disk_cache.temporary_folder("large-") as second:
        assert {path.name for path in folder.iterdir()} == {"large-running", "other", second.name}
