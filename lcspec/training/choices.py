"""The target writes answers, and what it could have said at every token of them is kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lcspec.sampling.top_k import largest
from lcspec.training.collect import Job, Writer
from lcspec.training.texts import TOP, Text

# Two greedy answers for each that is sampled: most drafting is for greedy answers, and drafts learn them sooner.
CHOICE_TEMPERATURES = (0.0, 0.0, 0.8)


class ChoiceWriter(Writer):
    """Writes texts side by side and keeps the most probable tokens after every token of an answer."""

    def text(self, job: Job) -> Text:
        """A finished job as a text. Its last token was never decoded, so it is left out."""
        tokens = np.array([*job.prompt, *job.tokens[:-1]], np.int32)
        ids, shares = np.zeros((len(tokens), TOP), np.int32), np.zeros((len(tokens), TOP), np.float16)
        known = slice(len(job.prompt) - 1, None)
        ids[known], shares[known] = [i for i, _ in job.choices], [s for _, s in job.choices]
        return Text(self._features(job, len(tokens)), tokens, ids, shares)

    def _features(self, job: Job, n: int) -> NDArray[np.float16]:
        """What is kept of the target's layers at the `n` tokens, float16 [n, width]: nothing here."""
        return np.zeros((n, 0), np.float16)

    def _watch(self) -> None:
        """Logits are handed out anyway."""

    def _keep_step(self, jobs: list[Job]) -> None:
        for job, logits in zip(jobs, self.context.logits(), strict=True):
            job.choices.append(top_tokens(logits))


def top_tokens(logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """The TOP most probable tokens and their probabilities: int32 [TOP], float16 [TOP]."""
    top = largest(logits, TOP)
    powers = np.exp(logits - logits[top[0]])
    ids, out = np.zeros(TOP, np.int32), np.zeros(TOP, np.float16)
    ids[: len(top)], out[: len(top)] = top, powers[top] / powers.sum()
    return ids, out
