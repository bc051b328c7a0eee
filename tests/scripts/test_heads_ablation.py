"""The ablation's decoding of recorded answers, against a plain simulation."""

from __future__ import annotations

import numpy as np
import pytest

from lcspec.spec.tree_shapes import Shape
from lcspec.training.states import NONE
from scripts.heads_ablation import MISSED, accuracy, walked


def test_accuracy_leaves_out_what_has_no_label() -> None:
    ranks = np.array([[0, 3, 7, NONE], [MISSED, 0, NONE, NONE]])
    assert accuracy(ranks, 1) == [pytest.approx(1 / 3), pytest.approx(1 / 2)]
    assert accuracy(ranks, 5) == [pytest.approx(2 / 3), pytest.approx(1 / 2)]


def test_walking_an_answer_by_hand() -> None:
    """Six tokens after the first pending one: three emitted by a full path, one after a miss, then the rest."""
    ranks = np.array([[0, 0, 1, 5, 0, 0, NONE], [1, 0, 0, 0, 0, NONE, NONE]])
    shape = Shape.of_paths([(0,), (1,), (0, 1)])
    # at 0: rank 0 then rank 1 of head 2: three tokens; at 3: rank 5 is not there: one; at 4: rank 0, then 0: two
    assert walked(shape, ranks, np.array([7])) == pytest.approx(6 / 3)
    assert walked(Shape.chain(1), ranks, np.array([7])) == pytest.approx(6 / 4)


def test_a_perfect_head_fills_every_step() -> None:
    ranks = np.zeros((3, 21), dtype=np.int64)
    assert walked(Shape.chain(3), ranks, np.array([21])) == pytest.approx(4.0)
    assert walked(Shape.chain(3), ranks + MISSED, np.array([21])) == pytest.approx(1.0)
    assert walked(Shape.chain(3), ranks, np.array([1] * 21)) == 0.0  # one-token answers are never decoded
