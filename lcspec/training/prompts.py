"""Prompts for the target to answer: from the user's texts, or invented by the target itself.

Files may be JSON lines (`messages`, `turns`, `prompt` or `text` in each object, as chats and Spec-Bench have them) or
any text, of which pieces are continued.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lcspec.errors import TemplateError, TokenizeError, UsageError
from lcspec.llama import Model
from lcspec.llama.template import ChatTemplate

# Characters of plain text that make one prompt.
PIECE = 600
MARK = "\ue000"  # stands for a user's message in a rendered template

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Source:
    """One thing to make prompts from: a conversation, or a text to continue."""

    messages: tuple[Mapping[str, Any], ...] = ()
    text: str = ""


def read_sources(paths: Sequence[Path]) -> list[Source]:
    """Everything in the files.

    Raises:
        UsageError: a file cannot be read or holds nothing usable.
    """
    out: list[Source] = []
    for path in paths:
        try:
            content = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8 text") from error
        found = _from_lines(path, content) if path.suffix in (".jsonl", ".ndjson") else _from_text(content)
        if not found:
            raise UsageError(f"{path} holds no text to make prompts from")
        out += found
    return out


def _from_text(content: str) -> list[Source]:
    pieces = [content[i : i + PIECE] for i in range(0, len(content), PIECE)]
    return [
        Source(text=piece) for piece in pieces if len(piece.strip()) >= max(1, min(PIECE // 4, len(content.strip())))
    ]


def _from_lines(path: Path, content: str) -> list[Source]:
    out = []
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: not JSON ({error})") from error
        source = _from_row(row)
        if source is not None:
            out.append(source)
    return out


def _from_row(row: Any) -> Source | None:
    if not isinstance(row, dict):
        return None
    messages, turns = row.get("messages"), row.get("turns")
    if isinstance(messages, list):
        known = [m for m in messages if isinstance(m, dict) and isinstance(m.get("content"), str) and "role" in m]
        return Source(tuple(known)) if any(m["role"] == "user" for m in known) else None
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return Source(({"role": "user", "content": turns[0]},))
    for key in ("prompt", "text"):
        if isinstance(row.get(key), str) and row[key].strip():
            return Source(text=row[key])
    return None


class PromptMaker:
    """Turns sources into token ids, again and again in another order and from another point of a conversation."""

    def __init__(self, model: Model, sources: Sequence[Source], room: int, seed: int) -> None:
        """`room`: tokens a prompt may have."""
        self.model = model
        self.sources = list(sources)
        self.room = room
        self.seed = seed
        self.template = ChatTemplate(model) if any(s.messages for s in sources) else None

    def prompts(self, skip: int = 0) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Endless (source number, token ids), `skip` of them left out; empty if no source fits.

        The order depends on the seed alone, so a run that is resumed goes on where it stopped.
        """
        made, round_ = 0, 0
        while True:
            rng = np.random.default_rng([self.seed, round_])
            found = False
            for number in rng.permutation(len(self.sources)):
                ids = self._encode(self.sources[number], rng)
                if ids is None:
                    continue
                found = True
                made += 1
                if made > skip:
                    yield int(number), ids
            if not found:
                return
            round_ += 1

    def _encode(self, source: Source, rng: np.random.Generator) -> tuple[int, ...] | None:
        try:
            if not source.messages:
                ids = self.model.vocab.tokenize(source.text)
                return tuple(ids[: self.room]) if ids else None
            asked = [i for i, m in enumerate(source.messages) if m["role"] == "user"]
            while asked:
                last = asked.pop(int(rng.integers(len(asked))))
                ids = chat_ids(self.model, self.template, source.messages[: last + 1])
                if len(ids) <= self.room:
                    return tuple(ids)
        except (TokenizeError, TemplateError):
            return None
        return None


def chat_ids(model: Model, template: ChatTemplate | None, messages: Messages) -> list[int]:
    """Token ids of a conversation ready for the assistant's answer."""
    assert template is not None  # made when there is any conversation
    return template.ids(model.vocab, template.render(messages))


def opening(model: Model) -> tuple[int, ...]:
    """What stands before a user's first message, or for a model without a chat template what starts any text.

    Sampling from there makes an aligned model invent a user's message (Xu et al. 2024, "Magpie", arXiv:2406.08464).
    """
    vocab = model.vocab
    if model.header.chat_template:
        template = ChatTemplate(model)
        text = template.render([{"role": "user", "content": MARK}], add_generation_prompt=False).split(MARK)[0]
        ids = template.ids(vocab, text) if text else []
        if ids:
            return tuple(ids)
    ids = vocab.tokenize("")
    return tuple(ids) or (max(vocab.bos, vocab.eos, 0),)
