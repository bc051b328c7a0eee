"""Two workers on loopback, as with two machines: same texts, any delay, and what happens when one dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lcspec.commands.worker import address_for, choose, free_port
from lcspec.config import ModelOptions
from lcspec.engine.events import Event, Failed, Finished
from lcspec.engine_thread import EngineThread
from lcspec.errors import LcspecError, ModelLoadError, UsageError, WorkerLost
from lcspec.llama import Model, offloads
from lcspec.llama.devices import Device, devices
from lcspec.llama.rpc_relay import NoAnswer, greet
from lcspec.llama.workers import supports_rpc
from lcspec.placement import Placement
from lcspec.profiles.step_cost import curve_key
from lcspec.session import open_session
from scripts.rpc_delay import DelayProxy
from tests import forks
from tests import tiny_gguf as tiny
from tests.running import answer, options, request

pytestmark = pytest.mark.model

RUN = "from lcspec.cli import main; main()"
needs_rpc = pytest.mark.skipif(
    not supports_rpc(), reason="this build of llama-cpp-python has no RPC backend (CMAKE_ARGS=-DGGML_RPC=on)"
)
PROMPT = "the cat and the dog and the cat and the "


def lcspec(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = forks.server.run(arguments, timeout=300)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Worker:
    """`lcspec worker` in a process of its own."""

    def __init__(self, port: int = 0) -> None:
        command = [sys.executable, "-c", RUN, "worker", "--listen", f"127.0.0.1:{port}", "--threads", "1"]
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert " at " in line, line
        self.address = line.split(" at ")[1].split()[0]
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        end = time.monotonic() + 300
        while True:
            try:
                greet(self.address)
                return
            except NoAnswer:
                assert time.monotonic() < end
                time.sleep(0.05)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def pair() -> Iterator[tuple[Worker, Worker]]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(2):
            found.append(Worker())
            stack.callback(found[-1].kill)
        yield found[0], found[1]


@pytest.fixture(scope="module")
def deep(folder: Path) -> Path:
    return tiny.write_llama(folder / "deep8.gguf", n_layer=8)


def over(path: Path, *workers: str, **changes: Any) -> ModelOptions:
    """Without repacked weights, which a worker has not."""
    placement = replace(changes.pop("placement", Placement()), workers=workers)
    return options(path, **{"repack": False, "gpu_layers": None, "placement": placement, **changes})


def ids(given: ModelOptions, speculate: str = "off", **how: Any) -> list[int]:
    with open_session(given) as session:
        return answer(session.engine, request(session.prompt_ids(PROMPT), speculate, n=24, **how)).ids


# --- a library without it ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(supports_rpc(), reason="this build of llama-cpp-python has the RPC backend")
def test_a_build_without_rpc_says_which_build_has_it(llama: Path) -> None:
    for command in (("worker", "--listen", "127.0.0.1:0"), ("generate", llama, "-p", "x", "--workers", "127.0.0.1:9")):
        done = lcspec(*command)
        assert done.returncode == 2 and "GGML_RPC=on" in done.stderr and "doctor" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    with pytest.raises(UsageError, match="GGML_RPC=on"):
        Model.load(over(llama, "127.0.0.1:9"))
    told = lcspec("doctor").stdout
    assert "GGML_RPC=on" in next(line for line in told.splitlines() if line.startswith("other machines"))


def test_a_build_with_rpc_has_no_gpu_because_of_it() -> None:
    """The library says that it can offload as soon as it knows the protocol."""
    gpus = any("GPU" in d.kind for d in devices())
    assert offloads(Placement()) == gpus and offloads(Placement(workers=("a:1",)))


def test_who_may_connect() -> None:
    assert address_for("127.0.0.1:5", False) == ("127.0.0.1", 5)
    assert address_for("localhost:5", False) == ("127.0.0.1", 5)
    for listen in ("0.0.0.0:5", "10.1.2.3:5"):
        with pytest.raises(UsageError, match="no password.*ssh.*WireGuard.*--allow-network"):
            address_for(listen, False)
        assert address_for(listen, True)[1] == 5
    with pytest.raises(UsageError, match="HOST:PORT"):
        address_for("127.0.0.1", False)
    with pytest.raises(UsageError, match="no IPv4 address"):
        address_for("no-such-host.invalid:5", False)
    done = lcspec("worker", "--listen", "0.0.0.0:0")
    assert done.returncode == 2 and "ssh" in done.stderr and "Traceback" not in done.stderr


def test_what_is_lent() -> None:
    cpu, gpu = (Device(name, "", kind, 1, 1) for name, kind in (("CPU", "CPU"), ("CUDA0", "GPU")))
    assert choose([cpu], None) == [cpu] and choose([cpu, gpu], None) == [gpu]
    assert choose([cpu, gpu], "cpu") == [cpu] and choose([cpu, gpu], "cuda0,CPU") == [gpu, cpu]
    with pytest.raises(UsageError, match="no device 'CUDA1'.*CPU, CUDA0"):
        choose([cpu, gpu], "CUDA1")


def test_a_port_that_is_taken() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(LcspecError, match=f"127.0.0.1:{port}.*another port"):
            free_port("127.0.0.1", port)
    assert free_port("127.0.0.1", 0) > 0


def test_costs_are_those_of_these_workers(llama: Path) -> None:
    one, two = (curve_key(over(llama, address), 1, 3) for address in ("a:1", "a:2"))
    assert len({one, two, curve_key(over(llama), 1, 3)}) == 3
    assert curve_key(options(llama), 1, 0) == curve_key(options(llama, placement=Placement(mlock=True)), 1, 0)


# --- two workers ------------------------------------------------------------------------------------------------------


@needs_rpc
@pytest.mark.slow
def test_texts_are_those_of_one_machine(deep: Path, llama_draft: Path, pair: tuple[Worker, Worker]) -> None:
    local = ids(options(deep, repack=False))
    addresses = [w.address for w in pair]
    with open_session(over(deep, *addresses), llama_draft) as session:
        assert session.model.gpu_layers == -1 and session.engine.drafting.env.placement.workers == ()
        assert session.model.workers is not None and len(session.model.workers.devices) == 2
        for speculate in ("off", "ngram", "model", "model:branch=2,lookahead:w=4", "auto"):
            done = answer(session.engine, request(session.prompt_ids(PROMPT), speculate, n=24))
            assert done.error is None and done.ids == local, speculate
    assert ids(over(deep, *addresses, gpu_layers=3)) == local, "five layers and the rest stay here"
    assert ids(over(deep, addresses[0])) == local
    assert ids(over(deep, *addresses, placement=Placement(tensor_split=(1.0, 3.0)))) == local
    assert ids(over(deep, *addresses, placement=Placement(kv_offload=False))) == local


@needs_rpc
@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", [0, 2, 10, 50])
def test_texts_through_a_delay(deep: Path, pair: tuple[Worker, Worker], milliseconds: int) -> None:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    proxies = [DelayProxy(("127.0.0.1", w.port), milliseconds / 1000) for w in pair]
    ports = [asyncio.run_coroutine_threadsafe(p.start(), loop).result() for p in proxies]
    local = ids(options(deep, repack=False))
    with open_session(over(deep, *(f"127.0.0.1:{p}" for p in ports))) as session:
        began, before = time.monotonic(), session.engine.context.decode_seconds
        done = answer(session.engine, request(session.prompt_ids(PROMPT), "ngram", n=24))
        assert done.ids == local and all(p.passed for p in proxies)
        decoded = session.engine.context.decode_seconds - before
        assert time.monotonic() - began >= decoded > milliseconds / 1000, "the network is part of a decode's time"
    for proxy in proxies:
        asyncio.run_coroutine_threadsafe(proxy.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)


@needs_rpc
@pytest.mark.slow
def test_a_worker_that_dies_ends_the_request_and_not_the_program(deep: Path, pair: tuple[Worker, Worker]) -> None:
    with open_session(over(deep, *(w.address for w in pair))) as session:
        number = session.engine.submit(request(session.prompt_ids(PROMPT), n=400))
        for _ in range(5):
            session.engine.step()
        pair[1].kill()
        events: list[Event] = []
        while session.engine.busy:
            events += session.engine.step()
        last = events[-1]
        assert isinstance(last, Failed) and last.request == number and isinstance(last.error, WorkerLost)
        assert pair[1].address in str(last.error) and "start `lcspec worker` there again" in str(last.error)


class Sink:
    """Keeps a request's events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = threading.Event()

    def __call__(self, events: Any) -> None:
        self.events += events
        if isinstance(events[-1], (Finished, Failed)):
            self.ended.set()


@needs_rpc
@pytest.mark.slow
def test_the_engine_reconnects(deep: Path, pair: tuple[Worker, Worker]) -> None:
    local = ids(options(deep, repack=False))
    thread = EngineThread(over(deep, *(w.address for w in pair)), history=False)
    back = None
    try:
        session = thread.ready.result(timeout=300)
        prompt = session.prompt_ids(PROMPT)
        for _ in range(2):  # twice, since what took over is itself taken over
            first = Sink()
            thread.submit(request(prompt, n=400), first).result(timeout=300)
            while not first.events:
                time.sleep(0.01)
            (back or pair[1]).kill()
            assert first.ended.wait(300)
            last = first.events[-1]
            assert isinstance(last, Failed) and isinstance(last.error, WorkerLost)
            with pytest.raises(WorkerLost, match="reconnects"):
                thread.submit(request(prompt, n=8), Sink()).result(timeout=300)
            back = Worker((back or pair[1]).port)
            again, end = Sink(), time.monotonic() + 300
            while True:
                try:
                    thread.submit(request(prompt, n=24), again).result(timeout=300)
                    break
                except WorkerLost:
                    assert time.monotonic() < end
                    time.sleep(0.05)
            assert again.ended.wait(300)
            text = [t.id for e in again.events for t in getattr(e, "tokens", ())]
            assert text == local and session.prompt_ids(PROMPT) == prompt, "the vocabulary is still good"
            vectors, _ = thread.call(lambda s: s.embed(["the cat"])).result(timeout=300)
            assert vectors.shape[0] == 1
    finally:
        thread.close(timeout=300)
        if back is not None:
            back.kill()
    assert not thread.alive


@needs_rpc
@pytest.mark.slow
def test_a_program_may_be_closed_while_a_worker_is_away(deep: Path, pair: tuple[Worker, Worker]) -> None:
    thread = EngineThread(over(deep, pair[0].address), history=False)
    session = thread.ready.result(timeout=300)
    sink = Sink()
    thread.submit(request(session.prompt_ids(PROMPT), n=400), sink).result(timeout=300)
    while not sink.events:
        time.sleep(0.01)
    pair[0].kill()
    assert sink.ended.wait(300)
    assert thread.close(timeout=300)


@needs_rpc
@pytest.mark.slow
def test_workers_that_cannot_be_had(deep: Path, pair: tuple[Worker, Worker]) -> None:
    with pytest.raises(ModelLoadError, match="no worker answers"):
        Model.load(over(deep, pair[0].address, "127.0.0.1:1"))
    with Model.load(over(deep, pair[0].address)):
        done = lcspec("generate", deep, "-p", "x", "--workers", pair[0].address)
        assert done.returncode == 1 and "one program at a time" in done.stderr and "Traceback" not in done.stderr
    assert ids(over(deep, pair[0].address)), "free again"


@needs_rpc
@pytest.mark.slow
def test_a_worker_of_a_port_that_is_taken(pair: tuple[Worker, Worker]) -> None:
    done = lcspec("worker", "--listen", pair[0].address)
    assert done.returncode == 1 and "another port" in done.stderr
