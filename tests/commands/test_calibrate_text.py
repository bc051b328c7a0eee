"""What `calibrate` concludes from a curve: the break-even acceptance, and sentences that follow from the figures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.commands.calibrate import break_even, conclusions, table
from lcspec.profiles.cost_curve import CostCurve

fixed = settings(derandomize=True, deadline=None, max_examples=60)


def curve(*seconds: float) -> CostCurve:
    return CostCurve({n: {0: s} for n, s in enumerate(seconds, start=1)})


def test_break_even_of_two_widths_in_closed_form() -> None:
    # One drafted node pays when (1 + a) / (1.36 + c) > 1.
    assert break_even(curve(1.0, 1.36), 0, 0.0) == pytest.approx(0.36, abs=1e-6)
    assert break_even(curve(1.0, 1.36), 0, 0.2) == pytest.approx(0.56, abs=1e-6)


def test_break_even_uses_padding() -> None:
    # Width 2 is dear, but a step of 3 costs 1.1: one node in it pays from 0.1, two from less.
    a = break_even(curve(1.0, 9.0, 1.1), 0, 0.0)
    assert a is not None and a + a * a == pytest.approx(0.1, abs=1e-6)


def test_a_machine_on_which_nothing_pays() -> None:
    assert break_even(curve(*range(1, 17)), 0, 0.0) is None
    assert break_even(curve(1.0), 0, 0.0) is None
    assert break_even(curve(1.0, 1.36), 0, 0.7) is None
    assert break_even(CostCurve.flat(0.01, 8), 0, 0.0) == pytest.approx(0.0, abs=1e-6)


@fixed
@given(st.lists(st.floats(0.5, 8.0), min_size=1, max_size=12), st.floats(0.0, 0.5))
def test_break_even_against_a_search(more: list[float], draft: float) -> None:
    times = [1.0, *more]

    # Plain decoding pads as well, so its cost is the cheapest width's.
    def pays_over_plain(a: float) -> bool:
        return any(
            sum(a**k for k in range(n + 1)) * min(times) > (min(times[n:]) + n * draft) * (1 + 1e-9)
            for n in range(1, len(times))
        )

    found = break_even(curve(*times), 0, draft)
    grid = [i / 1000 for i in range(1001)]
    first = next((a for a in grid if pays_over_plain(a)), None)
    if found is None:
        assert first is None
    else:
        assert first is None or found <= first + 1e-6
        assert first is None or found > first - 1e-3 - 1e-6
        assert pays_over_plain(min(1.0, found + 1e-3)) or found > 1 - 1e-3


def test_break_even_within_a_class() -> None:
    some = curve(1.0, 1.5, 2.0, 1.2)
    assert break_even(some, 0, 0.0, frozenset({2, 4})) == pytest.approx(0.0, abs=1e-6)  # the step is 4 wide anyway
    inside = break_even(some, 0, 0.0, frozenset({2, 3}))
    assert inside == pytest.approx(0.0, abs=1e-6)


def info(**more: Any) -> dict[str, Any]:
    return {
        "model": "m.gguf", "quantization": "Q4_0", "threads": 2, "draft_step_seconds": {}, "contexts": [32, 512],
        "break_even_acceptance": {"free_drafts": 0.21, "draft_models": {}}, "seconds_by_threads": {}, **more,
    }  # fmt: skip


Q4_0 = {1: 1.0, 2: 1.36, 3: 1.92, 4: 1.33, 5: 1.89, 6: 2.3, 7: 2.6, 8: 2.8}


def test_cheap_widths_are_those_with_dearer_neighbours() -> None:
    first = conclusions(info(), Q4_0)[0]
    assert first.startswith("Cheap widths here: ") and "4 (1.33 x one token)" in first
    assert "3 (" not in first and "1 (" not in first
    # 8 is the last one measured, and cheaper a token than 7.
    assert "8 (2.80" in first


def test_drafts_that_cost_nothing_are_not_said_to_pay_from_0_percent() -> None:
    free = info(break_even_acceptance={"free_drafts": 1e-9, "draft_models": {}})
    assert conclusions(free, Q4_0)[1] == "Speculation pays at any acceptance with n-gram drafts."


def test_what_speculation_needs_is_said_for_every_case() -> None:
    assert "acceptance of 21% a token with n-gram drafts." in conclusions(info(), Q4_0)[1]
    both = info(
        break_even_acceptance={"free_drafts": 0.21, "draft_models": {"d.gguf": 0.4}},
        draft_step_seconds={"d.gguf": 0.001},
    )
    assert "21% a token with n-gram drafts, 40% with this draft model." in conclusions(both, Q4_0)[1]
    slow = info(break_even_acceptance={"free_drafts": 0.21, "draft_models": {"d.gguf": None}})
    assert "too slow to pay at any acceptance" in conclusions(slow, Q4_0)[1]
    never = info(break_even_acceptance={"free_drafts": None, "draft_models": {}})
    assert "will decode plainly" in conclusions(never, Q4_0)[1]


def test_a_better_number_of_threads_is_named() -> None:
    timed = info(seconds_by_threads={"1": 0.010, "2": 0.020, "3": 0.019})
    assert any("1 threads" in s or "1 thread " in s for s in conclusions(timed, Q4_0))
    same = info(seconds_by_threads={"1": 0.0195, "2": 0.020, "3": 0.03})
    assert not any("--threads" in s for s in conclusions(same, Q4_0))


def test_one_width_only_is_no_reason_to_crash() -> None:
    never = info(break_even_acceptance={"free_drafts": None, "draft_models": {}})
    sentences = conclusions(never, {1: 1.0})
    assert any("decode plainly" in s for s in sentences)
    assert not any("Cheap widths here: ." in s for s in sentences)


def test_the_table_has_a_line_for_every_width_and_a_dash_where_nothing_was_measured() -> None:
    some = CostCurve({1: {32: 0.01, 512: 0.011}, 2: {32: 0.0136}, 4: {32: 0.0133, 512: 0.014}})
    text = table(some, info(relative={"1": 1.0, "2": 1.36, "4": 1.33}, draft_step_seconds={"d.gguf": 0.0012}))
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["1", "2", "4"]
    assert "-" in lines[3].split() and "13.60 ms" in lines[3] and "0.33" in lines[4]
    assert lines[3].count("#") >= lines[4].count("#") > lines[2].count("#") > 0
    assert lines[5] == "draft model d.gguf: 1.20 ms a step"


def test_what_attention_takes_is_said_where_it_was_measured() -> None:
    slower = conclusions(info(attention={"fused": 0.03, "products": 0.01}), Q4_0)
    assert any("3.0 times as long" in s for s in slower)
    for attention in (None, {"fused": 0.01, "products": 0.03}):
        assert not any("ttention" in s for s in conclusions(info(attention=attention), Q4_0))
