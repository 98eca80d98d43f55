"""Helpers for the tests of frames and unix sockets."""

import asyncio
import dataclasses
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from transport_kit import LOCAL, Engine, HttpEcho, Peer, RpcEcho

from infergate.core.limits import Limits
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.transport.base import Address, Endpoint, Server
from infergate.transport.framed.server import FrameServer
from infergate.transport.server.admission import Admission
from infergate.transport.server.connection_gate import ConnectionGate

ACTIONS = frozenset({b"wait", b"bug", b"selfcancel", b"large", b"nothing"})


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


class FrameEcho(HttpEcho):
    """Performs the action that a frame names; echoes any other frame."""

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        body = bytes(join_parts(wire.body))
        if body == b"nothing":
            return HttpResponse(200)
        if body in ACTIONS:
            wire = dataclasses.replace(wire, path=f"/{body.decode()}")
        return await super().respond(wire, context)


@dataclasses.dataclass
class FramePeer(Peer):
    async def exchange(self, body: bytes) -> bytes:
        await self.send(framed(body))
        return await self.read_frame()

    async def reads_eof(self) -> bool:
        """Return whether the server sends nothing more and closes its side; close this side."""
        is_closed = await super().reads_eof()
        await self.close()
        return is_closed

    async def read_frame(self) -> bytes:
        async with asyncio.timeout(10):
            (length,) = struct.unpack("<I", await self.reader.readexactly(4))
            return await self.reader.readexactly(length)


@dataclasses.dataclass
class FrameHarness:
    """A listening server and its application."""

    server: FrameServer
    app: FrameEcho
    admission: Admission
    peers: list[FramePeer] = dataclasses.field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint:
        address = self.server.address
        return Endpoint(address.host, address.port, unix=address.unix, framed=True)

    async def connect(self) -> FramePeer:
        address = self.server.address
        if address.unix:
            streams = await asyncio.open_unix_connection(address.unix)
        else:
            streams = await asyncio.open_connection(address.host, address.port)
        self.peers.append(FramePeer(*streams))
        return self.peers[-1]

    async def check_serving(self) -> None:
        peer = await self.connect()
        assert await peer.exchange(b"hi") == b"POST hi"
        await peer.close()


def gated_server(
    kind: str, engine: Engine, limits: Limits, admission: Admission, gate: ConnectionGate
) -> tuple[Server, HttpEcho | RpcEcho]:
    """Return a server that has not started yet, and its application. ``kind`` is http, grpc or
    frames."""
    if kind == "grpc":
        rpc_app = RpcEcho()
        return engine.server(LOCAL, rpc_app, limits, admission, gate), rpc_app
    app = FrameEcho() if kind == "frames" else HttpEcho()
    create = FrameServer if kind == "frames" else engine.http
    return create(LOCAL, app, limits, admission, gate), app


@asynccontextmanager
async def frame_harness(limits: Limits, socket: Path | None = None) -> AsyncIterator[FrameHarness]:
    """Start a frame server. At the end, check that it still serves and holds no request."""
    admission = Admission(limits)
    app = FrameEcho()
    address = LOCAL if socket is None else Address(unix=str(socket))
    server = FrameServer(address, app, limits, admission)
    await server.start()
    harness = FrameHarness(server, app, admission)
    try:
        yield harness
        for peer in harness.peers:
            await peer.close()
        with suppress(OSError):
            await harness.check_serving()
    finally:
        await server.stop(0)
        assert (admission.requests, admission.bytes) == (0, 0)
