"""Turns a step's plan into the rows of its batch."""

from __future__ import annotations

from typing import Callable

from lcspec.engine.request import Request
from lcspec.engine.step_plan import BatchRows, Part, StepPlan
from lcspec.llama import Batch, Branching


def build_batch(batch: Batch, plan: StepPlan, strict: Callable[[Request], bool]) -> list[BatchRows]:
    """Put the tokens of all parts into `batch`; returns for each part where its rows are.

    `strict`: whether a request needs an output row for each of its tokens to be exact (see ScratchPad).
    """
    batch.clear()
    # Hidden states are read by position, so they need an output row for every token as well.
    every_row = any(part.sequence.wants_hidden or strict(part.sequence.request) for part in plan.parts)
    chains = plan.parts[0].sequence.cache.context.branching is Branching.CHAIN
    order = in_order(plan) if chains else range(len(plan.parts))
    placed = {i: _add(batch, plan.parts[i], every_row, strict(plan.parts[i].sequence.request)) for i in order}
    return [placed[i] for i in range(len(placed))]


def in_order(plan: StepPlan) -> list[int]:
    """The order of the parts in the batch: those without drafts, then those with drafts, the commonest length first.

    Chains of one length can then be decoded together, and all before the first draft (see lcspec.llama.planes).
    """
    sizes = [len(part.evaluated) if part.evaluated is not None else 1 for part in plan.parts]
    return sorted(range(len(sizes)), key=lambda i: (sizes[i] > 1, -sizes.count(sizes[i]), sizes[i]))


def _add(batch: Batch, part: Part, every_row: bool, own_rows: bool) -> BatchRows:
    sequence, cache, tree = part.sequence, part.sequence.cache, part.evaluated
    first, start = batch.n, cache.length
    if tree is None:
        batch.add_run(sequence.tokens[cache.length : part.end], cache.length, cache.main)
        return BatchRows([], [], start, range(first, batch.n))
    base = len(sequence.tokens) - 1
    text = range(first, first + base + 1 - start)
    order = tree.batch_order()
    sets = cache.place(tree, order, base)
    for position in range(cache.length, base):
        batch.add(sequence.tokens[position], position, sets[0], logits=own_rows)
    if len(tree) == 1:
        return BatchRows(order, [batch.add(tree.tokens[0], base, sets[0], logits=True)], start, text)
    mute = frozenset[int]() if every_row else part.mute
    tokens = [tree.tokens[node] for node in order]
    positions = [base + tree.depths[node] for node in order]
    rows = batch.add_nodes(tokens, positions, sets, order, [node not in mute for node in order])
    row_of = [0] * len(tree)
    for node, row in zip(order, rows):
        row_of[node] = row
    return BatchRows(order, row_of, start, text)
