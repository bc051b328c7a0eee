"""No request, however strange, ends the process: the library aborts on much that it does not expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import forks

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
CASES = 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_strange_requests_do_not_end_the_process(llama: Path, llama_draft: Path, seed: int) -> None:
    case = (llama, llama_draft, seed, CASES)
    done = forks.server.run(case, module="tests.fuzz_engine", cwd=ROOT, timeout=300)
    out, err = done.stdout.decode(), done.stderr.decode()
    shown = "\n".join(out.splitlines()[-8:]) + err[-2000:]
    assert done.returncode == 0 and out.endswith("done\n"), shown
    assert "Warning" not in err, shown
