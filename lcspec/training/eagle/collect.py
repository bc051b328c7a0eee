"""The target writes answers, and what an EAGLE-3 head is to learn from them is kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lcspec.llama import Context
from lcspec.sampling.top_k import largest
from lcspec.training.collect import Job, Writer
from lcspec.training.eagle.texts import TOP, Text


class FeatureWriter(Writer):
    """Writes texts side by side and keeps the inputs of some layers, and the most probable tokens of every answer."""

    def __init__(self, context: Context, seed: int, layers: tuple[int, ...]) -> None:
        """See Writer; `layers` are numbered as for Context.want_states.

        Raises:
            UnsupportedModel: this build of the library hands out no layer's input.
        """
        self.layers = layers
        self._known: dict[int, list[tuple[NDArray[np.int32], NDArray[np.float16]]]] = {}
        super().__init__(context, seed)

    def text(self, job: Job) -> Text:
        """A finished job as a text. Its last token was never decoded, so it is left out."""
        features = np.concatenate([state.reshape(-1, state.shape[-1]) for state in job.states])
        tokens = np.array([*job.prompt, *job.tokens[:-1]], np.int32)
        known = self._known.pop(id(job))
        ids, shares = np.zeros((len(tokens), TOP), np.int32), np.zeros((len(tokens), TOP), np.float16)
        ids[-len(known) :], shares[-len(known) :] = [i for i, _ in known], [s for _, s in known]
        return Text(features, tokens, ids, shares)

    def _watch(self) -> None:
        self.context.want_states(self.layers)

    def _keep_prompt(self, job: Job) -> None:
        job.states.append(self.context.states(self.layers).astype(np.float16))

    def _keep_step(self, jobs: list[Job]) -> None:
        for job, state, logits in zip(
            jobs, self.context.states(self.layers).astype(np.float16), self.context.logits(), strict=True
        ):
            job.states.append(state)
            self._known.setdefault(id(job), []).append(top_tokens(logits))


def top_tokens(logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """The TOP most probable tokens and their probabilities among themselves: int32 [TOP], float16 [TOP]."""
    top = largest(logits, TOP)
    shares = np.exp(logits[top] - logits[top[0]])
    ids, out = np.zeros(TOP, np.int32), np.zeros(TOP, np.float16)
    ids[: len(top)], out[: len(top)] = top, shares / shares.sum()
    return ids, out


def default_layers(n_layer: int) -> tuple[int, int, int]:
    """Which layers' inputs a head reads: a third and two thirds up, and the last."""
    return max(0, n_layer // 3), max(0, 2 * n_layer // 3), max(0, n_layer - 1)
