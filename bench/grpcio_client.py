"""A program that makes calls with the gRPC library for Python, as a user's client does: with a
deadline and metadata. Its own CPU is not counted. ``load`` describes the arguments and the log."""

import asyncio
import sys
import time
from pathlib import Path

import grpc

_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
"""Gives each channel its own connection. By default, channels share a connection."""
_METADATA = (("x-tenant", "benchmark"),)
_TIMEOUT = 10


async def _log(arguments: list[str], message: bytes) -> list[str]:
    address, method, _, size = arguments[:4]
    count, connections, rate = map(int, arguments[4:7])
    channels = [grpc.aio.insecure_channel(address, options=_OPTIONS) for _ in range(connections)]
    calls = [channel.unary_unary(method) for channel in channels]
    lines = []
    begin = time.perf_counter()

    async def send(connection: int) -> None:
        for number in range(connection, count, connections):
            await asyncio.sleep(begin + number / rate - time.perf_counter())
            start = time.time()
            response = await calls[connection](message, timeout=_TIMEOUT, metadata=_METADATA)
            if len(response) + 5 != int(size):
                raise SystemExit(f"received a message of {len(response)} bytes, expected {size}")
            times = (start, time.time() - start)
            lines.append("{:.0f}\t200\t{:.0f}".format(*(1e6 * each for each in times)))

    await asyncio.gather(*map(send, range(connections)))
    for channel in channels:
        await channel.close()
    return lines


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    lines = asyncio.run(_log(sys.argv[1:], Path(sys.argv[3]).read_bytes()[5:]))
    Path(sys.argv[-1]).write_text("\n".join(lines))
