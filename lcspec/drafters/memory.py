"""What drafters remember from one session to the next (see lcspec.profiles.history)."""

from __future__ import annotations

import contextlib
from typing import Iterable

from lcspec.drafters.base import Drafter, DrafterEnv
from lcspec.profiles import history


def restored(drafter: Drafter, env: DrafterEnv) -> Drafter:
    """The drafter with what it kept from earlier sessions."""
    data = history.load(env.target.options.path, None, drafter.name) if env.history else None
    if data is not None:
        with contextlib.suppress(ValueError):
            drafter.restore(data)
    return drafter


def keep_texts(drafters: Iterable[Drafter], env: DrafterEnv) -> None:
    """Keep what the drafters remember."""
    if not env.history:
        return
    for drafter in drafters:
        if (data := drafter.dump()) is not None:
            history.save(env.target.options.path, None, drafter.name, data)
