"""Limits and timeouts of the HTTP server, and requests that it refuses."""

import asyncio
import dataclasses

import pytest
from transport_kit import LIMITS, HttpHarness, HttpServe, Peer, tried_repeatedly

from infergate.core.errors import Kind
from waiting import until

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


async def test_a_body_at_the_limit_is_accepted(peer: Peer) -> None:
    assert (await peer.request(HEAD + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000)).status == 200
    await peer.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    await peer.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n")
    assert (await peer.read_response()).body == b"POST " + b"x" * 1000


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
async def test_a_content_length_over_the_limit_is_refused(
    harness: HttpHarness, peer: Peer, expect: bytes
) -> None:
    response = await peer.request(HEAD + expect + b"Content-Length: 1001\r\n\r\n")
    assert (response.status, response.headers["connection"]) == (413, "close")
    assert response.headers["content-type"] == "refusal"
    assert harness.app.refused[0].kind is Kind.TOO_LARGE
    assert await peer.reads_eof()
    await peer.close()
    await harness.check_serving()
    assert len(harness.app.requests) == 1, "the refused request is not passed on"


async def test_a_client_that_continues_sending_gets_the_refusal(peer: Peer) -> None:
    await peer.send(HEAD + b"Content-Length: 3000000\r\n\r\n" + b"x" * 2_000_000)
    assert (await peer.read_response()).status == 413


async def test_a_chunked_body_over_the_limit_is_refused(peer: Peer) -> None:
    await peer.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(11):
        await peer.send(b"64\r\n" + b"x" * 100 + b"\r\n")
    assert (await peer.read_response()).status == 413
    assert await peer.reads_eof()


@pytest.mark.parametrize("count", [20, 21, 200])
async def test_header_count_is_limited(peer: Peer, count: int) -> None:
    lines = b"".join(b"X-%d: y\r\n" % i for i in range(count - 1))
    await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")
    assert (await peer.read_response()).status == (200 if count <= 20 else 431)


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("pieces", [1, 2, 5])
async def test_header_bytes_are_limited(peer: Peer, excess: int, pieces: int) -> None:
    value = b"v" * (2000 - len(b"Host: x\r\nX: \r\n") + excess)
    wire = b"GET / HTTP/1.1\r\nHost: x\r\nX: " + value + b"\r\n\r\n"
    step = len(wire) // pieces + 1
    for i in range(0, len(wire), step):
        await peer.send(wire[i : i + step])
        await asyncio.sleep(0)
    assert (await peer.read_response()).status == (431 if excess else 200)


async def test_a_very_long_field_is_refused(peer: Peer) -> None:
    assert (await peer.request(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"v" * 100_000)).status == 431


@pytest.mark.parametrize(("length", "status"), [(1900, 200), (2001, 414), (50_000, 414)])
async def test_target_length_is_limited(peer: Peer, length: int, status: int) -> None:
    await peer.send(b"GET /" + b"x" * (length - 1) + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await peer.read_response()).status == status


@pytest.mark.parametrize(
    "wire",
    [
        b"rubbish\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n",
        HEAD + b"Content-Length: 2x\r\n\r\nab",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\nab",
        HEAD + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabXX",
    ],
)
async def test_malformed_requests_are_refused(peer: Peer, wire: bytes) -> None:
    response = await peer.request(wire)
    assert (response.status, response.headers["connection"]) == (400, "close")
    assert response.headers["content-type"] == "refusal"
    assert await peer.reads_eof()


@pytest.mark.parametrize(
    "lines",
    [b"Transfer-Encoding: gzip, chunked\r\n", b"transfer-encoding: identity , Chunked\r\n"],
)
async def test_unknown_codings_are_refused(harness: HttpHarness, peer: Peer, lines: bytes) -> None:
    """RFC 9112, 6.1: ignoring the coding would change the body."""
    response = await peer.request(HEAD + lines + b"\r\n2\r\nab\r\n0\r\n\r\n")
    assert (response.status, b"transfer coding" in response.body) == (501, True)
    assert not harness.app.calls


async def test_connect_is_refused(peer: Peer) -> None:
    assert (await peer.request(b"CONNECT other:443 HTTP/1.1\r\nHost: other\r\n\r\n")).status == 405
    assert await peer.reads_eof()


async def test_a_silent_connection_is_closed(quick: HttpHarness) -> None:
    peer = await quick.connect()
    assert await peer.reads_eof()


@tried_repeatedly
async def test_an_idle_connection_is_closed(quick: HttpHarness) -> None:
    peer = await quick.connect()
    assert (await peer.request(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
    assert await peer.reads_eof()


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"v"),
        (HEAD + b"Content-Length: 900\r\n\r\n", b"v"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nv\r\n"),
    ],
)
@tried_repeatedly
async def test_slow_requests_are_refused(quick: HttpHarness, start: bytes, piece: bytes) -> None:
    peer = await quick.connect()
    await peer.send(start)

    async def send_slowly() -> None:
        while True:
            await peer.send(piece)
            await asyncio.sleep(0.02)

    sending = asyncio.ensure_future(send_slowly())
    response = await peer.read_response()
    assert (response.status, quick.app.refused[0].kind) == (408, Kind.TIMEOUT)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


@tried_repeatedly
async def test_a_stalled_body_is_refused(quick: HttpHarness) -> None:
    peer = await quick.connect()
    assert (await peer.request(HEAD + b"Content-Length: 900\r\n\r\nabc")).status == 408
    assert quick.admission.requests == 0


async def test_a_client_that_does_not_read_is_disconnected(quick: HttpHarness) -> None:
    peer = await quick.connect()
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await peer.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
    await until(lambda: not quick.server._connections)
    assert len(quick.app.requests) < 20, "responses do not accumulate"
    peer.writer.transport.abort()


async def test_requests_over_the_admission_limits_are_refused(serve_http: HttpServe) -> None:
    harness = await serve_http(dataclasses.replace(LIMITS, in_flight=1, in_flight_bytes=500))
    first, second = await harness.connect(), await harness.connect()
    await first.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
    await harness.app.entered.wait()
    count = 300
    await second.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * count)
    for _ in range(count):
        assert (await second.read_response()).status == 503
    harness.app.release.set()
    assert (await first.read_response()).status == 200
    assert (await second.request(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
    for framing in (
        b"Content-Length: 501\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n1f5\r\n" + b"x" * 501 + b"\r\n0\r\n\r\n",
    ):
        third = await harness.connect()
        assert (await third.request(HEAD + framing)).status == 503


async def test_the_connection_continues_after_a_refused_complete_body(
    serve_http: HttpServe,
) -> None:
    harness = await serve_http(dataclasses.replace(LIMITS, in_flight_bytes=500))
    peer = await harness.connect()
    await peer.send(HEAD + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
    assert (await peer.read_response()).status == 100
    body = b"1f5\r\n" + b"x" * 501 + b"\r\n0\r\n\r\n"
    assert (await peer.request(body + b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n")).status == 503
    assert (await peer.read_response()).status == 200
    assert [wire.path for wire in harness.app.requests] == ["/next"]


async def test_trailers_are_limited(peer: Peer) -> None:
    await peer.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
    assert (await peer.request(b"X: y\r\n" * 100)).status == 400


async def test_content_encodings_are_left_to_codecs(peer: Peer) -> None:
    await peer.send(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")
    assert (await peer.read_response()).body == b"POST abc"
