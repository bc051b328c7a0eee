"""The largest of a row, found without sorting it, against sorting it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from lcspec.sampling.top_k import COLUMNS, FEW, contenders, largest

SIZES = [1, 2, 64, 515, 4096, 20_001]
NUMBERS = [1, 2, FEW, FEW + 1, 40, 99, 300]


def rows(size: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(size)
    normal = rng.standard_normal(size).astype(np.float32)
    few = np.full(size, -np.inf, dtype=np.float32)
    few[rng.permutation(size)[:3]] = [2.0, 1.0, 1.0][: min(size, 3)]
    return {
        "normal": normal,
        "many alike": rng.integers(0, 20, size).astype(np.float32),
        "one alone": np.where(np.arange(size) == size - 1, 1.0, 0.0).astype(np.float32),
        "ascending": np.sort(normal),
        "in one column": np.where(np.arange(size) % COLUMNS == 3, 9.0 + normal, normal).astype(np.float32),
        "three that are not forbidden": few,
        "nothing but the forbidden": np.full(size, -np.inf, dtype=np.float32),
    }


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n", NUMBERS)
def test_the_largest_are_different_ones_in_order(n: int, size: int) -> None:
    for name, values in rows(size).items():
        before = values.copy()
        found = largest(values, n).tolist()
        assert found == sorted(range(size), key=lambda i: (-values[i], i))[:n], name
        assert (values == before).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n", NUMBERS)
def test_contenders_are_the_largest_and_all_like_the_last_of_them(n: int, size: int) -> None:
    if n > size:
        return
    for name, values in rows(size).items():
        found = contenders(values, n)
        assert (np.diff(found) > 0).all(), name
        assert set(np.flatnonzero(values >= np.sort(values)[-n])) <= set(found), name


def test_few_of_a_long_row_are_contenders() -> None:
    values = np.random.default_rng(1).standard_normal(150_000).astype(np.float32)
    assert 40 <= contenders(values, 40).size < 60
