"""Conversations that the target writes, with prompts of others and of its own, and which of their tokens to learn from.

The model is asked something, either by a given prompt or by itself ("Magpie", Xu et al. 2024, arXiv:2406.08464),
answers, and is asked again, so that what it says about a text that lies before it is learned as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from lcspec.training.device import moved

from .batch import NEVER, Batch
from .prompt_file import Prompts

# Steps between two looks at which texts ended.
LOOK = 8
# The longest question of its own and the longest answer, in tokens, and turns of a conversation.
QUESTION, ANSWER, TURNS = 160, 400, 3
# Shares: of conversations that begin with a given prompt, of later questions that are given, of greedy answers.
GIVEN, FOLLOWED, GREEDY = 0.5, 0.5, 0.67


@dataclass
class Row:
    """What is being written in a row of the batch. `begun`: where the turn's written tokens begin; `answers`: (begin,
    end) of the greedy and the sampled answers; `number`: of the given prompt, -1 if the model asked by itself."""

    begun: int = 0
    asking: bool = True
    warm: float = 0.0
    turns: int = 0
    number: int = -1
    answers: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Text:
    """A finished conversation: int32 [n], and whether what comes after a token is an answer's, bool [n]."""

    tokens: NDArray[np.int32]
    learn: NDArray[np.bool_]
    number: int


class Writer:
    """Keeps a batch full of conversations."""

    def __init__(self, batch: Batch, prompts: Prompts, seed: int) -> None:
        self.batch, self.prompts = batch, prompts
        self.rng = np.random.default_rng(seed)
        n, self.length = batch.texts.shape
        self.rows = [Row() for _ in range(n)]
        self.order: list[int] = []
        self._given: list[tuple[int, int, list[int], int, float]] = []  # row, at, tokens from there on, known, warmth
        for i in range(n):
            self._begin(i)
        self._give()

    def run(self, seconds: float) -> Iterator[Text]:
        """Finished conversations, for so long."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            for _ in range(LOOK):
                self.batch.step()
            yield from self.look()

    def look(self) -> Iterator[Text]:
        """Go on with the texts whose turn is over, and give out those that are finished."""
        at, ended = self.batch.at.cpu().numpy(), self.batch.ended.cpu().numpy()
        begun = np.array([row.begun for row in self.rows])
        limit = np.array([QUESTION if row.asking else ANSWER for row in self.rows])
        over = (ended != NEVER) | (at - begun >= limit) | (at >= self.length - 1)
        finished = []
        for i in np.flatnonzero(over).tolist():
            end = min(int(ended[i]), begun[i] + int(limit[i]), self.length - 1)
            if not self._turn(i, end, bool(ended[i] <= end)):
                finished.append(i)
        if finished:
            tokens = self.batch.texts[moved(torch.tensor(finished))].cpu().numpy()
            for i, text in zip(finished, tokens):
                row = self.rows[i]
                if row.answers:
                    end = row.answers[-1][1]
                    learn = np.zeros(end, np.bool_)
                    for begin, stop in row.answers:
                        learn[begin - 1 : stop - 1] = True
                    yield Text(text[:end].astype(np.int32), learn, row.number)
                self._begin(i)
        self._give()

    def _turn(self, i: int, end: int, whole: bool) -> bool:
        """A turn's last token is at `end`, and ends it if it is `whole`. False: the conversation is finished."""
        row, p = self.rows[i], self.prompts
        if row.asking:
            if not whole:
                return False
            self._answer(i, end, [])
            return True
        row.answers.append((row.begun, end + 1))
        row.turns += 1
        room = self.length - end - 1
        if not whole or row.turns >= TURNS or room < QUESTION + ANSWER // 2:
            return False
        if self.rng.random() < FOLLOWED:
            self._answer(i, end, p.answered + p.later[int(self.rng.integers(len(p.later)))])
            return True
        row.asking, row.begun = True, end + 1 + len(p.answered)
        self._given.append((i, end, p.answered, row.begun, 1.0))
        return True

    def _answer(self, i: int, end: int, question: list[int]) -> None:
        """Have the model answer; `question` comes behind the token at `end`, which has been computed or is to be."""
        row, tokens = self.rows[i], question + self.prompts.asked
        row.asking, row.begun = False, end + 1 + len(tokens)
        self._given.append((i, end, tokens, row.begun, row.warm))

    def _begin(self, i: int) -> None:
        p = self.prompts
        self.rows[i] = row = Row(warm=0.0 if self.rng.random() < GREEDY else 0.8)
        if p.first and self.rng.random() < GIVEN:
            if not self.order:
                self.order = self.rng.permutation(len(p.first)).tolist()
            row.number = self.order.pop()
            tokens = p.opening + p.first[row.number] + p.asked
            row.asking, row.begun = False, len(tokens)
            self._given.append((i, -1, tokens, row.begun, row.warm))
            return
        row.asking, row.begun = True, len(p.opening)
        self._given.append((i, -1, p.opening, row.begun, 1.0))

    def _give(self) -> None:
        if not self._given:
            return
        rows = self._given
        places = np.concatenate([g[0] * self.length + g[1] + 1 + np.arange(len(g[2])) for g in rows])
        self.batch.give(
            moved(torch.tensor([g[0] for g in rows])),
            moved(torch.tensor([max(0, g[1]) for g in rows])),
            moved(torch.tensor(np.concatenate([g[2] for g in rows]))),
            moved(torch.tensor(places)),
            moved(torch.tensor([g[3] for g in rows])),
            moved(torch.tensor([g[4] for g in rows], dtype=torch.float32)),
        )
        self._given = []
