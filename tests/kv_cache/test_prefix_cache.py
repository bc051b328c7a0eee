"""Caches that share cells: whatever is taken, grown, put back and taken over, each holds its own text and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.kv_cache.host_cache import HostCache
from lcspec.kv_cache.prefix_cache import PASSES, PASSES_ON_GPU, TAIL, PrefixCache
from lcspec.kv_cache.reuse import Reuse, common_prefix
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama import Context
from lcspec.spec.token_tree import TokenTree
from tests.cells import Cells, context_on

SLOTS = 3
TEXT = st.lists(st.integers(0, 1), min_size=1, max_size=90).map(lambda tail: [7, 8, 9] * 15 + tail)
SOMETHING_ELSE = st.lists(st.integers(0, 1), min_size=1, max_size=60)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.one_of(TEXT, SOMETHING_ELSE)),
        st.tuples(st.just("read"), st.integers(0, 400)),
        st.tuples(st.just("top_up"), st.integers(0, 9)),
        st.tuples(st.just("put"), st.integers(0, 9)),
        st.tuples(st.just("lose"), st.integers(0, 9)),
        st.tuples(st.just("pass over"), st.integers(1, 60)),
    ),
    max_size=50,
)


def cpu(cells: Cells, gpu_layers: int = 0) -> Context:
    """A context in main memory."""
    return context_on(cells, model=SimpleNamespace(gpu_layers=gpu_layers))


def check(cells: Cells, pool: SequencePool, shelf: PrefixCache, busy: list[tuple[SequenceCache, list[int]]]) -> None:
    held = [*busy, *((idle.cache, idle.text) for idle in shelf._idle)]
    assert len(held) <= SLOTS
    assert pool.free + len(held) == pool.n
    for cache, text in held:
        own = cells.of(cache.main)
        assert [cell.pos for cell in own] == list(range(cache.length))
        assert [cell.token for cell in own] == text[: cache.length]
    mains = {cache.main for cache, _ in held}
    assert all(cell.ids <= mains for cell in cells.cells)
    # Shared cells count once, and there are never more than one for every position of every cache.
    assert len(cells.cells) <= sum(cache.length for cache, _ in held)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(ACTIONS, st.booleans(), st.sampled_from([0, 2000, 10**6]))
def test_every_cache_holds_its_own_text(actions: list[tuple[str, object]], share: bool, budget: int) -> None:
    cells, pool, host = Cells(), SequencePool(8), HostCache(budget)
    shelf = PrefixCache(cpu(cells), pool, SLOTS, share=share, host=host)
    busy: list[tuple[SequenceCache, list[int]]] = []
    for name, argument in actions:
        if name == "take":
            text = cast(list[int], argument)
            if len(busy) < SLOTS:
                known = [(t, c.length) for c, t in [*busy, *((idle.cache, idle.text) for idle in shelf._idle)]]
                moved = max((common(one.text.tolist(), text[:-1]) for one in host.texts), default=0)
                cache = shelf.take(text)
                assert cache.length < len(text)
                if share:  # as much as anybody had, but for a few tokens that are not worth moving
                    best = max((common(t[:n], text[:-1]) for t, n in known), default=0)
                    assert cache.length == best or cache.length == moved > best + TAIL
                    assert cache.length >= moved - TAIL
                busy.append((cache, text))
        elif name == "pass over":
            shelf.pass_over(cast(int, argument))
        elif busy:
            number = cast(int, argument)
            cache, text = busy[number % len(busy)]
            if name == "read":
                start, stop = cache.length, min(len(text), cache.length + number // 9)
                cells.decode([(text[i], i, (cache.main,)) for i in range(start, stop)])
                cache.length = stop
            elif name == "top_up":
                before = cache.length
                gained = shelf.top_up(cache, text)
                assert cache.length == before + gained < len(text) or gained == 0
            else:
                busy.remove((cache, text))
                if name == "put":
                    shelf.put(cache, text)
                else:
                    cache.release()
                    shelf.lost(cache)
        check(cells, pool, shelf, busy)
        assert host.size <= budget
    for cache, text in busy:
        shelf.put(cache, text)
    shelf.clear()
    assert cells.cells == [] and host.texts == [] and pool.free == pool.n


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


# --- which cache a text gets ------------------------------------------------------------------------------------------


class Shelf:
    """A prefix cache over cells that are no model's."""

    def __init__(self, slots: int = 2, share: bool = False, host: HostCache | None = None, gpu_layers: int = 0) -> None:
        self.cells, self.pool = Cells(), SequencePool(8)
        self.caches = PrefixCache(cpu(self.cells, gpu_layers), self.pool, slots, share=share, host=host)

    def read(self, cache: SequenceCache, text: list[int]) -> None:
        """Evaluate the rest of `text`."""
        rest = range(cache.length, len(text))
        self.cells.decode([(text[i], i, (cache.main,)) for i in rest])
        cache.length = len(text)

    def ran(self, text: list[int]) -> SequenceCache:
        """The cache of a request that has ended."""
        cache = self.caches.take(text)
        self.read(cache, text)
        self.caches.put(cache, text)
        return cache


def numbers(start: int, n: int) -> list[int]:
    return list(range(start, start + n))


def test_the_last_token_is_never_taken_from_a_cache() -> None:
    shelf, text = Shelf(), numbers(0, 50)
    first = shelf.ran(text)
    again = shelf.caches.take(text)
    assert again is first and again.length == len(text) - 1


def test_a_text_that_goes_on_takes_the_cache_it_was_in() -> None:
    shelf = Shelf()
    one, two = shelf.ran(numbers(0, 50)), shelf.ran(numbers(100, 50))
    assert shelf.caches.take([*numbers(0, 50), 7, 8]) is one
    assert shelf.caches.take([*numbers(100, 50), 7]) is two and two.length == 50


def test_without_a_common_beginning_a_free_slot_is_used_before_anything_is_lost() -> None:
    shelf = Shelf()
    one = shelf.ran(numbers(0, 50))
    other = shelf.caches.take(numbers(100, 50))
    assert other is not one and one.length == 50 and other.length == 0
    assert shelf.caches.held(numbers(0, 60)) == 50


def test_when_all_slots_are_taken_the_one_that_was_idle_longest_gives_way() -> None:
    shelf = Shelf()
    one, two = shelf.ran(numbers(0, 50)), shelf.ran(numbers(100, 50))
    assert shelf.caches.take(numbers(200, 50)) is one and one.length == 0
    assert shelf.caches.held([*numbers(100, 50), 1]) == 50 and two.length == 50


def test_the_cache_with_the_beginning_gives_way_if_it_loses_less() -> None:
    shelf = Shelf()
    one, two = shelf.ran(numbers(0, 200)), shelf.ran(numbers(500, 60))
    text = [*numbers(500, 40), 1, 2]
    assert shelf.caches.take(text) is two and two.length == 40
    assert one.length == 200


@pytest.mark.parametrize("behind", [TAIL, TAIL + 1])
def test_sharing_leaves_a_cache_that_would_lose_more_than_a_few_tokens(behind: int) -> None:
    shelf, common_part = Shelf(share=True), numbers(0, 50)
    one = shelf.ran([*common_part, *numbers(100, behind)])
    taken = shelf.caches.take([*common_part, 7, 8])
    assert taken.length == 50
    assert (taken is one) == (behind <= TAIL)
    if taken is not one:
        assert one.length == 50 + behind and len(shelf.cells.cells) == one.length  # the 50 belong to both


def test_cells_of_a_request_that_runs_are_shared_as_it_reads() -> None:
    shelf, prompt = Shelf(share=True), numbers(0, 80)
    ahead = shelf.caches.take(prompt)
    behind = shelf.caches.take(prompt)
    assert behind.length == 0
    shelf.read(ahead, prompt[:30])
    assert shelf.caches.top_up(behind, prompt) == 30 and behind.length == 30
    shelf.read(ahead, prompt)
    assert shelf.caches.top_up(behind, prompt) == 49 and behind.length == 79
    assert shelf.caches.top_up(behind, prompt) == 0
    assert len(shelf.cells.cells) == 80


@pytest.mark.parametrize("common_part", [TAIL, TAIL + 1])
def test_between_streams_no_few_tokens_are_copied(common_part: int) -> None:
    shelf, beginning = Shelf(share=True), numbers(0, common_part)
    shelf.cells.streams = True
    one = shelf.ran([*beginning, *numbers(100, 90)])
    taken = shelf.caches.take([*beginning, *numbers(300, 90)])
    worth_it = common_part > TAIL
    assert taken is not one and one.length == common_part + 90
    assert taken.length == (common_part if worth_it else 0)
    held = [cell for cell in shelf.cells.cells if taken.main in cell.ids]
    assert len(held) == taken.length and all(cell.ids == {taken.main} for cell in held)


def test_without_sharing_nobody_takes_from_one_that_runs() -> None:
    shelf, prompt = Shelf(share=False), numbers(0, 80)
    ahead, behind = shelf.caches.take(prompt), shelf.caches.take(prompt)
    shelf.read(ahead, prompt)
    assert shelf.caches.top_up(behind, prompt) == 0 and behind.length == 0


def test_exact_requests_take_only_cells_that_were_computed_as_theirs_would_be() -> None:
    shelf, text = Shelf(slots=1), numbers(0, 90)
    cache = shelf.ran(text)
    cache.canonical, cache.handed = 64, 0
    assert {kind: shelf.caches.held(text, kind) for kind in Reuse} == {
        Reuse.ANY: 89,
        Reuse.BLOCKS: 64,
        Reuse.IN_PLACE: 89,
        Reuse.READ_APART: 0,
    }
    cache.handed = 70
    assert shelf.caches.held(text, Reuse.IN_PLACE) == 0
    assert shelf.caches.held(text, Reuse.READ_APART) == 70
    taken = shelf.caches.take(text, Reuse.BLOCKS)
    assert taken.length == taken.canonical == 64


def test_a_cache_that_is_released_while_in_use_frees_its_slot() -> None:
    shelf = Shelf(slots=1)
    cache = shelf.caches.take(numbers(0, 9))
    cache.release()
    shelf.caches.lost(cache)
    assert shelf.caches.caches == [] and shelf.pool.free == shelf.pool.n
    assert shelf.caches.take(numbers(0, 9)).length == 0


def test_leaves_make_room_for_another_text() -> None:
    """A running text's leaves may have all ids that are left, and keep them until it ends."""
    shelf, tree = Shelf(slots=3, share=True), TokenTree.root(5)
    for token in range(1, 7):
        tree.add(0, token)
    one = shelf.caches.take(numbers(0, 9))
    shelf.read(one, numbers(0, 8))
    sets = one.place(tree, tree.batch_order(), 8)
    shelf.cells.decode([(tree.tokens[v], 8 + tree.depths[v], tuple(sets[v])) for v in tree.batch_order()])
    one.commit([])
    while shelf.pool.free:
        shelf.pool.take()
    two = shelf.caches.take(numbers(100, 9))
    assert two.main != one.main and one.max_leaves == 1 + shelf.pool.free
    assert [cell.token for cell in shelf.cells.of(one.main)] == [*numbers(0, 8), 5]


# --- texts in main memory ---------------------------------------------------------------------------------------------


def test_a_text_that_gave_way_comes_back() -> None:
    shelf, one = Shelf(slots=1, host=HostCache(10**6)), numbers(0, 90)
    shelf.ran(one)
    shelf.ran(numbers(200, 50))
    assert shelf.caches.held([*one, 5]) == 90
    again = shelf.caches.take([*one, 5])
    assert again.length == 90
    assert [cell.token for cell in shelf.cells.of(again.main)] == one


def test_what_goes_on_is_not_kept_twice_and_what_parts_is() -> None:
    shelf, one = Shelf(slots=1, host=HostCache(10**6)), numbers(0, 90)
    host = shelf.caches.host
    assert host is not None
    shelf.ran(one)
    shelf.ran(numbers(200, 50))
    shelf.ran([*one, 5, 6])  # goes on
    assert [len(text.text) for text in host.texts] == [50]
    shelf.ran(numbers(300, 50))
    assert [len(text.text) for text in host.texts] == [50, 92]
    shelf.ran([*one[:50], 7, 8])  # parts
    assert [len(text.text) for text in host.texts] == [50, 50, 92]
    assert shelf.caches.held([*one, 5, 6, 7]) == 92


@pytest.mark.parametrize(("gpu_layers", "passes"), [(0, PASSES), (9, PASSES_ON_GPU)])
def test_idle_texts_leave_the_context_once_moving_them_costs_less(gpu_layers: int, passes: int) -> None:
    shelf = Shelf(slots=3, share=True, host=HostCache(10**6), gpu_layers=gpu_layers)
    shelf.ran(numbers(0, 90))
    shelf.ran(numbers(200, TAIL))
    running = shelf.caches.take(numbers(300, 50))
    shelf.read(running, numbers(300, 50))
    shelf.caches.pass_over(passes - 1)
    assert len(shelf.caches.caches) == 3
    shelf.caches.pass_over(1)
    assert len(shelf.cells.cells) == 50 + TAIL  # so few stay
    again = shelf.caches.take(numbers(0, 99))
    assert again.length == 90 and len(shelf.cells.cells) == 50 + TAIL + 90


def test_cells_that_others_hold_as_well_cost_nothing() -> None:
    shelf, shared = Shelf(slots=3, share=True, host=HostCache(10**6)), numbers(0, 200)
    shelf.ran([*shared, *numbers(500, 50)])
    shelf.caches.take([*shared, 7])
    shelf.caches.pass_over(4 * PASSES)
    assert len(shelf.caches.caches) == 2
    shelf.caches.pass_over(PASSES)  # the 50 of its own have cost what moving all 250 does
    assert len(shelf.caches.caches) == 1 and len(shelf.cells.cells) == 200


def test_what_comes_back_shares_the_beginning_that_others_have() -> None:
    shelf, shared = Shelf(slots=3, share=True, host=HostCache(10**6)), numbers(0, 200)
    one = [*shared, *numbers(500, 50)]
    shelf.ran(one)
    running = shelf.caches.take(numbers(900, 9))
    shelf.read(running, numbers(900, 9))
    shelf.caches.pass_over(PASSES)
    assert len(shelf.cells.cells) == 9
    other = shelf.caches.take([*shared, 7])
    assert other.length == 200 and len(shelf.cells.cells) == 209
    again = shelf.caches.take([*one, 8])
    assert again.length == 250 and len(shelf.cells.cells) == 259
    assert [cell.token for cell in shelf.cells.of(again.main)] == one


def test_what_comes_back_is_not_pushed_out_by_what_makes_room() -> None:
    a, b, c = numbers(300, 90), numbers(500, 90), numbers(700, 90)
    shelf = Shelf(slots=1, host=HostCache(10**6))
    host = shelf.caches.host
    assert host is not None
    for text in (a, b, c):
        shelf.ran(text)
    host.budget = host.size  # room for two
    assert shelf.caches.take([*a, 5]).length == 90


def test_between_streams_idle_texts_stay() -> None:
    shelf = Shelf(slots=2, share=True, host=HostCache(10**6))
    shelf.cells.streams = True
    shelf.ran(numbers(0, 90))
    shelf.caches.take(numbers(300, 50))
    shelf.caches.pass_over(10 * PASSES)
    assert len(shelf.caches.caches) == 2


def test_without_room_in_main_memory_idle_texts_stay() -> None:
    shelf = Shelf(slots=2, share=True, host=HostCache(50))
    shelf.ran(numbers(0, 90))
    shelf.caches.take(numbers(300, 50))
    shelf.caches.pass_over(10 * PASSES)
    assert shelf.caches.held(numbers(0, 91)) == 90


def test_a_text_that_the_library_does_not_take_back_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(slots=1, host=HostCache(10**6))
    shelf.ran(numbers(0, 90))
    shelf.ran(numbers(200, 50))
    monkeypatch.setattr(Cells, "set_state", lambda *_: False)
    assert shelf.caches.take(numbers(0, 95)).length == 0
    assert len(shelf.caches.caches) == 1 and shelf.pool.free + 1 == shelf.pool.n


@pytest.mark.parametrize(
    ("a", "b", "n"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([4], [5], 0), ([6], [6], 1)]
)
def test_the_common_beginning(a: list[int], b: list[int], n: int) -> None:
    assert common_prefix(a, b) == common_prefix(b, a) == n
