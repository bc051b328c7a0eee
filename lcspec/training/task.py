"""What every training of a draft or a head is given, and what it says about itself in the file."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lcspec import __version__
from lcspec.errors import UsageError
from lcspec.modelfiles.identity import identify
from lcspec.training.texts import TextSet, TextStore

if TYPE_CHECKING:
    from lcspec.training.clock import Trained  # needs PyTorch, which is optional


@dataclass(frozen=True)
class TrainingTask:
    """What to train with, and where the result goes.

    Attributes:
        out: the file to write.
        target: the model that the result drafts for.
        store: texts of the target's own.
        work: the folder of the checkpoint, which is gone on from.
        seconds: for training in all, earlier runs included.
        seed: of all chance.
        threads: of PyTorch; 0: as it decides.
        storage: one of lcspec.training.export.STORAGE, for matrices.
        sources: what the prompts were made from, for people.
        show: called with the share of the time that is spent.
    """

    out: Path
    target: Path
    store: TextStore
    work: Path
    seconds: float
    seed: int
    threads: int
    storage: str
    sources: str
    show: Callable[[float], None]

    def start(self, data: TextSet) -> None:
        """Set the number of threads.

        Raises:
            UsageError: there is too little in `data` to learn from.
        """
        import torch  # optional

        if self.threads:
            torch.set_num_threads(self.threads)
        if not data.part(False) or not data.part(True):
            raise UsageError(
                f"{self.store.answers} answers with {len(self.store)} tokens are too few to learn from: give it more "
                "--minutes, or more --text"
            )

    def facts(self, trained: Trained) -> dict[str, str | int | float | Sequence[float]]:
        """What the file tells about its training."""
        found = trained.measured
        return {
            **origin(self.target, self.sources),
            "answers": self.store.answers,
            "tokens": len(self.store),
            "steps": trained.progress.step,
            "seconds": round(trained.progress.seconds, 1),
            "acceptance": found.depths,
            "acceptance_length": found.length,
            "held_out": found.rows,
        }


def origin(target: Path, sources: str) -> dict[str, str]:
    """What the file tells about who made it, when, for which model, and what the prompts were made from (`sources`)."""
    identity = identify(target)
    return {
        "by": f"lcspec {__version__}",
        "date": datetime.date.today().isoformat(),
        "target": identity.name,
        "target_file": target.name,
        "fingerprint": identity.fingerprint,
        "text": sources,
    }
