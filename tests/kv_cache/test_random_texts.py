"""Some seeds of tests/fuzz_texts.py, each in a process of its own: the library may end it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import forks

pytestmark = [pytest.mark.model, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
# Windows in full caches, in small ones and in one for each text; cells that others read; states and planes; compressed
# cells.
SEEDS = [
    "gemma3 15 10",
    "gpt-oss 15 10",
    "gemma4 14 8",
    "cohere2 902 25 small",
    "gemma2 901 10 small",
    "lfm2-window 2 40",
    "qwen35 16 12",
    "deepseek4 1 12",
]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_requests(seed: str) -> None:
    done = forks.server.run(seed.split(), module="tests.fuzz_texts", cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout.decode()[-2000:] + done.stderr.decode()[-2000:]
