"""The target writes answers, and what an EAGLE-3 head is to learn from them is kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lcspec.llama import Context
from lcspec.training.choices import ChoiceWriter
from lcspec.training.collect import Job


class FeatureWriter(ChoiceWriter):
    """Writes texts side by side and keeps the inputs of some layers, and the most probable tokens of every answer."""

    def __init__(self, context: Context, seed: int, layers: tuple[int, ...]) -> None:
        """See Writer; `layers` are numbered as for Context.want_states.

        Raises:
            UnsupportedModel: this build of the library hands out no layer's input.
        """
        self.layers = layers
        super().__init__(context, seed)

    def _features(self, job: Job, n: int) -> NDArray[np.float16]:
        return np.concatenate([state.reshape(-1, state.shape[-1]) for state in job.states])

    def _watch(self) -> None:
        self.context.want_states(self.layers)

    def _keep_prompt(self, job: Job) -> None:
        job.states.append(self.context.states(self.layers).astype(np.float16))

    def _keep_step(self, jobs: list[Job]) -> None:
        super()._keep_step(jobs)
        for job, state in zip(jobs, self.context.states(self.layers).astype(np.float16), strict=True):
            job.states.append(state)
