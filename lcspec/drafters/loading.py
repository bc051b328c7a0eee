"""Loading draft models and heads beside the target."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from lcspec.config import ModelOptions
from lcspec.drafters.base import DrafterEnv
from lcspec.llama import Model


def load_beside(env: DrafterEnv, path: Path, *, head: bool = False, **own: Any) -> Model:
    """Load a file on the devices for drafting; `own`: further ModelOptions, `head`: as in Model.load.

    Raises:
        ModelFileError, ModelLoadError: it cannot be loaded.
    """
    options = ModelOptions(
        path,
        ctx=env.ctx,
        slots=env.slots,
        threads=env.threads,
        gpu_layers=env.gpu_layers,
        placement=env.placement,
        **own,
    )
    show = None if env.progress is None else functools.partial(env.progress, path.name)
    return Model.load(options, show, head=head)
