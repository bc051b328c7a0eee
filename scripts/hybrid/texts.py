"""Texts as rows of tokens for training, and the prompts of those that are held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lcspec.config import ModelOptions
from lcspec.llama import Model
from lcspec.llama.template import ChatTemplate
from lcspec.training.prompts import Source, chat_ids

HOLD_OUT = 40  # one text in so many

Tokens = NDArray[np.int32]


class Texts:
    """Tokenized texts: those for training, and those held out."""

    def __init__(self, train: Sequence[Tokens], held_out: Sequence[Tokens]) -> None:
        self.train, self.held_out = list(train), list(held_out)

    def save(self, path: Path) -> None:
        """Keep them in a file."""
        parts = {}
        for name, documents in (("train", self.train), ("held_out", self.held_out)):
            ends = np.cumsum([0, *map(len, documents)])[1:]
            parts |= {name: np.concatenate([*documents, np.zeros(0, np.int32)]), f"{name}_ends": ends}
        np.savez(path, **parts)

    @classmethod
    def load(cls, path: Path) -> Texts:
        """The reverse of `save`."""
        with np.load(path) as kept:
            return cls(*(np.split(kept[name], kept[f"{name}_ends"])[:-1] for name in ("train", "held_out")))

    def rows(self, length: int, rng: np.random.Generator, held_out: bool = False) -> Tokens:
        """One shuffled pass over the texts for training, or those held out: int32 [rows, length].

        A row begins with the beginning of a text or goes on with a long one, as prompts do; others follow, and the last
        of them is cut.
        """
        documents = self.held_out if held_out else self.train
        pieces = [d[i : i + length] for d in documents for i in range(0, len(d), length)]
        rows, row, filled = list[Tokens](), list[Tokens](), 0
        for i in rng.permutation(len(pieces)):
            row.append(pieces[i])
            filled += len(pieces[i])
            if filled >= length:
                rows.append(np.concatenate(row)[:length])
                row, filled = [], 0
        return np.stack(rows) if rows else np.zeros((0, length), np.int32)


def tokenize(vocabulary: Path, sources: Sequence[Source]) -> tuple[Texts, list[str]]:
    """Texts in the tokens of the model `vocabulary` and its chat template; and the held-out prompts as texts."""
    train, held_out, prompts = list[Tokens](), list[Tokens](), list[str]()
    with Model.load(ModelOptions(vocabulary, threads=1)) as model:
        template = ChatTemplate(model)
        for source in sources:
            text = source.text
            if source.messages:
                text = template.render(source.messages, add_generation_prompt=False)
            tokens = np.array(template.ids(model.vocab, text), np.int32)
            (held_out if held(text) else train).append(tokens)
            if not source.messages or not held(text):
                continue
            first = next(i for i, m in enumerate(source.messages) if m["role"] == "user")
            ids = chat_ids(model, template, source.messages[: first + 1])
            prompts.append(model.vocab.text(ids, special=True))
    return Texts(train, held_out), prompts


def held(text: str) -> bool:
    """Whether a text is held out: the same ones in every run, on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % HOLD_OUT == 0


def write_prompts(path: Path, prompts: Sequence[str]) -> None:
    """Prompts as `lcspec bench` and the comparing scripts read them."""
    rows = [{"id": f"held-out-{i}", "category": "held out", "turns": [text]} for i, text in enumerate(prompts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
