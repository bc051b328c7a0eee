"""How many layers to load where the user left it open, and loading again with fewer where the context does not fit."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lcspec.config import ModelOptions
from lcspec.errors import ModelFileError, ModelLoadError
from lcspec.llama.devices import Placed
from lcspec.llama.lib import C, log_lines
from lcspec.modelfiles.memory import needed
from lcspec.modelfiles.modelfile import ModelHeader, read_header
from lcspec.modelfiles.offload import Plan, Room, fewer, layer_costs, plan_layers
from lcspec.placement import draft_layers

T = TypeVar("T")
M = TypeVar("M", bound="Loaded")
# What the library says when it has laid out a computation.
COMPUTE = re.compile(r"^\S+:\s+(\S+) compute buffer size =\s+([0-9.]+) MiB")
MIB = 1 << 20


class Loaded(Protocol):
    """A model, as far as `fitted` needs to know it."""

    options: ModelOptions
    header: ModelHeader
    gpu_layers: int

    def close(self) -> None:
        """Free the weights."""


def compute_buffers(lines: list[str]) -> dict[str, int]:
    """Bytes of each device's compute buffer, from the library's log."""
    found: dict[str, int] = {}
    for line in lines:
        match = COMPUTE.match(line)
        if match is not None:
            found[match[1]] = max(found.get(match[1], 0), int(float(match[2]) * MIB))
    return found


def rehearse(placed: Placed, options: ModelOptions, make: Callable[[Any, ModelOptions], Any]) -> dict[str, int]:
    """Bytes of compute buffers with every layer on its device. Nothing is allocated: the library only lays out.

    `make` makes llama_context_params for a model that was not really loaded.
    """
    params = C.llama_model_default_params()
    params.no_alloc, params.use_extra_bufts = True, False
    kept = placed.into(params, replace(options.placement, mmap=False, mlock=False), -1)
    with log_lines() as lines:
        model = C.llama_model_load_from_file(str(options.path).encode(), params)
        if model:
            context = C.llama_init_from_model(model, make(model, options))
            if context:
                C.llama_free(context)
            C.llama_model_free(model)
    del kept
    return compute_buffers(lines)


def plan(
    placed: Placed, header: ModelHeader, options: ModelOptions, make: Callable[[Any, ModelOptions], Any], reserved: int
) -> Plan:
    """As many layers as fit on the devices beside cache and compute buffers; `reserved` bytes are for others."""
    placement, devices = options.placement, placed.devices
    if placement.split_mode == "tensor":  # every layer is on all of them
        return Plan(-1, placement.tensor_split)
    buffers = rehearse(placed, options, make)
    # A device the log does not name gets the largest figure: rather too little than too much.
    largest = max(buffers.values(), default=0)
    costs = layer_costs(header, options)
    rooms = [Room(d.free, buffers.get(d.name, largest) + costs.pinned.get(d.name.upper(), 0)) for d in devices]
    if placement.split_mode == "none":
        rooms = [rooms[placement.main_gpu]]
    found = plan_layers(costs, rooms, placement.tensor_split, reserved)
    whole = found.layers == header.layers + 1
    split = found.split if len(rooms) > 1 else ()
    return Plan(-1 if whole else found.layers, split)


def reserved_for_drafts(options: ModelOptions, drafts: Sequence[Path]) -> int:
    """Bytes that draft models will want on the target's devices; drafts are loaded later.

    What cannot be read is said when it is loaded.
    """
    placement, total = options.placement, 0
    layers = draft_layers(options.gpu_layers, placement)
    if layers == 0 or placement.draft_devices is not None:
        return 0
    for path in drafts:
        with contextlib.suppress(ModelFileError):
            need = needed(read_header(path), replace(options, path=path, planes=False, full_windows=True, mtp=False))
            total += need.weights + need.kv_cache + need.states
    return total


def fitted(model: M, make: Callable[[M], T], load: Callable[[ModelOptions], M]) -> tuple[M, T]:
    """`model` and what `make` makes of it. Where its layers were left open and there is no memory: with fewer layers.

    The model that is returned may be another one, which `load` loaded; the first one is closed then.

    Raises:
        LcspecError: `make` fails although no layer is on a device, or loading again does. No model is open then.
    """
    given = model.options
    while True:
        try:
            return model, make(model)
        except BaseException as error:
            layers = fewer(model.gpu_layers, model.header.layers + 1)
            model.close()
            if not isinstance(error, ModelLoadError) or given.gpu_layers is not None or layers is None:
                raise
        model = load(replace(given, gpu_layers=layers))
