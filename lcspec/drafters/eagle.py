"""EAGLE-3: a head of one layer that reads the states of three layers of the target (`--draft head.gguf`).

Li et al. 2025 (arXiv:2503.01840). The head's encoder merges the three states into one; from the second drafted token
on, the head's own state takes its place. The tree grows where the calibrated head is surest (EAGLE-2,
arXiv:2406.16858). A head may have a smaller vocabulary than the target; its file then maps it to the target's.
"""

from __future__ import annotations

from lcspec.drafters.base import Drafter, DrafterEnv, register
from lcspec.drafters.feature import FeatureDrafter
from lcspec.drafters.growth import MAX_LEVEL
from lcspec.drafters.known_states import States
from lcspec.drafters.loading import load_beside
from lcspec.errors import UsageError
from lcspec.llama import Context, Model, check_same_vocabulary
from lcspec.llama.states import get_layer, get_nextn, require, set_layer, set_nextn
from lcspec.modelfiles.companions import own_vocabulary, target_layers
from lcspec.spec.verifiers import DRAFT_STREAM

# Rows read in one decode: the library computes logits for all of them, though only a few per sequence id are used.
SLICE = 64


class EagleDrafter(FeatureDrafter):
    """Drafts with an EAGLE-3 head."""

    name = "eagle"
    default_nodes = 5
    lead = 1  # the first token's state comes with the second token
    stream = DRAFT_STREAM + 17
    slice = SLICE
    every_row = True

    def __init__(self, env: DrafterEnv, model: Model) -> None:
        """Draft with the head in `model`; the drafter owns it and closes it.

        Raises:
            ModelLoadError: there is no memory for its context.
        """
        layers = target_layers(model.options.path)
        context = Context(model, model.options, reads=model.traits.n_embd, other=env.context)
        super().__init__(context, env.slots, len(layers) * env.target.traits.n_embd)
        self.wants_states = layers
        self.tokens = own_vocabulary(model.options.path)
        self._model = model
        self._blank = self.pool.take()

    def convert(self, states: States) -> States:
        """Merge the three states of each token: float32 [n, 3 * n_embd] -> [n, n_embd]."""
        return self.context.encode(states, self._blank)

    def close(self) -> None:
        """Free the head."""
        super().close()
        self._model.close()


@register("eagle")
def eagle(env: DrafterEnv) -> Drafter:
    """The drafter for an EAGLE-3 head.

    Raises:
        UsageError: the user named none.
        LcspecError: it cannot be loaded, or this build of the library cannot run it.
    """
    require("an EAGLE-3 head", set_layer, get_layer, set_nextn, get_nextn)
    file = env.draft.eagle
    if file is None:
        raise UsageError("the drafter eagle needs an EAGLE-3 head made for this model: add --draft HEAD.gguf")
    model = load_beside(env, file, head=True, attention="library", batch=SLICE, max_width=MAX_LEVEL)
    try:
        check_same_vocabulary(env.target.vocab, model.vocab)
        return EagleDrafter(env, model)
    except BaseException:
        model.close()
        raise
