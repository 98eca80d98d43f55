"""Streaming responses of the HTTP server and client."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest
from transport_kit import (
    LIMITS,
    QUICK,
    Engine,
    HttpEcho,
    HttpHarness,
    Peer,
    fake_backend,
    http_harness,
    never_responding,
    read_request,
    responding,
    run_loop,
    until_idle,
)

from gateway_errors import raises_kind
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.transport.base import Endpoint
from infergate.transport.client.concurrency_limit import LimitedUpstream
from infergate.transport.framed.client import HttpOrFrameUpstream
from infergate.transport.http1.upstream import Http1Upstream
from memory_budget import Budget
from waiting import until

POST = HttpRequest("POST", "/x", body=(b"hello",))
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
CHUNKED = EVENTS + b"Transfer-Encoding: chunked\r\n\r\n"


class StreamingApp(HttpEcho):
    """Responds with as many parts as the path says. The query is their size or a special case."""

    def __init__(self) -> None:
        super().__init__()
        self.produced = 0
        self.closed = 0

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        if wire.path == "/good":
            return await super().respond(wire, context)
        headers = {"x-bad": "a\r\nb"} if wire.query == "bad" else {"content-type": "a/b"}
        part = b"x" * int(wire.query) if wire.query.isdecimal() else b"part"
        parts = Parts(self, int(wire.path[1:]), part, wire.query)
        return HttpResponse(200, headers, (b"first",), body_stream=parts)


@dataclasses.dataclass
class Parts:
    app: StreamingApp
    remaining: int
    part: bytes
    query: str

    async def next(self) -> Sequence[Buffer] | None:
        if self.query == "wait":
            self.app.entered.set()
            await self.app.release.wait()
        if self.query == "bug":
            raise ZeroDivisionError
        await asyncio.sleep(0)
        if not self.remaining:
            return None
        self.remaining -= 1
        self.app.produced += 1
        return () if self.query == "empty" else (self.part, b"!")

    async def close(self) -> None:
        self.app.closed += 1


@pytest.fixture
async def app() -> StreamingApp:
    return StreamingApp()


@pytest.fixture
async def harness(engine: Engine, app: StreamingApp) -> AsyncIterator[HttpHarness]:
    async with http_harness(engine, LIMITS, app) as harness:
        yield harness


def request(path: str, version: bytes = b"1.1") -> bytes:
    return b"POST %b HTTP/%b\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi" % (path.encode(), version)


async def test_parts_are_sent_as_chunks(peer: Peer, app: StreamingApp) -> None:
    await peer.send(request("/2") + request("/good"))  # pipelined
    response = await peer.read_response()
    assert response.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in response.headers
    assert "connection" not in response.headers
    body = b"5\r\nfirst\r\n" + b"5\r\npart!\r\n" * 2 + b"0\r\n\r\n"
    assert await peer.reader.readexactly(len(body)) == body
    assert (await peer.read_response()).body == b"POST hi"
    assert app.closed == 1


async def test_an_empty_part_does_not_end_the_response(peer: Peer) -> None:
    await peer.send(request("/3?empty"))
    await peer.read_response()
    assert await peer.reader.readuntil(b"0\r\n\r\n") == b"5\r\nfirst\r\n0\r\n\r\n"


async def test_http_1_0_responses_end_with_the_connection(peer: Peer) -> None:
    await peer.send(request("/2", b"1.0").replace(b"Host", b"Connection: keep-alive\r\nHost"))
    response = await peer.read_response()
    assert response.headers["connection"] == "close"
    assert "transfer-encoding" not in response.headers
    assert await peer.reader.read() == b"firstpart!part!"


async def test_each_part_is_sent_immediately(peer: Peer, app: StreamingApp) -> None:
    await peer.send(request("/1?wait"))
    await peer.read_response()
    assert await peer.reader.readexactly(10) == b"5\r\nfirst\r\n"
    app.release.set()
    assert await peer.reader.readuntil(b"0\r\n\r\n") == b"5\r\npart!\r\n0\r\n\r\n"


async def test_production_stops_while_the_client_does_not_read(
    peer: Peer, app: StreamingApp
) -> None:
    await peer.send(request("/1000?100000"))
    assert await until_idle(lambda: app.produced) < 200
    size = 0
    async with asyncio.timeout(20):
        while size < 100_000_000:
            size += len(await peer.reader.read(1 << 20))
    assert app.produced == 1000


async def test_a_client_that_does_not_read_is_disconnected(
    engine: Engine, app: StreamingApp
) -> None:
    async with http_harness(engine, QUICK, app) as harness:
        peer = await harness.connect()
        await peer.send(request("/1000?100000"))
        await until(lambda: app.closed == 1)
        assert app.produced < 200
        await until(lambda: harness.admission.requests == 0)


async def test_a_disconnect_closes_the_stream(
    harness: HttpHarness, peer: Peer, app: StreamingApp
) -> None:
    await peer.send(request("/1?wait"))
    await app.entered.wait()
    await peer.close()
    await until(lambda: app.closed == 1)
    await until(lambda: harness.admission.requests == 0)


@pytest.mark.parametrize("query", ["bug", "bad"])
async def test_errors_of_the_application_end_the_connection(
    peer: Peer, app: StreamingApp, query: str
) -> None:
    await peer.send(request(f"/1?{query}"))
    assert not (await peer.reader.read()).endswith(b"0\r\n\r\n")
    assert app.closed == 1


async def test_a_stream_may_end_while_the_server_stops(
    harness: HttpHarness, peer: Peer, app: StreamingApp
) -> None:
    await peer.send(request("/1?wait"))
    await peer.read_response()
    await app.entered.wait()
    stopping = asyncio.create_task(harness.server.stop(10))
    await run_loop(20)
    app.release.set()
    assert (await peer.reader.read()).endswith(b"part!\r\n0\r\n\r\n")
    await stopping


async def test_a_stream_is_closed_after_the_grace_period(
    harness: HttpHarness, peer: Peer, app: StreamingApp
) -> None:
    await peer.send(request("/1?wait"))
    await app.entered.wait()
    await harness.server.stop(0.05)
    assert app.closed == 1


async def read_events(engine: Engine, body: bytes, head: bytes, limits: Limits) -> list[bytes]:
    """Return the messages of a response with ``head`` and ``body``, and the kind of its error."""
    upstream = engine.http_upstream(limits)
    results = []
    try:
        async with (
            fake_backend(responding(head + body)) as fake,
            asyncio.timeout(10),
            aclosing(upstream.stream(POST, fake.endpoint, None)) as responses,
        ):
            async for response in responses:
                results += [bytes(join_parts(response.body))]
    except GatewayError as error:
        results.append(b"an address" if "127.0.0.1" in error.public else error.kind.value.encode())
    finally:
        await upstream.close()
    return results


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


END = b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "body", "results"),
    [
        (CHUNKED, chunk(b"data: a\n\ndata: b\n\n") + END, [b"a", b"b"]),
        (CHUNKED, chunk(b"data: a\n") + chunk(b"\ndata: ") + chunk(b"b\n\n") + END, [b"a", b"b"]),
        (CHUNKED, END, []),
        (EVENTS + b"\r\n", b"data: a\n\n", [b"a"]),
        (EVENTS + b"Content-Length: 9\r\n\r\n", b"data: a\n\n", [b"a"]),
        (EVENTS + b"Content-Length: 0\r\n\r\n", b"", []),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED, chunk(b"data: a\n\n") + END, [b"a"]),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"{}", [b"{}"]),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"{}", [b"{}"]),
        # The responses below are truncated, malformed or too large.
        (CHUNKED, chunk(b"data: a\n\n"), [b"a", b"backend_garbage"]),
        (CHUNKED, chunk(b"data: a\n\ndata: b") + END, [b"a", b"backend_garbage"]),
        (EVENTS + b"\r\n", b"data: a\n\ndata", [b"a", b"backend_garbage"]),
        (EVENTS + b"Content-Length: 10\r\n\r\n", b"data: a\n\n", [b"a", b"backend_garbage"]),
        (CHUNKED, chunk(b"data: a\n\n") + b"zz", [b"backend_garbage"]),
        (b"", b"", [b"backend_garbage"]),
        (b"", b"220 smtp ready\r\n", [b"backend_garbage"]),
        (b"HTTP/1.1 200 OK\r\n", b"", [b"backend_garbage"]),
        (CHUNKED, chunk(b"data: " + b"x" * 200), [b"too_large"]),
        (CHUNKED, chunk(b"data: a\n\n" + b"x" * 200), [b"a", b"too_large"]),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 2000, [b"too_large"]),
    ],
)
async def test_a_stream_yields_its_messages_and_then_its_error(
    engine: Engine, head: bytes, body: bytes, results: list[bytes]
) -> None:
    assert await read_events(engine, body, head, dataclasses.replace(LIMITS, json=100)) == results


@pytest.mark.parametrize("size", [200_000, 800_000], ids=["one read", "several reads"])
async def test_the_memory_of_events_is_counted(engine: Engine, size: int) -> None:
    response = CHUNKED + chunk(b"data: " + b"x" * size + b"\n\n") + END
    upstream = engine.http_upstream(dataclasses.replace(LIMITS, json=1_000_000))
    async with fake_backend(responding(response)) as fake, asyncio.timeout(10):
        account = Budget(1_000_000)
        wire = dataclasses.replace(POST, memory=account)
        async with aclosing(upstream.stream(wire, fake.endpoint, None)) as responses:
            assert len(join_parts((await anext(responses)).body)) == size <= account.held
        assert account.held == 0
        wire = dataclasses.replace(POST, memory=Budget(size - 50_000))
        with pytest.raises(GatewayError, match="full"):
            async for _ in upstream.stream(wire, fake.endpoint, None):
                pass
    await upstream.close()


async def test_the_memory_of_a_response_without_events_is_counted(engine: Engine) -> None:
    """The read that exceeds the budget may also contain the end of the response."""
    response = b"HTTP/1.1 200 OK\r\nContent-Length: 150000\r\n\r\n" + bytes(150_000)
    upstream = engine.http_upstream(dataclasses.replace(LIMITS, body=1_000_000))
    async with fake_backend(responding(response)) as fake, asyncio.timeout(10):
        for limit in (140_000, 80_000):
            wire = dataclasses.replace(POST, memory=Budget(limit))
            with pytest.raises(GatewayError, match="full"):
                async for _ in upstream.stream(wire, fake.endpoint, None):
                    pass
    await upstream.close()


async def test_events_are_returned_immediately(http_upstream: Http1Upstream) -> None:
    finish, closed = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await read_request(reader)).startswith(b"POST /base/x?q=1 HTTP/1.1\r\n")
        writer.write(CHUNKED + chunk(b"data: a\n\n"))
        await finish.wait()
        writer.write(chunk(b"data: b\n\n"))
        assert await reader.read() == b""
        closed.set()

    async with fake_backend(script) as fake, asyncio.timeout(10):
        endpoint = fake.endpoint._replace(path="/base")
        wire = dataclasses.replace(POST, query="q=1")
        async with aclosing(http_upstream.stream(wire, endpoint, 5)) as responses:
            first = await anext(responses)
            assert (first.status, first.body) == (200, [b"a"])
            assert first.headers["content-type"] == "text/event-stream; charset=utf-8"
            finish.set()
            assert (await anext(responses)).body == [b"b"]
        await closed.wait()  # closing the stream closes the connection


async def test_reading_ahead_of_a_stream_is_limited(engine: Engine) -> None:
    written = 0
    piece = chunk(b"data: " + b"x" * 1000 + b"\n\n")

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(CHUNKED)
        while True:
            writer.write(piece)
            await writer.drain()
            written += 1

    upstream = engine.http_upstream(dataclasses.replace(LIMITS, json=10_000))
    async with (
        fake_backend(script) as fake,
        aclosing(upstream.stream(POST, fake.endpoint, None)) as responses,
    ):
        await anext(responses)
        before = await until_idle(lambda: written)
        for _ in range(2 * before):
            await anext(responses)
        assert written > before
    await upstream.close()


async def test_a_refused_connection_is_a_connect_error(
    http_upstream: Http1Upstream, unused_tcp_port: int
) -> None:
    with raises_kind(Kind.CONNECT):
        await anext(http_upstream.stream(POST, Endpoint("127.0.0.1", unused_tcp_port), None))


async def test_invalid_headers_are_not_sent(http_upstream: Http1Upstream) -> None:
    wire = dataclasses.replace(POST, headers={"x": "a\r\nb"})
    async with fake_backend(never_responding) as fake:
        with raises_kind(Kind.BAD_REQUEST):
            await anext(http_upstream.stream(wire, fake.endpoint, None))


async def test_a_stream_keeps_its_slot_until_it_ends() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED + chunk(b"data: a\n\n"))
        await reader.read()

    upstream = LimitedUpstream(HttpOrFrameUpstream(LIMITS), 1)
    async with fake_backend(script) as fake:
        async with aclosing(upstream.stream(POST, fake.endpoint, 5)) as first:
            assert (await anext(first)).body == [b"a"]
            with raises_kind(Kind.TIMEOUT):
                await anext(upstream.stream(POST, fake.endpoint, 0.05))
        async with aclosing(upstream.stream(POST, fake.endpoint, 5)) as second:
            assert (await anext(second)).body == [b"a"]
        framed = fake.endpoint._replace(framed=True)
        with raises_kind(Kind.UNSUPPORTED):
            await anext(upstream.stream(POST, framed, 5))
    await upstream.close()
