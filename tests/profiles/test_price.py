"""What exactness is estimated to cost, from given times, and when prompts are read apart for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lcspec.config import ModelOptions
from lcspec.kv_cache.prompt_reader import EVERY_PROMPT, LEAST_ROWS, LONG_PROMPT
from lcspec.llama import Model
from lcspec.profiles import price
from lcspec.profiles.attention import WIDTHS, Layer, Times
from lcspec.profiles.price import Price, prices
from tests.running import options
from tests.tiny_families import write_family

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(llama: Path) -> Model:
    return Model.load(options(llama))


def priced(
    model: Model,
    patch: pytest.MonkeyPatch,
    *,
    steps: float = 1.0,
    short: float = 1.0,
    long: float = 1.0,
    piece: float,
    exact: bool | None = None,
) -> Price:
    """The price of going row by row, where that takes `steps` times as long over a layer's steps, `short` and `long`
    times as long over reading prompts, of which LEAST_ROWS take `piece` seconds otherwise.
    """
    layers = model.traits.n_layer
    usual = {**dict.fromkeys(WIDTHS, 1e-9), LEAST_ROWS: piece}
    reading = 4 * piece / layers  # a layer's attention takes as long over a piece of a prompt as all else does
    layer = Layer(reading, (1.0,) * len(WIDTHS), 1.0, 1)
    # All other work and a layer's attention together take `long` times as long.
    rows = layer._replace(read=reading * (2 * long - short), steps=(steps,) * len(WIDTHS))
    patch.setattr(price, "times_for", lambda *_: Times(layer, layer, layer, rows))
    works = {"fused": usual, "products": usual, "rows": {**usual, LEAST_ROWS: piece * short}}
    patch.setattr(price, "_work", lambda *_: works)
    way = replace(model.options, attention="rows", exact=True)
    ((_, found),) = prices(model, replace(way, exact=exact), [way])
    assert found is not None
    return found


def test_reading_that_costs_nothing_stays_where_it_is(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    found = priced(model, monkeypatch, short=1.05, long=1.08, piece=0.1)
    assert found.beyond is None and found.first == pytest.approx(1.08) and found.is_small


def test_long_prompts_are_read_apart_where_only_they_are_slower(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    found = priced(model, monkeypatch, short=1.05, long=1.3, piece=0.1)
    assert found.beyond == LONG_PROMPT and found.first == pytest.approx(1.05)


def test_all_are_where_weights_are_slower_too(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    found = priced(model, monkeypatch, short=1.9, long=1.9, piece=0.1)
    assert found.beyond == LEAST_ROWS and found.first == pytest.approx(1.0) and found.is_small


def test_a_slow_model_keeps_its_answers_as_they_were_decoded(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    found = priced(model, monkeypatch, short=1.9, long=1.9, piece=0.6)
    assert found.beyond == EVERY_PROMPT and found.first == pytest.approx(1.0) and found.is_small
    insisting = priced(model, monkeypatch, short=1.9, long=1.9, piece=0.6, exact=True)
    assert insisting.beyond is None and insisting.first == pytest.approx(1.9)


def test_dear_steps_are_not_small(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not priced(model, monkeypatch, steps=1.2, piece=0.1).is_small
    assert priced(model, monkeypatch, steps=1.01, piece=0.1).decode == pytest.approx(1.01)


def test_prompts_of_several_slots_are_read_as_those_of_one(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the same prompt would have other bits, where something else is the fastest for several slots."""
    usual = {**dict.fromkeys(WIDTHS, 1e-9), LEAST_ROWS: 0.1}
    monkeypatch.setattr(price, "_work", lambda *_: {"fused": usual, "products": usual, "rows": usual})

    def times(_: Model, given: ModelOptions) -> Times:
        fused = Layer(0.1, (1.0,) * len(WIDTHS), 1.0, given.slots)
        products = Layer(0.4, (1.1,) * len(WIDTHS), 0.1 if given.slots > 1 else 1.1, given.slots)
        return Times(fused, products, fused, fused._replace(read=0.4))

    monkeypatch.setattr(price, "times_for", times)
    found = []
    for slots in (1, 4):
        way = replace(model.options, attention="rows", exact=True, slots=slots, streams=slots > 1)
        found += [one.beyond for _, one in prices(model, way, [way]) if one is not None]
    assert found == [LONG_PROMPT] * 2


@pytest.mark.parametrize("family", ["lfm2", "gemma3"])
def test_slow_hybrids_and_windows_keep_their_answers_too(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {**dict.fromkeys(WIDTHS, 0.1), LEAST_ROWS: 1.0}
    monkeypatch.setattr(price, "_work", lambda *_: {"fused": usual, "fused_rows": {**usual, LEAST_ROWS: 1.5}})
    with Model.load(options(write_family(family, tmp_path / "m.gguf"))) as model:
        way = replace(model.options, attention="fused_rows", exact=True)
        for exact, beyond in ((None, EVERY_PROMPT), (True, None)):
            ((_, found),) = prices(model, replace(way, exact=exact), [way])
            assert found is not None and found.beyond == beyond
            assert found.first == pytest.approx(1.0 if beyond is not None else 1.5)
