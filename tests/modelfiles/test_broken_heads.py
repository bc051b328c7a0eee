"""Heads and layers for multi-token prediction on which the library ends the process are refused by their headers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lcspec.config import DraftFiles, ModelOptions
from lcspec.errors import ModelFileError, UnsupportedModel
from lcspec.llama import Model
from lcspec.modelfiles.companions import sort_drafts
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.mtp_layers import usable_mtp
from tests import forks
from tests import tiny_gguf as tiny
from tests.tiny_families import HEAD, HEADS, KV_HEADS, VOCAB, WIDTH, Net, write_family
from tests.tiny_heads import write_assistant, write_eagle, write_mtp_part

pytestmark = pytest.mark.slow

Change = Callable[[Net], None]


def reshape(name: str, *shape: int) -> Change:
    return lambda net: net.tensors.update({name: np.ones(shape, np.float32)})


def drop(*names: str) -> Change:
    def change(net: Net) -> None:
        for name in names:
            del net.tensors[name]

    return change


def map_of_two(net: Net) -> None:
    net.tensors["d2t"] = np.array((1, 2), dtype=np.int64)


NO_FIRST, NO_SECOND = drop("blk.2.nextn.eh_proj.weight"), drop("blk.3.nextn.eh_proj.weight")
# What a file of step35 announces instead of 2 layers behind 2, which tensors it lacks, and what is said about it.
BROKEN_STEP35: list[tuple[dict[str, int], Change | None, str]] = [
    ({"nextn_predict_layers": 9}, None, "says that 9 of its 4 layers are for multi-token prediction"),
    ({"nextn_predict_layers": 3}, None, r"has 4 layers, the last 3 for .* tensor blk.1.nextn.eh_proj is missing"),
    ({}, NO_FIRST, r"has 4 layers, the last 2 for .* tensor blk.2.nextn.eh_proj is missing"),
    ({}, NO_SECOND, r"has 4 layers, the last 2 for .* tensor blk.3.nextn.eh_proj is missing"),
]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"change": reshape("token_embd.weight", 100, WIDTH)}, f"token_embd has 100 rows, .* has {VOCAB} entries"),
        ({"block_count": 0}, "block_count 0, and 1 was expected"),
        ({"block_count": 2}, "block_count 2, and 1 was expected"),
        ({"rope.dimension_count": 7}, f"rope.dimension_count is 7, and an even number up to {HEAD}"),
        ({"rope.dimension_count": 1000}, f"rope.dimension_count is 1000, and an even number up to {HEAD}"),
        ({"attention.value_length": HEAD // 2}, f"values of length {HEAD // 2}, and {HEAD} was expected"),
        ({"kept": (1, 2), "d2t": (1, 2, 3)}, "map of tokens of length 3, and 2 was expected"),
        ({"change": map_of_two, "without": ("output",)}, f"map of tokens of length 2, and {VOCAB} was expected"),
        (
            {"kept": (1, VOCAB - 1), "vocab": tiny.byte_bpe_vocab(VOCAB - 1)},
            f"tokens 1 to {VOCAB - 1}, and .* has {VOCAB - 1}",
        ),
    ],
)
def test_a_broken_eagle_head(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")
    head = write_eagle(tmp_path / "head.gguf", **changes)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match=rf"head.gguf .* cannot draft for llama.gguf: .*{words}"):
        sort_drafts(target, DraftFiles((head,)))


def test_a_rotation_that_fits(tmp_path: Path) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")
    for length in (0, HEAD // 2, HEAD):
        head = write_eagle(tmp_path / "head.gguf", **{"rope.dimension_count": length})
        assert sort_drafts(target, DraftFiles((head,))).eagle == head


def test_a_broken_companion(tmp_path: Path) -> None:
    target = write_family("gemma4", tmp_path / "gemma4.gguf")
    head = write_assistant(tmp_path / "head.gguf", block_count=1)
    with pytest.raises(ModelFileError, match="head.gguf says that 2 of its 1 layers are for multi-token prediction"):
        sort_drafts(target, DraftFiles((head,)))
    for key, default, expected in (("head_count_kv", HEADS, KV_HEADS), ("value_length", HEAD // 2, 2 * HEAD)):
        head = write_assistant(tmp_path / "head.gguf", **{f"attention.{key}": None})
        with pytest.raises(UnsupportedModel, match=f"attention.{key} {default}, and {expected} was expected"):
            sort_drafts(target, DraftFiles((head,)))
    for kind, most in (("", 2 * HEAD), ("_swa", HEAD)):
        head = write_assistant(tmp_path / "head.gguf", **{f"rope.dimension_count{kind}": 7})
        with pytest.raises(UnsupportedModel, match=f"rope.dimension_count{kind} is 7, and an even number up to {most}"):
            sort_drafts(target, DraftFiles((head,)))


@pytest.mark.parametrize("keys, change, words", BROKEN_STEP35)
def test_broken_layers_in_a_file_of_their_own(
    tmp_path: Path, keys: dict[str, int], change: Change | None, words: str
) -> None:
    target = write_family("step35", tmp_path / "step35.gguf")
    part = write_mtp_part("step35", tmp_path / "part.gguf", change=change, **keys)
    with pytest.raises(ModelFileError, match=f"part.gguf .*{words}"):
        sort_drafts(target, DraftFiles((part,)))


def test_broken_layers_of_a_family_that_has_one(tmp_path: Path) -> None:
    target = write_family("qwen35", tmp_path / "qwen35.gguf")
    for keys, change, words in (
        ({"nextn_predict_layers": 9}, None, "says that 9 of its 3 layers"),
        ({"nextn_predict_layers": 2}, None, "has 3 layers, the last 2 for .* tensor blk.1.nextn.eh_proj is missing"),
        ({}, NO_FIRST, "has 3 layers, the last 1 for .* tensor blk.2.nextn.eh_proj is missing"),
        ({"nextn_predict_layers": 0}, None, "cannot run 0 such layers of qwen35"),
        ({"rope.dimension_count": 7}, None, "rope.dimension_count is 7"),
    ):
        part = write_mtp_part("qwen35", tmp_path / "part.gguf", change=change, **keys)  # type: ignore[arg-type]
        with pytest.raises((ModelFileError, UnsupportedModel), match=f"part.gguf .*{words}"):
            sort_drafts(target, DraftFiles((part,)))


def test_layers_without_an_output_matrix(tmp_path: Path) -> None:
    """Some families take the embeddings instead; a layer may have a matrix of its own."""
    step, qwen = (write_family(name, tmp_path / f"{name}.gguf") for name in ("step35", "qwen35"))
    bare = drop("output.weight")

    def own(net: Net) -> None:
        bare(net)
        for layer in (2, 3):
            net.matrix(f"blk.{layer}.nextn.shared_head_head", VOCAB, WIDTH)

    part = write_mtp_part("step35", tmp_path / "part.gguf", change=bare)
    with pytest.raises(UnsupportedModel, match="part.gguf .* step35.gguf: the tensor output is missing"):
        sort_drafts(step, DraftFiles((part,)))
    part = write_mtp_part("step35", tmp_path / "part.gguf", change=own)
    assert sort_drafts(step, DraftFiles((part,))).mtp == part
    part = write_mtp_part("qwen35", tmp_path / "part.gguf", change=bare)
    assert sort_drafts(qwen, DraftFiles((part,))).mtp == part


@pytest.mark.parametrize("keys, change, words", BROKEN_STEP35)
def test_broken_layers_inside_a_model(tmp_path: Path, keys: dict[str, int], change: Change | None, words: str) -> None:
    whole = write_family("step35", tmp_path / "whole.gguf", change=change, **keys)
    with pytest.raises(ModelFileError, match=f"whole.gguf .*{words}"):
        read_header(whole)


def test_layers_that_a_model_only_announces(tmp_path: Path) -> None:
    """They were separated from it."""

    def separate(net: Net) -> None:
        drop(*[name for name in net.tensors if name.startswith(("blk.2.", "blk.3."))])(net)

    trunk = write_family("step35", tmp_path / "trunk.gguf", change=separate)
    assert read_header(trunk).block_count == 4 and usable_mtp(read_gguf(trunk)) == 0


def test_a_model_without_layers(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="says that it has 0 layers"):
        read_header(write_family("llama", tmp_path / "llama.gguf", block_count=0))


@pytest.mark.parametrize("write", [write_eagle, write_assistant, functools.partial(write_mtp_part, "qwen35")])
def test_a_part_of_a_pair_is_no_model(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    with pytest.raises(UnsupportedModel, match=r"part.gguf is no model: it .*; give the model itself"):
        Model.load(ModelOptions(write(tmp_path / "part.gguf"), threads=1))


def test_the_command_line_ends_with_one_line(tmp_path: Path) -> None:
    llama, head = write_family("llama", tmp_path / "llama.gguf"), write_eagle(tmp_path / "head.gguf", block_count=0)
    whole = write_family("qwen35", tmp_path / "whole.gguf", nextn_predict_layers=9)
    for model, rest, words in ((llama, ("--draft", head), "block_count 0"), (whole, (), "9 of its 3 layers")):
        done = forks.server.run(["generate", model, *rest, "-p", "the cat", "-n", "4", "--threads", "1"], timeout=120)
        lines = done.stderr.decode().strip().splitlines()
        assert done.returncode == 1 and len(lines) == 1 and words in lines[0]
