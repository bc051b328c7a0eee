"""What drafters remember from one session to the next (see lcspec.profiles.history)."""

from __future__ import annotations

import contextlib
from typing import Any, Iterable, Protocol, runtime_checkable

from lcspec.drafters.base import Drafter, DrafterEnv
from lcspec.profiles import history


@runtime_checkable
class Remembering(Protocol):
    """A drafter that has something to keep between sessions."""

    def dump(self) -> Any:
        """What to keep, as JSON allows; None if there is nothing new."""

    def restore(self, data: Any) -> None:
        """Take up what `dump` gave.

        Raises:
            ValueError: it is not that.
        """


def restored(drafter: Drafter, env: DrafterEnv) -> Drafter:
    """The drafter with what it kept from earlier sessions."""
    if env.history and isinstance(drafter, Remembering):
        data = history.load(env.target.options.path, None, drafter.name)
        if data is not None:
            with contextlib.suppress(ValueError):
                drafter.restore(data)
    return drafter


def keep_texts(drafters: Iterable[Drafter], env: DrafterEnv) -> None:
    """Keep what the drafters remember."""
    if not env.history:
        return
    for drafter in drafters:
        if isinstance(drafter, Remembering) and (data := drafter.dump()) is not None:
            history.save(env.target.options.path, None, drafter.name, data)
