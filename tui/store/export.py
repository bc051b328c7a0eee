"""A chat as Markdown for people (the branch shown) and as JSON (all branches), which can be read back."""

from __future__ import annotations

from lcspec.errors import LcspecError
from lcspec.tui.store.chat import Chat
from lcspec.tui.store.records import ChatInfo, Message

JSON_FORMAT = "lcspec-chat"
JSON_VERSION = 1


class ExportError(LcspecError):
    """A file is not an exported chat, or cannot be written."""


def to_markdown(chat: Chat) -> str:
    """The branch shown, ready to read or to publish."""
    raise NotImplementedError


def to_json(chat: Chat) -> str:
    """Everything, all branches, as one JSON object."""
    raise NotImplementedError


def from_json(text: str) -> tuple[ChatInfo, list[Message]]:
    """Read an exported chat; every id is new, so that it can stand beside the original.

    Raises:
        ExportError: it is not one, or from a newer version; the message says which.
    """
    raise NotImplementedError


def file_name(info: ChatInfo, suffix: str) -> str:
    """A safe file name from the title: `file_name(info, ".md")`."""
    raise NotImplementedError
