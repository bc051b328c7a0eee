"""How many layers go to devices, on made-up devices and models."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcspec.config import ModelOptions
from lcspec.modelfiles.memory import needed
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.offload import MARGIN_LEAST, LayerCosts, Plan, Room, assign, fewer, layer_costs, plan_layers
from lcspec.placement import EXPERTS, Placement
from tests import tiny_gguf as tiny
from tests.tiny_families import write_family

MB = 1 << 20
# Eight layers of 100 MB of weights and 10 MB of cache, and an output of 50 MB.
EVEN = LayerCosts((100 * MB,) * 8, (10 * MB,) * 8, 50 * MB)
ALL = 8 * 110 * MB + 50 * MB


def room(left: int, compute: int = 0) -> Room:
    """A device with `left` bytes for layers."""
    free = max(left + compute + MARGIN_LEAST, (left + compute) * 16 // 15 + 16)
    return Room(free, compute)


def used(costs: LayerCosts, plan: Plan) -> list[int]:
    total = [0] * len(plan.split)
    for il, device in enumerate(assign(costs.count, plan.layers, plan.split)):
        if device is not None:
            total[device] += costs.of(il)
    return total


def test_layers_go_where_the_library_puts_them() -> None:
    # n_gpu_layers = 5 of 9, shares 3 : 2 (worked out by hand from load_tensors)
    assert assign(9, 5, (3.0, 2.0)) == [None, None, None, None, 0, 0, 0, 1, 1]
    assert assign(9, 9, (1.0,)) == [0] * 9
    assert assign(9, 0, (1.0,)) == [None] * 9
    assert assign(4, 4, (0.0, 1.0)) == [1, 1, 1, 1]
    assert assign(3, 7, (1.0, 1.0)) == [0, 0, 0], "more than there are: the library divides by what was asked"


@pytest.mark.parametrize(
    ("left", "layers"),
    [(ALL, 9), (ALL - 1, 8), (50 * MB, 1), (50 * MB - 1, 0), (50 * MB + 3 * 110 * MB, 4), (0, 0)],
)
def test_one_device(left: int, layers: int) -> None:
    assert plan_layers(EVEN, [room(left)]).layers == layers


def test_cache_and_compute_buffers_count() -> None:
    without_cache = replace(EVEN, cache=(0,) * 8)
    left = 50 * MB + 4 * 100 * MB
    assert plan_layers(without_cache, [room(left)]).layers == 5
    assert plan_layers(EVEN, [room(left)]).layers == 4
    free = room(left).free
    assert plan_layers(without_cache, [Room(free, 100 * MB)]).layers == 4


def test_drafts_are_left_room_for() -> None:
    assert plan_layers(EVEN, [room(ALL)], reserved=1).layers == 8
    assert plan_layers(EVEN, [room(ALL + 200 * MB)], reserved=200 * MB).layers == 9
    assert plan_layers(EVEN, [room(ALL)], reserved=10 * ALL).layers == 0


def test_two_devices_hold_more_than_one() -> None:
    plan = plan_layers(EVEN, [room(5 * 110 * MB), room(3 * 110 * MB + 50 * MB)])
    assert plan.layers == 9 and used(EVEN, plan) == [5 * 110 * MB, 3 * 110 * MB + 50 * MB]


def test_a_full_device_gets_nothing() -> None:
    plan = plan_layers(EVEN, [room(0), room(ALL)])
    assert plan.layers == 9 and used(EVEN, plan) == [0, ALL]
    assert plan_layers(EVEN, [Room(0), Room(0)]).layers == 0 and plan_layers(EVEN, []).layers == 0


def test_a_split_that_was_given_is_kept() -> None:
    rooms = [room(ALL), room(2 * 110 * MB)]
    plan = plan_layers(EVEN, rooms, (1.0, 1.0))
    assert plan.split == (1.0, 1.0) and plan.layers < 9, "half of it does not fit the second device"
    assert plan_layers(EVEN, rooms, (1.0,)) == Plan(9, (1.0, 0.0))


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=20),
    st.lists(st.integers(0, 2000), min_size=1, max_size=4),
    st.integers(1, 400),
)
def test_what_is_planned_fits(weights: list[int], rooms: list[int], output: int) -> None:
    costs = LayerCosts(tuple(w * MB for w in weights), tuple(w * MB // 7 for w in weights), output * MB)
    there = [room(r * MB) for r in rooms]
    plan = plan_layers(costs, there)
    assert all(u <= r.for_layers for u, r in itertools.zip_longest(used(costs, plan), there) if u)
    assert plan.layers <= costs.count
    if plan.layers < costs.count and len(rooms) == 1:
        over = sum(costs.of(il) for il in range(costs.count - plan.layers - 1, costs.count))
        assert over > there[0].for_layers, "one layer more would not have fitted"


def test_with_fewer_until_none() -> None:
    tried, layers = [], -1
    while (less := fewer(layers, 33)) is not None:
        tried.append(less)
        layers = less
    assert tried == sorted(set(tried), reverse=True) and tried[0] == 24 and tried[-1] == 0 and len(tried) < 20


def test_a_file_s_layers(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tiny.write_llama(path, n_layer=3)
    header = read_header(path)
    options = ModelOptions(path, ctx=1024, slots=2)
    costs = layer_costs(header, options)
    assert costs.count == 4 and len(set(costs.weights)) == 1 and costs.weights[0] > 0 and costs.output > 0
    assert sum(costs.weights) + costs.output <= header.file_size
    need = needed(header, options).kv_cache
    assert need <= sum(costs.cache) <= 1.1 * need
    assert sum(layer_costs(header, replace(options, kv_type="q8_0")).cache) < sum(costs.cache)
    inside = replace(options, placement=Placement(kv_offload=False))
    assert not any(layer_costs(header, inside).cache), "that cache stays in main memory"
    kept = replace(options, placement=Placement(overrides=((r"\.ffn_", "CPU"), (EXPERTS, "CPU"))))
    assert 0 < layer_costs(header, kept).weights[0] < costs.weights[0], "and so do these weights"
    elsewhere = layer_costs(header, replace(options, placement=Placement(overrides=((r"\.ffn_", "CUDA1"),))))
    assert sum(elsewhere.weights) + elsewhere.pinned["CUDA1"] == sum(costs.weights)
    first = layer_costs(
        header, replace(options, placement=Placement(overrides=((r"blk\.0\.ffn_", "CUDA0"), (r"\.ffn_", "CPU"))))
    )
    assert first.pinned["CUDA0"] * 2 == first.pinned["CPU"], "of two overrides the first that matches counts"


def test_what_layers_look_up_stays_in_main_memory(tmp_path: Path) -> None:
    path = write_family("qwen4exp", tmp_path / "m.gguf")
    costs = layer_costs(read_header(path), ModelOptions(path))
    inputs = {"token_embd.weight", "per_layer_token_embd.weight"}
    others = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors if tensor.name not in inputs)
    assert sum(costs.weights) + costs.output == others


@pytest.mark.parametrize("write", [tiny.write_hybrid, tiny.write_recurrent, tiny.write_sliding_window])
def test_every_kind_of_model_has_figures(tmp_path: Path, write: object) -> None:
    path = tmp_path / "m.gguf"
    write(path)  # type: ignore[operator]
    costs = layer_costs(read_header(path), ModelOptions(path, ctx=512))
    assert all(costs.weights) and any(costs.cache) and costs.output
