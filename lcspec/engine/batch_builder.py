"""Turns a step's plan into the rows of its batch."""

from __future__ import annotations

from lcspec.engine.step_plan import BatchRows, Part, StepPlan
from lcspec.llama import Batch
from lcspec.spec.token_tree import TokenTree

# Where nothing is drafted: the pending token alone, whichever it is, and its place in the batch.
PENDING, ALONE = TokenTree.root(0), [0]


def build_batch(batch: Batch, plan: StepPlan) -> list[BatchRows]:
    """Put the tokens of all parts into `batch`; returns for each part where its rows are."""
    batch.clear()
    return [_add(batch, part) for part in plan.parts]


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
