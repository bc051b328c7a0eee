"""Certificates of width classes: which class is used, padding, stored forms; and order in the cache."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.commands.selfcheck_text import classes_text, ranges, texts_text
from lcspec.profiles.exactness import PROMPT_BLOCK, TRUSTED_POSITIONS, Certificate, in_order

fixed = settings(derandomize=True, deadline=None, max_examples=200)


def certificate(*classes: tuple[int, ...], positions: int = 500, trees: bool = True) -> Certificate:
    return Certificate(classes, positions, trees, repeatable=True)


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([(1,), (2, 3, 4, 5, 6, 7, 8, 16, 32)], {2, 3, 4, 5, 6, 7, 8, 16, 32}),
        ([(1,), (2, 3), (4,), (5,), (8, 16, 32)], {2, 3}),
        ([(1,), (2, 3, 4, 5), (8, 16, 32)], {2, 3, 4, 5}),
        ([(9, 10, 11, 12), (8,)], {8}),
        ([(1, 2), (3, 4)], {1, 2}),
        ([(3, 4), (1, 2)], {1, 2}),
        ([(2, 3), (4, 5, 16)], {4, 5, 16}),
        ([(1,)], {1}),
    ],
)
def test_the_class_with_most_narrow_widths_is_used(classes: list[tuple[int, ...]], expected: set[int]) -> None:
    assert certificate(*classes).widths == expected


def test_width_one_is_trusted_only_after_a_long_look() -> None:
    assert certificate((1, 2, 4), positions=TRUSTED_POSITIONS - 1).widths == {2, 4}
    assert certificate((1, 2, 4), positions=TRUSTED_POSITIONS).widths == {1, 2, 4}
    assert certificate((1,), positions=1).widths == {1}


def test_padding_goes_to_the_next_width_of_the_class() -> None:
    some = certificate((1,), (2, 3, 5, 8), (4, 6, 7))
    assert [some.pad(n) for n in range(1, 10)] == [2, 2, 3, 5, 5, 8, 8, 8, 9]


def test_prompt_blocks_in_the_class() -> None:
    assert certificate((2, 3, PROMPT_BLOCK)).prompt_in_class
    assert not certificate((2, 3), (PROMPT_BLOCK,)).prompt_in_class


@fixed
@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1).map(tuple), min_size=1).map(tuple), st.integers(0, 999),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_round_trip(classes: tuple[tuple[int, ...], ...], positions: int, trees: bool, repeatable: bool) -> None:
    some = Certificate(classes, positions, trees, repeatable)
    assert Certificate.from_dict(json.loads(json.dumps(some.as_dict()))) == some


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@fixed
@given(JSON, st.sampled_from(["", "classes", "class", "width", "positions", "trees", "repeatable"]))
def test_junk_is_a_value_error_or_a_sound_certificate(junk: Any, where: str) -> None:
    data: Any = certificate((1,), (2, 3)).as_dict()
    if where == "class":
        data["classes"] = [[1], junk]
    elif where == "width":
        data["classes"] = [[1], [junk]]
    else:
        data = {**data, where: junk} if where else junk
    try:
        found = Certificate.from_dict(data)
    except ValueError:
        return
    assert found.widths and min(found.widths) >= 1 and found.pad(1) >= 1


@pytest.mark.parametrize("classes", [[], [[]], [[1], []], [[0]], [[1, -2]]])
def test_impossible_classes_are_refused(classes: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="not a certificate"):
        Certificate.from_dict({**certificate((1,)).as_dict(), "classes": classes})


@pytest.mark.parametrize(
    ("order", "path", "expected"),
    [
        ([0, 1, 2, 3], [1, 2, 3], 3),
        ([0, 1, 2, 3], [1, 2], 2),
        ([0, 1, 2, 3], [], 0),
        ([0, 1, 2, 3], [2, 3], 0),
        ([0, 1, 3, 2], [1, 2], 1),
        ([0, 2, 1, 3], [2, 3], 1),
        ([0], [], 0),
    ],
)
def test_in_order_counts_the_accepted_nodes_that_came_first(order: list[int], path: list[int], expected: int) -> None:
    assert in_order(order, path) == expected


@pytest.mark.parametrize(
    ("widths", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 2], "1-2"),
        ([1, 3], "1, 3"),
        ([8, 2, 3, 5, 4, 16, 17], "2-5, 8, 16-17"),
    ],
)
def test_ranges(widths: list[int], text: str) -> None:
    assert ranges(widths) == text


@fixed
@given(st.sets(st.integers(1, 40), min_size=1))
def test_ranges_can_be_read_back(widths: set[int]) -> None:
    read = set[int]()
    for part in ranges(list(widths)).split(", "):
        a, _, b = part.partition("-")
        read.update(range(int(a), int(b or a) + 1))
    assert read == widths


def result(**more: Any) -> dict[str, Any]:
    some = certificate((1,), (2, 3, 4))
    return {
        "model": "m.gguf", "quantization": "Q4_0", "threads": 2, "repack": True, **some.as_dict(),
        "widths": sorted(some.widths), "reference_width": 4,
        "largest_difference": {"1": 0.25, "2": 0.0, "3": 0.0, "4": 0.0},
        "argmax_flips": {"1": 3, "2": 0, "3": 0, "4": 0}, **more,
    }  # fmt: skip


def test_the_classes_are_shown_with_the_chosen_one_marked() -> None:
    lines = classes_text(result()).splitlines()
    assert lines[0] == "m.gguf (Q4_0), 2 threads, weights repacked: 500 positions compared"
    assert lines[1].split() == ["1", "differs", "from", "width", "4", "by", "up", "to", "0.25,", "3", "argmax", "flips"]
    assert lines[2].split() == ["*", "2-4", "the", "reference"]
    assert "widths 2-4" in lines[3] and "same bits" in lines[4]
    assert "chains only" in classes_text(result(trees=False))
    assert "weights as stored" in classes_text(result(repack=False))


def test_a_machine_that_does_not_repeat_itself_certifies_nothing() -> None:
    text = classes_text(result(repeatable=False, widths=[]))
    assert "nothing can be certified" in text and "--exact decodes" not in text


def test_the_comparison_of_texts_is_shown() -> None:
    row = {"strategy": "ngram", "temperature": 0.0, "prompts": 3, "identical_exact": 3, "identical": 2}
    text = texts_text({"texts": [row, {**row, "temperature": 0.8}]})
    assert "--exact 3/3" in text and "without 2/3" in text and "greedy" in text and "temperature 0.8, seeded" in text
    assert texts_text({"refused": "no"}) == "no"


@pytest.mark.parametrize("text", ['{"classes": [[1e400]]', '{"classes": [[1]], "positions": 1e400'])
def test_numbers_beyond_all_bounds(text: str) -> None:
    data = json.loads(text + ', "trees": true, "repeatable": true, "independent": false, "more": 1}')
    with pytest.raises(ValueError, match="not a certificate"):
        Certificate.from_dict({"positions": 1, **data})
