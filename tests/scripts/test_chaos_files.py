"""The short form of scripts/chaos_files.py, and that it would notice what it looks for."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from scripts import chaos_files
from scripts.chaos_files import Child, damaged
from scripts.chaos_kinds import KINDS

pytestmark = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS))
def test_damaged_files(name: str, tmp_path: Path) -> None:
    tally = chaos_files.run(name, 60, 3, tmp_path)
    assert tally.wrong == [] and sum(tally.outcomes.values()) == 60


@pytest.mark.parametrize("name", sorted(KINDS))
def test_sound_files_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So what is refused is refused because it is damaged."""
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))
    kind = KINDS[name]
    for path in kind.seeds(tmp_path):
        path.rename(tmp_path / kind.file_name)
        kind.read(tmp_path / kind.file_name)


def test_the_same_seed_gives_the_same_damage() -> None:
    data = bytes(range(256)) * 8
    a, b = ([damaged(data, random.Random(5), text) for text in (False, True) for _ in range(50)] for _ in range(2))
    assert a == b and all(d != data for d in a[:10])
    assert damaged(b"", random.Random(1), True) is not None


READERS = """
import sys, time, os
sys.path[:0] = {path!r}
from pathlib import Path
from lcspec.errors import LcspecError
from scripts import chaos_files
from scripts.chaos_kinds import Kind
def read(path):
    what = path.read_text()
    if what == "sleep": time.sleep(280)
    if what == "die": os.abort()
    if what == "raise": raise KeyError("x")
    if what == "refuse": raise LcspecError("no")
    if what == "silent": raise LcspecError("")
    if what == "grow": bytearray(64 << 20).replace(b"\\0", b"\\1")
chaos_files.child(Kind("x", True, lambda p: [], read))
"""


@pytest.mark.parametrize(
    ("what", "outcome", "wrong"),
    [
        ("fine", "read", None),
        ("refuse", "refused", None),
        ("silent", "refused", "message of no line"),
        ("raise", "error", "KeyError"),
        ("die", "died", "ended with -6"),
        ("grow", "memory", "bytes for a file"),
        ("sleep", "hang", "no answer"),
    ],
)
def test_what_is_wrong_is_noticed(
    what: str, outcome: str, wrong: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_files, "LIMIT_SECONDS", 300.0 if what != "sleep" else 2.0)
    if what == "grow" and sys.platform != "linux":
        pytest.skip("memory is measured on Linux")
    command = tmp_path / "child.py"
    command.write_text(READERS.format(path=[str(Path(__file__).resolve().parents[2])]))
    monkeypatch.setattr(chaos_files, "__file__", str(command))
    child, path = Child("x"), tmp_path / "x"
    path.write_text(what)
    try:
        began = time.monotonic()
        found, problem = child.read(path, len(what))
        assert found == outcome and time.monotonic() - began < 250
        assert problem is None if wrong is None else wrong in (problem or "")
    finally:
        child.end()
