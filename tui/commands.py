"""The command palette: every action of the tables in `keys`, by name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Iterator

from textual.command import DiscoveryHit, Hit, Hits, Provider

from lcspec.tui.keys import CHAT, MESSAGE, Action, shown_keys

if TYPE_CHECKING:
    from lcspec.tui.screens.chat import ChatScreen

# They make no sense without a message that has the focus, or are Textual's own.
NOT_LISTED = {"previous", "next", "leave", "command_palette", "quit", "help"}


class ActionCommands(Provider):
    """Actions of the chat screen."""

    def _actions(self) -> Iterator[tuple[Action, str]]:
        seen: set[str] = set()
        for action in (*CHAT, *MESSAGE):
            if action.name not in NOT_LISTED and action.name not in seen:
                seen.add(action.name)
                yield action, f"{action.help} ({shown_keys(action)})"

    @property
    def _chat(self) -> ChatScreen | None:
        from lcspec.tui.screens.chat import ChatScreen

        return self.screen if isinstance(self.screen, ChatScreen) else None

    async def discover(self) -> Hits:
        """Everything, before the user types."""
        if self._chat is not None:
            for action, text in self._actions():
                yield DiscoveryHit(action.title, partial(self._chat.do, action), help=text)

    async def search(self, query: str) -> Hits:
        """What matches."""
        if self._chat is None:
            return
        matcher = self.matcher(query)
        for action, text in self._actions():
            score = matcher.match(f"{action.title} {action.help}")
            if score > 0:
                yield Hit(score, matcher.highlight(action.title), partial(self._chat.do, action), help=text)
