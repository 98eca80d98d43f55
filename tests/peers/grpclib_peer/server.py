"""``server.py PORT``: serve inferences with the response that standard input contains in hex.

A ModelInfer request with ``fail`` gets an error, and a request with ``slow`` gets a late response.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server
from raw import INFER, SERVICE, STREAM, Raw

RESPONSE = bytes.fromhex(sys.stdin.readline())


class Service:
    async def infer(self, stream: Any) -> None:
        message = await stream.recv_message()
        if b"fail" in message:
            raise GRPCError(Status.INVALID_ARGUMENT, "näh %41")
        if b"slow" in message:
            await asyncio.sleep(60)
        await stream.send_message(RESPONSE)

    async def stream(self, stream: Any) -> None:
        async for _ in stream:
            await stream.send_message(b"\x12" + _length(len(RESPONSE)) + RESPONSE)

    async def live(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(b"\x08\x01")

    def __mapping__(self) -> dict[str, Any]:
        stream, unary = Cardinality.STREAM_STREAM, Cardinality.UNARY_UNARY
        return {
            INFER: Handler(self.infer, unary, bytes, bytes),
            STREAM: Handler(self.stream, stream, bytes, bytes),
            f"{SERVICE}/ServerLive": Handler(self.live, unary, bytes, bytes),
        }


def _length(value: int) -> bytes:
    return bytes((value,)) if value < 128 else bytes((value & 127 | 128, value >> 7))


async def main() -> None:
    server = Server([Service()], codec=Raw())
    await server.start("127.0.0.1", int(sys.argv[1]))
    await server.wait_closed()


asyncio.run(main())
