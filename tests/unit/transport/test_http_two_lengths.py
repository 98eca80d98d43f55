"""Requests with both Content-Length and Transfer-Encoding are refused by default. With
``accept_both_lengths``, the first request of a connection may have both, and is then the last."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_kit import LIMITS, QUICK, Engine, HttpHarness, Peer, http_harness, tried_repeatedly

from infergate.transport.http1.message_head import drop_content_length

CHUNKS = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
TENSORFLOW_REQUEST = (
    b"POST / HTTP/1.1\r\nHost: localhost:9000\r\nAccept: */*\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Length: 5\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Expect: 100-continue\r\n\r\n"
)
"""The request that GraphPipe's TensorFlow operation sends with libcurl."""
SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


def head(*lines: bytes, version: bytes = b"1.1") -> bytes:
    return b"\r\n".join([b"POST /any HTTP/" + version, b"Host: x", *lines, b"", b""])


START = head(b"Content-Length: 5", b"Transfer-Encoding: chunked")


@pytest.fixture
async def harness(engine: Engine) -> AsyncIterator[HttpHarness]:
    async with http_harness(engine, LIMITS, accept_both_lengths=True) as harness:
        yield harness


async def test_both_lengths_are_refused_by_default(engine: Engine) -> None:
    async with http_harness(engine, LIMITS) as strict:
        peer = await strict.connect()
        assert (await peer.request(START + CHUNKS)).status == 400
        assert await peer.reads_eof()
        assert strict.app.requests == []


async def test_requests_of_tensorflow_are_accepted(harness: HttpHarness, peer: Peer) -> None:
    await peer.send(TENSORFLOW_REQUEST)
    async with asyncio.timeout(5):
        assert await peer.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    response = await peer.request(CHUNKS)
    assert (response.status, response.body) == (200, b"POST abcde")
    assert response.headers["connection"] == "close"
    assert await peer.reads_eof()
    assert "content-length" not in harness.app.requests[0].headers


@pytest.mark.parametrize("split", [1, 20, 60, len(START) - 1, len(START), len(START) + 3])
@pytest.mark.parametrize("length", [b"5", b"0", b"1", b"999999999999"])
async def test_the_chunks_determine_the_length(
    harness: HttpHarness, split: int, length: bytes
) -> None:
    """The bytes after the chunks are not read as a request."""
    wire = START.replace(b": 5", b": " + length) + CHUNKS + SMUGGLED
    peer = await harness.connect()
    await peer.send(wire[:split])
    await harness.check_serving()
    response = await peer.request(wire[split:])
    assert (response.status, response.body) == (200, b"POST abcde")
    assert response.headers["connection"] == "close"
    assert await peer.reads_eof()
    assert "/smuggled" not in {wire.path for wire in harness.app.requests}


async def test_keep_alive_is_ignored(peer: Peer) -> None:
    await peer.send(START.replace(b"Host: x", b"Host: x\r\nConnection: keep-alive") + CHUNKS)
    assert (await peer.read_response()).headers["connection"] == "close"
    assert await peer.reads_eof()


@pytest.mark.parametrize("is_pipelined", [False, True])
async def test_later_requests_with_both_lengths_are_refused(
    peer: Peer, *, is_pipelined: bool
) -> None:
    await peer.send(head(b"Content-Length: 2") + b"hi" + (START + CHUNKS) * is_pipelined)
    assert (await peer.read_response()).body == b"POST hi"
    assert (await peer.request((START + CHUNKS) * (not is_pipelined))).status == 400
    assert await peer.reads_eof()


@pytest.mark.parametrize(
    "start",
    [
        head(b"Content-Length: 5", b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        head(b"Content-Length: 5", b"Content-Length: 6", b"Transfer-Encoding: chunked"),
        head(b"Content-Length: 5, 5", b"Transfer-Encoding: chunked"),
        head(b"Content-Length: +5", b"Transfer-Encoding: chunked"),
        head(b"Content-Length: -1", b"Transfer-Encoding: chunked"),
        head(b"Content-Length:", b"Transfer-Encoding: chunked"),
        head(b"Content-Length : 5", b"Transfer-Encoding: chunked"),
        head(b"Content-Length: 5", b"Transfer-Encoding : chunked"),
        head(b"Content-Length: 5", b"Transfer-Encoding: gzip, chunked"),
        head(b"Content-Length: 5", b"Transfer-Encoding: chunked, identity"),
        head(b"Content-Length: 5", b"Transfer-Encoding: identity"),
        head(b"Content-Length: 5", b"Transfer-Encoding: xchunked"),
        head(b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        head(b"Content-Length: 5", b"Transfer-Encoding: chunked", b" , gzip"),
        head(b"Transfer-Encoding: chunked", b"Content-Length: 5", b" 5"),
        head(b"Content-Length: 5", b"X: a\nTransfer-Encoding: chunked"),
        head(b"Transfer-Encoding: chunked", b"X: a\nContent-Length: 5"),
        head(b"Content-Length: 5\nTransfer-Encoding: chunked"),
        head(b"Content-Length: 5", b"Transfer-Encoding: chunked", b"X: a\rb"),
        head(b"Content-Length: 5", b"Transfer-Encoding: chunked", b"no colon"),
        head(b"Content-Length: 5", b"Transfer-Encoding: chunked", version=b"1.0"),
        b"\r\n" + START,
    ],
)
async def test_unusual_headers_are_refused(harness: HttpHarness, peer: Peer, start: bytes) -> None:
    assert (await peer.request(start + CHUNKS)).status in {400, 501}
    assert await peer.reads_eof()
    assert harness.app.requests == []


async def test_head_limits_apply(harness: HttpHarness) -> None:
    for lines, status in (
        ([b"X: " + b"y" * 2500], 431),
        ([b"X%d: y" % i for i in range(30)], 431),
        ([b"no colon"], 400),
    ):
        peer = await harness.connect()
        assert (await peer.request(head(*lines, b"Content-Length: 5"))).status == status
        await peer.close()
    peer = await harness.connect()
    assert (await peer.request(b"GET /" + b"x" * 2500)).status == 414


@tried_repeatedly
async def test_a_stalled_head_times_out(engine: Engine) -> None:
    async with http_harness(engine, QUICK, accept_both_lengths=True) as harness:
        peer = await harness.connect()
        assert (await peer.request(START[:-2])).status == 408
        assert harness.app.refused[-1].public == "the request did not arrive in time"


def test_the_content_length_is_dropped() -> None:
    assert drop_content_length(TENSORFLOW_REQUEST + b"rest") == (
        b"POST / HTTP/1.1\r\nHost: localhost:9000\r\nAccept: */*\r\n"
        b"Transfer-Encoding: chunked\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Expect: 100-continue\r\nConnection: close\r\n\r\nrest"
    )


_LINES = st.sampled_from(
    [
        b"Content-Length: 5",
        b"content-length:5",
        b"Content-Length : 5",
        b"Transfer-Encoding: chunked",
        b"TRANSFER-ENCODING:\tChunked ",
        b"Transfer-Encoding: gzip",
        b"X: y",
        b" 5",
        b"",
    ]
)


@given(st.lists(_LINES, max_size=6), st.binary(max_size=20))
def test_only_the_content_length_is_dropped(lines: list[bytes], body: bytes) -> None:
    wire = head(*lines) + body
    rewritten = drop_content_length(wire)
    if rewritten != wire:
        restored = rewritten.replace(b"\r\nConnection: close", b"", 1)
        length = re.compile(rb"\r\nContent-Length: ?5", re.IGNORECASE)
        assert restored == length.sub(b"", wire, count=1)
