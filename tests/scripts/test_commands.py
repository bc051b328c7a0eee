"""Every script can be started as the docs say: `python scripts/NAME.py`, from anywhere, with lcspec installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each is loaded with nothing but its own folder on the path, and without what another one has loaded.
LOAD = """
import runpy, sys
start, known = [p for p in sys.path if p not in ("", sys.argv[1])], set(sys.modules)
for script in sys.argv[2:]:
    sys.path[:] = [script.rpartition("/")[0], *start]
    try:
        runpy.run_path(script, run_name="loaded")
    except ImportError as error:
        print(script.rpartition("/")[2], error)
    for name in set(sys.modules) - known:
        if name.partition(".")[0] in ("scripts", "tests", "servers", "peers", "hybrid", "recordings"):
            del sys.modules[name]
"""


@pytest.mark.slow
def test_every_script_starts_on_its_own(tmp_path: Path) -> None:
    scripts = [str(path) for path in sorted((ROOT / "scripts").glob("*.py")) if "__main__" in path.read_text()]
    assert len(scripts) > 30
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(ROOT), *scripts], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
