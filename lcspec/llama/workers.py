"""Other machines' devices, through llama.cpp's RPC backend: `lcspec worker` there, `--workers` here."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Sequence

from lcspec.errors import LcspecError, ModelLoadError, UsageError, WorkerLost
from lcspec.llama.devices import Device, device_at, ggml
from lcspec.llama.lib import C, init
from lcspec.llama.rpc_relay import NoAnswer, Relay, greet

NO_RPC = (
    "this build of the library cannot use other machines: compile it with CMAKE_ARGS=-DGGML_RPC=on "
    "(`lcspec doctor` has the line)"
)


@dataclass
class Workers:
    """Workers that a model is spread over."""

    relays: list[Relay]
    devices: list[Device]

    @property
    def lost(self) -> str | None:
        """Which workers are gone and why, for a message; None while all are there."""
        gone = [f"{relay.address} ({relay.lost})" for relay in self.relays if relay.lost is not None]
        return ", ".join(gone) or None

    def check(self) -> None:
        """What was just computed is right only if nobody is gone.

        Raises:
            WorkerLost: somebody is.
        """
        if self.lost is not None:
            raise WorkerLost(f"lost the worker {self.lost}: start `lcspec worker` there again")

    def cut(self) -> None:
        """Let go of every worker, so that another connection can have it."""
        for relay in self.relays:
            relay.cut()

    def close(self) -> None:
        """Stop the relays, when the library has let go."""
        for relay in self.relays:
            relay.close()


def supports_rpc() -> bool:
    """Whether this build of the library has the RPC backend."""
    return bool(C.llama_supports_rpc())


def _function(name: bytes, result: Any, *arguments: Any) -> Any:
    """A function of the RPC backend.

    Raises:
        UsageError: this build has none.
    """
    init()
    registry = ggml("ggml_backend_reg_by_name")(b"RPC") if supports_rpc() else None
    address = ggml("ggml_backend_reg_get_proc_address")(ctypes.c_void_p(registry), name) if registry else None
    if not address:
        raise UsageError(NO_RPC)
    return ctypes.CFUNCTYPE(result, *arguments)(address)


def connect(addresses: Sequence[str]) -> Workers:
    """Connect to workers; each must be free.

    Raises:
        UsageError: this build of the library has no RPC backend.
        ModelLoadError: a worker does not answer.
    """
    add = _function(b"ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    try:
        for address in addresses:
            greet(address)  # the library would end the process if there were nobody
    except NoAnswer as error:
        raise ModelLoadError(str(error)) from error
    workers = Workers([Relay(address) for address in addresses], [])
    try:
        for relay in workers.relays:
            registry = add(relay.endpoint.encode())
            if not registry:
                raise ModelLoadError(f"the worker {relay.address} has no devices")
            count = ggml("ggml_backend_reg_dev_count", ctypes.c_size_t)(ctypes.c_void_p(registry))
            get = ggml("ggml_backend_reg_dev_get")
            workers.devices += [device_at(get(ctypes.c_void_p(registry), ctypes.c_size_t(i))) for i in range(count)]
        workers.check()
    except BaseException:
        workers.close()
        raise
    return workers


def serve(host: str, port: int, devices: Sequence[Device], threads: int, cache: str | None) -> None:
    """Be a worker: answer one program after another until the process is ended.

    Raises:
        UsageError: this build of the library has no RPC backend.
        LcspecError: the server ended by itself.
    """
    start = _function(
        b"ggml_backend_rpc_start_server",
        None,
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p),
    )
    handles = (ctypes.c_void_p * len(devices))(*[d.handle for d in devices])
    start(f"{host}:{port}".encode(), cache and cache.encode(), threads, len(devices), handles)
    raise LcspecError(f"the worker at {host}:{port} stopped: the library gave no reason but what is printed above")
