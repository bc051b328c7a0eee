"""Chats on disk: a tree of messages in SQLite, written before and while an answer streams.

store = Store(on_problem=...)            # never raises because of the disk
chat = store.create(system="Be brief.")
chat.add_user("Hello!")
answer = chat.begin_answer(model="demo", seed=7)
answer.append(tokens_event.pieces, len(tokens_event.tokens))       # from any thread; on disk within 0.25 s
answer.finish("done", stop_reason="stop", stats=finished.stats.as_dict())
chat.walk(message.id, -1)                # the branch before
"""

from lcspec.tui.store.answer import Answer
from lcspec.tui.store.chat import Chat, Parent
from lcspec.tui.store.export import ExportError, file_name, from_json, is_export, to_json, to_markdown
from lcspec.tui.store.records import (
    ChatInfo,
    ChatSummary,
    Message,
    Role,
    SearchHit,
    Span,
    State,
    StoreProblem,
    pieces_of,
    title_of,
)
from lcspec.tui.store.store import NoSuchChat, Store
from lcspec.tui.store.tree import MessageTree

__all__ = [
    "Answer",
    "Chat",
    "ChatInfo",
    "ChatSummary",
    "ExportError",
    "Message",
    "MessageTree",
    "NoSuchChat",
    "Parent",
    "Role",
    "SearchHit",
    "Span",
    "State",
    "Store",
    "StoreProblem",
    "file_name",
    "from_json",
    "is_export",
    "pieces_of",
    "title_of",
    "to_json",
    "to_markdown",
]
