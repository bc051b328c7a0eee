"""Where networks are trained: on the GPU if PyTorch has one, else on the processor."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@functools.cache
def device() -> torch.device:
    """The device that networks and what they compute with are on."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.set_float32_matmul_precision("high")  # the matrix units' 19-bit floats
    return torch.device("cuda")


def moved(tensor: Tensor) -> Tensor:
    """A tensor of the processor's on the device; the processor does not wait for what the device has to do before."""
    where = device()
    return tensor if where.type == "cpu" else tensor.pin_memory().to(where, non_blocking=True)
