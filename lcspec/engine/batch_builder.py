"""Turns a step's plan into the rows of its batch."""

from __future__ import annotations

from typing import Sequence

from lcspec.engine.step_plan import BatchRows, Part, StepPlan
from lcspec.llama import Batch, Branching
from lcspec.spec.token_tree import TokenTree

# Where nothing is drafted: the pending token alone, whichever it is, and its place in the batch.
PENDING, ALONE = TokenTree.root(0), [0]


def build_batch(batch: Batch, plan: StepPlan) -> list[BatchRows]:
    """Put the tokens of all parts into `batch`; returns for each part where its rows are."""
    batch.clear()
    memory = plan.parts[0].sequence.cache.memory
    order: Sequence[int] = range(len(plan.parts))
    if memory.streams or memory.branching is Branching.CHAIN:
        sizes = [len(part.evaluated) if part.evaluated is not None else 1 for part in plan.parts]
        order = in_order(sizes, [part.sequence.cache.main for part in plan.parts])
    placed = {i: _add(batch, plan.parts[i]) for i in order}
    return [placed[i] for i in range(len(placed))]


def in_order(sizes: Sequence[int], ids: Sequence[int]) -> list[int]:
    """The order of the parts in the batch: those without drafts, then those with drafts, the commonest length first.

    Chains of one length can then be decoded together, and all before the first draft (see lcspec.llama.planes). Of
    streams the library takes ids together that follow each other.

    Args:
        sizes: the tokens of each part's chain, 1 without drafts.
        ids: their sequence ids.
    """
    return sorted(range(len(sizes)), key=lambda i: (sizes[i] > 1, -sizes.count(sizes[i]), sizes[i], ids[i]))


def _add(batch: Batch, part: Part) -> BatchRows:
    sequence, tree = part.sequence, part.evaluated or PENDING
    cache, tokens = sequence.cache, sequence.tokens
    first, start = batch.n, cache.length
    if part.chunk is not None:
        batch.add_run(tokens[start : part.chunk], start, cache.main)
        return BatchRows([], [], start, range(first, batch.n))
    base = len(tokens) - 1
    text = range(first, first + base + 1 - start)
    alone = len(tree.tokens) == 1
    order = ALONE if alone else tree.batch_order()
    sets = cache.place(tree, order, base)
    for position in range(start, base):
        batch.add(tokens[position], position, sets[0], logits=sequence.strict)
    if alone:
        return BatchRows(order, [batch.add(tokens[base], base, sets.ids, logits=True)], start, text)
    positions = [base + tree.depths[node] for node in order]
    drafts = [tree.tokens[node] for node in order]
    rows = batch.add_nodes(drafts, positions, sets, order, [node not in part.mute for node in order])
    row_of = [0] * len(tree)
    for node, row in zip(order, rows):
        row_of[node] = row
    return BatchRows(order, row_of, start, text)
