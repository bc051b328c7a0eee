"""What the installed library can do: its devices, its kernels, and the parts of llama.cpp that this build has."""

from __future__ import annotations

from dataclasses import dataclass

from lcspec.llama import amx, few_rows
from lcspec.llama.devices import GPUS, Device, devices, gpu_backends
from lcspec.llama.lib import C, features, init

AMX = "AMX_INT8"
# What EAGLE-3 needs is exported under C++ names only.
EAGLE3 = (
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
    "_Z28llama_model_target_layer_idsPK11llama_model",
)
MTP = (
    "_Z26llama_set_embeddings_nextnP13llama_contextbb",
    "_Z30llama_get_embeddings_nextn_ithP13llama_contexti",
)


@dataclass(frozen=True)
class Capabilities:
    """What the library can do.

    Attributes:
        amx: "used"; "unsound" (compiled so that it would crash: lcspec keeps away from it); "absent" (not compiled
            in, though the CPU has it), or "none" (no such CPU).
        gpu: layers can be put on a GPU here.
        backends: kinds of GPUs this build is for, whether or not there is one.
        rpc: it can use the GPUs and CPUs of other machines.
        eagle3, mtp: drafts from a model's own hidden states.
        instructions: names of the instruction sets it was compiled for, as the library spells them.
        devices: what ggml found.
        few_rows: types of weights with a kernel of lcspec's own (see lcspec.llama.few_rows), and why there are none.
    """

    amx: str
    gpu: bool
    rpc: bool
    eagle3: bool
    mtp: bool
    instructions: frozenset[str]
    devices: tuple[Device, ...]
    backends: tuple[str, ...] = ()
    few_rows: tuple[str, ...] = ()
    why_none: str = ""


def capabilities() -> Capabilities:
    """Ask the loaded library."""
    init()
    library = C.llama_cpp._lib
    instructions = _instructions(features())
    state, found, kernels = "none", devices(), few_rows.kernels(library)
    if amx.cpu_has_amx():
        state = "absent" if AMX not in instructions else "used" if amx.sound(library) else "unsound"
    return Capabilities(
        amx=state,
        gpu=any(device.kind in GPUS for device in found),
        backends=tuple(gpu_backends()),
        rpc=bool(C.llama_supports_rpc()),
        eagle3=all(hasattr(library, name) for name in EAGLE3),
        mtp=all(hasattr(library, name) for name in MTP),
        instructions=instructions,
        devices=tuple(found),
        few_rows=kernels.types if kernels is not None else (),
        why_none=few_rows.why_none() if kernels is None else "",
    )


def _instructions(info: str) -> frozenset[str]:
    """From "CPU : AVX = 1 | FMA = 1 | ..."."""
    pairs = (part.rpartition(":")[2].partition("=") for part in info.split("|"))
    return frozenset(name.strip() for name, _, value in pairs if value.strip() not in ("", "0"))
