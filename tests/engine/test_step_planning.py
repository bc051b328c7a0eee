"""What the scheduler puts into steps: who waits for whose prompt, in which order prompts are read, room for drafts.

Sequences are real, their cells are Python objects, and nobody drafts.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lcspec.config import ModelOptions, SpeculationParams
from lcspec.engine.drafting import Drafting
from lcspec.engine.exact_policy import ExactPolicy
from lcspec.engine.request import Request
from lcspec.engine.scheduler import REDECODED, SHORT, Scheduler
from lcspec.engine.sequence import ActiveSequence
from lcspec.engine.step_plan import StepPlan
from lcspec.kv_cache.prefix_cache import PrefixCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama import Branching
from lcspec.llama.sampler import Sampler
from lcspec.llama.vocab import Vocab
from tests.cells import Cells, context_on

N_CTX = 4096
NOBODY = cast(Drafting, SimpleNamespace(planners=(), auto=None))


class Machine:
    """A scheduler and the sequences it plans for; `step` does what the engine would."""

    def __init__(self, *, share: bool = True, branching: Branching = Branching.TREE, **options: Any) -> None:
        chosen = ModelOptions(Path("none.gguf"), **{"batch": 256, "max_width": 16, "slots": 4, **options})
        self.cells = Cells()
        self.cells.branching, self.cells.max_chain = branching, 7
        context = context_on(self.cells, options=chosen, batch=SimpleNamespace(n_max=chosen.batch))
        pool = SequencePool(12)
        self.caches = PrefixCache(context, pool, chosen.slots, share=share)
        self.scheduler = Scheduler(self.caches, ExactPolicy(chosen, None), NOBODY)
        self.running: list[ActiveSequence] = []

    def enter(self, prompt: list[int], **request: Any) -> ActiveSequence:
        wanted = Request(tuple(prompt), **request)
        sequence = ActiveSequence(
            len(self.running), wanted, self.caches.take(prompt), cast(Sampler, None), cast(Vocab, None), 0, N_CTX
        )
        self.running.append(sequence)
        self.scheduler.enter(sequence, self.running)
        return sequence

    def step(self) -> StepPlan:
        """Plan a step; every part's tokens are evaluated, and an answer grows by a token."""
        for sequence in self.running:
            self.scheduler.may_start(sequence, self.running)
        plan = self.scheduler.schedule(self.running)
        width = sum(part.end - part.sequence.cache.length for part in plan.parts)
        for part in plan.parts:
            s = part.sequence
            rest = range(s.cache.length, part.end)
            self.cells.decode([(s.tokens[i], i, (s.cache.main,)) for i in rest])
            s.cache.length = part.end
            if part.chunk is None:
                s.tokens.append(9000 + s.generated)
        self.scheduler.budget.observe(width, 0.01 + 0.0002 * width)
        return plan

    def decoding(self, prompt: list[int], **request: Any) -> ActiveSequence:
        """A sequence whose prompt has been read."""
        sequence = self.enter(prompt, **request)
        while sequence.prefilling:
            self.step()
        return sequence


def numbers(start: int, n: int) -> list[int]:
    return list(range(start, start + n))


def test_a_lone_prompt_is_read_in_one_step_and_its_answer_begins_there() -> None:
    machine = Machine(slots=1)
    sequence = machine.enter(numbers(0, 200))
    (part,) = machine.scheduler.schedule(machine.running).parts
    assert part.sequence is sequence and part.end == 200 and part.chunk is None
    assert not part.decodes, "it reads a prompt, whatever comes of it"


def test_a_prompt_longer_than_a_batch_goes_through_in_pieces_of_one() -> None:
    machine = Machine(slots=1, batch=64)
    machine.enter(numbers(0, 150))
    assert [p.chunk for _ in range(3) for p in machine.step().parts] == [64, 128, None]


def test_who_decodes_has_a_token_in_every_step_beside_the_prompts_of_others() -> None:
    machine = Machine(share=False)
    first = machine.decoding(numbers(0, 20))
    second = machine.enter(numbers(1000, 900))
    for _ in range(5):
        before, read = first.generated, second.cache.length
        plan = machine.step()
        assert plan.parts[0].sequence is first and plan.parts[0].decodes
        assert first.generated == before + 1
        assert 0 < second.cache.length - read <= 255


def test_of_prompts_that_come_together_the_shorter_is_read_first() -> None:
    machine = Machine(share=False, batch=128)
    long, short = machine.enter(numbers(0, 600)), machine.enter(numbers(1000, 300))
    while short.prefilling:
        machine.step()
    assert long.prefilling and long.cache.length < 600


def test_a_long_prompt_is_passed_by_what_has_been_read_meanwhile_at_most() -> None:
    machine = Machine(share=False, batch=128, slots=12)
    long, steps = machine.enter(numbers(0, 600)), 0
    while long.prefilling:  # 300 tokens more for every two steps of 128: the shortest first would never come to it
        if steps % 2 == 0:
            machine.enter(numbers(10_000 * (steps + 1), 300))
        machine.step()
        steps += 1
        assert steps <= 16
    assert sum(not s.prefilling for s in machine.running) >= 3, "it was passed by some"


def test_choices_of_one_prompt_are_read_once() -> None:
    machine = Machine()
    prompt = numbers(0, 300)
    one, two, three = (machine.enter(prompt) for _ in range(3))
    assert one.prompt.follows is None and two.prompt.follows is not None and three.prompt.follows is not None
    assert not machine.scheduler.may_start(two, machine.running)
    while two.prefilling or three.prefilling:
        machine.step()
    prompt_cells = [cell for cell in machine.cells.cells if cell.pos < 299]
    assert len(prompt_cells) == 299, "a cell each, whoever they belong to"
    assert all(machine.cells.visible(s.cache.main, 298) == prompt[:299] for s in (one, two, three))


def test_a_plan_stands_until_somebody_comes_or_goes() -> None:
    machine = Machine(share=False)
    first = machine.decoding(numbers(0, 20))
    plan = machine.step()
    assert plan.stands and machine.scheduler.steady and machine.step() is plan, "nothing is planned twice"
    second = machine.enter(numbers(1000, 20))
    mixed = machine.step()
    assert {part.sequence for part in mixed.parts} == {first, second} and not mixed.stands
    both = machine.step()
    assert both.stands and machine.step() is both
    machine.running.remove(first)
    machine.scheduler.renew()
    (part,) = machine.step().parts
    assert part.sequence is second


def test_a_common_beginning_that_is_short_is_not_worth_a_wait() -> None:
    machine = Machine()
    machine.enter(numbers(0, 300))
    short = machine.enter([*numbers(0, SHORT), *numbers(5000, 100)])
    longer = machine.enter([*numbers(0, SHORT + 1), *numbers(6000, 100)])
    assert short.prompt.follows is None and longer.prompt.follows is not None


def test_nobody_waits_for_one_that_has_gone() -> None:
    machine = Machine()
    ahead, behind = machine.enter(numbers(0, 300)), machine.enter(numbers(0, 300))
    assert not machine.scheduler.may_start(behind, machine.running)
    machine.running.remove(ahead)
    ahead.cache.release()
    machine.caches.lost(ahead.cache)
    assert machine.scheduler.may_start(behind, machine.running) and behind.prompt.follows is None
    while behind.prefilling:
        machine.step()


@pytest.mark.parametrize("share", [True, False])
def test_an_exact_request_waits_for_nobody_and_nobody_shares_without_sharing(share: bool) -> None:
    machine = Machine(share=share, slots=2)
    machine.enter(numbers(0, 300))
    second = machine.enter(numbers(0, 300), speculation=SpeculationParams(exact=share))
    assert second.prompt.follows is None


@pytest.mark.parametrize(("base", "nodes"), [(1, 15), (16, 0), (40, 0)])
def test_drafts_have_the_room_that_is_left(base: int, nodes: int) -> None:
    machine = Machine()
    limits = machine.scheduler._limits(machine.decoding(numbers(0, 20)), base)
    assert limits.nodes == nodes and limits.leaves == 12, "every sequence id that nobody has"


def test_drafts_end_where_the_answer_does() -> None:
    machine = Machine()
    sequence = machine.decoding(numbers(0, 20), max_tokens=4)
    assert machine.scheduler._limits(sequence, 1).depth == 2  # one is there, and one comes of the step by itself
    machine.step()
    machine.step()
    assert machine.scheduler._limits(sequence, 1).depth == 0


def test_where_only_a_chain_can_be_taken_back_it_is_no_longer_than_that() -> None:
    machine = Machine(branching=Branching.CHAIN)
    sequence = machine.decoding(numbers(0, 20))
    limits = machine.scheduler._limits(sequence, 1)
    assert (limits.depth, limits.leaves) == (6, 1)
    machine.cells.redecodes = True
    sequence.tokens += numbers(100, REDECODED)
    assert machine.scheduler._limits(sequence, 1).depth == 0, "a plain step keeps what was accepted"
