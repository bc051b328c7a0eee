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

from lcspec.config import DraftFiles
from lcspec.errors import LcspecError, ModelFileError, UnsupportedModel, UsageError, VocabularyMismatch
from lcspec.modelfiles.demo import bundled_heads
from lcspec.modelfiles.gguf_header import MAGIC, GGUFContents, MetadataArray, read_gguf
from lcspec.modelfiles.identity import fingerprint
from lcspec.modelfiles.modelfile import read_vocabulary
from lcspec.modelfiles.pairing import HEADS, check_draft, mtp_layers

# Architectures whose layers for multi-token prediction the library (0.3.36) runs with plain cells: one layer that is
# used again and again, or several that are chained.
SINGLE = frozenset(
    {
        *("qwen35", "qwen35moe", "qwen3next", "glm4moe", "glm-dsa", "deepseek2", "deepseek32", "cohere2moe"),
        *("nemotron_h_moe", "bailingmoe3"),
    }
)
CHAINED = frozenset({"step35", "mimo2", "hy_v3"})
# Architectures whose layers' inputs the library hands out.
WITH_FEATURES = frozenset(
    {
        *("llama", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "qwen3next", "qwen4exp", "gpt-oss", "gemma4", "lfm2"),
        *("mimo2", "minimax-01", "minimax-m2", "nemotron_h", "nemotron_h_moe", "bailingmoe3", "deepseek4"),
        *("hunyuan_vl", "nanbeige", "muse-glimmer"),
    }
)
ASSISTANT, EAGLE = "gemma4-assistant", "eagle3"
EAGLE_LAYERS = 3
# Which model a head of `lcspec draft eagle` was trained for (see lcspec.modelfiles.identity).
FINGERPRINT = "lcspec.eagle.fingerprint"
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
# What a companion that looks at the target's cells must have in common with it.
_SHAPE_OF_CELLS = ("attention.head_count_kv",) + tuple(
    f"attention.{part}_length{kind}" for part in ("key", "value") for kind in ("", "_swa")
)
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


def usable_mtp(contents: GGUFContents) -> int:
    """Layers for multi-token prediction inside a model that the library can run; 0 = none."""
    found, architecture = mtp_layers(contents), _architecture(contents)
    return found if (found == 1 and architecture in SINGLE | CHAINED) or architecture in CHAINED else 0


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
    elif _mtp_only(head):
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
            found = _key(head, "target_hidden_size"), head.metadata.get("lcspec.eagle.target_block_count")
            alike = found == (_key(model, "embedding_length"), _key(model, "block_count"))
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


def check_eagle(target: GGUFContents, head: GGUFContents) -> None:
    """Refuse an EAGLE-3 head that is not for `target`.

    Raises:
        UnsupportedModel: says what was expected and found.
    """
    name = f"{head.path.name} is an EAGLE-3 head that cannot draft for {target.path.name}"
    architecture = _architecture(target)
    if architecture not in WITH_FEATURES:
        raise UnsupportedModel(f"{name}: the library hands out no hidden states of {architecture} models")
    _expect(name, "reads states of width", _key(head, "target_hidden_size"), _key(target, "embedding_length"))
    layers, n = target_layers(head.path), (_key(target, "block_count") or 0) - mtp_layers(target)
    if len(layers) != EAGLE_LAYERS:
        raise UnsupportedModel(f"{name}: it reads {len(layers)} layers, and such heads read {EAGLE_LAYERS}")
    if not all(0 <= layer <= n for layer in layers):
        raise UnsupportedModel(f"{name}: it reads the layers {', '.join(map(str, layers))}, and the model has {n}")
    _complete(name, head, _EAGLE_TENSORS)
    _check_map(name, target, head)
    trained_for = head.metadata.get(FINGERPRINT)
    if isinstance(trained_for, str) and trained_for != fingerprint(target.path):
        model = head.metadata.get("lcspec.eagle.target", "another model")
        raise UnsupportedModel(f"{name}: it was trained for {model}; train one with: lcspec draft eagle MODEL")
    if _tensor(head, "token_embd") is None or _tensor(head, "output") is None:  # what it has not, the target has
        _expect(name, "takes embeddings of width", _key(head, "embedding_length"), _key(target, "embedding_length"))
    if _tensor(head, "output") is None and _tensor(target, "output") is None:
        raise UnsupportedModel(f"{name}: neither of them has an output matrix; get a head that has its own")


def _check_map(name: str, target: GGUFContents, head: GGUFContents) -> None:
    """Raises UnsupportedModel: the head's map leads out of the target's vocabulary, which ends the process."""
    d2t = next((tensor for tensor in head.tensors if tensor.name == "d2t"), None)
    tokens = target.metadata.get("tokenizer.ggml.tokens")
    if d2t is None or not isinstance(tokens, MetadataArray):
        return
    if d2t.type_name != "I64":
        raise UnsupportedModel(f"{name}: its map of tokens is of type {d2t.type_name}, and I64 was expected")
    ids = np.memmap(head.path, "<i8", "r", head.data_offset + d2t.offset, d2t.shape[:1])
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < tokens.count:
        raise UnsupportedModel(
            f"{name}: its map leads to the tokens {ids.min()} to {ids.max()}, and the vocabulary has {tokens.count}"
        )


def _check_assistant(target: GGUFContents, head: GGUFContents) -> None:
    name = f"{head.path.name} is a companion that cannot draft for {target.path.name}"
    if _architecture(target) != "gemma4":
        raise UnsupportedModel(f"{name}: it is for Gemma 4 (gemma4), and this is {_architecture(target)}")
    wanted = _key(head, "embedding_length_out")
    _expect(name, "reads states of width", wanted, _key(target, "embedding_length"))
    for key in _SHAPE_OF_CELLS:
        found, expected = _key(head, key), _key(target, key)
        if found is not None and expected is not None:  # a list, one for every layer, is left to the library
            _expect(name, f"reads the model's cells with {key}", found, expected)
    _complete(name, head, _ASSISTANT_TENSORS)


def _check_split(target: GGUFContents, head: GGUFContents) -> None:
    name = f"{head.path.name} holds layers for multi-token prediction that cannot draft for {target.path.name}"
    ours, theirs = _architecture(target), _architecture(head)
    if ours != theirs:
        raise UnsupportedModel(f"{name}: they are for {theirs} models, and this is {ours}")
    if not usable_mtp(head):
        raise UnsupportedModel(f"{name}: {mtp_layers(head)} such layers of {theirs} are more than the library runs")
    for what, key in (("have width", "embedding_length"), ("belong to a model of layers", "block_count")):
        _expect(name, what, _key(head, key), _key(target, key))
    _complete(name, head, ("token_embd",))


def _begins_like_one(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _mtp_only(contents: GGUFContents) -> bool:
    return mtp_layers(contents) > 0 and not any(t.name.startswith("blk.0.") for t in contents.tensors)


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


def _expect(name: str, what: str, found: int | None, wanted: int | None) -> None:
    if found != wanted:
        raise UnsupportedModel(
            f"{name}: it {what} {found if found is not None else 'unknown'}, and {wanted} was expected; "
            "get the head that was made for this model"
        )


def _complete(name: str, head: GGUFContents, tensors: Sequence[str]) -> None:
    """Raises UnsupportedModel: the file is cut off, or a tensor is missing."""
    if head.file_size < head.expected_size:
        raise UnsupportedModel(
            f"{name}: it is cut off, {head.file_size} bytes of {head.expected_size}; download it again"
        )
    missing = [tensor for tensor in tensors if _tensor(head, tensor) is None]
    if missing:
        raise UnsupportedModel(f"{name}: the tensor {missing[0]} is missing; get another GGUF of it")


def _only(known: Path | None, path: Path, what: str) -> Path:
    if known is not None and known != path:
        raise UsageError(f"two {what} were named, {known.name} and {path.name}: leave one out")
    return path


def _architecture(contents: GGUFContents) -> str:
    return str(contents.metadata.get("general.architecture"))


def _key(contents: GGUFContents, key: str) -> int | None:
    value = contents.metadata.get(f"{_architecture(contents)}.{key}")
    return value if isinstance(value, int) else None


def _layers(contents: GGUFContents) -> tuple[int, ...]:
    value = contents.metadata.get(f"{EAGLE}.target_layers")
    found = value.values if isinstance(value, MetadataArray) else None
    if found is None or not all(isinstance(layer, int) for layer in found):
        raise UnsupportedModel(
            f"{contents.path.name} does not say which layers of its model it reads: get another GGUF"
        )
    return tuple(int(layer) for layer in found if isinstance(layer, int))


def _tensor(contents: GGUFContents, name: str) -> tuple[int, ...] | None:
    for tensor in contents.tensors:
        if tensor.name in (name, f"{name}.weight"):
            return tuple(tensor.shape)
    return None
