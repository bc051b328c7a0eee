"""Models that the library (0.3.36 of llama-cpp-python) takes and cannot run: it hangs, ends, or gives other logits."""

from __future__ import annotations

import itertools

from lcspec.errors import UnsupportedModel
from lcspec.modelfiles.gguf_header import MetadataArray, read_gguf
from lcspec.modelfiles.modelfile import ModelHeader


def check_usable(header: ModelHeader) -> None:
    """Refuse such a model.

    Raises:
        UnsupportedModel: it is one; the message says why.
    """
    reason = _hangs(header) or _gives_other_rows(header) or _ends(header)
    if reason is not None:
        raise UnsupportedModel(f"{header.path.name} is {reason}; use another model")


def _hangs(header: ModelHeader) -> str | None:
    """A PLaMo 2 whose first layer has no heads, as its converter writes them. The library then has no length to rotate
    positions by: it takes 0, with which its CPU code counts without end, and a GPU rotates nothing, which is another
    model.
    """
    key = f"{header.architecture}.attention.head_count"
    if header.architecture != "plamo2":
        return None
    heads = read_gguf(header.path, arrays={key}).metadata.get(key)
    if not (isinstance(heads, MetadataArray) and heads.values and heads.values[0] == 0):
        return None
    return (
        "a PLaMo 2, on which this version of llama.cpp hangs: its first layer has no heads, from which llama.cpp takes "
        "how to rotate positions"
    )


def _gives_other_rows(header: ModelHeader) -> str | None:
    """A CogVLM: the library computes the logits of all tokens of a step and hands out the first ones, whichever were
    asked for. Behind a prompt those are its first token's.
    """
    if header.architecture != "cogvlm":
        return None
    return (
        "a CogVLM, of which this version of llama.cpp hands out the logits of other tokens than those it is asked for"
    )


def _ends(header: ModelHeader) -> str | None:
    """A GLM with sparse attention whose file lacks the weights that choose what to attend to: the library loads it and
    uses them.
    """
    if header.architecture != "glm-dsa":
        return None
    tensors = itertools.chain.from_iterable(read_gguf(part).tensors for part in header.parts)
    if any(".indexer." in tensor.name for tensor in tensors):
        return None
    return "a GLM without the weights of its indexer, on which this version of llama.cpp ends the process"
