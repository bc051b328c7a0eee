"""Which mappings are asked to have huge pages, and where nobody asks."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from lcspec.config import SpeculationParams
from lcspec.engine_host import warm_up
from lcspec.llama import hugepages
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


def test_only_large_private_anonymous_writable_mappings() -> None:
    found = list(hugepages.large_mappings(MAPS))
    assert found == [
        (0x7F0000000000, 0x7F0000000000 + 600 * MB),
        (0x7F5000000000, 0x7F5000000000 + 64 * MB),
    ]


@pytest.mark.parametrize(
    ("setting", "asked"),
    [("always [madvise] never", True), ("[always] madvise never", False), ("always [never]", False)],
)
def test_asked_only_where_it_can_change_something(
    setting: str, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "enabled"
    file.write_text(setting)
    monkeypatch.setattr(hugepages, "SETTING", file)
    monkeypatch.setattr(hugepages.sys, "platform", "linux")
    monkeypatch.delenv("LCSPEC_HUGE_PAGES", raising=False)
    assert hugepages.wanted() is asked
    monkeypatch.setenv("LCSPEC_HUGE_PAGES", "0")
    assert not hugepages.wanted()


def test_nowhere_but_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugepages.sys, "platform", "darwin")
    assert not hugepages.wanted()
    assert hugepages.ask() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's interface is Linux's")
def test_a_large_buffer_is_found_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugepages, "wanted", lambda: True)
    with mmap.mmap(-1, 32 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        assert hugepages.ask() >= 32 * MB or not Path("/sys/kernel/mm/transparent_hugepage").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's interface is Linux's")
def test_memory_can_be_had_before_it_is_used() -> None:
    import resource

    with mmap.mmap(-1, 32 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as buffer:
        if hugepages.populate() < 32 * MB:
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
    monkeypatch.setattr(hugepages, "populate", lambda: provided.append(1))
    with open_session(options(write_family(family, tmp_path / "m.gguf"), ctx=128)) as session:
        warm_up(SpeculationParams(), session)
    assert len(provided) == expected
