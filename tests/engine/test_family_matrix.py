"""Families of models x ways to decode: the same texts, everything accepted of a model's own drafts, no abort.

Each family runs in a process of its own (family_matrix.py); `pytest -k gemma4` runs one.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from lcspec.llama import Context, Model
from tests import forks
from tests.family_matrix import CHECKS
from tests.running import options
from tests.tiny_families import FAMILIES, write_family

pytestmark = [pytest.mark.model, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@cache
def _outcome(name: str, folder: Path) -> dict[str, str]:
    """What went wrong in each check of a family."""
    path = write_family(name, folder / f"{name}.gguf")
    done = forks.server.run([path], module="tests.family_matrix", cwd=ROOT, timeout=300)
    told = [json.loads(line) for line in done.stdout.decode().splitlines() if line.startswith("{")]
    outcome = {line["check"]: line["problem"] for line in told if "check" in line}
    begun = [line["begin"] for line in told if "begin" in line]
    if done.returncode:
        end = f"the process ended with {done.returncode}: {done.stderr.decode()[-2000:]}"
        outcome[begun[-1] if begun else next(iter(CHECKS))] = end
    return outcome


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str, check: str, folder: Path) -> None:
    problem = _outcome(name, folder).get(check, "not reached: an earlier check ended the process")
    assert not problem, problem


def test_there_are_enough_families_of_every_memory() -> None:
    memories = [family.memory for family in FAMILIES.values()]
    assert len(memories) >= 16
    assert {"attention", "window", "rollback", "state"} == set(memories)
    assert sum(family.mtp > 0 for family in FAMILIES.values()) >= 3


@pytest.mark.parametrize("name", FAMILIES)
def test_files_are_small_and_the_same_every_time(name: str, tmp_path: Path) -> None:
    path = write_family(name, tmp_path / "a.gguf")
    assert path.stat().st_size < (16_000_000 if name == "gemma3n" else 2_000_000)  # the library has its widths fixed
    assert write_family(name, tmp_path / "b.gguf").read_bytes() == path.read_bytes()
    assert write_family(name, tmp_path / "c.gguf", seed=1).read_bytes() != path.read_bytes()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_library_sees_the_memory_that_the_family_says(name: str, folder: Path) -> None:
    path = write_family(name, folder / f"{name}.gguf")
    with Model.load(options(path)) as model, Context(model) as context:
        recurrent = model.traits.recurrent or model.traits.hybrid
        assert (model.traits.n_swa > 0) == (FAMILIES[name].memory == "window" or name in ("deepseek4", "lfm2-window"))
        assert recurrent == (FAMILIES[name].memory in ("rollback", "state"))
        assert context.n_ctx == 512
