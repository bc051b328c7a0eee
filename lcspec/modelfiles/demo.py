"""The small models that are installed with lcspec: a pair of them, and EAGLE-3 heads for models of others."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from lcspec.errors import ModelFileError

DEMO_TARGET = "demo-target-q8_0.gguf"
DEMO_DRAFT = "demo-draft-q8_0.gguf"


def demo_path(name: str) -> Path:
    """Path of a bundled model.

    Raises:
        ModelFileError: this installation came without it.
    """
    path = Path(str(importlib.resources.files("lcspec.demo_models"))) / name
    if not path.exists():
        raise ModelFileError(
            f"the bundled model {name} is missing from this installation: reinstall lcspec, or name a GGUF"
        )
    return path


def bundled_heads() -> list[Path]:
    """The EAGLE-3 heads that came with this installation."""
    return sorted(Path(str(importlib.resources.files("lcspec.demo_models"))).glob("*.eagle3.gguf"))
