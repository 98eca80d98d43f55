"""The receive watermark saves wake-ups during long bodies, and delays no request or timeout."""

import asyncio
import dataclasses
import socket

import pytest
from transport_kit import Engine, HttpHarness, HttpServe, Peer, tried_repeatedly

from infergate.core.limits import KIB, MIB, Limits
from infergate.transport.http1 import server
from infergate.transport.net.receive_watermark import ReceiveWatermark
from infergate.transport.net.timer import MIN_BODY_RATE
from waiting import until

LIMITS = Limits(body=64 * MIB)
QUICK = dataclasses.replace(LIMITS, idle_body_time=0.3)
BODY = bytes(range(256)) * (8 * KIB)  # 2 MiB
SHORT_REQUEST = b"POST /s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"


@pytest.fixture
async def harness(serve_http: HttpServe) -> HttpHarness:
    return await serve_http(LIMITS)


def head(length: int = len(BODY), fields: str = "") -> bytes:
    return f"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{fields}\r\n".encode()


async def send_in_pieces(peer: Peer, data: bytes, size: int = 16 * KIB) -> None:
    for start in range(0, len(data), size):
        await peer.send(data[start : start + size])
        await asyncio.sleep(0)


async def assert_echoed(peer: Peer, body: bytes) -> None:
    response = await peer.read_response()
    assert (response.status, response.body) == (200, b"POST " + body)


async def test_long_bodies_are_read_in_few_wake_ups(
    peer: Peer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    buffer_updated = server.H1Connection.buffer_updated

    def record(self: server.H1Connection, nbytes: int) -> None:
        reads.append(nbytes)
        buffer_updated(self, nbytes)

    monkeypatch.setattr(server.H1Connection, "buffer_updated", record)
    for _ in range(3):
        reads.clear()
        await peer.send(head())
        await send_in_pieces(peer, BODY)
        await assert_echoed(peer, BODY)
        if engine.name != "own":
            assert not reads
            continue
        assert sum(reads) == len(head()) + len(BODY)
        assert len(reads) < 3 + len(BODY) // (128 * KIB) < len(BODY) // (16 * KIB)


@pytest.mark.parametrize("length", [256 * KIB, 400_001, MIB, 2 * MIB - 1])
async def test_the_end_of_a_body_is_read_immediately(peer: Peer, length: int) -> None:
    for tail in (1, 100, 20_000):
        await peer.send(head(length))
        await send_in_pieces(peer, BODY[: length - tail], 64 * KIB)
        await peer.send(BODY[length - tail : length])
        await assert_echoed(peer, BODY[:length])


async def test_short_requests_after_a_long_body_are_read(peer: Peer) -> None:
    await peer.send(head())
    await send_in_pieces(peer, BODY + SHORT_REQUEST)
    await assert_echoed(peer, BODY)
    await assert_echoed(peer, b"hi")
    for piece in (SHORT_REQUEST[:1], SHORT_REQUEST[1:40], SHORT_REQUEST[40:]):
        await peer.send(piece)
        await asyncio.sleep(0.01)
    await assert_echoed(peer, b"hi")
    chunked = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    await peer.send(chunked + b"2\r\nhi\r\n")
    await peer.send(b"0\r\n\r\n")
    await assert_echoed(peer, b"hi")


@tried_repeatedly
async def test_a_slow_client_does_not_time_out(serve_http: HttpServe) -> None:
    harness = await serve_http(QUICK)
    peer = await harness.connect()
    await peer.send(head())
    await send_in_pieces(peer, BODY[: len(BODY) // 2])
    tail = BODY[len(BODY) // 2 :]
    for start in range(0, 10 * MIN_BODY_RATE, MIN_BODY_RATE):
        await peer.send(tail[start : start + MIN_BODY_RATE])
        await asyncio.sleep(0.1)  # in total three times the idle timeout
    await send_in_pieces(peer, tail[10 * MIN_BODY_RATE :])
    await assert_echoed(peer, BODY)


async def test_a_stalled_client_times_out(serve_http: HttpServe) -> None:
    harness = await serve_http(QUICK)
    peer = await harness.connect()
    await peer.send(head())
    await send_in_pieces(peer, BODY[:-300_000])
    response = await peer.read_response()
    assert (response.status, response.headers["connection"]) == (408, "close")
    assert await peer.reads_eof()


async def test_a_disconnect_is_detected_immediately(harness: HttpHarness, peer: Peer) -> None:
    await peer.send(head())
    await send_in_pieces(peer, BODY[:-300_000])
    await until(lambda: harness.admission.bytes == len(BODY))
    await peer.close()
    await until(lambda: not harness.admission.bytes)


async def test_a_long_request_over_the_concurrency_limit_is_refused(
    serve_http: HttpServe,
) -> None:
    harness = await serve_http(dataclasses.replace(LIMITS, in_flight=1))
    busy = await harness.connect()
    await busy.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
    await harness.app.entered.wait()
    peer = await harness.connect()
    await peer.send(head())
    await send_in_pieces(peer, BODY)
    assert (await peer.read_response()).status == 503
    harness.app.release.set()
    assert (await busy.read_response()).status == 200


async def test_only_plain_tcp_sockets_have_a_watermark() -> None:
    class Transport(asyncio.Transport):
        def __init__(self, **attributes: object) -> None:
            super().__init__(attributes)

    first, second = socket.socketpair()
    with first, second, socket.socket() as plain:
        for attributes in ({"socket": first}, {}, {"socket": plain, "ssl_object": object()}):
            watermark = ReceiveWatermark(Transport(**attributes))
            watermark.set_min_bytes(1000)
            assert watermark.min_bytes == 1
        watermark = ReceiveWatermark(Transport(socket=plain))
        watermark.set_min_bytes(1000)
        assert watermark.min_bytes == 1000
        assert plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1000
        watermark.set_min_bytes(1)
        assert plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
    watermark.set_min_bytes(1000)  # the socket is closed
    assert watermark.min_bytes == 1
