"""What /v1/responses has answered lately: some clients (Vercel's AI SDK) send nothing but an item's id again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Iterable

from lcspec.server.schemas_responses import Item

# Characters that are kept; the oldest items go.
KEPT = 16 * 1024 * 1024


class Remembered:
    """Items by their ids, of all models. Nothing of it is written to a disk."""

    def __init__(self, kept: int = KEPT) -> None:
        self._left = kept
        self._items: OrderedDict[str, tuple[dict[str, Any], int]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, items: Iterable[dict[str, Any]]) -> None:
        """Keep these items of an answer."""
        with self._lock:
            for item in items:
                size = len(str(item))
                self._items[item["id"]] = (item, size)
                self._left -= size
            while self._left < 0:
                _, (_, size) = self._items.popitem(last=False)
                self._left += size

    def resolved(self, items: list[Item]) -> list[Item]:
        """With the items that are only referred to in place of the references, as far as they are known."""
        with self._lock:
            return [self._known(item) if item.kind == "item_reference" else item for item in items]

    def _known(self, item: Item) -> Item:
        found = self._items.get(item.id or "")
        return Item.model_validate(found[0]) if found is not None else item
