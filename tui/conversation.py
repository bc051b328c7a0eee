"""From the branch shown to prompt ids: the chat template, the context's fill, what happens when it is full, and
reasoning told from answers. No screen, no llama_cpp: a `Session` (or anything with `chat_ids`) is handed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Mapping, Protocol, Sequence

from lcspec.errors import ContextOverflow
from lcspec.text import Piece
from lcspec.tui.store.records import Message

OnFull = Literal["stop", "drop"]
PartKind = Literal["reasoning", "answer"]

MIN_ANSWER = 64


class ChatTokenizer(Protocol):
    """What `Session` offers; may be called from any thread."""

    def chat_ids(self, messages: Sequence[Mapping[str, object]]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Token ids of a conversation ready for the answer, and the template's stop strings."""
        ...


class ContextFull(ContextOverflow):
    """The conversation leaves no room for an answer; the message says what to do."""

    def __init__(self, message: str, fill: ContextFill) -> None:
        super().__init__(message)
        self.fill = fill


@dataclass(frozen=True)
class ContextFill:
    """How full the context is, in tokens: `used` by the prompt, of `limit`."""

    used: int
    limit: int

    @property
    def left(self) -> int:
        """What an answer may still take; never negative."""
        return max(0, self.limit - self.used)

    @property
    def fraction(self) -> float:
        """From 0 to 1 (above 1: it does not fit)."""
        return self.used / self.limit if self.limit else 0.0

    def plus(self, tokens: int) -> ContextFill:
        """With `tokens` more, for the answer that streams."""
        return ContextFill(self.used + tokens, self.limit)


@dataclass(frozen=True)
class Prompt:
    """A prompt ready for `Request`.

    Attributes:
        ids: token ids.
        stop: the template's stop strings, for Request.stop.
        fill: of the context, before the answer.
        dropped: messages of the branch that were left out because the context was full, oldest first.
        first: id of the oldest message kept; hand it back as `keep_from` next time.
    """

    ids: tuple[int, ...]
    stop: tuple[str, ...]
    fill: ContextFill
    dropped: tuple[Message, ...] = ()
    first: str | None = None

    @property
    def notice(self) -> str | None:
        """One sentence for the user about what was dropped, or None."""
        raise NotImplementedError


def to_messages(branch: Sequence[Message], system: str = "") -> list[dict[str, str]]:
    """The branch as the chat template wants it: attachments inside their message, reasoning of earlier answers left
    out, empty answers left out, neighbours of the same role joined (many templates insist on taking turns)."""
    raise NotImplementedError


def build_prompt(
    tokenizer: ChatTokenizer,
    branch: Sequence[Message],
    limit: int,
    *,
    system: str = "",
    on_full: OnFull = "stop",
    min_answer: int = MIN_ANSWER,
    keep_from: str | None = None,
) -> Prompt:
    """The prompt that asks for an answer to the branch.

    Args:
        tokenizer: the session.
        branch: messages from a first one to the user's newest (an answer still empty at the end is ignored).
        limit: positions of the context.
        system: the system prompt; it is never dropped.
        on_full: when less than `min_answer` is left: `stop` raises, `drop` leaves out the oldest turns.
        keep_from: `Prompt.first` of the answer before. Turns dropped then stay dropped, and when more must go, enough
            go at once to free a quarter of the context, so that the cached prefix is not lost with every message.

    Raises:
        ContextFull: it does not fit (with `drop`: not even the newest turn alone).
        TemplateError, TokenizeError: the template or the vocabulary refuses the messages.
    """
    raise NotImplementedError


def measure(tokenizer: ChatTokenizer, branch: Sequence[Message], limit: int, *, system: str = "") -> ContextFill:
    """The fill of the whole branch, for display; nothing is dropped or refused. A few milliseconds a thousand tokens:
    call it when something changed, not on every key."""
    raise NotImplementedError


# --- reasoning ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """`text[start:end]` of a message without its tags. An open part (`closed` False) may still grow."""

    kind: PartKind
    start: int
    end: int
    closed: bool


def split_reasoning(text: str, *, streaming: bool = False) -> tuple[Part, ...]:
    """Tell reasoning (`<think>...</think>` and its kin) from the answer, parts in order, empty ones left out.

    A tag opens at the beginning of a line outside code fences; its first closing tag ends it; without one the rest
    is reasoning. While `streaming`, a tail that may become a tag is held back, so what was shown never turns out to
    have been something else.
    """
    raise NotImplementedError


def answer_text(text: str) -> str:
    """The text without reasoning and the blank lines around it."""
    raise NotImplementedError


def opened_by_prompt(prompt_tail: str) -> Piece | None:
    """Some templates open the reasoning themselves, and the answer then lacks the tag: a piece to begin the answer
    with (`answer.append([piece])`), or None. `prompt_tail`: text of the last prompt ids, special tokens included."""
    raise NotImplementedError
