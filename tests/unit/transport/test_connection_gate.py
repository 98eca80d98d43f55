"""Connection limits, slow readers, TLS on plain-text ports, and checks of silent connections."""

import asyncio
import dataclasses
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from frame_kit import gated_server
from test_h2_engine import (
    Connect,
    Peer,
    connect,
    is_request,
    message,
    open_stream,
    response_frames,
    serve,
)
from transport_kit import (
    COMPAT,
    OWN,
    RPC_LIMITS,
    FakeClient,
    HttpEcho,
    client_hello,
    tried_repeatedly,
)

from gateway_errors import raises_kind
from infergate.core.errors import Kind
from infergate.core.limits import Limits
from infergate.core.wire import RpcRequest
from infergate.transport.base import Server
from infergate.transport.grpc import client_connection
from infergate.transport.http1.server_connection import HttpServerConnection
from infergate.transport.http2 import frames
from infergate.transport.http2.frames import frame
from infergate.transport.server.admission import Admission, UnsentResponse
from infergate.transport.server.connection_gate import (
    ConnectionCount,
    ConnectionGate,
    ConnectionRefusal,
    is_client_hello,
)
from infergate.transport.server.listener import HttpAppListener
from waiting import until

__all__ = ["connect"]

LIMITS = Limits(body=10_000_000)
QUICK = dataclasses.replace(LIMITS, idle_body_time=0.3, keepalive_time=60)
LARGE = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclasses.dataclass
class Harness:
    server: Server
    gate: ConnectionGate
    admission: Admission
    refused: list[ConnectionRefusal]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.server.address.port)

    async def is_admitted(self) -> bool:
        """Return whether another connection is accepted."""
        before, count = len(self.refused), self.gate.connections
        reader, writer = await self.connect()
        reading = asyncio.ensure_future(reader.read())
        await until(lambda: len(self.refused) > before or self.gate.connections > count)
        if self.gate.connections == count:
            with suppress(ConnectionError):
                await reading
        reading.cancel()
        writer.close()
        await until(lambda: self.gate.connections <= count)
        return len(self.refused) == before


KINDS = ["http", "http with aiohttp", "grpc", "frames"]


@asynccontextmanager
async def harness(
    kind: str,
    connections: ConnectionCount | None = None,
    limits: Limits = LIMITS,
    limit: int = 1000,
) -> AsyncIterator[Harness]:
    refused: list[ConnectionRefusal] = []
    count = connections or ConnectionCount()
    gate = ConnectionGate(kind, count, on_refused=refused.append, max_connections=limit)
    admission = Admission(limits)
    engine = COMPAT if kind == "http with aiohttp" else OWN
    server, _ = gated_server(kind.partition(" ")[0], engine, limits, admission, gate)
    await server.start()
    try:
        yield Harness(server, gate, admission, refused)
    finally:
        await server.stop(0)
        assert (admission.requests, admission.bytes, gate.connections) == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_connections_are_limited(kind: str) -> None:
    async with harness(kind, limit=2) as listener:
        assert await listener.is_admitted()
        open_connections = [await listener.connect() for _ in range(2)]
        await until(lambda: listener.gate.connections == 2)
        assert not await listener.is_admitted()
        assert listener.refused == [ConnectionRefusal.FULL]
        open_connections[0][1].close()
        await until(lambda: listener.gate.connections == 1)
        assert await listener.is_admitted()
        open_connections[1][1].close()


async def test_listeners_share_a_connection_limit() -> None:
    shared = ConnectionCount()
    async with (
        harness("http", shared, limit=2) as http_server,
        harness("frames", shared, limit=2) as frame_server,
    ):
        open_connections = [await http_server.connect(), await frame_server.connect()]
        await until(
            lambda: (
                (http_server.gate.connections, frame_server.gate.connections, shared.open)
                == (1, 1, 2)
            )
        )
        assert not await http_server.is_admitted()
        assert not await frame_server.is_admitted()
        for _, writer in open_connections:
            writer.close()
        await until(lambda: shared.open == 0)


def test_log_lines_of_refused_connections_are_limited(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("infergate.transport.server.connection_gate.time.monotonic", lambda: now)
    refused: list[ConnectionRefusal] = []
    gate = ConnectionGate("x", on_refused=refused.append)
    with caplog.at_level("INFO"):
        for _ in range(500):
            gate.refuse(ConnectionRefusal.FULL, "1.2.3.4:5", "full")
        assert (len(refused), len(caplog.messages)) == (500, 20)
        now += 1
        gate.refuse(ConnectionRefusal.FULL, "1.2.3.4:5", "full")
    assert caplog.messages[20:] == [
        "x: 480 more connections closed within a second",
        "x: connection from 1.2.3.4:5 closed: full",
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_tls_on_a_plain_text_port_is_refused(kind: str) -> None:
    async with harness(kind) as listener:
        reader, writer = await listener.connect()
        writer.write(client_hello())
        await until(lambda: listener.refused == [ConnectionRefusal.TLS])
        writer.write_eof()
        async with asyncio.timeout(10):
            with suppress(ConnectionError):
                await reader.read()
        writer.close()
        await until(lambda: not listener.gate.connections)


def test_client_hello_is_detected() -> None:
    hello = client_hello()
    assert is_client_hello(hello)
    other_message, other_size = (
        b"\x16\x03\x01\x00\x05\x02\0\0\1",
        hello[:3] + b"\0\0" + hello[5:],
    )
    for start in (hello[:8], b"", b"GET / HTTP/1.1", other_message, bytes(20), other_size):
        assert not is_client_hello(start)


def test_unsent_responses_have_a_deadline() -> None:
    admission = Admission(LIMITS)
    limits = dataclasses.replace(LIMITS, idle_body_time=30.0)
    unsent = UnsentResponse(admission)
    client = FakeClient()
    unsent.start(100_000, 1000.0, client)
    assert (admission.bytes, unsent.deadline(limits)) == (100_000, 1030.0)
    unsent.set_remaining(100_000, 1020.0)
    assert unsent.deadline(limits) == 1030.0, "no byte was read"
    unsent.set_remaining(90_000, 1025.0)
    assert (admission.bytes, unsent.deadline(limits)) == (100_000, 1050.0), "500 bytes per second"
    unsent.set_remaining(10_000, 1026.0)
    assert unsent.deadline(limits) == 1056.0
    unsent.grow(5_000)
    assert admission.bytes == 105_000, "a buffer is freed in one piece"
    unsent.finish()
    unsent.finish()
    assert admission.bytes == 0


def slow_client(port: int) -> socket.socket:
    """Connect a client with a small receive buffer."""
    result = socket.socket()
    result.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    result.connect(("127.0.0.1", port))
    return result


LARGE_REQUESTS: dict[str, bytes] = {
    "http": LARGE,
    "http with aiohttp": LARGE,
    "frames": b"\x05\0\0\0large",
}


@pytest.mark.parametrize("kind", LARGE_REQUESTS)
async def test_unsent_responses_are_counted(kind: str) -> None:
    """The memory is released when the client has read the response or disconnects."""
    async with harness(kind) as listener:
        for is_read in (True, False):
            with slow_client(listener.server.address.port) as client:
                client.sendall(LARGE_REQUESTS[kind])
                await until(lambda: listener.admission.bytes > 1_000_000)
                assert listener.admission.requests == 0
                if is_read:
                    await asyncio.to_thread(client.recv, 5_000_301, socket.MSG_WAITALL)
                    await until(lambda: not listener.admission.bytes)
            await until(lambda: not listener.admission.bytes)


async def test_unsent_responses_block_new_requests() -> None:
    limits = dataclasses.replace(LIMITS, in_flight_bytes=1_000_000)
    async with harness("http", limits=limits) as listener:
        with slow_client(listener.server.address.port) as client:
            client.sendall(LARGE)
            await until(lambda: listener.admission.bytes > 1_000_000)
            reader, writer = await listener.connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
            assert (await reader.readline()).split()[1] == b"503"
            writer.close()


@pytest.mark.parametrize("kind", LARGE_REQUESTS)
async def test_clients_that_do_not_read_are_disconnected(kind: str) -> None:
    async with harness(kind, limits=QUICK) as listener:
        with slow_client(listener.server.address.port) as client:
            client.sendall(LARGE_REQUESTS[kind])
            await until(lambda: listener.refused == [ConnectionRefusal.SLOW_READER])
            await until(lambda: not listener.gate.connections)


@pytest.mark.parametrize("kind", ["http", "http with aiohttp"])
@tried_repeatedly
async def test_half_closed_clients_that_do_not_read_are_disconnected(kind: str) -> None:
    """A request in progress keeps the connection open after the client has closed its side."""
    async with harness(kind, limits=QUICK) as listener:
        with slow_client(listener.server.address.port) as client:
            await until(lambda: listener.gate.connections == 1)
            assert isinstance(listener.server, HttpAppListener)
            (connection,) = listener.server._connections
            assert isinstance(connection, HttpServerConnection)
            transport = connection._transport
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            body = b"x" * 40_000
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 40000\r\n\r\n" + body)
            await until(lambda: 0 < transport.get_write_buffer_size() < 40_000)
            client.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
            app = listener.server.app
            assert isinstance(app, HttpEcho)
            await app.entered.wait()
            client.shutdown(socket.SHUT_WR)
            await until(transport.is_closing)
            assert listener.gate.connections == 1
            app.release.set()
            await until(lambda: listener.refused == [ConnectionRefusal.SLOW_READER])
            await until(lambda: not listener.gate.connections)


SMALL_WINDOW = frames.PREFACE + frames.settings([(frames.INITIAL_WINDOW_SIZE, 1000)])


@pytest.mark.parametrize(
    ("method", "payload"),
    [("Large", b"x"), ("Stream", b"y" * 50_000), ("Repeat", b"y" * 50_000 + b" 1")],
)
@pytest.mark.parametrize("is_memory_short", [False, True])
async def test_a_response_that_waits_for_window_updates_is_reset(
    connect: Connect, method: str, payload: bytes, is_memory_short: bool
) -> None:
    """Only the stream of a slow reader is reset, because a proxy may share the connection. The
    client still sends PINGs and other requests."""
    limits = RPC_LIMITS if is_memory_short else dataclasses.replace(RPC_LIMITS, idle_body_time=0.4)
    harness, peer = await connect(limits, SMALL_WINDOW)
    peer.send(open_stream(1, method) + message(1, payload, 1 if method == "Large" else 0))
    await until(lambda: any(each.size > 40_000 for each in harness.admission.transfers))
    assert harness.admission.bytes > 40_000
    if is_memory_short:
        (waiting,) = harness.admission.transfers
        waiting.abort()
    else:
        peer.send(frames.window_update(1, 10_000))
    while (received := await peer.read_frame())[0] != frames.RST_STREAM:
        peer.send(frame(frames.PING, 0, 0, bytes(8))) if received[0] == frames.DATA else None
    assert received[2:] == (1, frames.Code.CANCEL.to_bytes(4))
    await until(lambda: (harness.admission.bytes, harness.admission.streams) == (0, 0))
    assert not harness.admission.transfers
    peer.send(open_stream(3, "Echo") + message(3, b"x"))
    assert (await peer.read_kind(frames.DATA))[3][5:] == b"x"


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2),
    reason="asyncio's loop does not report a full write buffer (CVE-2024-12254)",
)
async def test_unsent_grpc_responses_are_counted(connect: Connect) -> None:
    harness, peer = await connect(RPC_LIMITS)
    start = frames.PREFACE + frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**31 - 1)])
    with slow_client(harness.server.address.port) as client:
        client.sendall(start + frames.window_update(0, 2**30))
        client.sendall(
            b"".join(open_stream(n, "Large") + message(n, b"x") for n in range(1, 40, 2))
        )
        await until(lambda: harness.admission.bytes > 5_000_000)
    await until(lambda: not harness.admission.bytes)
    peer.writer.close()


@pytest.mark.parametrize("acknowledges", [True, False])
async def test_a_silent_backend_gets_pings(
    monkeypatch: pytest.MonkeyPatch, acknowledges: bool
) -> None:
    monkeypatch.setattr(client_connection, "_MAX_SILENCE", 0.1)
    monkeypatch.setattr(client_connection, "_PING_TIMEOUT", 0.1)
    pings = 0

    async def script(peer: Peer, number: int) -> None:
        nonlocal pings
        request = await peer.until(is_request)
        with suppress(asyncio.IncompleteReadError):
            while pings < 4 or not acknowledges:
                received = await peer.read_kind(frames.PING)
                pings += 1
                if acknowledges:
                    peer.send(frame(frames.PING, frames.ACK, 0, received[3]))
            peer.send(response_frames(request[2]))
            await peer.read_to_end()

    async with serve(script) as (upstream, endpoint):
        stream = upstream.stream(RpcRequest("/t.T/Stream", (b"x",)), endpoint, None)
        if acknowledges:
            assert [each.message async for each in stream] == [(b"hi",)]
            assert pings == 4
        else:
            with raises_kind(Kind.BACKEND_GARBAGE):
                await anext(stream)
            assert pings == 1


async def test_connections_to_backends_use_tcp_keepalive() -> None:
    async def script(peer: Peer, number: int) -> None:
        peer.send(response_frames((await peer.until(is_request))[2]))
        await peer.read_to_end()

    async with serve(script) as (upstream, endpoint):
        await upstream.exchange(RpcRequest("/t.T/Echo", (b"x",)), endpoint, 10)
        (connection,) = upstream._pools[endpoint]._connections
        raw = connection._transport.get_extra_info("socket")
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
