"""A running request: its text, its sampler, its share of the KV cache, its drafters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lcspec.answers.text import Piece, StopStrings, StreamDecoder
from lcspec.drafters.base import Drafter
from lcspec.engine.events import Event, Finished, RequestStats, TokenInfo, Tokens
from lcspec.engine.request import Request
from lcspec.engine.target_rows import TargetRows
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.llama.sampler import Sampler
from lcspec.llama.vocab import Vocab
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict, make_verifier


@dataclass(eq=False)
class PromptProgress:
    """How far a prompt has been read, for the scheduler.

    Attributes:
        follows: (sequence, n): wait until that sequence has evaluated n shared tokens.
        apart: it is read in a context of its own (see lcspec.kv_cache.prompt_reader); `place`: where, once it started.
        order: prompts are read in ascending order of this (see Scheduler.enter).
        started: the Started event has been sent.
        reused: prompt tokens that were not evaluated for this request.
    """

    follows: tuple[ActiveSequence, int] | None = None
    apart: bool = False
    place: int | None = None
    order: int = 0
    started: bool = False
    reused: int = 0


class ActiveSequence:
    """A request in a slot. Drafters see it as `drafters.SequenceView`, the planner as `PlannedSequence`."""

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
        self._to_read = self.n_prompt  # tokens that are given, before the first that is decided here
        self._repeated = 0  # tokens of the answer that the caller has and that are decided again, without events
        self.params = request.sampling.effective
        self.prediction = request.prediction
        self.verifier = make_verifier(request.speculation.verifier)
        self.draws = 0 if request.sampling.greedy else self.verifier.draws
        self.prompt = PromptProgress()
        self.strict = False  # exact by widths, prompt blocks and cells of its own (see ExactPolicy.strict)
        self.stats = RequestStats()
        self.reason: str | None = None
        self.cancelled = False
        # The drafters (see Drafting).
        self.drafters: list[Drafter] = []
        self.bits: dict[str, int] = {}  # drafter name -> its bit in TokenTree.sources
        self.wants_hidden = False  # one of its drafters needs the target's hidden states
        self.hidden: NDArray[np.float32] | None = None
        self.unobserved = 0  # tokens of plain steps that the drafters have not observed yet
        self._decoder = StreamDecoder()
        self._stops = StopStrings(request.stop)
        self._decode_start = 0.0

    def resume(self, again: bool) -> None:
        """Continue after the tokens that were emitted before: read them, or with `again` decide them once more."""
        if again:
            self._repeated = len(self.request.emitted)
            return
        for token in self.request.emitted:
            self.tokens.append(token)
            self._feed(token, None)
            self.sampler.accept(token)
        self._to_read = len(self.tokens)

    @property
    def generated(self) -> int:
        """Number of tokens emitted so far."""
        return len(self.tokens) - self.n_prompt

    @property
    def prefilling(self) -> bool:
        """Whether the last given token has not been evaluated yet."""
        return len(self.tokens) == self._to_read

    @property
    def n_uncached(self) -> int:
        """How many tokens are not in the cache yet."""
        return len(self.tokens) - self.cache.length

    @property
    def max_depth(self) -> int:
        """The depth after which drafts are useless, because the context or the token limit ends there."""
        room = self.n_ctx - len(self.tokens)
        if self.request.max_tokens is not None:
            room = min(room, self.request.max_tokens - self.generated)
        return max(0, room - 1)

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end the request's text."""
        return frozenset() if self.request.ignore_end else self.vocab.end_tokens

    def forced_text(self, limit: int) -> str:
        """The text to which the grammar leaves no alternative (see drafters.SequenceView)."""
        return self.sampler.forced_text(limit)

    def bit_of(self, drafter: Drafter) -> int:
        """The drafter's bit in TokenTree.sources."""
        return self.bits[drafter.name]

    def drafter_of(self, source: int) -> str | None:
        """Name of the sequence's first drafter in a node's source mask."""
        for drafter in self.drafters:
            if source & self.bits[drafter.name]:
                return drafter.name
        return None

    def emit(self, tree: TokenTree, verdict: Verdict, rows: TargetRows) -> list[Event]:
        """Append a verdict's tokens to the text until something ends it; returns the Tokens event, if any."""
        infos, pieces, tokens, path, request = [], [], self.tokens, verdict.path, self.request
        if request.max_tokens == 0:  # its prompt was to be read, nothing else
            self.reason = "length"
            return []
        for i, token in enumerate(verdict.tokens):
            if token in self.end_tokens:
                self.reason = "stop"
                break
            drafter = self.drafter_of(tree.sources[path[i]]) if i < len(path) else None
            if request.logprobs is None:
                info = TokenInfo(token, drafter)
            else:
                # The row that decided token i: node 0's for the first, then that of the accepted node before it.
                logprob, ranked = rows.log_probs(path[i - 1] if i else 0, token, request.logprobs)
                info = TokenInfo(token, drafter, logprob, tuple(ranked))
            tokens.append(token)
            generated, new = len(tokens) - self.n_prompt, self._feed(token, drafter)
            if generated > self._repeated:
                infos.append(info)
                pieces += new
            if self._stops.found is not None:
                self.reason = "stop"
            elif request.max_tokens is not None and generated >= request.max_tokens:
                self.reason = "length"
            elif len(tokens) >= self.n_ctx:
                self.reason = "context"
            if self.reason:
                break
        if self.reason:
            rest = self._decoder.finish()
            pieces += (self._stops.feed(Piece(rest, None)) if rest else []) + self._stops.finish()
        return [Tokens(self.id, tuple(infos), tuple(pieces))] if infos or pieces else []

    def _feed(self, token: int, drafter: str | None) -> list[Piece]:
        """The text that can be shown after one more token: complete characters that begin no stop string."""
        data, control = self.vocab.spelling(token)
        return self._stops.feed(Piece(self._decoder.feed(data), drafter, control))

    def first_token(self) -> None:
        """The answer starts: start its clock."""
        self._decode_start = time.perf_counter()

    def finished(self) -> Finished:
        """The last event."""
        if self._decode_start:
            self.stats.decode_seconds = time.perf_counter() - self._decode_start
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
