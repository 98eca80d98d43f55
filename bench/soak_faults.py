"""What goes wrong in a soak: clients that break off, and a backend whose connections break."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable, Mapping

from infergate.transport.h2 import calls, frames

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_RESET = struct.pack("ii", 1, 0)


def _http(length: int, body: bytes) -> bytes:
    head = f"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
    return head.encode() + body


def _rpc(method: str, said: bytes) -> bytes:
    head = calls.asking(method, "x", "http", "soak")
    return (
        frames.PREFACE
        + frames.settings([])
        + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, head)
        + frames.frame(frames.DATA, 0, 1, said)
    )


_HALF = b"\0\0\1\0\0" + b"x" * 5000
_RESETS = b"".join(
    frames.frame(frames.HEADERS, frames.END_HEADERS, n, calls.asking(INFER, "x", "http", "soak"))
    + frames.reset(n, frames.Code.CANCEL)
    for n in range(1, 2000, 2)
)
FAULTS: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    "HTTP body that breaks off": ("http", lambda: _http(100_000, b"x" * 50_000)),
    "HTTP head that breaks off": ("http", lambda: _http(10, b"")[:40]),
    "garbage to HTTP": ("http", lambda: random.randbytes(2000)),
    "gRPC message that breaks off": ("grpc", lambda: _rpc(INFER, _HALF)),
    "gRPC stream that breaks off": ("grpc", lambda: _rpc(STREAM, _HALF)),
    "garbage to gRPC": ("grpc", lambda: random.randbytes(2000)),
    "garbage after HTTP/2's preface": (
        "grpc", lambda: frames.PREFACE + frames.settings([]) + random.randbytes(2000),
    ),
    "rapid resets": ("grpc", lambda: frames.PREFACE + frames.settings([]) + _RESETS),
    "garbage to a raw socket": ("frames", lambda: random.randbytes(2000)),
    "frame that breaks off": ("frames", lambda: b"\xff\xff\0\0" + bytes(2000)),
}  # fmt: skip


async def break_off(address: str, said: bytes) -> None:
    """Say it, maybe wait a little for an answer, and be gone: by a FIN, a RST, or (a machine that
    lost its power) only after a while."""
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return
    try:
        writer.write(said)
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(random.choice((0, 0.05, 3))):
                await reader.read(10_000)
        if random.random() < 0.5:
            made = writer.get_extra_info("socket")
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
    finally:
        writer.close()


class Cutter:
    """Passes connections on to ``target``, until it is told to cut all of them."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.address = ""
        self.cut_at = -100.0
        """When that was the last time, by the loop's clock."""

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Break all connections."""
        self.cut_at = asyncio.get_running_loop().time()
        for each in tuple(self._open):
            each.transport.abort()

    async def close(self) -> None:
        """Break all, take no more."""
        if self._server is not None:
            self._server.close()
        self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        pair = {writer, there[1]}
        self._open |= pair
        try:
            await asyncio.gather(_pass(reader, there[1]), _pass(there[0], writer))
        finally:
            self._open -= pair
            for each in pair:
                each.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while said := await reader.read(256 * 1024):
            writer.write(said)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()
