"""Fused attention or matrix products: what is measured, who is asked, and that texts survive either."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import pytest

from lcspec import disk_cache
from lcspec.config import DraftFiles, ModelOptions
from lcspec.drafters import DrafterEnv
from lcspec.drafters.draft_model import ModelDrafter
from lcspec.errors import DecodeError
from lcspec.llama import Context, Model, can_go_row_by_row
from lcspec.modelfiles.attention_layers import Heads, write_layers
from lcspec.modelfiles.memory import Memory
from lcspec.modelfiles.modelfile import read_header
from lcspec.profiles import attention
from lcspec.profiles.attention import WIDTHS, Found, Layer, Times, heads_of, measure, times_for, with_attention
from lcspec.profiles.steadiness import Presence
from lcspec.session import make_engine
from tests import tiny_gguf as tiny
from tests.running import ROUNDS_ALIKE, answer, request
from tests.running import options as quiet_options

pytestmark = [pytest.mark.model, pytest.mark.skipif(not ROUNDS_ALIKE, reason="a GPU has one kernel")]

HEADS = Heads(4, 2, 16, 16)  # those of tiny.write_llama


def options(path: Path, **changes: Any) -> ModelOptions:
    """Attention is what is faster, as with --no-exact."""
    return quiet_options(path, **{"attention": "measured", "exact": False, **changes})


def all_alike(fused: float, products: float) -> Times:
    """Times of layers that take so many seconds for anything; exact ones as with the fused kernel."""
    every = [Layer(seconds, (seconds,) * len(WIDTHS), seconds, 1) for seconds in (fused, products, fused)]
    return Times(*every)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[float, float], list[Heads]]:
    """Say what the next measurements find, in a cache of their own; returns whose heads were measured."""
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))
    asked: list[Heads] = []

    def finds(fused: float, products: float) -> list[Heads]:
        def found(heads: Heads, *_: object) -> Found:
            asked.append(heads)
            rows = [[seconds] * (1 + len(WIDTHS)) for seconds in (fused, products, fused)]
            return Found(rows, [row[:1] for row in rows])

        monkeypatch.setattr(attention, "measure", found)
        return asked

    return finds


def test_both_ways_are_timed() -> None:
    texts = None
    for slots in (1, 3):
        found = measure(HEADS, ModelOptions(Path("not read"), threads=1, slots=slots), Presence(), texts)
        assert texts is None or found.texts is texts, "a single text is not timed again"
        texts = found.texts
        assert len(texts) == len(found.crowds) == 3 + can_go_row_by_row()
        assert all(len(row) == 1 + len(WIDTHS) and min(row) > 0 for row in texts) and min(found.crowds) > [0.0]


def test_a_layer_has_the_heads_it_was_given(tmp_path: Path) -> None:
    for heads in (HEADS, Heads(6, 6, 32, 32), Heads(8, 1, 64, 32)):
        path = tmp_path / "layer.gguf"
        write_layers(path, heads, 2)
        header = read_header(path)
        assert heads_of(header) == heads and header.block_count == 2


def test_what_one_slot_was_found_to_take_holds_for_several(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How prompts are read follows from it, and must not depend on the slots."""
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))
    with Model.load(options(llama)) as model:
        several, one, again = (times_for(model, options(llama, slots=n)) for n in (3, 1, 3))
    assert several is not None and one is not None and several == again
    assert [layer and layer[:2] for layer in one] == [layer and layer[:2] for layer in several]
    assert several.fused.slots == 3 and one.fused.crowd == one.fused.steps[0]


def test_what_a_busy_machine_took_holds_for_an_hour(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions that follow each other must decide alike: the bits of their texts depend on it."""
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("lcspec.profiles.steadiness.SHARE", 2.0)  # nothing is quiet enough
    now = time.time()
    with Model.load(options(llama)) as model:
        first = times_for(model, options(llama))
        assert first is not None and times_for(model, options(llama)) == first
        monkeypatch.setattr("lcspec.disk_cache.time.time", lambda: now + 7200)
        assert times_for(model, options(llama)) != first, "it was not measured again"


def test_matrix_products_must_be_worth_their_memory() -> None:
    assert all_alike(1.0, 0.9).fused_is_slower
    assert not all_alike(1.0, 0.97).fused_is_slower and not all_alike(1.0, 2.0).fused_is_slower


def test_the_faster_way_is_used_and_measured_once(measured: Any, llama: Path, llama_draft: Path) -> None:
    asked = measured(2.0, 1.0)
    with Model.load(options(llama)) as model, make_engine(model) as engine:
        assert engine.options.attention == engine.context.options.attention == "products"
        drafter = ModelDrafter(DrafterEnv(model, 1, 512, draft=DraftFiles.of(llama_draft), threads=1))
        assert drafter.context.options.attention == "products"
        drafter.close()
    assert asked == [HEADS], "the draft model has the same heads, so nothing new was to be found out"


def test_the_library_decides_where_its_kernel_is_no_slower(measured: Any, llama: Path) -> None:
    measured(1.0, 1.0)
    with Model.load(options(llama)) as model, make_engine(model) as engine:
        assert engine.options == replace(model.options, attention="library")


def test_what_the_user_says_is_not_questioned(measured: Any, llama: Path) -> None:
    asked = measured(2.0, 1.0)
    with Model.load(options(llama)) as model:
        for way in ("library", "fused", "products"):
            assert with_attention(model, options(llama, attention=way)).attention == way
        # only the fused kernel reads it
        assert with_attention(model, options(llama, kv_type="q8_0")).attention == "library"
    assert asked == []


@pytest.mark.parametrize("kind", ["recurrent", "sliding_window"])
def test_models_of_other_kinds_are_left_to_the_library(
    measured: Any, kind: str, llama: Path, request: pytest.FixtureRequest
) -> None:
    asked = measured(2.0, 1.0)
    with Model.load(options(request.getfixturevalue(kind))) as model:
        assert with_attention(model, model.options).attention == "library"
    with Model.load(options(llama)) as model:
        monkey = replace(model.header, metadata={**model.header.metadata, "llama.attention.kv_lora_rank": 8})
        assert heads_of(model.header) == HEADS and heads_of(monkey) is None
        assert heads_of(replace(model.header, metadata={})) is None
        odd = replace(model.header, metadata={**model.header.metadata, "llama.attention.key_length": 15})
        assert heads_of(odd) is None
    assert asked == []


def test_scores_must_fit(measured: Any, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(2.0, 1.0)
    scores = 4 * 4 * 128 * 512  # bytes x heads x rows x tokens
    with Model.load(options(llama)) as model:
        for memory, one, nine in (
            (Memory(8 * scores, 0), "products", "library"),
            (Memory(8 * scores - 8, 0), "library", "library"),
            (None, "products", "products"),
        ):
            monkeypatch.setattr(attention, "machine_memory", lambda memory=memory: memory)
            assert with_attention(model, model.options).attention == one
            assert with_attention(model, options(llama, slots=9)).attention == nine


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        [1.0],
        [[2.0] * 4] * 2,
        [[2.0, 1.0, 1.0, -1.0]] * 3,
        [[2.0, 1.0, 1.0, "1"]] * 3,
        [[2.0] * 3] * 3,
        [[2.0] * 5] * 3,
        {"fused": 1.0},
        "x",
    ],
)
def test_a_bad_entry_is_measured_again(measured: Any, llama: Path, stored: Any) -> None:
    asked = measured(2.0, 1.0)
    with Model.load(options(llama)) as model:
        times_for(model, model.options)
        (entry,) = (disk_cache.cache_dir() / "attention").iterdir()
        disk_cache.save("attention", entry.stem, stored)
        assert times_for(model, model.options) == all_alike(2.0, 1.0)
    assert len(asked) == 2


@pytest.mark.parametrize("problem", [DecodeError("no room"), OSError("disk full")])
def test_what_cannot_be_measured_is_left_to_the_library(
    measured: Any, llama: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    measured(2.0, 1.0)

    def fails(*_: object) -> Times:
        raise problem

    monkeypatch.setattr(attention, "measure", fails)
    with Model.load(options(llama)) as model, make_engine(model) as engine:
        assert engine.options.attention == "library"


@pytest.mark.parametrize("slots", [1, 2])
def test_exact_texts_do_not_depend_on_what_is_faster(measured: Any, llama: Path, llama_draft: Path, slots: int) -> None:
    """Sums of matrix products depend on where a text lies in the cache, so exact requests never use them."""
    measured(2.0, 1.0)
    with Model.load(options(llama)) as model, make_engine(model, options(llama, attention="library")) as library:
        assert not library.exact.needs_own_context
        env = DrafterEnv(model, slots, 512, draft=DraftFiles.of(llama_draft), threads=1)
        with make_engine(model, options(llama, slots=slots), env) as fast:
            assert fast.options.attention == "products" and fast.exact.needs_own_context
            for text in ("The weather", "in the end and on the way"):
                prompt = model.vocab.tokenize(text)
                plain = answer(library, request(prompt, exact=True, n=48))
                answer(fast, request(prompt[:-1], "ngram", n=20))  # something else lies in the cache
                for drafters in ("off", "ngram", "model", "model:branch=3:nodes=9", "auto"):
                    assert answer(fast, request(prompt, drafters, exact=True, n=48)).bits == plain.bits
            assert fast.exact.certificate is not None


@pytest.mark.parametrize("way", ["fused", "products"])
def test_a_text_is_what_its_context_would_say(llama: Path, way: str) -> None:
    """Whatever computes attention, plain decoding is the library's greedy decoding with it."""
    with Model.load(options(llama, attention=way)) as model, make_engine(model) as engine:
        prompt = model.vocab.tokenize("in the end and on the way")
        found = answer(engine, request(prompt, n=40))
        with Context(model) as context:
            rows = []
            for i, token in enumerate([*prompt, *found.ids]):
                context.batch.clear()
                context.batch.add(token, i, (0,), logits=True)
                context.decode()
                rows.append(int(context.logits()[0].argmax()))
        assert found.ids == rows[len(prompt) - 1 : -1]


def test_both_ways_give_nearly_the_same_logits(tmp_path: Path) -> None:
    path = tiny.write_llama(tmp_path / "m.gguf")
    with Model.load(options(path)) as model:
        rows = []
        for way in ("fused", "products"):
            with Context(model, options(path, attention=way)) as context:
                context.batch.clear()
                for i, token in enumerate(model.vocab.tokenize("and the other one")):
                    context.batch.add(token, i, (0,), logits=True)
                context.decode()
                rows.append(context.logits().copy())
    assert abs(rows[0] - rows[1]).max() < 0.05
    assert (rows[0].argmax(axis=1) == rows[1].argmax(axis=1)).all()
