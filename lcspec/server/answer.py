"""What came of a request: text, log-probabilities, usage, timings, in the shapes the API uses."""

from __future__ import annotations

import codecs
import math
import time
from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, Sequence

from lcspec.answers.deltas import CallArguments, CallStart, Delta, Reasoning
from lcspec.answers.reader import AnswerReader
from lcspec.engine.events import Event, Finished, RequestStats, Started, TokenInfo, Tokens
from lcspec.engine_host import TextVocab

# JSON has no infinity.
LEAST_LOGPROB = -9999.0
REASONS = {"stop": "stop", "length": "length", "context": "length", "cancelled": "stop"}


@dataclass
class Text:
    """One text, gathered from its events.

    Attributes:
        reader: tells text, reasoning and calls apart; reasoning_tokens: how many tokens were read as reasoning.
        functions: the tools that may be called; calls: [name, arguments] of those that were.
    """

    reader: AnswerReader | None = None
    functions: Sequence[Mapping[str, Any]] = ()
    calls: list[list[str]] = field(default_factory=list)
    reasoning_tokens: int = 0
    parts: list[str] = field(default_factory=list)
    infos: list[TokenInfo] = field(default_factory=list)
    started: Started | None = None
    finished: Finished | None = None

    def add(self, event: Event) -> None:
        """The next event."""
        if isinstance(event, Tokens):
            self.parts.append(event.text)
            self.infos += event.tokens
        elif isinstance(event, Started):
            self.started = event
        elif isinstance(event, Finished):
            self.finished = event

    def read(self, event: Event) -> list[Delta]:
        """What an event brings: text, reasoning, calls."""
        found = self._read(event)
        for delta in found:
            if isinstance(delta, CallStart):
                self.calls.append([delta.name, ""])
            elif isinstance(delta, CallArguments):
                self.calls[delta.index][1] += delta.text
        return found

    def _read(self, event: Event) -> list[Delta]:
        reader = self.reader
        if reader is None:
            return []
        if isinstance(event, Finished):
            return reader.finish(event.reason == "stop")
        found: list[Delta] = []
        for piece in event.pieces if isinstance(event, Tokens) else ():
            thought = reader.thinking
            new = reader.feed_pieces([piece])
            self.reasoning_tokens += thought or reader.thinking or any(isinstance(d, Reasoning) for d in new)
            found += new
        return found

    @property
    def called(self) -> bool:
        """Whether a call was made."""
        return self.reader is not None and self.reader.calls > 0

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.parts)

    @property
    def reason(self) -> str:
        """The API's finish reason."""
        return REASONS[self.finished.reason] if self.finished is not None else "stop"


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


def usage(texts: Sequence[Text], per_prompt: int = 1) -> dict[str, Any]:
    """Token counts over all texts; `per_prompt` texts share a prompt, which counts once."""
    ends = [t.finished for t in texts if t.finished is not None]
    prompt = sum(e.prompt_tokens for e in ends[::per_prompt])
    completion = sum(e.completion_tokens for e in ends)
    cached = sum(t.started.reused for t in texts[::per_prompt] if t.started is not None)
    tallies = [e.stats.by_drafter.get("prediction", {"drafted": 0, "accepted": 0}) for e in ends]
    accepted = sum(t["accepted"] for t in tallies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(t.reasoning_tokens for t in texts),
            "audio_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(t["drafted"] for t in tallies) - accepted,
        },
    }


def timings(text: Text) -> dict[str, Any]:
    """How the time went, named as llama-server names it, with what speculation did."""
    end, reused = text.finished, text.started.reused if text.started is not None else 0
    if end is None:
        return timings_of(RequestStats(), Started(0, reused, reused, 0), 0, True)
    started = Started(end.request, end.prompt_tokens, reused, end.seed)
    return timings_of(end.stats, started, end.completion_tokens, end.lossless)


def timings_of(stats: RequestStats, started: Started, n: int, lossless: bool) -> dict[str, Any]:
    """The same of a text that has `n` tokens so far."""
    reused, n_prompt = started.reused, started.prompt_tokens - started.reused
    prompt, predicted = stats.prefill_seconds, stats.decode_seconds
    return {
        "cache_n": reused,
        "prompt_n": n_prompt,
        "prompt_ms": prompt * 1e3,
        "prompt_per_token_ms": _ratio(prompt * 1e3, n_prompt),
        "prompt_per_second": _ratio(n_prompt, prompt),
        "predicted_n": n,
        "predicted_ms": predicted * 1e3,
        "predicted_per_token_ms": _ratio(predicted * 1e3, stats.step_tokens),
        "predicted_per_second": stats.tokens_per_second,
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
        "by_drafter": {name: dict(tally) for name, tally in stats.by_drafter.items()},
        "target_steps": stats.target_steps,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "seed": started.seed,
        "lossless": lossless,
    }


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def _shown(vocab: TextVocab, token: int, logprob: float | None) -> dict[str, Any]:
    piece = vocab.piece(token, special=True)
    value = LEAST_LOGPROB if logprob is None else max(LEAST_LOGPROB, logprob)
    return {"token": piece.decode("utf-8", "replace"), "logprob": value, "bytes": list(piece)}


def chat_logprobs(vocab: TextVocab, infos: Iterable[TokenInfo], sampled: bool = False) -> dict[str, Any]:
    """As in chat completions: every token with the most probable ones in its place. `sampled`: they are the
    probabilities that were sampled from, which llama-server writes as such."""
    one, all_of = (_drawn, "top_probs") if sampled else (_shown, "top_logprobs")
    content = [one(vocab, info.id, info.logprob) | {all_of: [one(vocab, t, p) for t, p in info.top]} for info in infos]
    return {"content": content, "refusal": None}


def _drawn(vocab: TextVocab, token: int, logprob: float | None) -> dict[str, Any]:
    shown = _shown(vocab, token, logprob)
    del shown["logprob"]
    return shown | {"prob": 0.0 if logprob is None else math.exp(logprob)}


class TextOffsets:
    """Where tokens begin in the text they are part of, in characters.

    A token that begins inside a character begins where the character does.

    Args:
        at: where the first one begins.
        unseen: bytes that the tokens begin with and the text does not: a token before every text, a blank.
        special: the text spells control tokens.
    """

    def __init__(self, at: int = 0, unseen: int = 0, *, special: bool = False) -> None:
        self.at = at
        self._unseen = unseen
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @classmethod
    def of_prompt(cls, vocab: TextVocab, ids: Sequence[int], text: str) -> TextOffsets:
        """Of the tokens that a text was made into."""
        spelled = b"".join(vocab.piece(token, special=True) for token in ids)
        given = text.encode("utf-8")
        return cls(unseen=len(spelled) - len(given) if spelled.endswith(given) else 0, special=True)

    def of(self, vocab: TextVocab, token: int) -> int:
        """Where the next token begins."""
        piece = vocab.piece(token, special=self._special)
        began, hidden = self.at, min(self._unseen, len(piece))
        self._unseen -= hidden
        self.at += len(self._decoder.decode(piece[hidden:]))
        return began


def text_logprobs(vocab: TextVocab, infos: Iterable[TokenInfo], where: TextOffsets) -> dict[str, Any]:
    """As in completions."""
    tokens, values, top, offsets = [], [], [], []
    for info in infos:
        shown = _shown(vocab, info.id, info.logprob)
        tokens.append(shown["token"])
        values.append(shown["logprob"])
        top.append({_shown(vocab, t, p)["token"]: max(LEAST_LOGPROB, p) for t, p in info.top})
        offsets.append(where.of(vocab, info.id))
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}
