"""The short form of scripts/chaos_server.py: a server process under each condition."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.chaos_server import run

pytestmark = pytest.mark.server

# Half of the servers have no cache to find in it what was measured before.
HASTE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.running import hasty_measuring
haste = hasty_measuring()
haste.__enter__()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "condition", ["steady", "usual", "several models", "full disk", "unwritable cache", "clock jumps"]
)
def test_a_server_under_faults(condition: str) -> None:
    counts, wrong, _ = run(condition, 24, seed=4, cache=Path(os.environ["LCSPEC_CACHE_DIR"]), first=HASTE)
    assert wrong == [] and sum(counts.values()) == 24 and len(counts) >= 7, counts
    assert condition == "steady" or counts["engine killed"] == counts["engine stopped"] == 1
