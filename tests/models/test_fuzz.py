"""No request, however strange, ends the process: the library aborts on much that it does not expect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_strange_requests_do_not_end_the_process(llama: Path, llama_draft: Path, seed: int) -> None:
    command = [sys.executable, "-m", "tests.models.fuzz_engine", str(llama), str(llama_draft), str(seed), str(CASES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    shown = "\n".join(done.stdout.splitlines()[-8:]) + done.stderr[-2000:]
    assert done.returncode == 0 and done.stdout.endswith("done\n"), shown
    assert "Warning" not in done.stderr, shown
