"""What drafters keep from one session to the next (see lcspec.profiles.history)."""

from __future__ import annotations

import contextlib
from typing import Iterable

from lcspec.drafters.base import Drafter, DrafterEnv
from lcspec.profiles import history


def restored(drafter: Drafter, env: DrafterEnv) -> Drafter:
    """Load into the drafter what earlier sessions stored; returns the drafter."""
    data = history.load(env.target.options.path, None, drafter.name) if env.history else None
    if data is not None:
        with contextlib.suppress(ValueError):
            drafter.restore(data)
    return drafter


def keep_texts(drafters: Iterable[Drafter], env: DrafterEnv) -> None:
    """Store what the drafters keep."""
    if not env.history:
        return
    for drafter in drafters:
        if (data := drafter.dump()) is not None:
            history.save(env.target.options.path, None, drafter.name, data)
