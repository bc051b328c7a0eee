"""Sizes in the header of a head that must fit its model, or each other: on others the library ends the process.

Every check raises UnsupportedModel with what was expected and found. `name` begins its message: which file cannot draft
for which. No llama_cpp.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lcspec.errors import UnsupportedModel
from lcspec.modelfiles.gguf_header import GGUFContents, MetadataArray

_ANOTHER = "get the head that was made for this model"


def number(contents: GGUFContents, key: str) -> int | None:
    """The whole number below `key` of the architecture; None if there is none, or one for every layer."""
    value = contents.metadata.get(f"{contents.metadata.get('general.architecture')}.{key}")
    return value if isinstance(value, int) else None


def shape(contents: GGUFContents, name: str) -> tuple[int, ...] | None:
    """The shape of a tensor (row length first), named with or without ".weight"; None if it is missing."""
    for tensor in contents.tensors:
        if tensor.name in (name, f"{name}.weight"):
            return tuple(tensor.shape)
    return None


def length(contents: GGUFContents, what: str, kind: str = "") -> int | None:
    """Numbers in a key or a value (`what`) of one head; None if the header does not say it.

    `kind` is "_swa" for the layers with a sliding window.
    """
    for key in (f"attention.{what}_length{kind}", f"attention.{what}_length"):
        if (told := number(contents, key)) is not None:
            return told
    width, heads = number(contents, "embedding_length"), number(contents, "attention.head_count")
    return width // heads if width and heads else None


def shape_of_cells(contents: GGUFContents) -> dict[str, int | None]:
    """What a model and a companion that reads its cells must have in common: by metadata key, with the library's
    default where a key is missing; None where the header does not say it, or has one for every layer."""
    key = "attention.head_count_kv"
    told = f"{contents.metadata.get('general.architecture')}.{key}" in contents.metadata
    sizes = {key: number(contents, key if told else "attention.head_count")}
    for what in ("key", "value"):
        for kind in ("", "_swa"):
            sizes[f"attention.{what}_length{kind}"] = length(contents, what, kind)
    return sizes


def vocabulary_size(contents: GGUFContents) -> int | None:
    """Entries of the vocabulary; None without one."""
    tokens = contents.metadata.get("tokenizer.ggml.tokens")
    return tokens.count if isinstance(tokens, MetadataArray) else None


def expect(name: str, what: str, found: int | None, wanted: int | None) -> None:
    """Raises UnsupportedModel: the head's number is another one than the model's."""
    if found != wanted:
        raise UnsupportedModel(
            f"{name}: it {what} {found if found is not None else 'unknown'}, and {wanted} was expected; {_ANOTHER}"
        )


def check_rotation(name: str, head: GGUFContents, kind: str = "") -> None:
    """The rotated part of a key is a whole number of pairs, and no longer than the key.

    Args:
        name: see above.
        head: its header.
        kind: "_swa" for the layers with a sliding window.
    """
    told, most = number(head, f"rope.dimension_count{kind}"), length(head, "key", kind)
    rotated = told if told is not None else number(head, "rope.dimension_count")
    if rotated is not None and most is not None and (rotated % 2 or not 0 <= rotated <= most):
        raise UnsupportedModel(
            f"{name}: its rope.dimension_count{kind} is {rotated}, and an even number up to {most}, the length of a "
            "key, was expected; get another GGUF of it"
        )


def check_embeddings(name: str, target: GGUFContents, head: GGUFContents) -> None:
    """A head's own embeddings have a row for every token of the model."""
    tokens, rows = vocabulary_size(target), shape(head, "token_embd")
    if tokens is not None and rows is not None and (len(rows) != 2 or rows[1] < tokens):
        found = rows[1] if len(rows) > 1 else 1
        raise UnsupportedModel(
            f"{name}: its token_embd has {found} rows, and the vocabulary has {tokens} entries; {_ANOTHER}"
        )


def token_map(name: str, head: GGUFContents) -> NDArray[np.int64] | None:
    """The token of the target for every token of a head with a smaller vocabulary, int64 [n]; None: it has all."""
    d2t = next((tensor for tensor in head.tensors if tensor.name == "d2t"), None)
    if d2t is None:
        return None
    if d2t.type_name != "I64":
        raise UnsupportedModel(f"{name}: its map of tokens is of type {d2t.type_name}, and I64 was expected")
    return np.memmap(head.path, "<i8", "r", head.data_offset + d2t.offset, d2t.shape[:1])


def check_map(name: str, target: GGUFContents, head: GGUFContents) -> None:
    """A head's map of tokens leads to tokens that both vocabularies have, one for each row of the output matrix."""
    ids = token_map(name, head)
    sizes = [size for size in map(vocabulary_size, (target, head)) if size is not None]
    if ids is None or not sizes:
        return
    output = shape(head, "output") or shape(target, "output")
    if output is not None:
        expect(name, "has a map of tokens of length", len(ids), output[-1])
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < min(sizes):
        raise UnsupportedModel(
            f"{name}: its map leads to the tokens {ids.min()} to {ids.max()}, and the vocabulary has {min(sizes)}"
        )
