"""Where a model's weights, its KV cache and its computations are placed: GPUs, main memory, other machines."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from lcspec.errors import UsageError

SPLIT_MODES = ("layer", "none", "row", "tensor")
# The library's limits.
MAX_DEVICES = 16
# The weights of experts (llama.cpp names them so in every architecture).
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
NO_DEVICE = ("none", "cpu")
FLASH_ATTN = {"auto": "measured", "on": "fused", "off": "products"}


@dataclass(frozen=True)
class Placement:
    """The placement of a model. By default the library decides: all GPUs, by their free memory.

    Attributes:
        devices: names of the devices to use, as `lcspec doctor` lists them; (): none, None: every GPU.
        main_gpu: the device that runs everything with `split_mode` none.
        split_mode: how a model is split over several devices, one of `SPLIT_MODES`.
        tensor_split: share of each device, in any unit; (): by free memory.
        overrides: (pattern, device): weights whose names match the pattern go to that device ("CPU": main memory).
        kv_offload: keep the KV cache of a layer on the layer's device.
        mmap: map the file instead of reading it; None: the library's choice.
        mlock: lock the weights in main memory, so that they are not swapped out.
        workers: HOST:PORT of other machines' `lcspec worker`, whose devices come before the local ones.
        draft_devices: as `devices`, for draft models; None: as the target's, without its workers.
        draft_gpu_layers: layers of draft models on devices; None: as many as fit, -1: all.
        draft_threads: CPU threads of draft models, beside the target's; 0: the target's, one model after the other.
    """

    devices: tuple[str, ...] | None = None
    main_gpu: int = 0
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()
    kv_offload: bool = True
    mmap: bool | None = None
    mlock: bool = False
    workers: tuple[str, ...] = ()
    draft_devices: tuple[str, ...] | None = None
    draft_gpu_layers: int | None = None
    draft_threads: int = 0

    def __post_init__(self) -> None:
        """Check what can be checked without the library.

        Raises:
            UsageError: a value is out of its range.
        """
        if self.split_mode not in SPLIT_MODES:
            raise UsageError(f"unknown split mode {self.split_mode!r}: choose one of {', '.join(SPLIT_MODES)}")
        if self.draft_threads < 0:
            raise UsageError(f"draft threads must be positive (or 0 for none of their own), not {self.draft_threads}")
        if not 0 <= self.main_gpu < MAX_DEVICES:
            raise UsageError(f"the main GPU must be a number from 0 to {MAX_DEVICES - 1}, not {self.main_gpu}")
        bad = any(not math.isfinite(share) or share < 0 for share in self.tensor_split)
        if bad or (self.tensor_split and not any(self.tensor_split)):
            raise UsageError("a tensor split is a list of shares, 0 or more and not all 0, e.g. 3,1")
        if max(len(self.devices or ()), len(self.tensor_split), len(self.workers)) > MAX_DEVICES:
            raise UsageError(f"the library takes at most {MAX_DEVICES} devices")
        if len(set(self.workers)) < len(self.workers) or len(set(self.devices or ())) < len(self.devices or ()):
            raise UsageError("a device or worker is named twice: name each one once")
        for worker in self.workers:
            endpoint(worker)
        for pattern, _ in self.overrides:
            try:
                re.compile(pattern)
            except re.error as error:
                raise UsageError(f"{pattern!r} is no pattern of tensor names: {error}") from error

    @property
    def for_draft(self) -> Placement:
        """The placement of a draft model: on this machine, on the devices named for drafts."""
        devices = self.devices if self.draft_devices is None else self.draft_devices
        single = self.split_mode == "none" and self.draft_devices is None
        return Placement(
            devices,
            main_gpu=self.main_gpu if single else 0,
            split_mode="none" if single else "layer",
            kv_offload=self.kv_offload,
            mmap=self.mmap,
            mlock=self.mlock,
        )


def draft_layers(gpu_layers: int | None, placement: Placement) -> int | None:
    """Layers of a draft model on devices: the number given, or as many as fit; none if the target has none there."""
    if placement.draft_gpu_layers is not None:
        return placement.draft_gpu_layers
    return 0 if gpu_layers == 0 and placement.draft_devices is None else None


# --- from options -----------------------------------------------------------------------------------------------------


def loading_fields(o: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ModelOptions from options of a command or settings of the chat; what is absent keeps its default.

    Raises:
        UsageError: a value is malformed or out of its range.
    """
    kind = o.get("kv_type_k") or o.get("kv_type") or "f16"
    values = o.get("kv_type_v") or (o.get("kv_type") if o.get("kv_type_k") else None)
    flash = o.get("flash_attn") or "auto"
    if flash not in FLASH_ATTN:
        raise UsageError(f"flash attention is on, off or auto, not {flash!r}")
    workers = _names(o.get("workers")) or ()
    layers = o.get("gpu_layers")
    return {
        "gpu_layers": layers,
        "kv_type": kind,
        "kv_type_v": values if values != kind else None,
        "attention": FLASH_ATTN[flash],
        "full_windows": o.get("swa_full") is not False,
        "cache_ram": o.get("cache_ram"),
        "placement": Placement(
            devices=devices_of(o.get("device")),
            main_gpu=o.get("main_gpu") or 0,
            split_mode=o.get("split_mode") or "layer",
            tensor_split=shares_of(o.get("tensor_split")),
            overrides=overrides_of(o.get("override_tensor") or ()) + (((EXPERTS, "CPU"),) if o.get("cpu_moe") else ()),
            kv_offload=o.get("kv_offload") is not False,
            mmap=o.get("mmap"),
            mlock=bool(o.get("mlock")),
            workers=tuple(workers),
            draft_devices=devices_of(o.get("draft_device")),
            draft_gpu_layers=o.get("draft_gpu_layers"),
            draft_threads=o.get("draft_threads") or 0,
        ),
    }


def _names(text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else None


def devices_of(text: str | None) -> tuple[str, ...] | None:
    """Read `--device`: names separated by commas, or none."""
    names = _names(text)
    return () if names is not None and len(names) == 1 and names[0].lower() in NO_DEVICE else names


def shares_of(text: str | None) -> tuple[float, ...]:
    """Read `--tensor-split`: 3,1 (or 3/1, as in llama.cpp).

    Raises:
        UsageError: not numbers.
    """
    try:
        return tuple(float(part) for part in (text or "").replace("/", ",").split(",") if part.strip())
    except ValueError as error:
        raise UsageError(f"{text!r} is no tensor split: write the devices' shares, e.g. 3,1") from error


def overrides_of(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    r"""Read `--override-tensor`: PATTERN=DEVICE, several of them separated by commas.

    Raises:
        UsageError: there is no "=" in one.
    """
    found = []
    for text in texts:
        parts = text.split(",")
        for part in parts if all("=" in part for part in parts) else [text]:  # a pattern may have a comma, as in x{1,2}
            pattern, equals, device = part.rpartition("=")
            if not equals or not pattern.strip() or not device.strip():
                raise UsageError(rf"{part!r} overrides nothing: write PATTERN=DEVICE, e.g. '\.ffn_.*_exps=CPU'")
            found.append((pattern.strip(), device.strip()))
    return tuple(found)


def endpoint(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT.

    Raises:
        UsageError: it is not that.
    """
    host, _, port = text.rpartition(":")
    if not host or ":" in host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise UsageError(f"{text!r} is no address: write HOST:PORT, e.g. 127.0.0.1:50052 (IPv4 or a name)")
    return host, int(port)
