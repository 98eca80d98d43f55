"""Helpers for the transport tests: small limits, applications that the requests control, and raw
sockets for clients and servers that misbehave."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
)
from contextlib import asynccontextmanager, suppress
from typing import Any, ParamSpec

import pytest

from infergate.assembly.engines import MakeGrpcServer, MakeGrpcUpstream, MakeHttpServer
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import Limits
from infergate.core.memory import MemoryAccount
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse, join_parts
from infergate.transport.base import (
    Address,
    Endpoint,
    RequestStream,
    Server,
    StreamHandler,
    Upstream,
)
from infergate.transport.compat.aiohttp_client import AiohttpUpstream
from infergate.transport.compat.aiohttp_server import AiohttpServer
from infergate.transport.compat.grpcio_client import GrpcioUpstream
from infergate.transport.compat.grpcio_server import GrpcioServer
from infergate.transport.grpc.client import H2Upstream
from infergate.transport.grpc.server import H2Server
from infergate.transport.http1.client import H1Upstream
from infergate.transport.http1.server import H1Server
from infergate.transport.http1.upstream import Http1Upstream
from infergate.transport.server.admission import Admission
from infergate.transport.server.listener import HttpAppListener
from waiting import until

P = ParamSpec("P")
LOCAL = Address("127.0.0.1", 0)
LIMITS = Limits(body=1000, headers=2000, header_count=20, connect_time=10)
QUICK = dataclasses.replace(LIMITS, header_time=0.2, idle_body_time=0.2, keepalive_time=0.2)
"""Limits for tests that wait for a timeout."""


class HttpEcho:
    """Echoes the request, or performs another action that the path names."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.calls: list[RequestContext] = []
        self.requests: list[HttpRequest] = []
        self.refused: list[GatewayError] = []

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        self.requests.append(wire)
        self.calls.append(context)
        if wire.path == "/wait":
            self.entered.set()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if wire.path == "/bug":
            raise ZeroDivisionError("secret")
        if wire.path == "/selfcancel":
            raise asyncio.CancelledError
        if wire.path == "/split":
            return HttpResponse(200, {"x-bad": "a\r\nset-cookie: b"})
        if wire.path == "/large":
            return HttpResponse(200, {}, (b"x" * 300, memoryview(b"y" * 5_000_000), b"z"))
        headers = {"content-type": "text/plain", "connection": "upgrade", "x-name": "é"}
        return HttpResponse(200, headers, (wire.method.encode(), b" ", join_parts(wire.body)))

    def refuse(
        self, error: GatewayError, wire: HttpRequest, context: RequestContext
    ) -> HttpResponse:
        assert wire.body == ()
        self.refused.append(error)
        statuses = {"TOO_LARGE": 413, "OVERLOADED": 503, "INTERNAL": 500, "METHOD_NOT_ALLOWED": 405}
        status = statuses.get(error.kind.name, 400)
        return HttpResponse(status, {"content-type": "refusal"}, (error.public.encode(),))


@dataclasses.dataclass
class HttpHarness:
    """A listening server and its application."""

    server: HttpAppListener
    app: HttpEcho
    admission: Admission
    peers: list[Peer] = dataclasses.field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.server.address.port)

    async def connect(self) -> Peer:
        self.peers.append(
            Peer(*await asyncio.open_connection("127.0.0.1", self.server.address.port))
        )
        return self.peers[-1]

    async def check_serving(self) -> None:
        """Send a request, and repeat it if it takes longer than the timeouts of the server, which
        may be short."""
        response = RawResponse(408, {}, b"")
        for _ in range(20):
            peer = await self.connect()
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                response = await peer.request(
                    b"POST /good HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
                )
            await peer.close()
            if response.status != 408:
                break
        assert (response.status, response.body) == (200, b"POST hi")


@dataclasses.dataclass
class RawResponse:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclasses.dataclass
class Peer:
    """A client that sends raw bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_response(self, *, body: bool = True) -> RawResponse:
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.rstrip().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines)
            length = int(headers.get("content-length", 0)) if body else 0
            return RawResponse(
                int(first.split()[1]), headers, await self.reader.readexactly(length)
            )

    async def request(self, data: bytes) -> RawResponse:
        await self.send(data)
        return await self.read_response()

    async def reads_eof(self) -> bool:
        """Return whether the server sends nothing more and closes the connection."""
        async with asyncio.timeout(10):
            return await self.reader.read() == b""

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def close_quietly(self) -> None:
        with suppress(ssl.SSLError):
            await self.close()


@asynccontextmanager
async def http_harness(
    engine: Engine, limits: Limits, app: HttpEcho | None = None, **options: bool
) -> AsyncIterator[HttpHarness]:
    """Start an HTTP server. At the end, check that it still serves and holds no request."""
    app, admission = app or HttpEcho(), Admission(limits)
    harness = HttpHarness(engine.http(LOCAL, app, limits, admission, **options), app, admission)
    await harness.server.start()
    yield harness
    for peer in harness.peers:
        await peer.close()
    with suppress(ConnectionRefusedError):
        await harness.check_serving()
    await harness.server.stop(0)
    assert (admission.requests, admission.bytes) == (0, 0)


HttpServe = Callable[[Limits], Awaitable[HttpHarness]]


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FakeClient:
    """Implements ``ResponseReceiver``, with ``unread`` bytes, and ``BodySender``."""

    def __init__(self, unread: int = 0) -> None:
        self.unread = unread
        self.disconnects = 0

    def unread_bytes(self) -> int:
        return self.unread

    def disconnect_soon(self) -> None:
        self.disconnects += 1

    reject_slow_body = disconnect_soon


@dataclasses.dataclass
class FakeBackend:
    """The address of a scripted backend, and the numbers of accepted and closed connections."""

    endpoint: Endpoint
    connections: int = 0
    closed: int = 0


def tried_repeatedly(
    test: Callable[P, Awaitable[None]],
) -> Callable[P, Coroutine[Any, Any, None]]:
    """Run a test up to ten times until it passes. Use this if the test's slow client must stay just
    within a timeout, which is not certain on a busy machine."""

    @functools.wraps(test)
    async def attempts(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(9):
            with suppress(Exception):
                await test(*args, **kwargs)
                return
        await test(*args, **kwargs)

    return attempts


async def error_kind(upstream: Upstream[Any, Any], endpoint: Endpoint, wire: object) -> Kind:
    """Check that an exchange fails without an address in its error; return the error's kind."""
    with pytest.raises(GatewayError) as caught:
        await upstream.exchange(wire, endpoint, 5)
    assert caught.value.origin is Origin.BACKEND
    assert "127.0.0.1" not in caught.value.public
    assert endpoint.authority in caught.value.detail
    return caught.value.kind


async def run_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until_idle(count: Callable[[], int]) -> int:
    """Wait until ``count`` has stayed the same for a while, and return it."""
    before = -1
    while before != count():
        before = count()
        await asyncio.sleep(0.2)
    return before


def client_hello(context: ssl.SSLContext | None = None) -> bytes:
    """Return the ClientHello with which a TLS client begins."""
    received, context = ssl.MemoryBIO(), context or ssl.create_default_context()
    client = context.wrap_bio(ssl.MemoryBIO(), received, server_hostname="x")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return received.read()


@asynccontextmanager
async def fake_backend(
    script: Script, tls: ssl.SSLContext | None = None
) -> AsyncIterator[FakeBackend]:
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not server.is_serving():  # accepted while the listener closed
            writer.transport.abort()
            return
        tasks.add(task)
        fake.connections += 1
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()
            fake.closed += 1
            tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    fake = FakeBackend(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1]))
    try:
        yield fake
    finally:
        # asyncio (3.11) leaks connections that are accepted while their server closes.
        await run_loop(20)
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await run_loop(20)
        await until(lambda: not tasks)


def responding(response: bytes, *, keep_open: bool = False) -> Script:
    """Return a script that sends ``response`` once, or to each request if ``keep_open``."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(response)
            await writer.drain()
            if not keep_open:
                return

    return script


async def never_responding(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return head + await reader.readexactly(length)


class RpcEcho:
    """Echoes the message, or performs another action that the method names."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.stream_ended = asyncio.Event()
        self.stream_waiting = asyncio.Event()
        self.calls: list[RequestContext] = []
        self.serving = 0
        self.produced = 0

    async def respond(self, wire: RpcRequest, context: RequestContext) -> RpcResponse:
        self.calls.append(context)
        if wire.deferred is not None:
            wire.message = (await wire.deferred.inflate(context.memory),)
        match wire.method.rsplit("/", 1)[-1]:
            case "Wait":
                self.entered.set()
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
            case "Bug":
                raise ZeroDivisionError("secret")
            case "Fail":
                code = int(join_parts(wire.message))
                return RpcResponse(
                    code=code, details="näh\nso", metadata={"x-why": "because", "x-raw-bin": "AP8"}
                )
            case "Parts":
                return RpcResponse((b"a", memoryview(b"bc"), bytearray(b"d")))
            case "View":
                return RpcResponse((memoryview(b"view"),))
            case "Large":
                return RpcResponse((b"x" * 900_000,))
            case "Unknown":
                return RpcResponse(code=12, details="no such method")
        return RpcResponse(wire.message, metadata={"x-ok": "1"})

    def refuse(self, error: GatewayError, wire: RpcRequest, context: RequestContext) -> RpcResponse:
        assert wire.message == ()
        return RpcResponse(code=13 if error.kind.name == "INTERNAL" else 14, details=error.public)

    @property
    def request_streams(self) -> Mapping[str, Callable[[RequestContext], RequestStream]]:
        return {
            "/t.T/RepeatInOrder": lambda context: RepeatStream(self, context, 1),
            "/t.T/Repeat": lambda context: RepeatStream(self, context, 3),
        }

    @property
    def streams(self) -> Mapping[str, StreamHandler]:
        return {"/t.T/Stream": self.stream}

    async def stream(
        self, messages: AsyncIterator[Buffer], context: RequestContext
    ) -> AsyncIterator[RpcResponse]:
        self.calls.append(context)
        try:
            async for message in messages:
                if message == b"fail":
                    yield RpcResponse(code=3, details="enough", metadata={"x-why": "because"})
                elif message == b"bug":
                    raise ZeroDivisionError("secret")
                elif message == b"stay":
                    self.stream_waiting.set()
                    await self.release.wait()
                yield RpcResponse((message, b"!"))
        finally:
            self.stream_ended.set()


class RepeatStream:
    """Responds to ``MESSAGE N`` with N copies of MESSAGE; ``wait`` waits, ``fail`` fails."""

    def __init__(self, app: RpcEcho, context: RequestContext, max_concurrent: int) -> None:
        self.app = app
        self.context = context
        self.max_concurrent = max_concurrent

    async def open(self) -> None:
        if "x-no-stream" in self.context.headers:
            raise GatewayError(Kind.OVERLOADED, "no stream")

    async def handle(
        self, message: Buffer, error: GatewayError | None, memory: MemoryAccount
    ) -> AsyncGenerator[RpcResponse, None]:
        del memory
        message = bytes(message)
        if message == b"bug":
            raise ZeroDivisionError("secret")
        self.app.calls.append(self.context)
        return self.responses(message, error)

    async def responses(
        self, message: bytes, rejection: GatewayError | None
    ) -> AsyncGenerator[RpcResponse, None]:
        self.app.serving += 1
        try:
            if rejection:
                yield RpcResponse((b"no: ", rejection.public.encode()))
                return
            word, _, number = message.partition(b" ")
            if word == b"header":
                self.context.response_headers = {"x-header": str(number, "ascii"), "x-b-bin": "AP8"}
                number = b"1"
            if word == b"fail":
                yield RpcResponse(code=3, details="enough", metadata={"x-why": "because"})
            if word == b"wait":
                await self.app.release.wait()
            for _ in range(int(number or 2)):
                self.app.produced += 1
                yield RpcResponse((word,))
        finally:
            self.app.serving -= 1
            self.app.stream_ended.set()


@dataclasses.dataclass(frozen=True)
class Engine:
    """An implementation of gRPC and HTTP servers and clients."""

    name: str
    server: MakeGrpcServer
    upstream: MakeGrpcUpstream
    http: MakeHttpServer
    http_upstream: Callable[[Limits], Http1Upstream]

    def __str__(self) -> str:
        return self.name


COMPAT = Engine("compat", GrpcioServer, GrpcioUpstream, AiohttpServer, AiohttpUpstream)
OWN = Engine("own", H2Server, H2Upstream, H1Server, H1Upstream)
ENGINES = (COMPAT, OWN)


@dataclasses.dataclass
class GrpcHarness:
    """A listening gRPC server and its application."""

    server: Server
    app: RpcEcho
    admission: Admission

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.server.address.port)


RpcServe = Callable[[Limits], Awaitable[GrpcHarness]]
RPC_LIMITS = Limits(body=1_000_000, connect_time=10)


@asynccontextmanager
async def rpc_harness(engine: Engine, limits: Limits) -> AsyncIterator[GrpcHarness]:
    """Start a gRPC server. At the end, check that it holds no request."""
    admission, app = Admission(limits), RpcEcho()
    server = engine.server(LOCAL, app, limits, admission)
    await server.start()
    try:
        yield GrpcHarness(server, app, admission)
    finally:
        await server.stop(0)
    await until(lambda: not admission.requests)
    assert (admission.requests, admission.bytes, admission.streams) == (0, 0, 0)


@asynccontextmanager
async def connected_pair(limits: Limits) -> AsyncIterator[tuple[GrpcHarness, H2Upstream]]:
    """Start a server and a client of the engine ``own``."""
    async with rpc_harness(OWN, limits) as harness:
        upstream = H2Upstream(limits)
        yield harness, upstream
        await upstream.close()
