"""The delaying proxy: every byte arrives, in order, and not before its time."""

from __future__ import annotations

import asyncio

import pytest

from scripts.rpc_delay import DelayProxy

pytestmark = pytest.mark.slow


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.mark.parametrize("rtt", [0.0, 0.05])
async def test_bytes_arrive_in_order_and_late(rtt: float) -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = DelayProxy(("127.0.0.1", server.sockets[0].getsockname()[1]), rtt)
    reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start())
    clock = asyncio.get_running_loop().time
    began = clock()
    writer.write(b"ping")
    assert await reader.readexactly(4) == b"ping"
    assert clock() - began >= rtt
    data = bytes(range(256)) * 4000
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    proxy.rtt = 0.2
    began = clock()
    writer.write(b"pong")
    assert await reader.readexactly(4) == b"pong" and clock() - began >= 0.2
    assert proxy.passed == 2 * (8 + len(data))
    writer.write_eof()
    assert await reader.read() == b"", "an end arrives too"
    await proxy.close()
    server.close()


async def test_nobody_behind_it() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    proxy = DelayProxy(("127.0.0.1", port), 0.0)
    reader, _ = await asyncio.open_connection("127.0.0.1", await proxy.start())
    assert await reader.read() == b""
    await proxy.close()
