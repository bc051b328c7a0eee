"""Caches that share cells: whatever is taken, grown, put back and taken over, each holds its own text and no more."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.kv_cache.prefix_cache import PrefixCache
from lcspec.kv_cache.sequence_cache import SequenceCache, SequencePool
from lcspec.llama import Context
from tests.kv_cache.test_sequence_cache import Cells

pytestmark = pytest.mark.model

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
    ),
    max_size=50,
)


def check(cells: Cells, pool: SequencePool, shelf: PrefixCache, busy: list[tuple[SequenceCache, list[int]]]) -> None:
    held = [*busy, *shelf._idle]
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
@given(ACTIONS, st.booleans())
def test_every_cache_holds_its_own_text(actions: list[tuple[str, object]], share: bool) -> None:
    cells, pool = Cells(), SequencePool(8)
    shelf = PrefixCache(cast(Context, cells), pool, SLOTS, share=share)
    busy: list[tuple[SequenceCache, list[int]]] = []
    for name, argument in actions:
        if name == "take":
            text = cast(list[int], argument)
            if len(busy) < SLOTS:
                known = [(t, c.length) for c, t in [*busy, *shelf._idle]]
                cache = shelf.take(text)
                assert cache.length < len(text)
                if share:  # as much as anybody had
                    best = max((common(t[:n], text[:-1]) for t, n in known), default=0)
                    assert cache.length == best
                busy.append((cache, text))
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
    for cache, text in busy:
        shelf.put(cache, text)
    shelf.clear()
    assert cells.cells == [] and pool.free == pool.n


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
