"""Models that the library (0.3.36 of llama-cpp-python) loads and then decodes for ever, or in a wrong way."""

from __future__ import annotations

from lcspec.errors import UnsupportedModel
from lcspec.modelfiles.gguf_header import MetadataArray, read_gguf
from lcspec.modelfiles.modelfile import ModelHeader


def check_ends(header: ModelHeader) -> None:
    """Refuse a PLaMo 2 whose first layer has no heads, as its converter writes them.

    The library then has no length to rotate positions by: it takes 0, with which its CPU code counts without end, and a
    GPU rotates nothing, which is another model.

    Raises:
        UnsupportedModel: it is one.
    """
    key = f"{header.architecture}.attention.head_count"
    if header.architecture != "plamo2":
        return
    heads = read_gguf(header.path, arrays={key}).metadata.get(key)
    if isinstance(heads, MetadataArray) and heads.values and heads.values[0] == 0:
        raise UnsupportedModel(
            f"{header.path.name} is a PLaMo 2, on which this version of llama.cpp hangs: its first layer has no heads, "
            "from which llama.cpp takes how to rotate positions; use another model"
        )


def check_rows(header: ModelHeader) -> None:
    """Refuse a CogVLM: the library computes the logits of all tokens of a step and hands out the first ones, whichever
    were asked for. Behind a prompt those are its first token's.

    Raises:
        UnsupportedModel: it is one.
    """
    if header.architecture == "cogvlm":
        raise UnsupportedModel(
            f"{header.path.name} is a CogVLM, of which this version of llama.cpp hands out the logits of other tokens "
            "than those it is asked for; use another model"
        )
