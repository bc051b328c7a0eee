"""Heads that draft for a model: layers inside its file, and files that are nothing without it. Told by headers alone.

`sort_drafts` says what each file named with --draft is, finds layers inside the target, and refuses a head that is not
for the target, before anything is loaded. No llama_cpp.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.config import DraftFiles
from lcspec.errors import LcspecError, ModelFileError, UnsupportedModel, UsageError, VocabularyMismatch
from lcspec.modelfiles.demo import bundled_heads
from lcspec.modelfiles.gguf_header import MAGIC, GGUFContents, MetadataArray, read_gguf
from lcspec.modelfiles.head_shape import (
    check_embeddings,
    check_map,
    check_rotation,
    expect,
    length,
    number,
    shape,
    shape_of_cells,
    token_map,
)
from lcspec.modelfiles.identity import fingerprint
from lcspec.modelfiles.modelfile import read_vocabulary
from lcspec.modelfiles.mtp_layers import announced_layers, check_mtp_layers, mtp_layers, mtp_only, usable_mtp
from lcspec.modelfiles.pairing import HEADS, check_draft

# Architectures whose layers' inputs the library (0.3.36) hands out. Not qwen4exp: its layers have several each, and the
# library ends the process over them.
WITH_FEATURES = frozenset(
    {
        *("llama", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "qwen3next", "gpt-oss", "gemma4", "lfm2"),
        *("mimo2", "minimax-01", "minimax-m2", "nemotron_h", "nemotron_h_moe", "bailingmoe3", "deepseek4"),
        *("hunyuan_vl", "nanbeige", "muse-glimmer", "lfm2moe"),
    }
)
ASSISTANT, EAGLE = "gemma4-assistant", "eagle3"
EAGLE_LAYERS = 3
# Which model a head of `lcspec draft eagle` was trained for (see lcspec.modelfiles.identity).
FINGERPRINT = "lcspec.eagle.fingerprint"
ACCEPTANCE = "lcspec.eagle.acceptance"
# Tensors without which the library ends the process, or drafts garbage.
_EAGLE_TENSORS = ("fc", "output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.attn_q", "blk.0.attn_k") + (
    "blk.0.attn_v",
    "blk.0.attn_output",
    "blk.0.ffn_norm",
    "blk.0.ffn_gate",
    "blk.0.ffn_up",
    "blk.0.ffn_down",
)
_ASSISTANT_TENSORS = ("token_embd", "output_norm", "nextn.post_projection", "blk.0.attn_q", "blk.0.ffn_down")
# Architectures whose layers for prediction take no embeddings as an output matrix.
_OWN_OUTPUT = frozenset({"step35"})
# Metadata that only heads have.
_ONLY_IN_HEADS = (".target_layers", ".target_hidden_size")
# Entries that one vocabulary may have more than the other: padding.
_PADDING = 128


def sort_drafts(target: Path, files: DraftFiles) -> DraftFiles:
    """`files` with every head in its place: companions of `target`, EAGLE heads, and layers inside `target` itself.

    What is missing or no GGUF is left to its loading.

    Raises:
        ModelFileError: a file is damaged.
        UnsupportedModel: a file cannot draft, or is a head for another model; says what was expected and found.
        VocabularyMismatch: a head has another vocabulary.
        UsageError: two heads of a kind were named.
    """
    models: list[Path] = []
    mtp, eagle = files.mtp, files.eagle
    for path in files.models:
        kind = head_kind(target, path)
        if kind == EAGLE:
            eagle = _only(eagle, path, "EAGLE-3 heads")
        elif kind is not None:
            mtp = _only(mtp if mtp != target else None, path, "companions for multi-token prediction")
        else:
            check_draft(target, path)
            models.append(path)
    if mtp is None:
        with contextlib.suppress(ModelFileError):
            mtp = target if usable_mtp(read_gguf(target)) else None
    if eagle is None:
        eagle = bundled_head(target)
    return replace(files, models=tuple(models), mtp=mtp, eagle=eagle)


def head_kind(target: Path, path: Path) -> str | None:
    """What kind of head a file is, after it was checked against `target`; None: a model of its own, or unreadable.

    Raises:
        ModelFileError: it is damaged.
        UnsupportedModel: it is a head for another model, or broken.
        VocabularyMismatch: its vocabulary is another.
    """
    try:
        head = read_gguf(path)
    except ModelFileError:
        if _begins_like_one(path):
            raise
        return None
    try:
        model = read_gguf(target)
    except ModelFileError:
        return None
    architecture = _architecture(head)
    if architecture == EAGLE:
        check_eagle(model, head)
    elif architecture == ASSISTANT:
        _check_assistant(model, head)
    elif mtp_only(head):
        _check_split(model, head)
    elif architecture not in HEADS and any(key.endswith(_ONLY_IN_HEADS) for key in head.metadata):
        raise UnsupportedModel(
            f"{path.name} cannot draft for {target.name}: it is a head of an unknown kind ({architecture}); known are "
            f"{EAGLE}, {ASSISTANT}, and a model's own layers for multi-token prediction"
        )
    else:
        return None
    _check_vocabulary(target, path)
    return architecture if architecture in (EAGLE, ASSISTANT) else "mtp"


def bundled_head(target: Path) -> Path | None:
    """The installed EAGLE-3 head that was trained for this very model, in any quantization of it; None without one."""
    with contextlib.suppress(LcspecError, OSError):
        model = read_gguf(target)
        for path in bundled_heads():
            head = read_gguf(path)
            found = number(head, "target_hidden_size"), head.metadata.get("lcspec.eagle.target_block_count")
            alike = found == (number(model, "embedding_length"), number(model, "block_count"))
            # The fingerprint reads the vocabulary, which takes a while: only for a model that looks like it.
            if alike and head.metadata.get(FINGERPRINT) == fingerprint(target):
                return path
    return None


def target_layers(head: Path) -> tuple[int, ...]:
    """The layers of the target whose inputs an EAGLE-3 head reads.

    Raises:
        ModelFileError: it cannot be read.
        UnsupportedModel: it does not say so.
    """
    return _layers(read_gguf(head, arrays=(f"{EAGLE}.target_layers",)))


def own_vocabulary(head: Path) -> NDArray[np.int32] | None:
    """The tokens of the target that an EAGLE-3 head can draft, int32 [n], in ascending order; None: all.

    Raises:
        ModelFileError: it cannot be read.
        UnsupportedModel: its map of tokens is of another type.
    """
    ids = token_map(head.name, read_gguf(head))
    return None if ids is None else np.unique(ids).astype(np.int32)


def held_out_acceptance(head: Path) -> tuple[float, ...]:
    """How often an EAGLE-3 head was right at each depth on texts held out from its training; empty if it does not say.

    Raises:
        ModelFileError: it cannot be read.
    """
    found = read_gguf(head, arrays=(ACCEPTANCE,)).metadata.get(ACCEPTANCE)
    values = found.values if isinstance(found, MetadataArray) else None
    return tuple(float(value) for value in values or () if isinstance(value, float) and 0.0 <= value <= 1.0)


def check_eagle(target: GGUFContents, head: GGUFContents) -> None:
    """Refuse an EAGLE-3 head that is not for `target`.

    Raises:
        UnsupportedModel: says what was expected and found.
    """
    name = f"{head.path.name} is an EAGLE-3 head that cannot draft for {target.path.name}"
    architecture = _architecture(target)
    if architecture not in WITH_FEATURES:
        raise UnsupportedModel(f"{name}: the library hands out no hidden states of {architecture} models")
    expect(name, "reads states of width", number(head, "target_hidden_size"), number(target, "embedding_length"))
    layers, n = target_layers(head.path), (number(target, "block_count") or 0) - mtp_layers(target)
    if len(layers) != EAGLE_LAYERS:
        raise UnsupportedModel(f"{name}: it reads {len(layers)} layers, and such heads read {EAGLE_LAYERS}")
    if not all(0 <= layer <= n for layer in layers):
        raise UnsupportedModel(f"{name}: it reads the layers {', '.join(map(str, layers))}, and the model has {n}")
    _complete(name, head, _EAGLE_TENSORS)
    expect(name, "has block_count", number(head, "block_count"), 1)
    expect(name, "has values of length", length(head, "value"), length(head, "key"))
    check_rotation(name, head)
    check_embeddings(name, target, head)
    check_map(name, target, head)
    trained_for = head.metadata.get(FINGERPRINT)
    if isinstance(trained_for, str) and trained_for != fingerprint(target.path):
        model = head.metadata.get("lcspec.eagle.target", "another model")
        raise UnsupportedModel(f"{name}: it was trained for {model}; train one with: lcspec draft eagle MODEL")
    if shape(head, "token_embd") is None or shape(head, "output") is None:  # what it has not, the target has
        expect(name, "takes embeddings of width", number(head, "embedding_length"), number(target, "embedding_length"))
    if shape(head, "output") is None and shape(target, "output") is None:
        raise UnsupportedModel(f"{name}: neither of them has an output matrix; get a head that has its own")


def _check_assistant(target: GGUFContents, head: GGUFContents) -> None:
    name = f"{head.path.name} is a companion that cannot draft for {target.path.name}"
    if _architecture(target) != "gemma4":
        raise UnsupportedModel(f"{name}: it is for Gemma 4 (gemma4), and this is {_architecture(target)}")
    wanted = number(head, "embedding_length_out")
    expect(name, "reads states of width", wanted, number(target, "embedding_length"))
    expected = shape_of_cells(target)
    for key, found in shape_of_cells(head).items():
        if found is not None and expected[key] is not None:  # a list, one for every layer, is left to the library
            expect(name, f"reads the model's cells with {key}", found, expected[key])
    for kind in ("", "_swa"):
        check_rotation(name, head, kind)
    check_mtp_layers(head.path, head.metadata, head.tensors)
    _complete(name, head, _ASSISTANT_TENSORS)


def _check_split(target: GGUFContents, head: GGUFContents) -> None:
    name = f"{head.path.name} holds layers for multi-token prediction that cannot draft for {target.path.name}"
    ours, theirs = _architecture(target), _architecture(head)
    if ours != theirs:
        raise UnsupportedModel(f"{name}: they are for {theirs} models, and this is {ours}")
    for what, key in (("has width", "embedding_length"), ("belongs to a model with block_count", "block_count")):
        expect(name, what, number(head, key), number(target, key))
    check_mtp_layers(head.path, head.metadata, head.tensors, part=True)
    layers = announced_layers(head.metadata)
    if not usable_mtp(head):
        raise UnsupportedModel(f"{name}: the library cannot run {len(layers)} such layers of {theirs}")
    check_rotation(name, head)
    _complete(name, head, ("token_embd",))
    if theirs in _OWN_OUTPUT and not all(shape(head, f"blk.{layer}.nextn.shared_head_head") for layer in layers):
        _complete(name, head, ("output",))


def _begins_like_one(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _check_vocabulary(target: Path, head: Path) -> None:
    """Raises VocabularyMismatch: a head drafts ids, so they must mean the same."""
    ours, theirs = read_vocabulary(target), read_vocabulary(head)
    name = f"{head.name} cannot draft for {target.name}"
    if abs(len(ours.tokens) - len(theirs.tokens)) > _PADDING:
        raise VocabularyMismatch(
            f"{name}: its vocabulary has {len(theirs.tokens)} entries, and {len(ours.tokens)} were expected; "
            "get the head that was made for this model"
        )
    for i, (a, b) in enumerate(zip(ours.tokens, theirs.tokens)):
        if a != b:
            found, expected = (text.decode("utf-8", "replace") for text in (b, a))
            raise VocabularyMismatch(
                f"{name}: entry {i} of its vocabulary is {found!r}, and {expected!r} was expected; "
                "get the head that was made for this model"
            )


def _complete(name: str, head: GGUFContents, tensors: Sequence[str]) -> None:
    """Raises UnsupportedModel: the file is cut off, or a tensor is missing."""
    if head.file_size < head.expected_size:
        raise UnsupportedModel(
            f"{name}: it is cut off, {head.file_size} bytes of {head.expected_size}; download it again"
        )
    missing = [tensor for tensor in tensors if shape(head, tensor) is None]
    if missing:
        raise UnsupportedModel(f"{name}: the tensor {missing[0]} is missing; get another GGUF of it")


def _only(known: Path | None, path: Path, what: str) -> Path:
    if known is not None and known != path:
        raise UsageError(f"two {what} were named, {known.name} and {path.name}: leave one out")
    return path


def _architecture(contents: GGUFContents) -> str:
    return str(contents.metadata.get("general.architecture"))


def _layers(contents: GGUFContents) -> tuple[int, ...]:
    value = contents.metadata.get(f"{EAGLE}.target_layers")
    found = value.values if isinstance(value, MetadataArray) else None
    if found is None or not all(isinstance(layer, int) for layer in found):
        raise UnsupportedModel(
            f"{contents.path.name} does not say which layers of its model it reads: get another GGUF"
        )
    return tuple(int(layer) for layer in found if isinstance(layer, int))
