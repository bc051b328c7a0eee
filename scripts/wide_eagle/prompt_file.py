"""Prompts as token ids in a file of arrays: made where llama-cpp-python is, read where the GPU is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Prompts:
    """Token ids: of what stands before a first question, between a question's end and the answer, between an answer's
    end and the next question; questions to begin with, and questions about what was said. `end` ends a turn."""

    end: int
    opening: list[int]
    asked: list[int]
    answered: list[int]
    first: list[list[int]]
    later: list[list[int]]


def save(path: Path, prompts: Prompts) -> None:
    """Write them as one file of arrays."""
    arrays = {"end": np.array(prompts.end)}
    for name in ("opening", "asked", "answered"):
        arrays[name] = np.array(getattr(prompts, name), np.int32)
    for name in ("first", "later"):
        texts = getattr(prompts, name)
        arrays[name] = np.array([t for text in texts for t in text], np.int32)
        arrays[f"{name}_lengths"] = np.array([len(text) for text in texts], np.int32)
    np.savez_compressed(path, **arrays)


def load(path: Path) -> Prompts:
    """Read what `save` wrote."""
    with np.load(path) as kept:
        lists = {name: kept[name].tolist() for name in ("end", "opening", "asked", "answered")}
        for name in ("first", "later"):
            parts = np.split(kept[name], np.cumsum(kept[f"{name}_lengths"])[:-1])
            lists[name] = [part.tolist() for part in parts]
    return Prompts(**lists)
