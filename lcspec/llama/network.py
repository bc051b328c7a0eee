"""A small network that the library computes on the CPU, with threads (ggml.h, ggml-backend.h)."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable, NamedTuple

import gguf
import numpy as np
from gguf.quants import quantize
from numpy.typing import NDArray

from lcspec.errors import DecodeError, ModelLoadError
from lcspec.llama.lib import C, init
from lcspec.llama.native import address_of, at

Floats = NDArray[np.float32]

# How weights can be kept, by the library's number; Q8_0 needs rows of a multiple of 32 values.
KINDS = {"f32": 0, "f16": 1, "q8_0": 8}
TENSORS = 64  # the most of a network
CPU = 0  # GGML_BACKEND_DEVICE_TYPE_CPU

_P, _SIZE, _INT, _LONG = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64


class _Params(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = [("size", _SIZE), ("memory", _P), ("no_alloc", ctypes.c_bool)]


class Tensor(NamedTuple):
    """A tensor of a network, and its shape in numpy's order."""

    address: int
    shape: tuple[int, ...]


@functools.cache
def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    return ctypes.CFUNCTYPE(result, *arguments)(address_of(C.llama_cpp._lib, name))


class Network:
    """Operations that are put together one by one, and computed again and again once `finish` was called."""

    def __init__(self, threads: int) -> None:
        """An empty network, computed by so many threads.

        Raises:
            ModelLoadError: there is no memory for it, or the library has no CPU backend.
        """
        init()
        size = TENSORS * _function("ggml_tensor_overhead", _SIZE)() + _function("ggml_graph_overhead", _SIZE)()
        self._context: int | None = _function("ggml_init", _P, _Params)(_Params(size, None, True))
        self._backend: int | None = _function("ggml_backend_init_by_type", _P, _INT, _P)(CPU, None)
        self._buffer: int | None = None
        self._graph: int | None = None
        self._out: Tensor | None = None
        self._inputs, self._weights = list[Tensor](), list[tuple[Tensor, NDArray[Any]]]()
        if not self._context or not self._backend:
            self.close()
            raise ModelLoadError("the library could not make a small network on the CPU")
        device = _function("ggml_backend_get_device", _P, _P)(self._backend)
        registry = _function("ggml_backend_dev_backend_reg", _P, _P)(device)
        lookup = _function("ggml_backend_reg_get_proc_address", _P, _P, ctypes.c_char_p)
        if address := lookup(registry, b"ggml_backend_set_n_threads"):
            ctypes.CFUNCTYPE(None, _P, _INT)(address)(self._backend, threads)

    def _new(self, kind: int, shape: tuple[int, ...]) -> Tensor:
        sizes = (_LONG * len(shape))(*reversed(shape))
        make = _function("ggml_new_tensor", _P, _P, _INT, _INT, _P)
        return Tensor(make(self._context, kind, len(shape), ctypes.addressof(sizes)), shape)

    def weights(self, values: Floats, kind: str = "f32") -> Tensor:
        """Numbers that stay the same: float32 of any shape, kept as one of KINDS."""
        stored: NDArray[Any] = np.ascontiguousarray(values, np.float32)
        if kind == "f16":
            stored = stored.astype(np.float16)
        elif kind == "q8_0":
            stored = quantize(stored, gguf.GGMLQuantizationType.Q8_0)
        tensor = self._new(KINDS[kind], values.shape)
        self._weights.append((tensor, stored))
        return tensor

    def input(self, *shape: int) -> Tensor:
        """Numbers given to each computation, in the order in which the inputs were made."""
        self._inputs.append(self._new(KINDS["f32"], shape))
        return self._inputs[-1]

    def product(self, weights: Tensor, x: Tensor) -> Tensor:
        """`x @ weights.T` over the last two axes; axes before them are the same in both."""
        shape = (*x.shape[:-1], weights.shape[-2])
        return Tensor(_function("ggml_mul_mat", _P, _P, _P, _P)(self._context, weights.address, x.address), shape)

    def sum(self, x: Tensor, y: Tensor) -> Tensor:
        """`x + y`, `y` repeated to the shape of `x`."""
        return Tensor(_function("ggml_add", _P, _P, _P, _P)(self._context, x.address, y.address), x.shape)

    def silu(self, x: Tensor) -> Tensor:
        """`x / (1 + exp(-x))`."""
        return Tensor(_function("ggml_silu", _P, _P, _P)(self._context, x.address), x.shape)

    def reshaped(self, x: Tensor, *shape: int) -> Tensor:
        """The same numbers in another shape of two or three axes."""
        reshape = _function(f"ggml_reshape_{len(shape)}d", _P, _P, _P, *[_LONG] * len(shape))
        return Tensor(reshape(self._context, x.address, *reversed(shape)), shape)

    def finish(self, out: Tensor) -> None:
        """`out` is what a computation gives.

        Raises:
            ModelLoadError: there is no memory for it.
        """
        graph = _function("ggml_new_graph", _P, _P)(self._context)
        _function("ggml_build_forward_expand", None, _P, _P)(graph, out.address)
        buffer = _function("ggml_backend_alloc_ctx_tensors", _P, _P, _P)(self._context, self._backend)
        if not buffer:
            raise ModelLoadError("there is no memory for a small network: free some, or go without heads")
        self._graph, self._buffer, self._out = graph, buffer, out
        for tensor, stored in self._weights:
            self._set(tensor, stored)
        self._weights = []

    def _set(self, tensor: Tensor, values: NDArray[Any]) -> None:
        put = _function("ggml_backend_tensor_set", None, _P, _P, _SIZE, _SIZE)
        put(tensor.address, at(values), 0, values.nbytes)

    def __call__(self, *inputs: Floats) -> Floats:
        """Compute: float32 arrays for the inputs, of their shapes; returns float32 of the shape of `out`.

        Raises:
            DecodeError: the library failed.
        """
        assert self._out is not None, "finish() has not been called"
        for tensor, values in zip(self._inputs, inputs, strict=True):
            assert values.shape == tensor.shape, f"{values.shape} instead of {tensor.shape}"
            self._set(tensor, np.ascontiguousarray(values, np.float32))
        if code := _function("ggml_backend_graph_compute", _INT, _P, _P)(self._backend, self._graph):
            raise DecodeError(f"a small network could not be computed: the library returned {code}")
        out = np.empty(self._out.shape, np.float32)
        _function("ggml_backend_tensor_get", None, _P, _P, _SIZE, _SIZE)(self._out.address, at(out), 0, out.nbytes)
        return out

    def close(self) -> None:
        """Free it."""
        for free, held in (
            ("ggml_backend_buffer_free", self._buffer),
            ("ggml_backend_free", self._backend),
            ("ggml_free", self._context),
        ):
            if held:
                _function(free, None, _P)(held)
        self._buffer = self._backend = self._context = self._out = None
