"""The memory of servers that are compared."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scripts.servers.start import peak_memory
from scripts.servers.table import markdown

MB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="nobody tells the memory of other processes elsewhere")
def test_memory_is_that_of_all_processes_at_their_peaks() -> None:
    before = peak_memory(os.getpid())
    child = f"import sys; x = bytearray({128 * MB}); del x; print(flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        assert 128 <= peak_memory(os.getpid()) - before < 256
        process.communicate()


def test_the_table_has_the_median_of_the_memory() -> None:
    run = {"name": "lcspec off", "ours": True, "streams": 1, "rate": 10.0, "first": [0.1], "drafted": 0, "accepted": 0}
    runs = [{**run, "memory": memory} for memory in (900, 1000, 1500)]
    table = markdown({"target": "m.gguf", "threads": 2, "requests": 1, "n": 8, "runs": runs})
    assert "| lcspec off | 10.0 | 10.0..10.0 |  | 1.00 | 0.100 | 0.100 |  | 1000 |" in table
