"""Training the hybrid and its layer for multi-token prediction together, by the clock. Resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lcspec.training.clock import CHOICE, ClockTrainer, Measured
from lcspec.training.device import moved
from lcspec.training.distil.initial import RANDOM, reduced
from lcspec.training.tensors import Weights

from .network import Hybrid
from .shape import HybridShape
from .texts import Texts

ROWS, LENGTH = 4, 256
RATE = 3e-3
# Tokens the layer is unrolled over, the share of tokens from which it goes on further, and the weight of its loss
# beside the model's own.
STEPS, SHARE, WEIGHT = 4, 0.2, 0.3
MEASURED_ROWS = 16
FILE = "hybrid.pt"


def initial_weights(shape: HybridShape, vocabulary: Path, seed: int) -> Weights:
    """Weights to begin with. Embeddings are those of the model whose vocabulary is used, in fewer dimensions; layers
    are random, and small where they write."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, size in shape.shapes().items():
        if name.endswith("ssm_a"):
            values = -np.linspace(1.0, 8.0, size[0])
        elif name.endswith("ssm_dt.bias"):
            values = np.log(np.expm1(np.geomspace(0.005, 0.1, size[0])))
        elif len(size) == 1:
            values = np.ones(size)
        else:
            writes = name.endswith(("attn_output.weight", "ffn_down.weight", "ssm_out.weight"))
            values = rng.standard_normal(size) / size[1] ** 0.5 / ((2 * shape.layers) ** 0.5 if writes else 1.0)
        out[name] = values.astype(np.float32)
    tokens = reduced(vocabulary, shape.vocab, shape.width)
    embeddings = RANDOM * rng.standard_normal((shape.vocab, shape.width))
    embeddings[:, : tokens.shape[1]] = tokens * RANDOM / tokens.std()
    return {**out, "token_embd.weight": embeddings.astype(np.float32)}


class Trainer(ClockTrainer[Hybrid, Tensor]):
    """Trains until `seconds` have been spent, over several runs. A batch is int64 [texts, length]."""

    undecayed = ("token_embd.weight",)
    looks_first = False  # a model that knows nothing says nothing that could be measured

    def __init__(
        self,
        texts: Texts,
        shape: HybridShape,
        vocabulary: Path,
        seconds: float,
        seed: int,
        folder: Path,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Go on from the checkpoint in `folder`, or begin anew. `tell` gets a line at every look."""
        self.texts, self.tell = texts, tell

        def make(weights: Weights) -> Hybrid:
            return Hybrid(shape, weights)

        def initial() -> Weights:
            return initial_weights(shape, vocabulary, seed)

        super().__init__(make, initial, shape.key(), path=folder / FILE, seconds=seconds, seed=seed, rate=RATE)

    def batches(self, rng: np.random.Generator) -> Iterator[Tensor]:
        rows = self.texts.rows(LENGTH, rng)
        for i in range(0, len(rows) - ROWS + 1, ROWS):
            yield moved(torch.from_numpy(rows[i : i + ROWS].astype(np.int64)))

    def losses(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        states = self.network(batch)
        logits = self.network.logits(states)
        own = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        begins = moved(torch.randperm(LENGTH - STEPS + 1)[: round(SHARE * LENGTH)].sort().values)
        steps = self.network.unroll(batch, states, STEPS, begins)
        with torch.no_grad():
            wanted = (1.0 - CHOICE) * logits.softmax(-1)
            best = logits.argmax(-1, keepdim=True)
            wanted.scatter_add_(-1, best, torch.full_like(best, CHOICE, dtype=wanted.dtype))
        said = [self.network.logits(step.states).flatten(0, 1) for step in steps]
        heads = [F.cross_entropy(x, wanted[:, step.at].flatten(0, 1)) for x, step in zip(said, steps)]
        return own + WEIGHT * torch.stack(heads).mean(), own

    def look(self, loss: float) -> None:
        """Measure and keep the weights as they are: the model changes as well, so no earlier ones are better."""
        found, progress = self.measured(), self.progress
        progress.history.append((round(progress.seconds, 1), round(loss, 4), round(found.length, 4)))
        self.best = self.network.arrays()
        depths = " ".join(f"{share:.3f}" for share in found.depths)
        self.tell(f"{progress.seconds / 60:.1f} min, step {progress.step}: loss {loss:.3f}, accepted by depth {depths}")

    def measured(self) -> Measured:
        return measure(self.network, self.texts)


def measure(network: Hybrid, texts: Texts, depth: int = STEPS) -> Measured:
    """Draft greedily behind held-out tokens where the text goes on as the model itself would.

    Those are the easier places, in texts that others wrote; `check.draft` drafts in answers of the model.
    """
    rows = texts.rows(LENGTH, np.random.default_rng(0), held_out=True)[:MEASURED_ROWS].astype(np.int64)
    tokens, begins = moved(torch.from_numpy(rows)), moved(torch.arange(LENGTH - depth + 1))
    with torch.no_grad():
        states = network(tokens)
        best = network.logits(states).argmax(-1)
        said = [network.logits(s.states).argmax(-1) for s in network.unroll(tokens, states, depth, begins)]
    said[0] = said[0][:, : len(begins)]
    alive = torch.ones_like(said[0], dtype=torch.bool)
    for i in range(depth - 1):
        alive &= tokens[:, begins + i + 1] == best[:, begins + i]
    branches, accepted, depths = int(alive.sum()), 0, []
    for i, tokens_said in enumerate(said):
        hit = alive & (tokens_said == best[:, begins + i])
        depths.append(int(hit.sum()) / max(1, int(alive.sum())))
        accepted += int(hit.sum())
        alive = hit
    return Measured(tuple(depths), 1.0 + accepted / max(1, branches), branches)
