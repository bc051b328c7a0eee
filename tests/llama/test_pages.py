"""Which mappings are asked to have huge pages, where nobody asks, and what is given back."""

from __future__ import annotations

import mmap
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lcspec.config import SpeculationParams
from lcspec.engine_host import warm_up
from lcspec.llama import Model, pages
from lcspec.session import open_session
from tests.running import options
from tests.tiny_families import write_family

MB = 1 << 20
MAPS = f"""\
{0x400000:x}-{0x400000 + 900 * MB:x} r-xp 00000000 fe:00 131 /usr/bin/python3
{0x7F0000000000:x}-{0x7F0000000000 + 600 * MB:x} rw-p 00000000 00:00 0
{0x7F1000000000:x}-{0x7F1000000000 + 600 * MB:x} rw-p 00000000 00:00 0 [heap]
{0x7F2000000000:x}-{0x7F2000000000 + 600 * MB:x} r--s 00000000 fe:00 99 /models/model.gguf
{0x7F3000000000:x}-{0x7F3000000000 + 1 * MB:x} rw-p 00000000 00:00 0
{0x7F4000000000:x}-{0x7F4000000000 + 600 * MB:x} ---p 00000000 00:00 0
{0x7F5000000000:x}-{0x7F5000000000 + 64 * MB:x} rw-p 00000000 00:00 0
"""


def test_only_large_private_anonymous_writable_mappings_are_buffers() -> None:
    found = list(pages.large_mappings(MAPS, pages.BUFFER))
    assert found == [
        (0x7F0000000000, 0x7F0000000000 + 600 * MB),
        (0x7F5000000000, 0x7F5000000000 + 64 * MB),
    ]


def test_only_large_shared_mappings_that_are_read_are_given_back() -> None:
    assert list(pages.large_mappings(MAPS, pages.MAPPED_FILE)) == [(0x7F2000000000, 0x7F2000000000 + 600 * MB)]


@pytest.mark.parametrize(
    ("setting", "asked"),
    [("always [madvise] never", True), ("[always] madvise never", False), ("always [never]", False)],
)
def test_asked_only_where_it_can_change_something(
    setting: str, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "enabled"
    file.write_text(setting)
    monkeypatch.setattr(pages, "SETTING", file)
    monkeypatch.setattr(pages.sys, "platform", "linux")
    monkeypatch.delenv("LCSPEC_HUGE_PAGES", raising=False)
    assert pages.wanted() is asked
    monkeypatch.setenv("LCSPEC_HUGE_PAGES", "0")
    assert not pages.wanted()


def test_nowhere_but_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages.sys, "platform", "darwin")
    assert not pages.wanted()
    assert pages.ask() == pages.give_back() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's interface is Linux's")
def test_a_large_buffer_is_found_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "wanted", lambda: True)
    with mmap.mmap(-1, 32 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        assert pages.ask() >= 32 * MB or not Path("/sys/kernel/mm/transparent_hugepage").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's interface is Linux's")
def test_memory_can_be_had_before_it_is_used() -> None:
    import resource

    with mmap.mmap(-1, 32 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as buffer:
        if pages.populate() < 32 * MB:
            pytest.skip("a kernel before 5.14")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for at in range(0, 32 * MB, 4096):
            buffer[at] = 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1000  # 8192 pages


@pytest.mark.model
@pytest.mark.parametrize(("family", "expected"), [("llama", 1), ("qwen35", 0)])
def test_memory_of_large_graphs_is_not_provided(
    family: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of hybrids the library reserves hundreds of megabytes for graphs that never become so large."""
    provided = list[int]()
    monkeypatch.setattr(pages, "populate", lambda: provided.append(1))
    with open_session(options(write_family(family, tmp_path / "m.gguf"), ctx=128)) as session:
        warm_up(SpeculationParams(), session)
    assert len(provided) == expected


def resident(path: Path) -> int:
    """Bytes of this file that are mapped into this process's memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's interface is Linux's")
def test_what_was_given_back_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 32 * MB)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[:] == path.read_bytes() and resident(path) == 32 * MB
        assert pages.give_back() >= 32 * MB and resident(path) == 0
        assert mapped[-1:] == b"x"


@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's interface is Linux's")
@pytest.mark.parametrize("quantization", ["Q4_0", "Q5_0"])  # the library repacks the first, lcspec copies the other
def test_hardly_anything_of_a_repacked_model_s_file_is_kept(
    quantization: str, demo_as: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = demo_as(quantization).resolve()
    size = path.stat().st_size
    monkeypatch.setattr(pages, "MIN_BYTES", MB)
    with Model.load(options(path, repack=False)):
        assert resident(path) > 0.9 * size
    kept = list[int]()
    with Model.load(options(path), lambda fraction: kept.append(resident(path)) or True) as model:
        if not model.repack:
            pytest.skip("weights are not repacked on this processor")
        assert resident(path) < 0.1 * size
    assert min(kept[: len(kept) // 2]) < 0.5 * size, "while it is loaded, too"
