"""From the branch shown to prompt ids: the chat template, the context's fill, and what happens when it is full.

No screen and no llama_cpp: a `Session` (or anything with `chat_ids`) is handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Mapping, Protocol, Sequence

from lcspec.errors import ContextOverflow
from lcspec.tui.attachments import compose
from lcspec.tui.reasoning import Part, answer_text, opened_by_prompt, split_reasoning
from lcspec.tui.store.records import Message, clean

__all__ = [
    "ChatTokenizer",
    "ContextFill",
    "ContextFull",
    "OnFull",
    "Part",
    "Prompt",
    "answer_text",
    "build_prompt",
    "measure",
    "opened_by_prompt",
    "split_reasoning",
    "to_messages",
]

OnFull = Literal["stop", "drop"]

MIN_ANSWER = 64
FREED = 0.25  # share of the context that is freed at once when turns are dropped


class ChatTokenizer(Protocol):
    """What `Session` offers; may be called from any thread."""

    def chat_ids(
        self, messages: Sequence[Mapping[str, object]], think: bool = True
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Token ids of a conversation ready for the answer, and the template's stop strings. `think`: whether the
        answer may begin with reasoning."""
        ...


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
        return self.used / self.limit if self.limit > 0 else 1.0

    def plus(self, tokens: int) -> ContextFill:
        """With `tokens` more, for the answer that streams."""
        return ContextFill(self.used + tokens, self.limit)


class ContextFull(ContextOverflow):
    """The conversation leaves no room for an answer; the message says what to do.

    Attributes:
        fill: of the context, with everything that was to go in.
        drop_helps: whether the newest message fits once older turns are left out.
    """

    def __init__(self, message: str, fill: ContextFill, drop_helps: bool = False) -> None:
        super().__init__(message)
        self.fill = fill
        self.drop_helps = drop_helps


@dataclass(frozen=True)
class Prompt:
    """A prompt ready for `Request`.

    Attributes:
        ids: token ids.
        stop: the template's stop strings, for Request.stop.
        fill: of the context, before the answer.
        dropped: messages of the branch that were left out because the context was full, oldest first.
        messages: what the ids say, as an API takes it.
        think: whether the answer may begin with reasoning.
        first: id of the oldest message kept (None: an empty branch); hand it back as `keep_from` next time.
    """

    ids: tuple[int, ...]
    stop: tuple[str, ...]
    fill: ContextFill
    dropped: tuple[Message, ...] = ()
    first: str | None = None
    messages: tuple[dict[str, str], ...] = ()
    think: bool = True

    @property
    def notice(self) -> str | None:
        """One sentence for the user about what was dropped, or None."""
        n = len(self.dropped)
        if not n:
            return None
        what = "oldest message was" if n == 1 else f"{n} oldest messages were"
        return f"The context is full: the {what} left out of what the model sees (nothing is deleted)."


def to_messages(branch: Sequence[Message], system: str = "") -> list[dict[str, str]]:
    """The branch as the chat template wants it: attachments inside their message, reasoning of earlier answers left
    out, empty answers left out, neighbours of the same role joined (many templates insist on taking turns)."""
    out = [{"role": "system", "content": clean(system)}] if system.strip() else []
    for message in branch:
        text = answer_text(message.text) if message.role == "assistant" else compose(message.text, message.attachments)
        if not text.strip() and message.role == "assistant":
            continue
        if out and out[-1]["role"] == message.role:
            out[-1]["content"] += "\n\n" + clean(text)
        else:
            out.append({"role": message.role, "content": clean(text)})
    return out


def build_prompt(
    tokenizer: ChatTokenizer,
    branch: Sequence[Message],
    limit: int,
    *,
    system: str = "",
    on_full: OnFull = "stop",
    min_answer: int = MIN_ANSWER,
    keep_from: str | None = None,
    think: bool = True,
) -> Prompt:
    """The prompt that asks for an answer to the branch.

    Args:
        tokenizer: the source's.
        branch: messages from a first one to the user's newest (answers still empty do not count).
        limit: positions of the context.
        system: the system prompt; it is never dropped.
        min_answer: tokens that must be left for the answer (at most a quarter of the context).
        on_full: when less is left: `stop` raises, `drop` leaves out the oldest turns.
        keep_from: `Prompt.first` of the answer before. Turns dropped then stay dropped, and when more must go, enough
            go at once to free a quarter of the context, so that the cached prefix is not lost with every message.
        think: whether the answer may begin with reasoning.

    Raises:
        ContextFull: it does not fit (with `drop`: not even the newest turn alone).
        TemplateError, TokenizeError: the template or the vocabulary refuses the messages.
    """
    turns = _turns(branch)

    def from_turn(start: int) -> Prompt:
        kept = [message for turn in turns[start:] for message in turn]
        messages = to_messages(kept, system)
        ids, stop = tokenizer.chat_ids(messages, think)
        dropped = tuple(message for turn in turns[:start] for message in turn)
        first = kept[0].id if kept else None
        return Prompt(ids, stop, ContextFill(len(ids), limit), dropped, first, tuple(messages), think)

    min_answer = max(1, min(min_answer, limit // 4))
    prompt = from_turn(0)
    if prompt.fill.left >= min_answer:
        return prompt
    start = _turn_of(turns, keep_from) if on_full == "drop" else 0
    if start:
        prompt = from_turn(start)
        if prompt.fill.left >= min_answer:
            return prompt
    # The prompt shrinks with every turn that goes, so the fewest turns that free enough are found by halving.
    last = len(turns) - 1
    newest = from_turn(last)
    if newest.fill.left < min_answer:
        raise ContextFull(_advice(newest.fill, min_answer, alone=True), newest.fill)
    if on_full == "stop":
        raise ContextFull(_advice(prompt.fill, min_answer, alone=False), prompt.fill, drop_helps=True)
    wanted = max(min_answer, int(limit * FREED))
    low, best = start + 1, newest
    high = last
    while low < high:
        middle = (low + high) // 2
        tried = from_turn(middle)
        if tried.fill.left >= wanted:
            high, best = middle, tried
        else:
            low = middle + 1
    return best


def measure(tokenizer: ChatTokenizer, branch: Sequence[Message], limit: int, *, system: str = "") -> ContextFill:
    """The fill of the whole branch, for display; nothing is dropped or refused. A few milliseconds a thousand tokens:
    call it when something changed, not on every key."""
    messages = to_messages(branch, system)
    return ContextFill(len(tokenizer.chat_ids(messages)[0]) if messages else 0, limit)


def _turns(branch: Sequence[Message]) -> list[list[Message]]:
    """The branch cut before every message of the user's: one that never got an answer is a turn of its own."""
    turns: list[list[Message]] = []
    for message in branch:
        if not turns or message.role == "user":
            turns.append([])
        turns[-1].append(message)
    return turns


def _turn_of(turns: Sequence[Sequence[Message]], message: str | None) -> int:
    """Index of the turn that has a message; 0 if none has."""
    return next((i for i, turn in enumerate(turns) for m in turn if m.id == message), 0)


def _advice(fill: ContextFill, min_answer: int, alone: bool) -> str:
    """What is too long, and what to do about it; `alone`: the newest message (and the system prompt) by itself is."""
    what = "this message" if alone else "the conversation"
    if fill.used > fill.limit:
        state = f"{what} has {fill.used:,} tokens and the context holds {fill.limit:,}"
    else:
        state = f"{what} has {fill.used:,} of {fill.limit:,} tokens, which leaves {fill.left} for an answer"
        state += f" (at least {min_answer} are wanted)"
    if alone:
        return f"{state}: shorten the message or the system prompt, attach less, or load with a larger context"
    return f"{state}: drop the oldest turns, go back and edit, begin a new chat, or load with a larger context"
