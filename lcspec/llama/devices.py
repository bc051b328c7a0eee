"""The devices that ggml found, and a Placement on them: what cannot be done here is refused with the build it needs."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any, Sequence

from lcspec.config import ModelOptions
from lcspec.errors import UsageError
from lcspec.llama.lib import C, init
from lcspec.placement import MAX_DEVICES, Placement, draft_layers

# Kinds of ggml devices, in the order of `enum ggml_backend_dev_type`.
DEVICE_KINDS = ("CPU", "GPU", "integrated GPU", "accelerator", "several GPUs")
GPUS = ("GPU", "integrated GPU")
# Backends that every build may have; any other one is for GPUs.
PLAIN_BACKENDS = ("CPU", "RPC", "BLAS")
SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
# The library's ways to load a file: (mapped, locked in memory).
LOAD_MODES = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}
BUILDS = (
    "CMAKE_ARGS=-DGGML_CUDA=on (NVIDIA), -DGGML_HIP=on (AMD), -DGGML_METAL=on (Apple) or -DGGML_VULKAN=on (any GPU); "
    "`lcspec doctor` has the line for this machine"
)


@dataclass(frozen=True)
class Device:
    """A device that ggml found. Memory in bytes; 0 where the device does not tell."""

    name: str
    description: str
    kind: str
    memory: int
    free: int
    handle: int = field(default=0, repr=False, compare=False)


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override: a pattern and a buffer type."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p)]


def ggml(name: str, result: Any = ctypes.c_void_p) -> Any:
    """A function of ggml that the binding does not have.

    Raises:
        AttributeError: neither has this library.
    """
    function = getattr(C.llama_cpp._lib, name)
    function.restype = result
    return function


def device_at(handle: int) -> Device:
    """Ask about a device."""
    pointer = ctypes.c_void_p(handle)
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    ggml("ggml_backend_dev_memory", None)(pointer, ctypes.byref(free), ctypes.byref(total))
    kind = ggml("ggml_backend_dev_type", ctypes.c_int)(pointer)
    name, about = (ggml(f"ggml_backend_dev_{what}", ctypes.c_char_p)(pointer) for what in ("name", "description"))
    return Device(
        name=(name or b"").decode("utf-8", "replace"),
        description=(about or b"").decode("utf-8", "replace").strip(),
        kind=DEVICE_KINDS[kind] if 0 <= kind < len(DEVICE_KINDS) else "unknown",
        memory=total.value,
        free=free.value,
        handle=handle,
    )


def devices() -> list[Device]:
    """What ggml found, in its own order; empty where the library does not let itself be asked."""
    try:
        count, get = ggml("ggml_backend_dev_count", ctypes.c_size_t), ggml("ggml_backend_dev_get")
        return [device_at(get(ctypes.c_size_t(i))) for i in range(count())]
    except AttributeError:
        return []


def gpu_backends() -> list[str]:
    """Backends for GPUs in this build of the library, whether or not there is a GPU for them."""
    try:
        count, get = ggml("ggml_backend_reg_count", ctypes.c_size_t), ggml("ggml_backend_reg_get")
        name = ggml("ggml_backend_reg_name", ctypes.c_char_p)
        names = [name(ctypes.c_void_p(get(ctypes.c_size_t(i)))).decode() for i in range(count())]
    except AttributeError:
        return []
    return [n for n in names if n not in PLAIN_BACKENDS]


def offloads(placement: Placement) -> bool:
    """Whether there is any device to put layers on: a GPU of this machine, another machine, or one named."""
    if placement.workers or placement.devices:
        return True
    return placement.devices is None and any(d.kind in GPUS for d in devices())


def drafts_apart(placement: Placement, gpu_layers: int | None) -> bool:
    """Whether draft models have cores or devices of their own, so that they can run while the target does."""
    drafts = placement.for_draft
    target_offloads = gpu_layers != 0 and offloads(placement)
    draft_offloads = draft_layers(gpu_layers, placement) != 0 and offloads(drafts)
    if placement.draft_threads or target_offloads != draft_offloads:
        return True
    named = placement.devices is not None and drafts.devices is not None
    return target_offloads and named and not set(placement.devices or ()) & set(drafts.devices or ())


# --- what a placement means here --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """A placement that this library can do.

    Attributes:
        devices: those that layers go to, in the order the library uses them.
        named: tell the library which; False leaves the choice to it.
        overrides: (pattern, address of the buffer type).
    """

    devices: tuple[Device, ...]
    named: bool
    overrides: tuple[tuple[str, int], ...]

    def into(self, params: Any, placement: Placement, layers: int, split: Sequence[float] = ()) -> list[Any]:
        """Fill in llama_model_params. What is returned must live as long as they do."""
        params.n_gpu_layers = layers
        params.split_mode = SPLIT_MODES[placement.split_mode]
        params.main_gpu = placement.main_gpu
        if placement.mmap is not None or placement.mlock:
            params.load_mode = LOAD_MODES[placement.mmap is not False, placement.mlock]
        kept: list[Any] = []
        if self.named:
            handles = (ctypes.c_void_p * (len(self.devices) + 1))(*[d.handle for d in self.devices], None)
            params.devices = ctypes.addressof(handles)
            kept.append(handles)
        shares = placement.tensor_split or split
        if shares:
            array = (ctypes.c_float * MAX_DEVICES)(*shares)
            params.tensor_split = ctypes.cast(array, ctypes.POINTER(ctypes.c_float))
            kept.append(array)
        if self.overrides:
            table = (_Override * (len(self.overrides) + 1))(
                *[_Override(pattern.encode(), buffer) for pattern, buffer in self.overrides], _Override(None, None)
            )
            params.tensor_buft_overrides = ctypes.addressof(table)
            kept.append(table)
        return kept


def place(options: ModelOptions, workers: Sequence[Device] = ()) -> Placed:
    """Match `options.placement` with the devices there are; `workers` are those of other machines.

    Raises:
        UsageError: this build or machine cannot do it; the message says what build can.
    """
    init()
    return match(options, devices(), gpu_backends(), workers)


def match(
    options: ModelOptions, table: Sequence[Device], backends: Sequence[str], workers: Sequence[Device] = ()
) -> Placed:
    """`place`, given the devices and the GPU backends of this build.

    Raises:
        UsageError: see `place`.
    """
    wanted = options.placement
    by_name = {d.name.lower(): d for d in table}
    if wanted.devices is not None:
        local = [_find(name, by_name, backends) for name in wanted.devices]
    else:
        gpus = [d for d in table if d.kind == "GPU"]
        local = gpus or [d for d in table if d.kind in GPUS]
    used = [*workers, *local]
    drafting = local if wanted.draft_devices is None else [_find(n, by_name, backends) for n in wanted.draft_devices]
    if not drafting and wanted.draft_gpu_layers:
        raise UsageError(f"--draft-gpu-layers needs a GPU, and there is none to use: {_no_gpu(backends)}")
    if not used:
        _refuse_what_needs_a_gpu(options, backends)
    elif wanted.split_mode == "none" and wanted.main_gpu >= len(used):
        raise UsageError(f"there is no GPU number {wanted.main_gpu}: {_listed(used)}, counted from 0")
    elif len(wanted.tensor_split) > len(used):
        raise UsageError(f"{len(wanted.tensor_split)} shares for {len(used)} devices: {_listed(used)}")
    elif wanted.tensor_split and not any(wanted.tensor_split[: len(used)]):
        raise UsageError("every device has the share 0: give one of them more")
    named = wanted.devices is not None or bool(workers)
    every = by_name | {d.name.lower(): d for d in workers}
    buffers = tuple((pattern, _buffer(_find(name, every, backends))) for pattern, name in wanted.overrides)
    return Placed(tuple(used), named, buffers)


def _find(name: str, by_name: dict[str, Device], backends: Sequence[str]) -> Device:
    found = by_name.get(name.lower())
    if found is None:
        hint = "" if any(d.kind in GPUS for d in by_name.values()) else f"; {_no_gpu(backends)}"
        raise UsageError(f"there is no device {name!r} here: {_listed(list(by_name.values()))}{hint}")
    return found


def _listed(found: Sequence[Device]) -> str:
    return f"there {'is' if len(found) == 1 else 'are'} {', '.join(d.name for d in found) or 'none'}"


def _no_gpu(backends: Sequence[str]) -> str:
    if backends:
        return f"this build of the library is for {', '.join(backends)} and finds no GPU for it: see `lcspec doctor`"
    return f"this build of the library knows no GPU: compile it with {BUILDS}"


def _refuse_what_needs_a_gpu(options: ModelOptions, backends: Sequence[str]) -> None:
    wanted = options.placement
    asked = {
        "--gpu-layers": options.gpu_layers not in (None, 0),
        "--tensor-split": bool(wanted.tensor_split),
        "--split-mode": wanted.split_mode != "layer",
        "--main-gpu": wanted.main_gpu != 0,
    }
    for option, is_asked in asked.items():
        if is_asked and wanted.devices == ():
            raise UsageError(f"{option} needs a device, and --device says none: leave one of them out")
        if is_asked:
            raise UsageError(f"{option} needs a GPU, and there is none to use: {_no_gpu(backends)}")


def _buffer(device: Device) -> int:
    return int(ggml("ggml_backend_dev_buffer_type")(ctypes.c_void_p(device.handle)) or 0)
