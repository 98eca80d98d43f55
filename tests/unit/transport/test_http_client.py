"""The HTTP client with this project's server and with misbehaving backends."""

import asyncio
import dataclasses
import gzip
import socket
import struct
import zlib

import pytest
from transport_kit import (
    LIMITS,
    Engine,
    HttpHarness,
    error_kind,
    fake_backend,
    never_responding,
    read_request,
    responding,
)

from gateway_errors import raises_kind
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import MIB
from infergate.core.wire import HttpRequest, join_parts
from infergate.transport.base import Endpoint
from infergate.transport.http1.upstream import Http1Upstream
from memory_budget import Budget
from waiting import until

POST = HttpRequest("POST", "/x", body=(b"hello",))
GET = HttpRequest("GET", "/x")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_requests_have_the_expected_bytes(http_upstream: Http1Upstream) -> None:
    requests: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            requests.append(await read_request(reader))
            writer.write(b"HTTP/1.1 203 Fine\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 2\r\n\r\nok")

    async with fake_backend(script) as fake:
        endpoint = fake.endpoint._replace(path="/base")
        parts = (b"a" * 10, memoryview(b"b" * 100_000), bytearray(b"c"))
        headers = {"content-type": "a/b", "host": "evil", "accept-encoding": "gzip", "te": "x"}
        wire = HttpRequest("POST", "/m%2Fn", "q=1", headers, parts)
        response = await http_upstream.exchange(wire, endpoint, 5)
        assert (response.status, join_parts(response.body)) == (203, b"ok")
        assert response.headers["x-a"] == "1, 2"
        await http_upstream.exchange(GET, endpoint, 5)
        await http_upstream.exchange(HttpRequest("POST", "/"), endpoint, 5)
        assert fake.connections == 1
    first_fields = b"host: %s\r\nuser-agent: infergate/" % fake.endpoint.authority.encode()
    assert requests[0].startswith(b"POST /base/m%2Fn?q=1 HTTP/1.1\r\n" + first_fields)
    assert requests[0].endswith(
        b"content-type: a/b\r\ncontent-length: 100011\r\n\r\n" + b"a" * 10 + b"b" * 100_000 + b"c"
    )
    assert requests[0].count(b"\r\n") == 7
    assert [each.count(b"infergate-hops: 1\r\n") for each in requests] == [1, 1, 1]
    assert b"content-length" not in requests[1]
    assert b"content-length: 0\r\n" in requests[2]


@pytest.mark.parametrize(
    ("encoding", "body", "expected"),
    [
        ("gzip", gzip.compress(b"short"), b"short"),
        (" GZIP", gzip.compress(bytes(MIB)) + gzip.compress(b"more"), bytes(MIB) + b"more"),
        ("deflate", zlib.compress(bytes(MIB)), bytes(MIB)),
        ("deflate", zlib.compress(bytes(MIB), wbits=-15), bytes(MIB)),
        ("br", b"unchanged", b"unchanged"),
        ("gzip", gzip.compress(bytes(MIB))[:-1], Kind.BACKEND_GARBAGE),
        ("gzip", b"no gzip", Kind.BACKEND_GARBAGE),
        ("gzip", gzip.compress(bytes(2 * MIB + 1)), Kind.BACKEND_GARBAGE),
    ],
    ids=range(8),  # gzip data contains the time, and test processes must collect equal names
)
async def test_encoded_responses_are_decoded(
    engine: Engine, encoding: str, body: bytes, expected: bytes | Kind
) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding:{encoding}\r\ncontent-length: {len(body)}"
    response = head.encode() + b"\r\n\r\n" + body
    upstream = engine.http_upstream(dataclasses.replace(LIMITS, body=2 * MIB))
    async with fake_backend(responding(response)) as fake:
        if isinstance(expected, Kind):
            with pytest.raises(GatewayError) as caught:
                await upstream.exchange(POST, fake.endpoint, 30)
            assert (caught.value.kind, caught.value.origin) == (expected, Origin.BACKEND)
        else:
            received = await upstream.exchange(POST, fake.endpoint, 30)
            assert join_parts(received.body) == expected
            assert ("content-encoding" in received.headers) is (encoding == "br")
        await upstream.close()


@pytest.mark.parametrize(
    "length", ["Content-Length: 1000000\r\n", ""], ids=["announced", "unknown"]
)
async def test_a_response_is_counted_before_it_is_received(engine: Engine, length: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nConnection: close\r\n{length}\r\n".encode()
    upstream = engine.http_upstream(dataclasses.replace(LIMITS, body=2 * MIB))
    async with fake_backend(responding(head + bytes(1_000_000))) as fake:
        account = Budget(4 * MIB)
        wire = dataclasses.replace(POST, memory=account)
        response = await upstream.exchange(wire, fake.endpoint, 5)
        assert len(join_parts(response.body)) == 1_000_000 <= account.held
        account = Budget(900_000)
        wire = dataclasses.replace(POST, memory=account)
        with pytest.raises(GatewayError, match="full") as caught:
            await upstream.exchange(wire, fake.endpoint, 5)
        assert (caught.value.kind, account.held) == (Kind.OVERLOADED, 0)
        await upstream.close()


async def test_connections_are_reused(harness: HttpHarness, http_upstream: Http1Upstream) -> None:
    for _ in range(20):
        response = await http_upstream.exchange(POST, harness.endpoint, 5)
        assert join_parts(response.body) == b"POST hello"
    assert len(harness.server._connections) == 1
    await asyncio.gather(*(http_upstream.exchange(POST, harness.endpoint, 5) for _ in range(50)))
    assert len({call.peer for call in harness.app.calls}) <= 50
    before = {call.peer for call in harness.app.calls}
    await asyncio.gather(*(http_upstream.exchange(POST, harness.endpoint, 5) for _ in range(50)))
    assert {call.peer for call in harness.app.calls} == before


async def test_idle_connections_are_closed(
    harness: HttpHarness, http_upstream: Http1Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infergate.transport.client.pool._MAX_IDLE_SECONDS", 0.05)
    await asyncio.gather(*(http_upstream.exchange(POST, harness.endpoint, 5) for _ in range(3)))
    await until(lambda: not harness.server._connections)
    response = await http_upstream.exchange(POST, harness.endpoint, 5)
    assert join_parts(response.body) == b"POST hello"


async def test_head_responses_are_empty(harness: HttpHarness, http_upstream: Http1Upstream) -> None:
    response = await http_upstream.exchange(HttpRequest("HEAD", "/"), harness.endpoint, 5)
    length = response.headers["content-length"]
    assert (response.status, length, list(response.body)) == (200, "5", [])
    await http_upstream.exchange(POST, harness.endpoint, 5)
    assert len(harness.server._connections) == 1


async def test_refused_connections_fail(http_upstream: Http1Upstream, unused_tcp_port: int) -> None:
    endpoint = Endpoint("127.0.0.1", unused_tcp_port)
    assert await error_kind(http_upstream, endpoint, POST) is Kind.CONNECT


async def test_an_unknown_host_is_an_error(http_upstream: Http1Upstream) -> None:
    kind = await error_kind(http_upstream, Endpoint("no-such-host.invalid", 80), POST)
    assert kind in {Kind.CONNECT, Kind.TIMEOUT}


async def test_a_tls_handshake_times_out(engine: Engine, http_upstream: Http1Upstream) -> None:
    hasty = engine.http_upstream(dataclasses.replace(LIMITS, connect_time=0.2))
    async with fake_backend(never_responding) as fake:
        endpoint = fake.endpoint._replace(tls=True)
        assert await error_kind(hasty, endpoint, POST) is Kind.CONNECT
        with raises_kind(Kind.TIMEOUT):
            await http_upstream.exchange(POST, endpoint, 0.1)
    await hasty.close()


async def test_silence_is_a_timeout_and_closes_the_connection(http_upstream: Http1Upstream) -> None:
    async with fake_backend(never_responding) as fake:
        with raises_kind(Kind.TIMEOUT):
            await http_upstream.exchange(POST, fake.endpoint, 0.1)
        await until(lambda: fake.closed >= 1)


async def test_cancelling_closes_the_connection(
    harness: HttpHarness, http_upstream: Http1Upstream
) -> None:
    wire = HttpRequest("POST", "/wait")
    exchange = asyncio.ensure_future(http_upstream.exchange(wire, harness.endpoint, 5))
    await harness.app.entered.wait()
    exchange.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange
    async with asyncio.timeout(10):
        await harness.app.cancelled.wait()
    response = await http_upstream.exchange(POST, harness.endpoint, 5)
    assert join_parts(response.body) == b"POST hello"


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"rubbish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxx\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"v" * 100_000 + b"\r\n\r\n",
        b"\0\0\0\4\0\0\0\0\0",
    ],
)
async def test_malformed_responses_fail(http_upstream: Http1Upstream, response: bytes) -> None:
    async with fake_backend(responding(response)) as fake:
        assert await error_kind(http_upstream, fake.endpoint, POST) is Kind.BACKEND_GARBAGE
        assert await error_kind(http_upstream, fake.endpoint, GET) is Kind.BACKEND_GARBAGE
        assert fake.connections == 2, "requests on new connections are not retried"


async def test_a_reset_during_an_unbounded_body_is_a_backend_error(
    http_upstream: Http1Upstream,
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with fake_backend(script) as fake:
        assert await error_kind(http_upstream, fake.endpoint, POST) is Kind.BACKEND_GARBAGE


@pytest.mark.parametrize(
    ("response", "is_reused"),
    [
        (OK, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, True),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", False),
        (OK + OK, False),
    ],
)
async def test_connections_are_reused_only_if_the_response_allows_it(
    http_upstream: Http1Upstream, response: bytes, is_reused: bool
) -> None:
    async with fake_backend(responding(response, keep_open=True)) as fake:
        for _ in range(2):
            received = await http_upstream.exchange(POST, fake.endpoint, 5)
            assert (received.status, join_parts(received.body)) == (200, b"ok")
        assert fake.connections == (1 if is_reused else 2)


async def test_a_body_without_a_length_ends_at_the_close(http_upstream: Http1Upstream) -> None:
    async with fake_backend(responding(b"HTTP/1.1 200 OK\r\n\r\nbody")) as fake:
        response = await http_upstream.exchange(POST, fake.endpoint, 5)
        assert join_parts(response.body) == b"body"


async def test_unsolicited_bytes_end_the_connection(http_upstream: Http1Upstream) -> None:
    finish = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await finish.wait()
        writer.write(OK)
        await reader.read()

    async with fake_backend(script) as fake:
        await http_upstream.exchange(POST, fake.endpoint, 5)
        finish.set()
        await until(lambda: fake.closed >= 1)
        finish.clear()
        await http_upstream.exchange(POST, fake.endpoint, 5)
        assert fake.connections == 2


@pytest.mark.parametrize("wire", [GET, POST])
async def test_only_get_is_retried_when_an_idle_connection_closes(
    http_upstream: Http1Upstream, wire: HttpRequest
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)  # the second request gets no response

    async with fake_backend(script) as fake:
        await http_upstream.exchange(wire, fake.endpoint, 5)
        if wire is GET:
            assert (await http_upstream.exchange(wire, fake.endpoint, 5)).status == 200
            assert fake.connections == 2
        else:
            assert await error_kind(http_upstream, fake.endpoint, POST) is Kind.BACKEND_GARBAGE
            assert fake.connections == 1


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_are_limited(http_upstream: Http1Upstream, excess: int, chunked: bool) -> None:
    size = LIMITS.body + excess
    head = b"Content-Length: %d\r\n\r\n" % size
    tail = b""
    if chunked:
        head, tail = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size, b"\r\n0\r\n\r\n"
    response = b"HTTP/1.1 200 OK\r\n" + head + b"x" * size + tail
    async with fake_backend(responding(response)) as fake:
        if excess:
            assert await error_kind(http_upstream, fake.endpoint, POST) is Kind.TOO_LARGE
        else:
            received = await http_upstream.exchange(POST, fake.endpoint, 5)
            assert len(join_parts(received.body)) == size


async def test_an_early_response_is_returned(http_upstream: Http1Upstream) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with fake_backend(script) as fake:
        wire = HttpRequest("POST", "/", body=(b"x" * 30_000_000,))
        response = await http_upstream.exchange(wire, fake.endpoint, 5)
        assert response.status == 413


async def test_invalid_paths_and_headers_are_not_sent(
    http_upstream: Http1Upstream, harness: HttpHarness
) -> None:
    for wire in (HttpRequest("GET", "/a b"), HttpRequest("GET", "/", headers={"x": "a\nb"})):
        with raises_kind(Kind.BAD_REQUEST):
            await http_upstream.exchange(wire, harness.endpoint, 5)
    assert not harness.app.requests


async def test_close_ends_exchanges_in_progress(
    harness: HttpHarness, http_upstream: Http1Upstream
) -> None:
    wire = HttpRequest("POST", "/wait")
    exchange = asyncio.ensure_future(http_upstream.exchange(wire, harness.endpoint, 5))
    await harness.app.entered.wait()
    await http_upstream.close()
    with raises_kind(Kind.BACKEND_GARBAGE):
        await exchange
