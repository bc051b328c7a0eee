"""The target writes answers, and what it could have said at every token of them is kept."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lcspec.sampling.top_k import largest
from lcspec.training.collect import TOP_K, Job, Writer
from lcspec.training.texts import TOP, Text

# Two greedy answers for each that is sampled: most drafting is for greedy answers, and drafts learn them sooner.
CHOICE_TEMPERATURES = (0.0, 0.0, 0.8)


class ChoiceWriter(Writer):
    """Writes texts side by side and keeps the most probable tokens after every token of an answer."""

    # Of the last step, a row for each job: see best_tokens.
    _ids: NDArray[np.int32]
    _logs: NDArray[np.float32]

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
        self._ids, self._logs = best_tokens(self.context.logits())
        ids, shares = self._ids[:, :TOP], np.exp(self._logs[:, :TOP]).astype(np.float16)
        for row, job in enumerate(jobs):
            job.choices.append((ids[row], shares[row]))

    def _choose(self, logits: NDArray[np.float32], temperatures: list[float]) -> NDArray[np.int64]:
        warm = np.array(temperatures)[:, None]
        noise = np.where(warm > 0, self.rng.gumbel(size=self._logs.shape), 0.0)
        at = (self._logs / np.where(warm > 0, warm, 1.0) + noise).argmax(axis=1)
        chosen: NDArray[np.int64] = self._ids[np.arange(len(at)), at].astype(np.int64)
        return chosen


def best_tokens(logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The TOP_K most probable tokens of every row and the logarithms of their probabilities, the best first.

    On a GPU if PyTorch has one: for 256 rows of 49 152 tokens that is the longer part of a step otherwise.

    Args:
        logits: float32 [n, n_vocab].

    Returns:
        int32 [n, TOP_K] and float32 [n, TOP_K]; for a smaller vocabulary zeros and -inf at the end.
    """
    n, k = len(logits), min(TOP_K, logits.shape[1])
    ids, logs = np.zeros((n, TOP_K), np.int32), np.full((n, TOP_K), -np.inf, np.float32)
    if (torch := _torch_on_gpu()) is not None:
        rows = torch.from_numpy(logits).cuda()
        top = rows.topk(k)
        ids[:, :k] = top.indices.cpu().numpy()
        logs[:, :k] = (top.values - rows.logsumexp(1, keepdim=True)).cpu().numpy()
        return ids, logs
    for row, values in enumerate(logits):
        top = largest(values, k)
        best = values[top]
        ids[row, : len(top)] = top
        logs[row, : len(top)] = best - best[0] - np.log(np.exp(values - best[0]).sum())
    return ids, logs


@functools.cache
def _torch_on_gpu() -> Any:
    """PyTorch, if it is there and computes on a GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch  # optional

    from lcspec.training.device import device

    return torch if device().type == "cuda" else None
