"""A small network that the library computes on the CPU, with threads (ggml.h, ggml-backend.h)."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lcspec.errors import DecodeError, ModelLoadError
from lcspec.llama.devices import ggml
from lcspec.llama.lib import C, init
from lcspec.llama.native import at, quantized
from lcspec.llama.weight_types import TYPES

Floats = NDArray[np.float32]
Pointer = ctypes.c_void_p

F32 = 0  # GGML_TYPE_F32
# Types of weights by their names.
KINDS = {kind.name: kind for kind in TYPES}
TENSORS = 64  # the most of a network
CPU = 0  # GGML_BACKEND_DEVICE_TYPE_CPU


class _Params(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = [("size", ctypes.c_size_t), ("memory", Pointer), ("no_alloc", ctypes.c_bool)]


class Tensor(NamedTuple):
    """A tensor of a network, and its shape in numpy's order."""

    pointer: Pointer
    shape: tuple[int, ...]


def _made(name: str, *arguments: Any) -> Pointer:
    """What a function of ggml makes; a null pointer if it fails."""
    return Pointer(ggml(name)(*arguments))


class Network:
    """Operations that are put together one by one, and computed again and again once `finish` was called."""

    def __init__(self, threads: int) -> None:
        """An empty network, computed by so many threads.

        Raises:
            ModelLoadError: there is no memory for it, or the library has no CPU backend.
        """
        init()
        size = ctypes.c_size_t
        room = TENSORS * ggml("ggml_tensor_overhead", size)() + ggml("ggml_graph_overhead", size)()
        self._context = _made("ggml_init", _Params(room, None, True))
        self._backend = _made("ggml_backend_init_by_type", ctypes.c_int(CPU), None)
        self._buffer = self._graph = Pointer()
        self._out: Tensor | None = None
        self._inputs, self._weights = list[Tensor](), list[tuple[Tensor, NDArray[Any]]]()
        if not self._context or not self._backend:
            self.close()
            raise ModelLoadError("the library could not make a small network on the CPU")
        registry = _made("ggml_backend_dev_backend_reg", _made("ggml_backend_get_device", self._backend))
        if address := ggml("ggml_backend_reg_get_proc_address")(registry, b"ggml_backend_set_n_threads"):
            ctypes.CFUNCTYPE(None, Pointer, ctypes.c_int)(address)(self._backend, threads)

    def _new(self, kind: int, shape: tuple[int, ...]) -> Tensor:
        sizes = (ctypes.c_int64 * len(shape))(*reversed(shape))
        make = "ggml_new_tensor", self._context, ctypes.c_int(kind), ctypes.c_int(len(shape)), sizes
        return Tensor(_made(*make), shape)

    def weights(self, values: Floats, kind: str = "f32") -> Tensor:
        """Numbers that stay the same: float32 of any shape, kept as they are or as one of KINDS, whose blocks must fill
        the rows."""
        number = F32
        stored: NDArray[Any] = np.ascontiguousarray(values, np.float32)
        if kind != "f32":
            number = KINDS[kind].number
            stored = quantized(C.llama_cpp._lib, KINDS[kind], stored.reshape(-1, values.shape[-1]))
        tensor = self._new(number, values.shape)
        self._weights.append((tensor, stored))
        return tensor

    def input(self, *shape: int) -> Tensor:
        """Numbers given to each computation, in the order in which the inputs were made."""
        self._inputs.append(self._new(F32, shape))
        return self._inputs[-1]

    def product(self, weights: Tensor, x: Tensor) -> Tensor:
        """`x @ weights.T` over the last two axes; axes before them are the same in both."""
        shape = (*x.shape[:-1], weights.shape[-2])
        return Tensor(_made("ggml_mul_mat", self._context, weights.pointer, x.pointer), shape)

    def sum(self, x: Tensor, y: Tensor) -> Tensor:
        """`x + y`, `y` repeated to the shape of `x`."""
        return Tensor(_made("ggml_add", self._context, x.pointer, y.pointer), x.shape)

    def silu(self, x: Tensor) -> Tensor:
        """`x / (1 + exp(-x))`."""
        return Tensor(_made("ggml_silu", self._context, x.pointer), x.shape)

    def reshaped(self, x: Tensor, *shape: int) -> Tensor:
        """The same numbers in another shape of two or three axes."""
        sizes = map(ctypes.c_int64, reversed(shape))
        return Tensor(_made(f"ggml_reshape_{len(shape)}d", self._context, x.pointer, *sizes), shape)

    def finish(self, out: Tensor) -> None:
        """`out` is what a computation gives.

        Raises:
            ModelLoadError: there is no memory for it.
        """
        self._graph, self._out = _made("ggml_new_graph", self._context), out
        ggml("ggml_build_forward_expand", None)(self._graph, out.pointer)
        self._buffer = _made("ggml_backend_alloc_ctx_tensors", self._context, self._backend)
        if not self._buffer:
            raise ModelLoadError("there is no memory for a small network: free some, or go without heads")
        for tensor, stored in self._weights:
            self._set(tensor, stored)
        self._weights = []

    def _set(self, tensor: Tensor, values: NDArray[Any]) -> None:
        size = ctypes.c_size_t
        ggml("ggml_backend_tensor_set", None)(tensor.pointer, at(values), size(0), size(values.nbytes))

    def __call__(self, *inputs: Floats) -> Floats:
        """Compute: float32 arrays for the inputs, of their shapes; returns float32 of the shape of `out`.

        Raises:
            DecodeError: the library failed.
        """
        assert self._out is not None, "finish() has not been called"
        for tensor, values in zip(self._inputs, inputs, strict=True):
            assert values.shape == tensor.shape, f"{values.shape} instead of {tensor.shape}"
            self._set(tensor, np.ascontiguousarray(values, np.float32))
        if code := ggml("ggml_backend_graph_compute", ctypes.c_int)(self._backend, self._graph):
            raise DecodeError(f"a small network could not be computed: the library returned {code}")
        out, size = np.empty(self._out.shape, np.float32), ctypes.c_size_t
        ggml("ggml_backend_tensor_get", None)(self._out.pointer, at(out), size(0), size(out.nbytes))
        return out

    def close(self) -> None:
        """Free it."""
        for free, held in (
            ("ggml_backend_buffer_free", self._buffer),
            ("ggml_backend_free", self._backend),
            ("ggml_free", self._context),
        ):
            if held:
                ggml(free, None)(held)
        self._buffer = self._backend = self._context = Pointer()
        self._out = None
