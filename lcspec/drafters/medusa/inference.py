"""Running heads: from one hidden state to logits for the next tokens."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lcspec import disk_cache
from lcspec.drafters.base import DrafterEnv
from lcspec.drafters.medusa.file import HeadsFile, check_fits, kept_as, read_heads
from lcspec.errors import UnsupportedModel, UsageError
from lcspec.llama.network import Network, Tensor
from lcspec.llama.threads import default_threads
from lcspec.modelfiles.identity import identify

Floats = NDArray[np.float32]


class Heads:
    """A heads file, ready to run.

    Attributes:
        file: the file's content, without the network.
        n_heads: how many tokens ahead it predicts.
        tokens: reduced vocabulary, int32 [n].
        note: what the user should know about how it fits the target; often empty.
    """

    def __init__(self, file: HeadsFile, note: str = "", threads: int = 1) -> None:
        """Heads computed by so many threads, with matrices kept as `file.storage` says (see Network.weights).

        Raises:
            ModelLoadError: there is no memory for them.
        """
        self.file = replace(file, params={})
        self.note = note
        self.n_heads = file.sizes.heads
        self.tokens = file.tokens
        self._reduced = np.full(file.n_vocab, file.sizes.vocab, dtype=np.int32)
        self._reduced[file.tokens] = np.arange(file.sizes.vocab, dtype=np.int32)
        self._scales = file.scales.astype(np.float32)[:, None]
        self._embed = file.params.get("embed")
        self._network = _network(file, threads)
        weakref.finalize(self, self._network.close).atexit = False

    def logits(self, hidden: Floats, pending: int, n: int | None = None) -> Floats:
        """Logits float32 [n, len(tokens)] of the first `n` heads; `pending` was chosen from `hidden` [n_embd].

        Their softmax is calibrated on held-out text. Row k predicts the token `k + 1` places after `pending`.

        Raises:
            DecodeError: the library failed.
        """
        state = hidden * np.float32(1.0 / self.file.scale)
        given = state if self._embed is None else np.concatenate([state, self._embed[self._reduced[pending]]])
        return (self._network(given[None], state) * self._scales)[:n]


def _network(file: HeadsFile, threads: int) -> Network:
    """The network of lcspec.drafters.medusa.network for one state, made of the library's operations: given float32
    [1, state + embed] and state float32 [state] it computes the logits of all heads, float32 [heads, vocab].

    Not in numpy: its threads go on spinning after a product and take the cores from the target's decode.
    """
    p, sizes, network = file.params, file.sizes, Network(threads)

    def matrix(name: str) -> Tensor:
        return network.weights(p[name], kept_as(file.storage, p[name]))

    given, state = network.input(1, sizes.state + sizes.embed), network.input(sizes.state)
    before = network.sum(network.product(matrix("in"), given), network.weights(p["in_bias"]))
    silu = network.reshaped(network.silu(before), sizes.heads, 1, sizes.hidden)
    x = network.sum(network.product(matrix("out"), silu), state)
    x = network.reshaped(x, sizes.heads, sizes.state)
    if sizes.rank:
        x = network.product(matrix("down"), x)
    network.finish(network.sum(network.product(matrix("up"), x), network.weights(p["bias"])))
    return network


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
        note = check_fits(path, file, identify(target), target)
        heads = Heads(file, note, env.threads or default_threads())
        if file.sizes.state != env.target.traits.n_embd_out:
            raise UnsupportedModel(f"{target.name} gives hidden states of another width than its header says")
        _loaded[key] = heads
    return heads
