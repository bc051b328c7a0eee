"""Medians, geometric means and bootstrap intervals (numpy only)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A statistic with its bootstrap interval; no interval when there is nothing to resample."""

    value: float
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """For results.json."""
        return {"value": self.value, "low": self.low, "high": self.high}


def median(values: Sequence[float]) -> float:
    """The median; nan of nothing."""
    return float(np.median(np.asarray(values))) if len(values) else math.nan


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers; nan of nothing."""
    return float(np.exp(np.log(np.asarray(values)).mean())) if len(values) else math.nan


def ratios(rates: Sequence[float], plain: Sequence[float]) -> list[float]:
    """rate / plain rate of every repeat, the two of which ran next to each other: a machine's speed changes within
    minutes. If some failed, so that there are not as many, one ratio of medians."""
    if len(rates) == len(plain):
        return [a / b for a, b in zip(rates, plain)]
    return [median(rates) / median(plain)]


def _resampled_medians(values: Sequence[float], rng: np.random.Generator) -> NDArray[np.float64]:
    """Medians of `RESAMPLES` resamples of a prompt's repeats."""
    data = np.asarray(values, dtype=np.float64)
    if data.size == 1:
        return np.full(RESAMPLES, data[0])
    out: NDArray[np.float64] = np.median(data[rng.integers(data.size, size=(RESAMPLES, data.size))], axis=1)
    return out


def speedups(rates: Sequence[Sequence[float]], plain: Sequence[Sequence[float]]) -> tuple[Estimate, Estimate]:
    """Median and geometric mean over prompts of rate / plain rate, each prompt's the median of its repeats' ratios.

    Args:
        rates: tokens per second, by prompt and repeat.
        plain: those of plain decoding on the same prompts.

    The intervals resample prompts, and within each prompt its repeats.
    """
    if not rates:
        return Estimate(math.nan), Estimate(math.nan)
    by_repeat = [ratios(a, b) for a, b in zip(rates, plain)]
    by_prompt = [median(found) for found in by_repeat]
    values = median(by_prompt), geometric_mean(by_prompt)
    if len(by_repeat) == 1 and len(by_repeat[0]) == 1:
        return Estimate(values[0]), Estimate(values[1])
    rng = np.random.default_rng(1)
    table = np.stack([_resampled_medians(found, rng) for found in by_repeat])
    drawn = table[rng.integers(len(by_prompt), size=(RESAMPLES, len(by_prompt))), np.arange(RESAMPLES)[:, None]]
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    medians = np.quantile(np.median(drawn, axis=1), tails)
    means = np.quantile(np.exp(np.log(drawn).mean(axis=1)), tails)
    return (
        Estimate(values[0], float(medians[0]), float(medians[1])),
        Estimate(values[1], float(means[0]), float(means[1])),
    )
