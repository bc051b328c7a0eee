"""A model that requests may name, and what loads it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterable, Protocol

from lcspec.modelfiles.library import LibraryModel
from lcspec.server.service import Service

Progress = Callable[[str, float], None]


@dataclass(eq=False)
class Entry:
    """A model that requests may name.

    Attributes:
        names: what it may be called; the first is reported.
        path: its file.
        about: what its header says, where it comes from the library.
        pinned: it is never unloaded.
        state: unloaded, loading, loaded, unloading or failed; progress: of loading, 0 to 1.
        error: why it could not be loaded, or what ended its engine.
        service: the loaded model.
        users: requests that hold it; used: when one did last, on the monotonic clock.
    """

    names: tuple[str, ...]
    path: Path
    about: LibraryModel | None = None
    pinned: bool = False
    state: str = "unloaded"
    progress: float = 0.0
    error: str | None = None
    service: Service | None = None
    users: int = 0
    used: float = 0.0
    waiters: list[asyncio.Future[Service]] = field(default_factory=list)
    loading: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """How it is reported."""
        return self.names[0]

    @property
    def idle(self) -> bool:
        """Whether it is loaded and nobody uses it."""
        return self.service is not None and not self.users and not self.service.capacity.at_hand


class Loader(Protocol):
    """Loads models; called on a thread of its own."""

    def load(self, entry: Entry, others: Iterable[Entry], progress: Progress) -> Service:
        """The model, warm.

        Raises:
            LcspecError: it cannot be loaded.
        """

    def fits(self, entry: Entry, others: Iterable[Entry]) -> bool:
        """Whether there is memory for it beside `others`, which are loaded."""

    def entries(self) -> list[Entry]:
        """The models there are now; may take a while."""
