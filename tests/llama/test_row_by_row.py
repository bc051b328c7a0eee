"""Products row by row: a row's bits do not depend on how many rows there are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lcspec.llama import Context, Model
from lcspec.llama import row_by_row as switching
from lcspec.llama.few_rows import kernels
from lcspec.llama.lib import C
from tests.running import options

pytestmark = pytest.mark.model

TEXT = [5 + i * 37 % 200 for i in range(64)]


@pytest.mark.skipif(sys.platform != "linux", reason="the switch is made for ELF libraries")
def test_a_linux_library_can_be_switched() -> None:
    switch = switching._switch()
    assert switching.can_go_row_by_row() and switch is not None and switch.entries

    def held() -> list[int | None]:
        return [entry.value for entry in switch.entries]

    before = held()
    with switching.row_by_row(True):
        always = set(few.always.values()) if (few := kernels(C.llama_cpp._lib)) is not None else set()
        assert held() == list(switch.off) and set(switch.off) & set(switch.on) == always
    with switching.row_by_row(False):
        assert held() in (before, list(switch.on))
    assert held() == list(switch.on)


def test_what_is_kept_for_a_machine_has_the_same_name_in_every_process() -> None:
    """The library was asked for its processor's features late in some processes, and said ARM's: they measured apart
    from the others, and another price of exactness made for other texts."""
    code = "from lcspec.llama import build, functions_switched; print([{} for _ in range(2)])"
    first, second = "(build(), functions_switched())", "(functions_switched(), build())[::-1]"
    said = [subprocess.check_output([sys.executable, "-c", code.format(asked)]) for asked in (first, second)]
    assert said[0] == said[1] and said[0].count(b"CPU : ") == 2


def rows(context: Context, width: int, many: bool = False) -> NDArray[np.float32]:
    """Logits of the text after its first 32 tokens, decoded `width` tokens at a time."""
    found = []
    context.memory.clear()
    for start in (0, *range(32, len(TEXT), width)):
        context.batch.clear()
        for i in range(start, 32 if start == 0 else start + width):
            context.batch.add(TEXT[i], i, (0,), logits=start > 0)
        context.decode(many=many)
        if start:
            found.append(context.logits().copy())
    return np.concatenate(found)


@pytest.mark.skipif(not switching.can_go_row_by_row(), reason="this library cannot multiply row by row")
def test_rows_are_the_same_at_every_width(demo_as: Callable[[str], Path]) -> None:
    """F32 weights: nothing is rounded to 8 bits, which would hide that rows were summed in another order."""
    one_by_one = options(demo_as("F32"), gpu_layers=0, attention="rows", ctx=64)
    with Model.load(one_by_one) as model, Context(model, one_by_one) as context:
        one = rows(context, 1)
        assert all(np.array_equal(one, rows(context, width)) for width in (2, 4, 8, 16, 32))
        assert not np.array_equal(one, rows(context, 4, many=True))  # so the switch does something
