"""Multi-token prediction (MTP): layers in the model's own file that predict the tokens after the next one.

Gloeckle et al. 2024 (arXiv:2404.19737), in the sequential form of DeepSeek-V3 (arXiv:2412.19437). There are three
kinds: one layer that is applied again and again; several layers, each for its own depth; and a companion file that
reads the target's own cells (Gemma 4's assistant).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from lcspec.config import DrafterSpec, ModelOptions
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.drafters.decoding import Wanted, add, decode
from lcspec.drafters.feature import SLICE, FeatureDrafter, FeatureState
from lcspec.drafters.growth import MAX_LEVEL, Growth
from lcspec.drafters.known_states import KnownStates, States
from lcspec.drafters.loading import load_beside
from lcspec.errors import UsageError
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.llama import Context, Model, check_same_vocabulary
from lcspec.llama.states import get_nextn, require, set_head, set_nextn
from lcspec.spec.token_tree import TokenTree


class MtpDrafter(FeatureDrafter):
    """One layer, applied to its own states from the second token on."""

    name = "mtp"

    def __init__(self, env: DrafterEnv, model: Model, own: bool) -> None:
        """Draft with the layers in `model`: the target, or (`own`) a companion file that the drafter closes.

        Raises:
            ModelLoadError: there is no memory for another context.
            UnsupportedModel: this build of the library cannot run the layers.
        """
        require("multi-token prediction", set_nextn, get_nextn, set_head)
        self._model = model if own else None
        width = env.target.traits.n_embd_out
        context = Context(model, self.options(env, model), mtp=True, reads=width, other=env.context)
        super().__init__(context, env.slots, width)
        self.wants_states = (env.target.traits.n_layer,)

    @staticmethod
    def options(env: DrafterEnv, model: Model) -> ModelOptions:
        """The options of the layers' context."""
        return replace(
            model.options, ctx=env.ctx, slots=env.slots, batch=SLICE, max_width=MAX_LEVEL, planes=False,
            exact=False, kv_type_v=None, attention="library", threads=env.threads, embeddings=False,
        )  # fmt: skip

    def close(self) -> None:
        """Free the context, and a companion file's model."""
        super().close()
        if self._model is not None:
            self._model.close()


class ChainedMtpDrafter(MtpDrafter):
    """Several layers: layer d drafts the token at depth d, and has its own cells for the whole text."""

    def __init__(self, env: DrafterEnv, model: Model, own: bool) -> None:
        """As MtpDrafter."""
        super().__init__(env, model, own)
        self.deepest = model.traits.n_mtp

    def branch(self, budget: Budget) -> int:
        """1: a chain, because every layer decodes the tokens of the layers before it anew."""
        return 1

    def read(self, state: FeatureState, tokens: Sequence[int], states: States) -> float:
        """Read the same rows through every layer."""
        rows = list(zip(tokens, states))
        return sum(self._read_through(self._rows(state, layer, rows)) for layer in range(self.deepest or 1))

    def _read_through(self, rows: Wanted) -> float:
        """Decode rows without logits; returns how many seconds it took."""
        self._batch()
        add(self.context.batch, rows._replace(logits=False))
        return decode(self.context, rows.layer)

    def root(self, state: FeatureState, sequence: SequenceView, base: int) -> Wanted:
        """Read the unread rows; the pending token's row is read again when the next layers can read it too."""
        while state.next < base:
            self._read_slice(sequence, state, base)
        self._drop_known(state)
        state.chain = [(sequence.tokens[base], state.known.before(base, base + 1)[0])]
        return self._rows(state, 0, state.chain)

    def read_root(self, state: FeatureState, sequence: SequenceView, base: int) -> None:
        """Do nothing: the pending token's row does not stay."""

    def level_of(self, state: FeatureState, growth: Growth, new: Sequence[int], branch: int) -> list[int]:
        """The one new node."""
        return list(new[:1])

    def level(self, state: FeatureState, tree: TokenTree, level: Sequence[int], base: int) -> Wanted:
        """The whole chain, through the next layer."""
        (node,) = level
        state.chain.append((tree.tokens[node], state.node_states[tree.parents[node]]))
        return self._rows(state, tree.depths[node], state.chain)

    def drop_tree(self, state: FeatureState) -> None:
        """Drop the chain, and the pending token's row as well."""
        self.context.memory.remove(state.cache.main, len(state.rows))
        state.chain, state.node_states = [], {}

    def _rows(self, state: FeatureState, layer: int, rows: Sequence[tuple[int, States]]) -> Wanted:
        """Rows after those of the text, through one layer; logits of the last one."""
        at, seq = len(state.rows), state.cache.main
        self.context.memory.remove(seq, at)
        tokens = [(token, at + i, seq) for i, (token, _) in enumerate(rows)]
        return Wanted(tokens, only_last=True, states=[given for _, given in rows], layer=layer)


class AssistantDrafter(MtpDrafter):
    """Layers in a companion file that have no cells of their own and read the target's.

    So drafting needs only the target's latest state, and every drafted token is decoded at the pending token's
    position.
    """

    @staticmethod
    def options(env: DrafterEnv, model: Model) -> ModelOptions:
        """The options of a context over the target's cells, with the target's cell types."""
        assert env.context is not None
        kept = env.context.options
        own = MtpDrafter.options(env, model)
        return replace(
            own, kv_type=kept.kv_type, kv_type_v=kept.kv_type_v, attention=kept.attention, streams=kept.streams
        )

    def __init__(self, env: DrafterEnv, model: Model, own: bool) -> None:
        """As MtpDrafter. All cells of the target must be free, because the library allocates them anew to share
        them."""
        assert env.context is not None
        if any(env.context.memory.end(seq) for seq in range(env.context.n_seq)):
            raise UsageError(f"{model.options.path.name} must be there before the first text: start again with --draft")
        super().__init__(env, model, own)
        self._target = env.context

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Options: as FeatureDrafter."""
        spec.check_keys({"branch", "nodes", "p_min"})
        cache = SequenceCache(self.context.memory, self.pool)
        none = KnownStates(0, self.context.row_states()[:0])
        self._running[sequence.id] = sequence, FeatureState(cache, spec.number("p_min", 0.0), [], 0, none)

    def process(self, sequence: SequenceView, cells: SequenceCache, start: int, states: States) -> None:
        """Keep only the latest state."""
        if sequence.id in self._running and len(states):
            state = self._running[sequence.id][1]
            state.cells, state.known = cells, KnownStates(start + len(states) - 1, states[-1:])

    def ready(self, state: FeatureState, base: int) -> bool:
        """Whether the target has decoded the text up to the pending token, in the context whose cells are shared."""
        cells = state.cells
        if cells is None or cells.memory is not self._target.memory:
            return False
        return cells.length == state.known.end == base

    def _catch_up(self, sequence: SequenceView, state: FeatureState, base: int, seconds: float) -> bool:
        return True

    def root(self, state: FeatureState, sequence: SequenceView, base: int) -> Wanted:
        """The pending token with the target's state before it."""
        assert state.cells is not None
        return Wanted([(sequence.tokens[base], base, state.cells.main)], states=[state.known.rows[-1]])

    def read_root(self, state: FeatureState, sequence: SequenceView, base: int) -> None:
        """Do nothing: no cell was written."""

    def level_of(self, state: FeatureState, growth: Growth, new: Sequence[int], branch: int) -> list[int]:
        """All new nodes: none needs a sequence id of its own."""
        return list(new) if branch == 1 else growth.next_level(new, branch)

    def level(self, state: FeatureState, tree: TokenTree, level: Sequence[int], base: int) -> Wanted:
        """The nodes of a level, all at the pending token's position."""
        assert state.cells is not None
        rows = [(tree.tokens[node], base, state.cells.main) for node in level]
        return Wanted(rows, states=[state.node_states[tree.parents[node]] for node in level])

    def drop_tree(self, state: FeatureState) -> None:
        """Do nothing: no cell was written."""
        state.node_states = {}

    def end(self, sequence: SequenceView) -> None:
        """Drop the sequence's state."""
        if sequence.id in self._running:
            self._running.pop(sequence.id)[1].cache.release()


@register("mtp")
def mtp(env: DrafterEnv) -> Drafter:
    """The drafter for the MTP layers in the target, or in its companion file.

    Raises:
        UsageError: there are no such layers.
        LcspecError: a companion file cannot be loaded or belongs to another model.
    """
    file = env.draft.mtp
    if file is None:
        raise UsageError(
            "the drafter mtp needs layers for multi-token prediction: use a GGUF that has them (`lcspec inspect` says "
            "so), or name a companion file with --draft"
        )
    target = env.target
    if file == target.options.path:
        if not target.traits.n_mtp:
            raise UsageError(
                f"{file.name} was loaded without its layers for multi-token prediction, because speculation was off: "
                "start again with --speculate auto"
            )
        return (ChainedMtpDrafter if target.traits.n_mtp > 1 else MtpDrafter)(env, target, own=False)
    model = load_beside(env, file, head=True, mtp=True)
    try:
        check_same_vocabulary(target.vocab, model.vocab)
        kind: type[MtpDrafter] = ChainedMtpDrafter if model.traits.n_mtp > 1 else MtpDrafter
        return (AssistantDrafter if model.header.architecture == "gemma4-assistant" else kind)(env, model, own=True)
    except BaseException:
        model.close()
        raise
