"""Running heads: from one hidden state to logits for the next tokens, in numpy (a few matrix products per step)."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lcspec import disk_cache
from lcspec.drafters.base import DrafterEnv
from lcspec.drafters.medusa.file import HeadsFile, check_fits, read_heads
from lcspec.errors import UnsupportedModel, UsageError
from lcspec.modelfiles.identity import identify

Floats = NDArray[np.float32]


class Heads:
    """A heads file, ready to run.

    Attributes:
        file: the file's content.
        n_heads: how many tokens ahead it predicts.
        tokens: reduced vocabulary, int32 [n].
        note: what the user should know about how it fits the target; often empty.
    """

    def __init__(self, file: HeadsFile, note: str = "") -> None:
        self.file = file
        self.note = note
        self.n_heads = file.sizes.heads
        self.tokens = file.tokens
        self._reduced = np.full(file.n_vocab, file.sizes.vocab, dtype=np.int32)
        self._reduced[file.tokens] = np.arange(file.sizes.vocab, dtype=np.int32)
        self._scales = file.scales.astype(np.float32)[:, None]

    def logits(self, hidden: Floats, pending: int, n: int | None = None) -> Floats:
        """Logits float32 [n, len(tokens)] of the first `n` heads; `pending` was chosen from `hidden` [n_embd].

        Their softmax is calibrated on held-out text. Row k predicts the token `k + 1` places after `pending`.
        """
        p, sizes = self.file.params, self.file.sizes
        n = sizes.heads if n is None else min(n, sizes.heads)
        state = hidden * np.float32(1.0 / self.file.scale)
        given = np.concatenate([state, p["embed"][self._reduced[pending]]]) if sizes.embed else state
        rows = n * sizes.hidden
        before = p["in"][:rows] @ given + p["in_bias"][:rows]
        silu = before / (1.0 + np.exp(-np.clip(before, -60.0, 60.0)))
        x = state + np.matmul(p["out"][:n], silu.reshape(n, sizes.hidden, 1))[..., 0]
        if sizes.rank:
            x = x @ p["down"].T
        out: Floats = (x @ p["up"].T + p["bias"][:n]) * self._scales[:n]
        return out


_loaded: weakref.WeakValueDictionary[tuple[str, str], Heads] = weakref.WeakValueDictionary()


def load_heads(env: DrafterEnv, name: str) -> Heads:
    """The heads of `env` for its target, checked; drafters that use the same file share one copy.

    Raises:
        UsageError: the user named no heads.
        LcspecError: the file is damaged, or made for another model (see `file.read_heads`, `file.check_fits`).
    """
    if env.draft.heads is None:
        raise UsageError(
            f"the {name} drafter needs heads: make them with lcspec draft heads MODEL, then add --heads FILE"
        )
    target = env.target.options.path
    path = Path(env.draft.heads)
    key = (disk_cache.file_identity(path), disk_cache.file_identity(target)) if path.exists() else ("", "")
    heads = _loaded.get(key)
    if heads is None:
        file = read_heads(path)
        heads = Heads(file, check_fits(path, file, identify(target), target))
        if file.sizes.state != env.target.traits.n_embd_out:
            raise UnsupportedModel(f"{target.name} gives hidden states of another width than its header says")
        _loaded[key] = heads
    return heads
