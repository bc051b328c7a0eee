"""LoRA adapters of a loaded model, and putting them on its contexts."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Sequence

from lcspec.config import Lora
from lcspec.errors import ModelLoadError
from lcspec.llama.lib import C, error_reason
from lcspec.modelfiles.lora import check_lora

if TYPE_CHECKING:
    from lcspec.llama.model import Model


class Adapters:
    """Those that act on a model; the library frees them with it."""

    def __init__(self, model: Model, loras: Sequence[Lora]) -> None:
        """Load them.

        Raises:
            ModelFileError: one is no adapter for this model.
            ModelLoadError: the library refused one.
        """
        self._handles: list[ctypes.c_void_p] = []
        self._scales: list[float] = []
        for lora in loras:
            check_lora(model.options.path, lora.path)
            if lora.scale == 0:  # so the model's bits stay as they are
                continue
            with error_reason("the library gave no reason") as reason:
                handle = C.llama_adapter_lora_init(model.handle, str(lora.path).encode())
            if not handle:
                raise ModelLoadError(f"the adapter {lora.path.name} could not be loaded: {reason[0]}")
            self._handles.append(handle)
            self._scales.append(lora.scale)

    def put_on(self, context: ctypes.c_void_p) -> None:
        """Let them act in a context.

        Raises:
            ModelLoadError: the library refused.
        """
        n = len(self._handles)
        if not n:
            return
        kind = C.llama_adapter_lora_p_ctypes
        handles = (kind * n)(*(ctypes.cast(handle, kind) for handle in self._handles))
        if C.llama_set_adapters_lora(context, handles, n, (ctypes.c_float * n)(*self._scales)) != 0:
            raise ModelLoadError("the library refused the LoRA adapters")
