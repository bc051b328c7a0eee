"""The first layers of a model as a model of its own, and what is asked of it in the whole one's place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from lcspec.config import ModelOptions
from lcspec.llama import Context, Model, can_go_row_by_row
from lcspec.modelfiles import slice as slice_file
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.slice import Slice, find_slice, write_slice
from lcspec.modelfiles.windows import windows_of
from lcspec.profiles import independence, price
from lcspec.profiles.independence import PARTS, independence_of, slice_of
from lcspec.profiles.kernels import CHECKING, MEASURING, choose_kernels
from scripts.gguf_copy import write_copy
from tests import tiny_gguf as tiny
from tests.tiny_families import write_family
from tests.tiny_windows import write_gemma3


def found(path: Path) -> Slice:
    out = find_slice(path)
    assert out is not None
    return out


def sliced(path: Path, folder: Path) -> Path:
    out = folder / f"slice-{path.name}"
    write_slice(found(path), out)
    return out


def with_another(path: Path, number: int) -> Path:
    """A copy whose layer `number` has a matrix more."""
    more = {f"blk.{number}.ffn_gate_inp.weight": np.zeros((32, 32), np.float32)}
    out = path.with_name(f"mixed-{number}.gguf")
    return write_copy(gguf.GGUFReader(path), out, lambda _, value: value, lambda _, data: data, more=more)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of eight layers that are alike."""
    return tiny.write_llama(tmp_path_factory.mktemp("slice") / "deep.gguf", n_layer=8, quant="Q8_0")


def test_tensors_and_metadata_stay_as_they_are(deep: Path, tmp_path: Path) -> None:
    assert found(deep)[1:] == (2, 0.25, 4.0)
    ours, theirs = read_gguf(sliced(deep, tmp_path)), read_gguf(deep)
    changed = {key for key in theirs.metadata if ours.metadata[key] != theirs.metadata[key]}
    assert changed == {"llama.block_count"} and ours.metadata["llama.block_count"] == 2
    kept = {t.name: np.asarray(t.data) for t in gguf.GGUFReader(ours.path).tensors}
    whole = {t.name: np.asarray(t.data) for t in gguf.GGUFReader(deep).tensors}
    assert kept.keys() == {name for name in whole if not name.startswith(tuple(f"blk.{n}." for n in range(2, 8)))}
    assert all(np.array_equal(data, whole[name]) for name, data in kept.items())


def test_every_kind_of_layer_is_among_them(deep: Path) -> None:
    assert found(with_another(deep, 2))[1:2] == (3,)
    assert found(with_another(deep, 3)).stands_for == pytest.approx(7 / 3)
    assert find_slice(with_another(deep, 4)) is None, "that is most of them"


def test_none_stands_for_too_many(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference shows in a few layers only: of every kind there must be enough."""
    for most, layers in ((8, 2), (3, 3), (2, 4)):
        monkeypatch.setattr(slice_file, "_MOST_APART", most)
        assert found(deep).layers == layers and found(deep).stands_for <= most
    monkeypatch.setattr(slice_file, "_MOST_APART", 1.5)
    assert find_slice(deep) is None


@pytest.mark.model
def test_the_library_runs_it(deep: Path, tmp_path: Path) -> None:
    windowed = write_gemma3(tmp_path / "gemma3.gguf", n_layer=12, window=16)
    marks = windows_of(read_header(windowed))
    out = sliced(windowed, tmp_path)
    left = windows_of(read_header(out))
    assert marks is not None and left is not None
    assert left.layers == marks.layers[: len(left.layers)] and set(left.layers) == {True, False}
    for path in (sliced(deep, tmp_path), out):
        options = ModelOptions(path, ctx=64, gpu_layers=0, threads=1)
        with Model.load(options) as model, Context(model, options) as context:
            context.batch.add(5, 0, (0,), logits=True)
            context.decode()
            assert np.isfinite(context.logits()).all()


@pytest.mark.parametrize("name", ["gemma4", "qwen3"])
def test_what_cannot_be_cut_stays_whole(tmp_path: Path, name: str) -> None:
    assert find_slice(write_family(name, tmp_path / "family.gguf")) is None  # shared layers; too few


@pytest.mark.model
def test_without_a_layer_that_sees_all_the_library_would_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layers of Llama 4 see chunks; nothing in its file says which the others are."""
    options = ModelOptions(write_family("llama4", tmp_path / "llama4.gguf"), ctx=64, gpu_layers=0, threads=1)
    monkeypatch.setattr(independence, "SMALL", 0)
    with Model.load(options) as model:
        assert find_slice(options.path) is not None and slice_of(model, options) is None


@pytest.mark.model
@pytest.mark.parametrize(
    "way",
    [
        {"attention": "fused"},
        {"attention": "fused", "kv_type_v": "bf16", "exact": True},
        {"attention": "rows", "exact": True, "streams": True},
    ],
)
def test_it_is_certified_as_the_whole_model_is(
    demo: tuple[Path, Path], way: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if way["attention"] == "rows" and not can_go_row_by_row():
        pytest.skip("this library cannot multiply row by row")
    options = replace(ModelOptions(demo[0], ctx=512, slots=2, gpu_layers=0, threads=1), **way)
    made = []
    for small in (1 << 40, 0):
        monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / str(small)))
        monkeypatch.setattr(independence, "SMALL", small)
        with Model.load(options) as model:
            assert (slice_of(model, options) is None) == (small > 0)
            certificate = independence_of(model, options)
            assert certificate is not None
            made.append(replace(certificate, positions=0))
    assert made[0] == made[1] and made[0].independent == bool(way.get("exact"))
    assert not list(tmp_path.rglob("*.gguf")), "what is asked is removed"


def test_a_part_is_asked_sooner(demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    options = ModelOptions(demo[0], ctx=512, gpu_layers=0, threads=1)
    work, checks = {1: 0.1, 2: 0.1, 4: 0.1, 64: 1.0}, []
    with Model.load(options) as model:
        for small in (1 << 40, 0):
            monkeypatch.setattr(independence, "SMALL", small)
            checks.append(price._check(model, replace(options, exact=True), work, None))
    steps = independence.CHECKED_STEPS * 0.1
    assert checks[1] - steps == pytest.approx((checks[0] - steps) / 3)  # two layers of six


@pytest.mark.model
@pytest.mark.parametrize("given_up", [False, True])
def test_a_first_start_says_what_takes_long_and_can_be_given_up(
    demo: tuple[Path, Path], given_up: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(independence, "SMALL", 0)
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path))
    options = ModelOptions(demo[0], ctx=512, gpu_layers=0, threads=1, exact=True, attention="measured")
    told = list[tuple[str, float]]()

    def progress(what: str, share: float) -> bool:
        told.append((what, share))
        return not given_up

    with Model.load(options) as model:
        chosen = choose_kernels(model, options, progress)
    assert told[:2] == [(MEASURING, 0.0), (MEASURING, 1.0)]
    checked = [share for what, share in told if what == CHECKING]
    if given_up:
        assert chosen.certificate is None and set(checked) == {1 / PARTS}
    else:
        assert chosen.certificate is not None and checked[-PARTS + 1 :] == [n / PARTS for n in range(1, PARTS)]
