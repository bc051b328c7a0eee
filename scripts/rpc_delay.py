"""A proxy that delays: `lcspec worker` as if it were far away.

    python scripts/rpc_delay.py --listen 127.0.0.1:50100 --to 127.0.0.1:50052 --rtt 10

Every byte arrives half a round trip after it came in, in order; bytes on their way do not wait for each other, so the
delay is that of a long line, not of a narrow one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket


class DelayProxy:
    """Passes connections on to `target`, `rtt` seconds farther away. `rtt` may be changed while it runs."""

    def __init__(self, target: tuple[str, int], rtt: float) -> None:
        self.target = target
        self.rtt = rtt
        self.passed = 0  # bytes in both directions
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._connection, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there = await asyncio.open_connection(*self.target)
            for stream in (writer, there[1]):
                stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                ways = [self._way(reader, there[1]), self._way(there[0], writer)]
                done, rest = await asyncio.wait(map(asyncio.ensure_future, ways), return_when=asyncio.FIRST_COMPLETED)
                for way in rest:
                    way.cancel()
                await asyncio.gather(*done, *rest, return_exceptions=True)
            finally:
                there[1].close()
        writer.close()

    async def _way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, to its end."""
        clock = asyncio.get_running_loop().time
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)

        async def arrive() -> None:
            while True:
                due, data = await line.get()
                if (wait := due - clock()) > 0:
                    await asyncio.sleep(wait)
                if not data:
                    return
                writer.write(data)
                await writer.drain()
                self.passed += len(data)

        arriving = asyncio.ensure_future(arrive())
        try:
            while data := await reader.read(1 << 16):
                await line.put((clock() + self.rtt / 2, data))
            await line.put((clock() + self.rtt / 2, b""))
            await arriving
        finally:
            arriving.cancel()


async def main() -> None:
    """Run until interrupted."""
    parser = argparse.ArgumentParser(description="A proxy that delays.")
    parser.add_argument("--listen", default="127.0.0.1:50100", metavar="HOST:PORT")
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="the worker")
    parser.add_argument("--rtt", type=float, default=10.0, metavar="MS", help="milliseconds added per round trip")
    options = parser.parse_args()
    host, _, port = options.to.rpartition(":")
    here, _, own = options.listen.rpartition(":")
    proxy = DelayProxy((host, int(port)), options.rtt / 1000)
    print(f"{here}:{await proxy.start(here, int(own))} -> {options.to}, {options.rtt:g} ms per round trip", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
