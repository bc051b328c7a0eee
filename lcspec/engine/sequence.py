"""A request, and the slot it runs in: its text, its sampler, its share of the KV cache, its statistics."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.answers.text import Piece, StopStrings, StreamDecoder
from lcspec.config import SpeculationParams
from lcspec.drafters.base import Drafter
from lcspec.engine.events import Event, Finished, RequestStats, TokenInfo, Tokens
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.llama.sampler import Sampler
from lcspec.llama.vocab import Vocab
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import SamplingParams, log_sum_exp
from lcspec.sampling.top_k import largest
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict, make_verifier


@dataclass(frozen=True)
class Request:
    """One completion to make.

    Attributes:
        prompt: token ids, at least one.
        sampling: how the target samples.
        speculation: how to speculate.
        max_tokens: tokens to generate at most; None = until the model or the context ends.
        stop: strings that end the text (not included in it).
        logprobs: None = none; k = each token's log-probability and the k most probable tokens.
        ignore_end: go on after end-of-text tokens (for benchmarks).
        prediction: the answer the caller expects, as token ids (OpenAI's predicted outputs).
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    ignore_end: bool = False
    prediction: tuple[int, ...] = ()


class ActiveSequence:
    """A request while it runs. Also what drafters see (`drafters.SequenceView`) and the verifiers' `Target`."""

    def __init__(
        self, number: int, request: Request, cache: SequenceCache, sampler: Sampler, vocab: Vocab, seed: int, n_ctx: int
    ) -> None:
        self.id = number
        self.request = request
        self.cache = cache
        self.sampler = sampler
        self.vocab = vocab
        self.seed = seed
        self.n_ctx = n_ctx
        self.tokens: list[int] = list(request.prompt)
        self.n_prompt = len(request.prompt)
        self.params = request.sampling.effective
        self.draws = 0
        self.prediction = request.prediction
        self.hidden: NDArray[np.float32] | None = None
        self.verifier = make_verifier(request.speculation.verifier)
        self.drafters: list[Drafter] = []
        self.wants_hidden = False  # one of its drafters needs the target's hidden states
        self.bits: dict[str, int] = {}  # drafter name -> its bit in TokenTree.sources
        self.stats = RequestStats()
        self.reason: str | None = None
        self.cancelled = False
        self.follows: tuple[ActiveSequence, int] | None = (
            None  # waits until that slot has evaluated so many shared tokens
        )
        self.apart = False  # its prompt is read in a context of its own (see lcspec.kv_cache.prompt_reader)
        self.place: int | None = None  # where that is, once it has begun
        self.turn = 0  # prompts are read in the order of these (see Scheduler.enter)
        self.started = False  # Started has been said
        self.reused = 0  # prompt tokens that were not evaluated for this request
        self.decode_start = 0.0
        self.step_accepted = 0
        self.emitted: list[int] = []  # tokens of the latest verdict
        self.untold = 0  # tokens of plain steps that the drafters have not observed yet
        self._rows: NDArray[np.float32] = np.zeros((0, 0), dtype=np.float32)
        self._row_of: list[int] = []
        self._decoder = StreamDecoder()
        self._stops = StopStrings(request.stop)

    @property
    def generated(self) -> int:
        """Tokens emitted so far."""
        return len(self.tokens) - self.n_prompt

    @property
    def prefilling(self) -> bool:
        """Whether the prompt's last row has not been evaluated yet."""
        return self.generated == 0

    @property
    def behind(self) -> int:
        """How many tokens are not in the cache yet."""
        return len(self.tokens) - self.cache.length

    @property
    def fresh(self) -> list[int]:
        """Tokens that are not in the cache yet; the last one is node 0 of the next tree."""
        return self.tokens[self.cache.length :]

    @property
    def max_depth(self) -> int:
        """Depth beyond which drafting is pointless: the context or the token limit ends there."""
        room = self.n_ctx - len(self.tokens)
        if self.request.max_tokens is not None:
            room = min(room, self.request.max_tokens - self.generated)
        return max(0, room - 1)

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end this request's text."""
        return frozenset() if self.request.ignore_end else self.vocab.end_tokens

    # The verifiers' view of the target (verify.Target).

    def show_rows(self, rows: NDArray[np.float32], row_of: list[int]) -> None:
        """Give the verifier this step's logits float32 [n_outputs, n_vocab] and the row of each node."""
        self._rows, self._row_of = rows, row_of

    def choose(self, node: int, position: int) -> int:
        """The target's choice after `node`."""
        return self.sampler.choose(self._rows[self._row_of[node]], position)

    def distribution(self, node: int, position: int) -> Distribution:
        """The target's sampling distribution after `node`."""
        return self.sampler.distribution(self._rows[self._row_of[node]], position)

    def argmax(self, nodes: Sequence[int]) -> NDArray[np.int32]:
        """The most probable token after each of `nodes`, int32 [len(nodes)], by the model's raw logits."""
        return np.array([self._rows[self._row_of[node]].argmax() for node in nodes], dtype=np.int32)

    def accept(self, token: int) -> bool:
        """Advance the sampler past an emitted token; True when it ends the text."""
        if not self.vocab.is_end(token):
            self.sampler.accept(token)
        return self.ends(token)

    def unscaled(self, node: int) -> Distribution:
        """The distribution after `node` without temperature and truncation."""
        return self.sampler.unscaled(self._rows[self._row_of[node]])

    @property
    def greedy(self) -> bool:
        """Whether the target takes the most probable token."""
        return self.params.greedy

    def ends(self, token: int) -> bool:
        """Whether `token` would end the text."""
        return self.vocab.is_end(token) and not self.request.ignore_end

    def fork(self) -> ActiveSequence:
        """This request as a verifier sees it, with a sampler that goes on by itself."""
        fork = copy.copy(self)
        fork.sampler = self.sampler.fork()
        return fork

    def forced_text(self, limit: int) -> str:
        """What the grammar allows no alternative to (see drafters.SequenceView)."""
        return self.sampler.forced_text(limit)

    def tell(self) -> None:
        """Let the drafters observe the plain steps of a rest, as one."""
        if self.untold:
            n, self.untold = self.untold, 0
            tree, verdict = TokenTree.root(self.tokens[-n - 1]), Verdict([], self.tokens[-n:], bonus=False)
            for drafter in self.drafters:
                drafter.observe(self, tree, verdict)

    # Emission.

    def emit(self, tree: TokenTree, verdict: Verdict) -> list[Event]:
        """Append a verdict's tokens to the text until something ends it; returns the Tokens event, if any."""
        infos: list[TokenInfo] = []
        pieces: list[Piece] = []
        for i, token in enumerate(verdict.tokens):
            if not self.request.ignore_end and self.vocab.is_end(token):
                self.reason = "stop"
                break
            info = self._info(tree, verdict, i)
            self.tokens.append(token)
            infos.append(info)
            text = self._decoder.feed(self.vocab.piece(token))
            pieces += self._stops.feed(Piece(text, info.drafter, self.vocab.control(token)))
            if self._stops.found is not None:
                self.reason = "stop"
            elif self.request.max_tokens is not None and self.generated >= self.request.max_tokens:
                self.reason = "length"
            elif len(self.tokens) >= self.n_ctx:
                self.reason = "context"
            if self.reason:
                break
        if self.reason:
            pieces += self.flush()
        return [Tokens(self.id, tuple(infos), tuple(pieces))] if infos or pieces else []

    def flush(self) -> list[Piece]:
        """Text held back for an unfinished character or a possible stop string."""
        rest = self._decoder.finish()
        return (self._stops.feed(Piece(rest, None)) if rest else []) + self._stops.finish()

    def _info(self, tree: TokenTree, verdict: Verdict, i: int) -> TokenInfo:
        token = verdict.tokens[i]
        drafter = self.drafter_of(tree.sources[verdict.path[i]]) if i < len(verdict.path) else None
        if self.request.logprobs is None:
            return TokenInfo(token, drafter)
        # The row that decided token i: node 0 for the first, then the accepted node before it.
        row = self._rows[self._row_of[verdict.path[i - 1] if i else 0]]
        total, k = log_sum_exp(row), self.request.logprobs
        ranked = [(t, float(row[t]) - total) for t in largest(row, k).tolist()] if k else []
        return TokenInfo(token, drafter, float(row[token]) - total, tuple(ranked))

    def bit_of(self, drafter: Drafter) -> int:
        """The drafter's bit in TokenTree.sources."""
        return self.bits[drafter.name]

    def drafter_of(self, source: int) -> str | None:
        """Name of the first of the slot's drafters in a node's source mask."""
        return next((d.name for d in self.drafters if source & self.bits[d.name]), None)

    def count(self, tree: TokenTree, verdict: Verdict, emitted: int) -> int:
        """Add a decode step to the statistics; returns how many drafted nodes were accepted and emitted."""
        stats = self.stats
        accepted = verdict.path[:emitted]
        stats.target_steps += 1
        stats.step_tokens += emitted
        stats.drafted += tree.n_drafted
        stats.accepted += len(accepted)
        stats.widths[len(tree)] = stats.widths.get(len(tree), 0) + 1
        if len(tree) == 1:
            return 0
        drafted_by_depth, accepted_by_depth = stats.drafted_by_depth, stats.accepted_by_depth
        for counts in (drafted_by_depth, accepted_by_depth):
            counts.extend([0] * (max(tree.depths) - len(counts)))
        for depth in tree.depths[1:]:
            drafted_by_depth[depth - 1] += 1
        for node in accepted:
            accepted_by_depth[tree.depths[node] - 1] += 1
        for drafter in self.drafters:
            bit = self.bits[drafter.name]
            if drafted := sum(source & bit == bit for source in tree.sources[1:]):
                tally = stats.by_drafter.setdefault(drafter.name, {"drafted": 0, "accepted": 0})
                tally["drafted"] += drafted
                tally["accepted"] += sum(tree.sources[node] & bit == bit for node in accepted)
        return len(accepted)

    def finished(self) -> Finished:
        """The closing event."""
        if self.decode_start:
            self.stats.decode_seconds = time.perf_counter() - self.decode_start
        return Finished(
            request=self.id,
            reason=self.reason or "cancelled",
            stop=self._stops.found,
            prompt_tokens=self.n_prompt,
            completion_tokens=self.generated,
            seed=self.seed,
            stats=self.stats,
            lossless=self.verifier.lossless,
        )
