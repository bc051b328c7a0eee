"""Draft models made by leaving layers out: the file, the search, the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from lcspec.commands.draft_prune import (
    Judge,
    Trial,
    agreement,
    greedy_search,
    own_texts,
    ranges,
    settled,
    spread_layers,
)
from lcspec.config import ModelOptions
from lcspec.errors import ModelFileError, UnsupportedModel, UsageError
from lcspec.llama import Context, Model
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.prune import count_layers, write_pruned
from lcspec.modelfiles.windows import windows_of
from lcspec.profiles.cost_curve import CostCurve
from lcspec.session import open_session
from tests import tiny_gguf as tiny
from tests.commands.test_command_line import fails, ok, run
from tests.running import SAMPLINGS, answer, options, prompts, request
from tests.tiny_families import FAMILIES, write_family
from tests.tiny_windows import write_gemma3

pytestmark = pytest.mark.model

TEXT = "the cat and the dog and the cat and the "


@pytest.fixture(scope="module")
def deep(folder: Path) -> Path:
    """A model of six layers, quantized."""
    path = folder / "deep.gguf"
    return tiny.write_llama(path, n_layer=6, quant="Q8_0", chat_template=tiny.CHATML_TEMPLATE)


def tensors(path: Path) -> dict[str, np.ndarray]:
    return {t.name: np.asarray(t.data) for t in gguf.GGUFReader(path).tensors}


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_kept_layers_are_copied_byte_for_byte(deep: Path, tmp_path: Path) -> None:
    out = tmp_path / "some.gguf"
    write_pruned(deep, out, [0, 3, 5], {"agreement": 0.5, "why": "a test"})
    whole, some = tensors(deep), tensors(out)
    for new, old in enumerate([0, 3, 5]):
        mine = {n: t for n, t in some.items() if n.startswith(f"blk.{new}.")}
        assert mine
        for name, data in mine.items():
            assert np.array_equal(data, whole[name.replace(f"blk.{new}.", f"blk.{old}.")])
    assert {n for n in some if not n.startswith("blk.")} == {n for n in whole if not n.startswith("blk.")}
    assert not any(n.startswith("blk.3.") for n in some)
    before, after = read_header(deep), read_header(out)
    assert after.block_count == 3 and after.quantization == "Q8_0"
    assert (after.chat_template, after.tokenizer_model, after.n_vocab) == (
        before.chat_template, before.tokenizer_model, before.n_vocab,
    )  # fmt: skip
    kept = read_gguf(out, arrays=["lcspec.pruned.layers"]).metadata
    assert list(kept["lcspec.pruned.layers"].values) == [0, 3, 5]  # type: ignore[union-attr, arg-type]
    assert kept["lcspec.pruned.from"] == "deep.gguf" and kept["lcspec.pruned.of"] == 6
    assert kept["lcspec.pruned.agreement"] == 0.5 and kept["lcspec.pruned.why"] == "a test"
    assert "layers 0, 3, 5 of 6" in str(after.name)


def test_all_layers_are_the_model_itself(deep: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.gguf"
    write_pruned(deep, out, range(6))
    texts = []
    for path in (deep, out):
        with open_session(options(path)) as session:
            texts.append(answer(session.engine, request(session.prompt_ids(TEXT), "off", 40, logprobs=0)).bits)
    assert texts[0] == texts[1]


def test_arrays_with_an_entry_a_layer_are_cut(tmp_path: Path) -> None:
    src, out = tmp_path / "arrays.gguf", tmp_path / "out.gguf"
    extra = {"attention.head_count_kv": [2, 2, 2, 2], "feed_forward_length": [128, 128, 128, 128]}
    tiny.write_llama(src, n_layer=4, extra=extra)
    write_pruned(src, out, [1, 3])
    assert read_gguf(out).metadata["llama.feed_forward_length"].count == 2  # type: ignore[union-attr]
    with Model.load(ModelOptions(out, ctx=64, threads=1)) as model:
        assert model.traits.n_layer == 2


def test_layers_that_are_not_there(deep: Path, tmp_path: Path) -> None:
    for layers in ([], [6], [-1], [2, 1], [1, 1]):
        with pytest.raises(UsageError, match="layers 0 to 5"):
            write_pruned(deep, tmp_path / "x.gguf", layers)
    assert list(tmp_path.iterdir()) == []


def test_models_whose_layers_cannot_be_left_out(tmp_path: Path, bad_files: dict[str, Path]) -> None:
    special = tiny.write_llama(tmp_path / "mtp.gguf", extra={"nextn_predict_layers": 1})
    with pytest.raises(UnsupportedModel, match="nextn_predict_layers"):
        count_layers(read_gguf(special))
    gap = tiny.write_llama(tmp_path / "gap.gguf", extra={"block_count": 3})
    with pytest.raises(ModelFileError, match="stack of layers"):
        count_layers(read_gguf(gap))


def test_layers_keep_their_windows(tmp_path: Path) -> None:
    """By their new numbers others would have one, and a model of windows without any ends the process."""
    src, out = write_gemma3(tmp_path / "src.gguf", n_layer=4), tmp_path / "out.gguf"
    write_pruned(src, out, [1, 2, 3])
    windows = windows_of(read_header(out))
    assert windows is not None and windows.layers == (False, True, False)
    with open_session(options(out)) as session:
        assert answer(session.engine, request(session.prompt_ids(TEXT), "off", 20)).ids
    with pytest.raises(UsageError, match="sliding windows"):
        write_pruned(src, out, [1, 3])
    judge = Judge(src, options(src), [], CostCurve.flat(0.01, 8), out)
    assert judge([1, 3]).speedup == judge([3]).agreement == 0.0


def test_what_images_give_to_layers_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library adds it to the first layers, and ends the process if that would be all."""
    monkeypatch.setitem(FAMILIES, "qwen3vl", replace(FAMILIES["qwen3"], architecture="qwen3vl"))
    keys = {"n_deepstack_layers": 1, "rope.dimension_sections": [2, 3, 3, 0]}
    src, out = write_family("qwen3vl", tmp_path / "src.gguf", **keys), tmp_path / "out.gguf"
    texts = []
    for layers in ([0], [0, 1]):
        write_pruned(src, out, layers)
        assert read_gguf(out).metadata["qwen3vl.n_deepstack_layers"] == 0
    for path in (src, out):
        with open_session(options(path)) as session:
            texts.append(answer(session.engine, request(session.prompt_ids(TEXT), "off", 20, logprobs=0)).bits)
    assert texts[0] == texts[1]


def test_layers_that_do_something_else_by_another_number_are_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "smollm3", replace(FAMILIES["llama"], architecture="smollm3"))
    for family, why in (("smollm3", "smollm3"), ("gemma4", "embedding_length_per_layer_input")):
        with pytest.raises(UnsupportedModel, match=rf"kind depends on their number \({why}\)"):
            count_layers(read_gguf(write_family(family, tmp_path / f"{family}.gguf")))


# --- the search -------------------------------------------------------------------------------------------------------


def judged(harm: Sequence[float]) -> tuple[list[tuple[int, ...]], object]:
    """A judge for whom leaving layer i out costs `harm[i]`, and what it was asked."""
    asked: list[tuple[int, ...]] = []

    def judge(layers: Sequence[int]) -> Trial:
        asked.append(tuple(layers))
        left = 1.0 - sum(h for i, h in enumerate(harm) if i not in layers)
        return Trial(tuple(layers), left, len(layers) / len(harm), left)

    return asked, judge


def test_the_search_leaves_out_what_is_missed_least() -> None:
    asked, judge = judged([0.3, 0.05, 0.01, 0.2, 0.02, 0.25])
    trials = list(greedy_search(judge, 6, 2))  # type: ignore[arg-type]
    best = {n: max((t for t in trials if len(t.layers) == n), key=lambda t: t.agreement).layers for n in range(2, 6)}
    assert best == {5: (0, 1, 3, 4, 5), 4: (0, 1, 3, 5), 3: (0, 3, 5), 2: (0, 5)}
    assert len(asked) == 6 + 4 + 4 + 3


def test_a_busy_moment_does_not_decide_between_subsets_of_one_size() -> None:
    curve = CostCurve.flat(0.01, 8)
    trials = [Trial((0, 1), 0.6, 0.9, 0.0), Trial((0, 2), 0.5, 0.3, 0.0), Trial((0,), 0.2, 0.25, 0.0)]
    better, worse, short = settled(trials, curve)
    assert better.cost == worse.cost == 0.3 and short.cost == 0.25
    assert better.speedup > worse.speedup > 0
    # The best chain of one: (1 + 0.6) / (1 + 0.3) ... of two: (1 + 0.6 + 0.36) / (1 + 0.6).
    assert better.speedup == pytest.approx(max(1.6 / 1.3, 1.96 / 1.6, 2.176 / 1.9))


def test_evenly_spread_layers() -> None:
    assert spread_layers(6, 2) == [0, 5] and spread_layers(6, 1) == [0] and spread_layers(6, 5)[-1] == 5
    assert all(len(spread_layers(n, k)) == k for n in range(2, 40) for k in range(1, n))
    assert ranges([0, 1, 2, 4, 6, 7]) == "0-2, 4, 6-7"


def test_a_model_agrees_with_its_own_text(deep: Path) -> None:
    with open_session(options(deep, max_width=64)) as session:
        texts = own_texts(session, 90)
    assert len(texts) == 2 and all(len(t.tokens) - t.n_prompt == 48 for t in texts)
    with Model.load(options(deep, max_width=64)) as model, Context(model) as context:
        found = [hit for t in texts for hit in agreement(context, t)]
    assert len(found) == 96 and sum(found) >= 88  # other widths, other bits: a near tie may flip


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_draft_that_keeps_the_text(deep: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    done = ok(
        "draft", "prune", deep, "--keep-layers", 4, "--search", "--tokens", 48, "--threads", 1, "--out", out, "--json"
    )
    told = json.loads(done.stdout)
    assert told["layers"] == 6 and told["written"] == str(out) and len(told["best"]["layers"]) == 4
    assert len(told["trials"]) == 6 + 4
    assert all(0.0 <= t["agreement"] <= 1.0 and t["cost"] > 0 for t in told["trials"])
    same_size = [t for t in told["trials"] if len(t["layers"]) == 4]
    assert told["best"] in same_size
    assert read_gguf(out).metadata["lcspec.pruned.agreement"] == pytest.approx(told["best"]["agreement"])
    assert [p.name for p in tmp_path.iterdir()] == ["draft.gguf"]
    with open_session(options(deep), out) as session:
        prompt = session.prompt_ids(TEXT)
        for sampling in SAMPLINGS.values():
            plain = answer(session.engine, request(prompt, "off", 40, sampling=sampling, exact=True, logprobs=0))
            for strategy in ("model:p_min=0", "model:branch=3:nodes=12:p_min=0"):
                found = answer(session.engine, request(prompt, strategy, 40, sampling=sampling, exact=True, logprobs=0))
                assert found.bits == plain.bits and found.finished.stats.accepted > 0


def test_a_pruned_demo_model_drafts_for_itself(demo: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "demo.gguf"
    n = count_layers(read_gguf(demo[0]))
    write_pruned(demo[0], out, [i for i in range(n) if i != n // 2])
    with open_session(options(demo[0]), out) as session:
        for prompt, sampling in zip(prompts(session, 1, 1), SAMPLINGS.values()):
            plain = answer(session.engine, request(prompt, "off", 40, sampling=sampling, exact=True, logprobs=0))
            found = answer(session.engine, request(prompt, "model", 40, sampling=sampling, exact=True, logprobs=0))
            assert found.bits == plain.bits and found.finished.stats.accepted > 0


def test_the_table_without_a_search(deep: Path, tmp_path: Path) -> None:
    out = tmp_path / "spread.gguf"
    done = ok("draft", "prune", deep, "--keep-layers", 2, "--tokens", 48, "--threads", 1, "--out", out)
    lines = done.stdout.splitlines()
    assert lines[2].startswith("* 0, 5") and f"--draft {out}" in lines[-1]


def test_a_search_either_writes_what_promises_a_gain_or_nothing(deep: Path, tmp_path: Path) -> None:
    out = tmp_path / "best.gguf"
    done = run("draft", "prune", deep, "--tokens", 48, "--threads", 1, "--out", out, "--json")
    told = json.loads(done.stdout)
    assert done.returncode == (0 if out.exists() else 1) == (0 if told["best"]["speedup"] > 1.0 else 1)
    assert [p.name for p in tmp_path.iterdir()] == ([out.name] if out.exists() else [])


def test_what_cannot_be_pruned_is_refused(deep: Path, recurrent: Path, tmp_path: Path, llama: Path) -> None:
    common = ("--threads", 1, "--out", tmp_path / "x.gguf")
    assert "from 1 to 5" in fails(2, "draft", "prune", deep, "--keep-layers", 6, *common)
    assert "recurrent" in fails(1, "draft", "prune", recurrent, "--keep-layers", 1, *common)
    assert "does not exist" in fails(2, "draft", "prune", deep, "--out", tmp_path / "no" / "x.gguf")
    assert "over itself" in fails(2, "draft", "prune", deep, "--out", deep)
    assert list(tmp_path.iterdir()) == []
