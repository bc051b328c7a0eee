"""Hidden states of a model's layers, and heads that read them: functions of llama.cpp that have no C interface yet.

The library exports them under C++ names, which differ by compiler. They are looked up once; what a build lacks is None
here, and `require` says so.
"""

from __future__ import annotations

import ctypes
from typing import Any

from lcspec.errors import UnsupportedModel
from lcspec.llama.lib import C, version

_CONTEXT = ctypes.c_void_p


def _find(names: tuple[str, ...], arguments: list[Any], result: Any = None) -> Any:
    """The first of `names` that the library exports, None if there is none: plain C, Itanium, Microsoft."""
    for name in names:
        try:
            function = C.llama_cpp._lib[name]  # a new object, whose types are nobody else's
        except AttributeError:
            continue
        function.argtypes, function.restype = arguments, result
        return function
    return None


set_nextn = _find(
    (
        "llama_set_embeddings_nextn",
        "_Z26llama_set_embeddings_nextnP13llama_contextbb",
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
    ),
    [_CONTEXT, ctypes.c_bool, ctypes.c_bool],
)
get_nextn = _find(
    (
        "llama_get_embeddings_nextn",
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
    ),
    [_CONTEXT],
    ctypes.c_void_p,
)
set_head = _find(
    (
        "llama_set_nextn_layer_offset",
        "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
        "?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z",
    ),
    [_CONTEXT, ctypes.c_int32],
)
set_layer = _find(
    (
        "llama_set_embeddings_layer_inp",
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
    ),
    [_CONTEXT, ctypes.c_uint32, ctypes.c_bool],
)
get_layer = _find(
    (
        "llama_get_embeddings_layer_inp",
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
    ),
    [_CONTEXT, ctypes.c_uint32],
    ctypes.c_void_p,
)


def keep(context: Any, layer: int, last: int, on: bool) -> None:
    """Have the library keep what goes into `layer` for every row of a decode, or no longer.

    `last`: the number of layers, which stands for what comes out of the last one, before the final normalization.
    """
    if layer == last:
        set_nextn(context, on, False)
    else:
        set_layer(context, layer, on)


def kept(context: Any, layer: int, last: int) -> int:
    """The address of what `keep` has kept of the latest decode; 0: nothing."""
    return int((get_nextn(context) if layer == last else get_layer(context, layer)) or 0)


def require(what: str, *functions: Any) -> None:
    """Refuse what this build of the library has no functions for; `what` is a name for it as a user knows it.

    Raises:
        UnsupportedModel: one of `functions` is missing.
    """
    if None in functions:
        raise UnsupportedModel(
            f"this build of llama.cpp ({version()}) does not export what {what} needs: install llama-cpp-python 0.3.36 "
            "or later from its own wheel, or leave the head out"
        )
