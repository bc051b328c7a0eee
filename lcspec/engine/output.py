"""Processes a decode's output: verifies drafts, commits the accepted path, informs drafters and planners."""

from __future__ import annotations

from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.drafters.base import pass_states, state_drafters
from lcspec.engine.drafting import Drafting
from lcspec.engine.events import Prefill
from lcspec.engine.exact_policy import ExactPolicy
from lcspec.engine.sequence import ActiveSequence
from lcspec.engine.step_plan import BatchRows, Part, PartResult, StepPlan, StepResult
from lcspec.engine.target_rows import TargetRows
from lcspec.errors import GrammarFailed
from lcspec.kv_cache.prefix_cache import PrefixCache
from lcspec.profiles.exactness import in_order
from lcspec.sampling.distribution import Distribution
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict


class OutputProcessor:
    """Turns a step's logits into text and KV cells, and lets drafters and planners learn."""

    def __init__(self, prefix_cache: PrefixCache, exact: ExactPolicy, drafting: Drafting) -> None:
        self._context = prefix_cache.context
        self._prefix_cache = prefix_cache
        self._exact = exact
        self._drafting = drafting

    def process(
        self, plan: StepPlan, placed: Sequence[BatchRows], width: int, padded: int, seconds: float
    ) -> StepResult:
        """The result of a decode.

        Args:
            plan: what was decoded; `placed`: where its rows are, as build_batch returned it.
            width, padded: tokens in the batch, without padding and with it.
            seconds: what the decode took.
        """
        rows, results = self._context.logits(), []
        for part, where in zip(plan.parts, placed):
            try:
                results.append(self._process(part, where, rows))
            except GrammarFailed as error:  # only this text cannot continue
                results.append(PartResult(part, error=error))
        decoded = [found.decoded is not None for found in results if found.error is None]
        result = StepResult(results, width, padded, seconds, bool(decoded) and all(decoded))
        self._learn(result)
        return result

    def _process(self, part: Part, where: BatchRows, logits: NDArray[np.float32]) -> PartResult:
        if part.chunk is not None:
            return self._prompt_read(part, where)
        sequence, cache = part.sequence, part.sequence.cache
        first, before = sequence.prefilling, len(sequence.tokens)
        tree = part.kept or TokenTree.root(sequence.tokens[-1])
        ends, ignored = sequence.vocab.end_tokens, sequence.request.ignore_end
        kept: dict[int, Distribution] | None = {} if sequence.request.sampled_probs else None
        rows = TargetRows(logits, where.row_of, sequence.sampler, ends, ignored, kept)
        if part.probes is not None:
            for window, nodes in part.probes.asked():
                window.drafter.harvest(sequence, rows.argmax(nodes))
        verdict = sequence.verifier.verify(tree, rows, before, sequence.seed)
        self._commit(sequence, where, verdict)
        events = sequence.emit(tree, verdict, rows)
        emitted = len(sequence.tokens) - before
        if self._prefix_cache.checkpoints is not None and cache.length < len(sequence.tokens):
            self._prefix_cache.keep(cache, sequence.tokens)
        if first:
            sequence.first_token()
            found = PartResult(part, [Prefill(sequence.id, sequence.n_prompt, sequence.n_prompt), *events])
        else:
            accepted = sequence.stats.count(tree, verdict.path, emitted, sequence.bits)
            found = PartResult(part, events, tree, tuple(verdict.tokens), accepted)
        if sequence.drafters:
            self._observe(part, tree, verdict, where, emitted)
        return found

    def _prompt_read(self, part: Part, where: BatchRows) -> PartResult:
        sequence = part.sequence
        sequence.cache.reached(part.end)
        pass_states(sequence, sequence.drafters, self._context, sequence.cache, where.start, where.text)
        self._prefix_cache.keep(sequence.cache, sequence.tokens)
        self._mark_canonical(sequence)
        return PartResult(part, [Prefill(sequence.id, part.end, sequence.n_prompt)])

    def _commit(self, sequence: ActiveSequence, where: BatchRows, verdict: Verdict) -> None:
        """Keep the cells of the accepted path."""
        in_text_order = in_order(where.order, verdict.path) if verdict.path else 0
        keep = in_text_order if sequence.strict else None
        sequence.cache.commit(verdict.path, keep, ordered=in_text_order == len(verdict.path))
        if sequence.strict:
            self._mark_canonical(sequence)

    def _mark_canonical(self, sequence: ActiveSequence) -> None:
        if self._exact.is_canonical(sequence.request, sequence.prefilling):
            sequence.cache.canonical = sequence.cache.length

    def _observe(self, part: Part, tree: TokenTree, verdict: Verdict, where: BatchRows, emitted: int) -> None:
        """Let the sequence's drafters observe what became of their drafts."""
        sequence = part.sequence
        if sequence.wants_hidden:
            hidden, last = self._context.hidden(), where.row_of[verdict.path[-1] if verdict.path else 0]
            sequence.hidden = hidden[last].copy() if len(hidden) else None
        if readers := state_drafters(sequence.drafters):
            pass_states(sequence, readers, self._context, sequence.cache, where.start, where.accepted(verdict.path))
        if part.unobserved:
            sequence.unobserved += emitted
        elif not sequence.reason:
            for drafter in sequence.drafters:
                drafter.observe(sequence, tree, verdict)

    def _learn(self, result: StepResult) -> None:
        """Let the planners learn from the step."""
        for found in result.parts:
            if found.decoded is not None and found.part.proposal is not None:
                planner = self._drafting.planner_of(found.part.sequence.request)
                planner.observe(found.part.proposal, found.tokens)
        if self._drafting.auto is not None and result.only_decodes:
            lengths = [len(found.part.sequence.tokens) for found in result.parts if found.error is None]
            self._drafting.auto.timed(result.padded, sum(lengths) // len(lengths), result.seconds)
