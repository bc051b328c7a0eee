"""Texts as batches: rows of tokens of about the same length, and what the target makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lcspec.errors import UsageError
from lcspec.training.clock import CHOICE
from lcspec.training.device import device, moved

from .conversations import Text
from .target import Target

# One given prompt in so many is held out, and one conversation in so many of those that the model began itself.
HOLD_OUT, HOLD_OUT_OWN = 16, 64


@dataclass
class Read:
    """What a head learns from: row j of a text is its token j + 1 with the target's features at j.

    Attributes:
        features: float32 [texts, rows, 3 * width], of size one.
        embeddings: float32 [texts, rows, width].
        top: the target's first choice after the row's token, in the head's vocabulary or -1, int64 [texts, rows].
        shares: its probabilities over the head's vocabulary, half precision [texts, rows, vocab].
        learn: bool [texts, rows].
        reached: whether the row's token is what the target would have said, bool [texts, rows].
    """

    features: Tensor
    embeddings: Tensor
    top: Tensor
    shares: Tensor
    learn: Tensor
    reached: Tensor


class TextSet:
    """All texts on the device, for training and held out."""

    def __init__(self, texts: Sequence[Text], seed: int) -> None:
        """Take texts; `seed` decides which are held out.

        Raises:
            UsageError: there are too few for both.
        """
        rng = np.random.default_rng(seed)
        own = rng.random(len(texts)) < 1 / HOLD_OUT_OWN
        self.held_out = np.array([own[i] if t.number < 0 else t.number % HOLD_OUT == 0 for i, t in enumerate(texts)])
        if self.held_out.all() or not self.held_out.any():
            raise UsageError(f"{len(texts)} texts are too few to learn from: give it more --write-seconds")
        self.lengths = np.array([len(t.tokens) for t in texts])
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.tokens = torch.from_numpy(np.concatenate([t.tokens for t in texts])).to(device())
        self.learn = torch.from_numpy(np.concatenate([t.learn for t in texts])).to(device())

    def batches(self, held_out: bool, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """One shuffled pass: numbers of texts of about the same length, at most `size` tokens with padding."""
        mine = rng.permutation(np.flatnonzero(self.held_out == held_out))
        noise = self.lengths[mine] * rng.uniform(0.95, 1.05, len(mine))
        mine = mine[np.argsort(noise, kind="stable")]
        groups, group, longest = [], [], 0
        for i in mine.tolist():
            longest = max(longest, int(self.lengths[i]))
            if group and longest * (len(group) + 1) > size:
                groups.append(np.array(group))
                group, longest = [], int(self.lengths[i])
            group.append(i)
        groups.append(np.array(group))
        for g in rng.permutation(len(groups)).tolist():
            yield groups[g]

    def rows(self, which: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Tokens int64 [texts, length] with zeros at their ends, and whether what follows is to be learned."""
        lengths, starts = moved(torch.from_numpy(self.lengths[which])), moved(torch.from_numpy(self.starts[which]))
        places = torch.arange(int(self.lengths[which].max()), device=device())
        inside = places < lengths[:, None]
        at = (starts[:, None] + places).clamp_max(len(self.tokens) - 1)
        return self.tokens[at].long() * inside, self.learn[at] & inside


class Reader:
    """Makes what a head learns from out of texts."""

    def __init__(self, target: Target, layers: tuple[int, ...], kept: Tensor) -> None:
        """`kept`: the head's vocabulary as ids of the target, int64 [vocab]."""
        self.target, self.layers, self.kept = target, layers, kept
        self.reduced = torch.full((len(target.embeddings),), -1, dtype=torch.int64, device=device())
        self.reduced[kept] = torch.arange(len(kept), device=device())
        self.scale = torch.ones(len(layers) * target.sizes.width, device=device())

    def measure_scale(self, texts: TextSet, which: NDArray[np.int64]) -> None:
        """Take the root mean square of every feature in some texts as its size; first tokens are left out."""
        tokens, learn = texts.rows(which)
        features, _ = self.target.read(tokens, self.layers)
        size = features[:, 1:][learn[:, 1:]].square().mean(0).sqrt()
        self.scale = size.clamp_min(1e-3 * max(1e-3, float(size.mean())))

    @torch.no_grad()
    def __call__(self, tokens: Tensor, learn: Tensor) -> Read:
        features, last = self.target.read(tokens, self.layers)
        choices, shares = [], []
        for text in last:  # the logits of all of them would be gigabytes
            logits = F.linear(text, self.target.output).float()
            choices.append(logits.argmax(-1))
            shares.append((logits[:, self.kept] - logits.logsumexp(-1, keepdim=True)).exp().to(torch.bfloat16))
        choice = torch.stack(choices)
        return Read(
            features=features[:, :-1] / self.scale,
            embeddings=F.embedding(tokens[:, 1:], self.target.embeddings).float(),
            top=self.reduced[choice[:, 1:]],
            shares=torch.stack(shares)[:, 1:],
            learn=learn[:, 1:],
            reached=tokens[:, 1:] == choice[:, :-1],
        )


def frequent(target: Target, texts: TextSet, most: int) -> tuple[Tensor, float]:
    """The tokens that answers have most often, ascending int64 [most], and their share of what answers say."""
    said = texts.tokens[1:][texts.learn[:-1]].long()
    counts = torch.bincount(said, minlength=len(target.embeddings))
    kept = counts.argsort(descending=True)[:most]
    kept = kept[counts[kept] > 0].sort().values
    return kept, float(counts[kept].sum() / counts.sum())


def loss_of(logits: Tensor, shares: Tensor, top: Tensor) -> Tensor:
    """Cross entropy in nats a token, logits [n, vocab]: half for the first choice, half for the distribution."""
    known = (top >= 0).float()
    weight = CHOICE * known + (1 - CHOICE) * shares.float().sum(1)
    said = CHOICE * known * logits.gather(1, top.clamp_min(0)[:, None])[:, 0]
    said = said + (1 - CHOICE) * (shares.float() * logits).sum(1)
    return (weight * logits.logsumexp(1) - said).sum() / weight.sum().clamp_min(1e-6)
