"""Types of weights that there are kernels for, and what rows of tokens are rounded to for each (ggml-common.h)."""

from __future__ import annotations

from typing import NamedTuple


class RowType(NamedTuple):
    """A type that rows are rounded to: its number, its name, values and bytes of a block."""

    number: int
    name: str
    values: int
    size: int


class WeightType(NamedTuple):
    """A type of weights: its number, its name, values and bytes of a block; what rows are rounded to."""

    number: int
    name: str
    values: int
    size: int
    rounded: RowType

    @property
    def dot(self) -> str:
        """The library's dot product."""
        return f"ggml_vec_dot_{self.name}" + (f"_{self.rounded.name}" if self.values > 1 else "")


F16, Q8_0 = RowType(1, "f16", 1, 2), RowType(8, "q8_0", 32, 34)
Q8_1, Q8_K = RowType(9, "q8_1", 32, 36), RowType(15, "q8_K", 256, 292)
TYPES = (
    WeightType(1, "f16", 1, 2, F16),
    WeightType(2, "q4_0", 32, 18, Q8_0),
    WeightType(3, "q4_1", 32, 20, Q8_1),
    WeightType(6, "q5_0", 32, 22, Q8_0),
    WeightType(7, "q5_1", 32, 24, Q8_1),
    WeightType(8, "q8_0", 32, 34, Q8_0),
    WeightType(10, "q2_K", 256, 84, Q8_K),
    WeightType(11, "q3_K", 256, 110, Q8_K),
    WeightType(12, "q4_K", 256, 144, Q8_K),
    WeightType(13, "q5_K", 256, 176, Q8_K),
    WeightType(14, "q6_K", 256, 210, Q8_K),
    WeightType(20, "iq4_nl", 32, 18, Q8_0),
    WeightType(23, "iq4_xs", 256, 136, Q8_K),
    WeightType(39, "mxfp4", 32, 17, Q8_0),
)
