"""Faults of a soak: clients that break off, and proxies that close, stall or corrupt the
connections of servers."""

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infergate.transport.grpc import headers
from infergate.transport.http2 import frames, header_blocks

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_RESET = struct.pack("ii", 1, 0)
_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The first bytes of a TLS handshake."""
_AWAY = 20.0
"""Seconds for which a client without power leaves its connection open."""

# ---- clients ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A listener at ``host:port``. If it uses TLS, ``tls`` has the settings of its clients."""

    address: str
    tls: ssl.SSLContext | None = None


def _http(length: int, body: bytes, key: str) -> bytes:
    head = (
        "POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n"
    )
    return head.encode() + body


def call_headers(stream: int, method: str, key: str, *, zipped: bool = False) -> bytes:
    """Return the HEADERS frame of a call, without credentials if ``key`` is empty."""
    block = headers.request_prefix(method, "x", "http", "soak")
    if key:
        block += headers.encode_metadata({"authorization": f"Bearer {key}"})
    if zipped:
        block += header_blocks.encode_field("grpc-encoding", "gzip")
    return frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block)


def _rpc(method: str, data: bytes, key: str) -> bytes:
    return (
        frames.PREFACE
        + frames.settings([])
        + call_headers(1, method, key)
        + frames.frame(frames.DATA, 0, 1, data)
    )


def _resets(key: str) -> bytes:
    return b"".join(
        call_headers(n, INFER, key) + frames.reset(n, frames.Code.CANCEL) for n in range(1, 2000, 2)
    )


_HALF = b"\0\0\1\0\0" + b"x" * 5000
FAULTS: Mapping[str, tuple[str, Callable[[str], bytes]]] = {
    "HTTP body that breaks off": ("http", lambda key: _http(100_000, b"x" * 50_000, key)),
    "HTTP head that breaks off": ("http", lambda key: _http(10, b"", key)[:40]),
    "garbage to HTTP": ("http", lambda _: random.randbytes(2000)),
    "gRPC message that breaks off": ("grpc", lambda key: _rpc(INFER, _HALF, key)),
    "gRPC stream that breaks off": ("grpc", lambda key: _rpc(STREAM, _HALF, key)),
    "garbage to gRPC": ("grpc", lambda _: random.randbytes(2000)),
    "garbage after HTTP/2's preface": (
        "grpc", lambda _: frames.PREFACE + frames.settings([]) + random.randbytes(2000),
    ),
    "rapid resets": ("grpc", lambda key: frames.PREFACE + frames.settings([]) + _resets(key)),
    "garbage to a raw socket": ("graphpipe", lambda _: random.randbytes(2000)),
    "frame that breaks off": ("graphpipe", lambda _: b"\xff\xff\0\0" + bytes(2000)),
    "handshake that breaks off": ("plain", lambda _: _HELLO),
    "garbage instead of a handshake": ("plain", lambda _: random.randbytes(500)),
}  # fmt: skip
"""The kind of listener, and the bytes that a client with a key sends. ``plain`` means bytes without
TLS to a TLS listener."""


async def break_off(target: Target, data: bytes) -> None:
    """Send the bytes, possibly wait briefly for a response, and leave: with a FIN, with a RST, or
    without closing the connection for a while, like a machine that lost its power."""
    host, _, port = target.address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=target.tls)
    except OSError:
        return
    try:
        writer.write(data)
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(random.choice((0, 0, 0.05, 0.05, 3, _AWAY))):
                await reader.read(10_000)
        if random.random() < 0.5:
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
    finally:
        writer.close()


# ---- servers ----------------------------------------------------------------------------------


class Proxy:
    """A proxy in this process, which forwards connections to ``target`` while it is open."""

    def __init__(self) -> None:
        self.target = ""
        # The port stays reserved while nothing listens on it, so that connections are refused.
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self.port))
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def open(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(self._accept, sock=self._socket.dup())

    def shut(self) -> None:
        """Break all connections and refuse new ones."""
        if self._server is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._server.close()
            self._server = None
        self.cut()

    def cut(self) -> None:
        """Break all connections."""
        for each in tuple(self._open):
            each.transport.abort()

    def garble(self) -> None:
        """Send random bytes to all clients, and close their connections."""
        for each in tuple(self._clients):
            each.write(random.randbytes(300))
            each.close()

    def hang(self) -> None:
        """Forward nothing until ``flow`` is called."""
        self._flowing.clear()

    def flow(self) -> None:
        """Forward the delayed bytes and all later bytes."""
        self._flowing.set()

    def close(self) -> None:
        """Release the port."""
        self.flow()
        self.shut()
        self._socket.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        pair = {writer}
        self._open.add(writer)
        try:
            target = await asyncio.open_connection(host, int(port))
            pair.add(target[1])
            self._open.add(target[1])
            self._clients.add(writer)
            await asyncio.gather(self._pass(reader, target[1]), self._pass(target[0], writer))
        except OSError:  # the target has ended
            writer.transport.abort()
        finally:
            self._open -= pair
            self._clients.discard(writer)
            for each in pair:
                each.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(256 * 1024):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()
