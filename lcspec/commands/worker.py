"""`lcspec worker`: lend this machine's devices to an lcspec on another machine."""

from __future__ import annotations

import ipaddress
import signal
import socket

import click

from lcspec.disk_cache import cache_dir
from lcspec.errors import LcspecError, UsageError
from lcspec.llama import devices as found
from lcspec.llama import log_to_stderr
from lcspec.llama.devices import GPUS, Device
from lcspec.llama.row_by_row import take_faster_kernels
from lcspec.llama.threads import default_threads
from lcspec.llama.workers import NO_RPC, serve, supports_rpc
from lcspec.modelfiles.gguf_header import format_size
from lcspec.placement import devices_of, endpoint

DANGER = (
    "the protocol has no password and no encryption, and whoever connects may be able to run code here. Listen on "
    "127.0.0.1 and use an ssh tunnel, or a WireGuard address with --allow-network (docs/distributed.md)"
)


def run(listen: str, device: str | None, threads: int, allow_network: bool, keep_weights: bool, verbose: bool) -> None:
    """Check and listen; ends only with the process.

    Raises:
        UsageError: an option is wrong, or this build of the library cannot do it.
        LcspecError: the address cannot be had.
    """
    log_to_stderr(verbose)
    host, port = address_for(listen, allow_network)
    if not supports_rpc():
        raise UsageError(NO_RPC)
    lent = choose(found.devices(), device)
    take_faster_kernels()  # the first time they are compiled, and nobody is told of a worker that does not listen yet
    port = free_port(host, port)
    folder = cache_dir() / "worker"
    if keep_weights:
        folder.mkdir(parents=True, exist_ok=True)
    click.echo(f"lcspec: a worker at {host}:{port} for one program at a time, with")
    for d in lent:
        click.echo(f"  {d.name}: {d.description}, {format_size(d.free)} free")
    click.echo(f"elsewhere: lcspec generate MODEL --workers {host}:{port}", nl=True)
    # The library waits in C, where an interrupt would be noticed only after the next connection.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    serve(host, port, lent, threads or default_threads(), str(folder) if keep_weights else None)


def address_for(listen: str, allow_network: bool) -> tuple[str, int]:
    """IPv4 address and port of `--listen`.

    Raises:
        UsageError: it is no address, or other machines reach it and that was not allowed.
    """
    host, port = endpoint(listen)
    try:
        address = str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(f"{host} has no IPv4 address: {error.strerror}") from error
    if not ipaddress.ip_address(address).is_loopback and not allow_network:
        raise UsageError(f"{host} can be reached from other machines, and {DANGER}")
    return address, port


def free_port(host: str, port: int) -> int:
    """`port`, or a free one for 0.

    Raises:
        LcspecError: it cannot be had.
    """
    try:
        with socket.create_server((host, port)) as sock:
            return int(sock.getsockname()[1])
    except OSError as error:
        raise LcspecError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from error


def choose(table: list[Device], device: str | None) -> list[Device]:
    """The devices to lend: those named, else the GPUs, else the CPU.

    Raises:
        UsageError: one that is named is not here.
    """
    names = devices_of(device)
    if names == ():  # --device cpu
        names = ("CPU",)
    if names is None:
        gpus = [d for d in table if d.kind in GPUS]
        return gpus or [d for d in table if d.kind == "CPU"]
    by_name = {d.name.lower(): d for d in table}
    missing = [n for n in names if n.lower() not in by_name]
    if missing:
        raise UsageError(f"there is no device {missing[0]!r} here: choose from {', '.join(d.name for d in table)}")
    return [by_name[n.lower()] for n in names]
