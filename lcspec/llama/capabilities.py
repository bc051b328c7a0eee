"""What the installed library can do: its devices, its kernels, and the parts of llama.cpp that this build has."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from lcspec.llama import amx
from lcspec.llama.lib import C, init

# Kinds of ggml devices, in the order of `enum ggml_backend_dev_type`.
DEVICE_KINDS = ("CPU", "GPU", "integrated GPU", "accelerator", "several GPUs")
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
class Device:
    """A device that ggml found. Memory in bytes; 0 where the device does not tell."""

    name: str
    description: str
    kind: str
    memory: int
    free: int


@dataclass(frozen=True)
class Capabilities:
    """What the library can do.

    Attributes:
        amx: "used"; "unsound" (compiled so that it would crash: lcspec keeps away from it); "absent" (not compiled
            in, though the CPU has it), or "none" (no such CPU).
        gpu: layers can be put on a GPU here.
        rpc: it can use the GPUs and CPUs of other machines.
        eagle3, mtp: drafts from a model's own hidden states.
        instructions: names of the instruction sets it was compiled for, as the library spells them.
        devices: what ggml found.
    """

    amx: str
    gpu: bool
    rpc: bool
    eagle3: bool
    mtp: bool
    instructions: frozenset[str]
    devices: tuple[Device, ...]


def capabilities() -> Capabilities:
    """Ask the loaded library."""
    init()
    library = C.llama_cpp._lib
    instructions = _instructions(C.llama_print_system_info().decode("utf-8", "replace"))
    state = "none"
    if amx.cpu_has_amx():
        state = "absent" if AMX not in instructions else "used" if amx.sound(library) else "unsound"
    return Capabilities(
        amx=state,
        gpu=bool(C.llama_supports_gpu_offload()),
        rpc=bool(C.llama_supports_rpc()),
        eagle3=all(hasattr(library, name) for name in EAGLE3),
        mtp=all(hasattr(library, name) for name in MTP),
        instructions=instructions,
        devices=tuple(devices()),
    )


def _instructions(info: str) -> frozenset[str]:
    """From "CPU : AVX = 1 | FMA = 1 | ..."."""
    pairs = (part.rpartition(":")[2].partition("=") for part in info.split("|"))
    return frozenset(name.strip() for name, _, value in pairs if value.strip() not in ("", "0"))


def devices() -> list[Device]:
    """What ggml found, in its own order; empty where the library does not let itself be asked."""
    library = C.llama_cpp._lib
    try:
        count, get, name, about, kind, memory = (
            getattr(library, f"ggml_backend_dev_{what}")
            for what in ("count", "get", "name", "description", "type", "memory")
        )
    except AttributeError:
        return []
    count.restype, get.restype = ctypes.c_size_t, ctypes.c_void_p
    name.restype = about.restype = ctypes.c_char_p
    found = []
    for i in range(count()):
        device = ctypes.c_void_p(get(ctypes.c_size_t(i)))
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        memory(device, ctypes.byref(free), ctypes.byref(total))
        k = kind(device)
        found.append(
            Device(
                name=(name(device) or b"").decode("utf-8", "replace"),
                description=(about(device) or b"").decode("utf-8", "replace").strip(),
                kind=DEVICE_KINDS[k] if 0 <= k < len(DEVICE_KINDS) else "unknown",
                memory=total.value,
                free=free.value,
            )
        )
    return found
