"""Loading draft models and heads beside the target."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from lcspec.config import ModelOptions, model_drafter
from lcspec.drafters.base import DrafterEnv
from lcspec.drafters.growth import MAX_LEVEL
from lcspec.errors import UsageError
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


def load_draft(env: DrafterEnv, index: int) -> Model:
    """Load draft model number `index`.

    Raises:
        UsageError: the user named no such draft model.
        ModelFileError, ModelLoadError: it cannot be loaded.
    """
    if index >= len(env.draft.models):
        which = "a draft model" if index == 0 else f"{index + 1} draft models, and {len(env.draft.models)} are named"
        raise UsageError(f"the drafter {model_drafter(index)} needs {which}: add --draft DRAFT.gguf")
    # It decodes token by token, and is taken back over several decodes: state planes cover only the last one, and
    # windows of their own may lose, meanwhile, what is needed then.
    return load_beside(env, env.draft.models[index], max_width=MAX_LEVEL, planes=False, full_windows=True)
