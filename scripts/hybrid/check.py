"""Whether llama.cpp computes what was trained, and whether drafts leave the text alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lcspec.config import DraftFiles, ModelOptions
from lcspec.engine.events import StepStats, Tokens
from lcspec.engine.request import Request
from lcspec.llama import Context, Model
from lcspec.llama.batch import StateBatch
from lcspec.modelfiles.companions import sort_drafts
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import open_session, parse_speculation
from lcspec.training.device import moved

from .network import Hybrid

DEPTH = 4


@dataclass(frozen=True)
class Difference:
    """Between the logits of the library and of torch: the largest, and rows with the same first choice of all."""

    largest: float
    same: int
    rows: int

    @classmethod
    def of(cls, ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> Difference:
        same = int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        return cls(float(np.abs(ours - theirs).max()), same, len(ours))


def logit_differences(path: Path, network: Hybrid, tokens: Sequence[int]) -> tuple[Difference, Difference]:
    """Of the model at every token, and of its layer for multi-token prediction at every token of the first half and
    DEPTH - 1 drafted tokens behind each. `path`: the float32 file."""
    begins = np.arange(len(tokens) // 2)
    batch = moved(torch.tensor(list(tokens))[None])
    with torch.no_grad():
        states = network(batch)
        model = network.logits(states)[0].cpu().numpy()
        steps = network.unroll(batch, states, DEPTH, moved(torch.from_numpy(begins)))
        heads = [network.logits(s.states)[0].cpu().numpy() for s in steps]
    heads[0] = heads[0][begins]
    options = ModelOptions(path, ctx=512, threads=1, kv_type="f32", attention="products", mtp=True)
    with Model.load(options) as loaded, Context(loaded, options) as context:
        layer = loaded.traits.n_layer
        context.want_states((layer,))
        rows, given = [], [np.zeros(loaded.traits.n_embd_out, np.float32)]
        for i, token in enumerate(tokens):
            context.batch.clear()
            context.batch.add(token, i, (0,), logits=True)
            context.decode()
            rows.append(context.logits()[0].copy())
            given.append(context.states((layer,))[0].copy())
        with Context(loaded, options, mtp=True, reads=loaded.traits.n_embd_out, other=context) as head:
            found = [_branch(head, tokens, given, int(begin)) for begin in begins]
    theirs = np.array(found).transpose(1, 0, 2)  # [DEPTH, begins, vocab]
    return Difference.of(model, np.stack(rows)), Difference.of(np.concatenate(heads), np.concatenate(theirs))


def _branch(head: Context, tokens: Sequence[int], given: Sequence[NDArray[np.float32]], begin: int) -> list[NDArray]:
    """Read the token `begin`, then draft behind it as the text goes on; logits of every step. The row stays."""
    out, state, batch = [], given[begin], head.batch
    assert isinstance(batch, StateBatch)
    for position in range(begin, begin + DEPTH):
        batch.clear()
        batch.add_state(tokens[position], position, (0,), state, logits=True)
        head.decode()
        out.append(head.logits()[-1].copy())
        state = head.row_states()[-1].copy()
    head.memory.remove(0, begin + 1)
    return out


@dataclass(frozen=True)
class Drafted:
    """Greedy answers with and without drafts.

    Attributes:
        same: answers that are the same; of `prompts`.
        depths: share of the tokens at each depth that were accepted, all before them being so.
        length: tokens a step.
    """

    same: int
    prompts: int
    depths: tuple[float, ...]
    length: float


def draft(path: Path, prompts: Sequence[str], n: int, depth: int = DEPTH) -> Drafted:
    """Answer prompts greedily with `n` tokens, plainly and with chains of `depth` tokens from the drafter `mtp`."""
    options = ModelOptions(path, threads=1, attention="library")
    tried, right, same, tokens, files = np.zeros(depth), np.zeros(depth), 0, 0, sort_drafts(path, DraftFiles())
    steps = 0
    with open_session(options, files, history=False) as session:

        def answer(ids: Sequence[int], speculate: str) -> tuple[list[int], list[StepStats]]:
            params = parse_speculation(speculate, files, max_draft=depth)
            request = Request(tuple(ids), SamplingParams(temperature=0.0), params, n, ignore_end=True)
            events = list(session.engine.run(request))
            found = [info.id for event in events if isinstance(event, Tokens) for info in event.tokens]
            return found, [event for event in events if isinstance(event, StepStats)]

        for prompt in prompts:
            ids = session.prompt_ids(prompt)
            (plain, _), (drafted, taken) = answer(ids, "off"), answer(ids, "mtp")
            same += plain == drafted
            for step in taken:
                tried[: min(step.tree.n_drafted, step.accepted + 1)] += 1
                right[: step.accepted] += 1
                tokens, steps = tokens + len(step.emitted), steps + 1
    return Drafted(same, len(prompts), tuple((right / np.maximum(1, tried)).tolist()), tokens / max(1, steps))
