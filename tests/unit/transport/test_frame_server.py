"""The frame server: limits, faults and shutdown."""

import asyncio
import dataclasses
import socket
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from frame_kit import FrameHarness, FramePeer, frame_harness, framed
from transport_kit import LIMITS, QUICK, run_loop, tried_repeatedly

from infergate.core.errors import Kind
from waiting import until

LARGE = b"x" * 300 + b"y" * 5_000_000 + b"z"


@pytest.fixture(params=["tcp", "unix"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FrameHarness]:
    path = tmp_path / "raw.sock" if request.param == "unix" else None
    async with frame_harness(LIMITS, path) as harness:
        yield harness


@pytest.fixture
async def quick() -> AsyncIterator[FrameHarness]:
    """A server with timeouts of 0.2 s for bodies, and of 1 s for lengths, because clients may stall
    between connecting and sending on a loaded machine."""
    limits = dataclasses.replace(QUICK, header_time=1.0, keepalive_time=1.0)
    async with frame_harness(limits) as harness:
        yield harness


async def test_requests_share_a_connection(harness: FrameHarness, peer: FramePeer) -> None:
    assert await peer.exchange(b"one") == b"POST one"
    assert await peer.exchange(b"two" * 300) == b"POST " + b"two" * 300
    call, other = harness.app.calls
    assert call.peer == other.peer
    assert call.peer.partition(":")[0] == ("unix" if harness.server.address.unix else "127.0.0.1")
    assert (call.record.bytes_in, other.record.bytes_in) == (3, 900)
    assert harness.app.requests[0].path == "/"


async def test_pipelined_requests_get_responses_in_order(peer: FramePeer) -> None:
    bodies = [b"%d" % i * (i % 100 + 1) for i in range(500)]
    sending = asyncio.create_task(peer.send(b"".join(map(framed, bodies))))
    for body in bodies:
        assert await peer.read_frame() == b"POST " + body
    await sending


async def test_reading_pauses_while_pipelined_requests_wait(
    harness: FrameHarness, peer: FramePeer
) -> None:
    await peer.send(framed(b"wait"))
    await harness.app.entered.wait()
    sending = asyncio.create_task(peer.send(framed(b"x" * 900) * 20_000))
    await until(lambda: not next(iter(harness.server._connections))._transport.is_reading())  # type: ignore[attr-defined]
    assert len(harness.app.calls) == 1
    assert harness.admission.bytes == 4
    sending.cancel()
    await harness.check_serving()
    harness.app.release.set()
    assert await peer.read_frame() == b"POST wait"
    assert await peer.read_frame() == b"POST " + b"x" * 900
    peer.writer.transport.abort()


async def test_a_large_response_is_complete(peer: FramePeer) -> None:
    assert await peer.exchange(b"large") == LARGE
    assert await peer.exchange(b"next") == b"POST next"


async def test_a_body_at_the_limit_is_accepted(peer: FramePeer) -> None:
    assert await peer.exchange(b"x" * 1000) == b"POST " + b"x" * 1000


async def test_a_body_longer_than_the_read_buffer_is_received() -> None:
    limits = dataclasses.replace(LIMITS, body=10_000_000)
    async with frame_harness(limits) as harness:
        peer = await harness.connect()
        body = bytes(range(256)) * 20_000
        writing = asyncio.create_task(peer.send(framed(body) + framed(b"next")))
        assert await peer.read_frame() == b"POST " + body
        assert await peer.read_frame() == b"POST next"
        await writing


async def test_an_empty_frame_is_an_error_and_the_connection_continues(
    harness: FrameHarness,
    peer: FramePeer,
) -> None:
    assert await peer.exchange(b"") == b"the frame is empty"
    assert harness.app.refused[0].kind is Kind.BAD_REQUEST
    assert await peer.exchange(b"good") == b"POST good"
    await peer.send(framed(b"") * 5000 + framed(b"end"))
    for _ in range(5000):
        assert await peer.read_frame() == b"the frame is empty"
    assert await peer.read_frame() == b"POST end"


@pytest.mark.parametrize("size", [16_380, 16_384, 20_000, 5_000_000])
async def test_the_rest_of_a_refused_body_is_discarded(
    peer: FramePeer, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.send(struct.pack("<I", 100_000_000) + b"x" * size)
    assert b"the limit is 1000" in await peer.read_frame()
    await peer.send(b"x" * 20_000)
    assert await peer.reads_eof()
    assert [record.message for record in caplog.records] == []


async def test_a_complete_body_over_the_limit_is_skipped(peer: FramePeer) -> None:
    await peer.send(framed(b"x" * 1001) + framed(b"good"))
    assert b"limit is 1000" in await peer.read_frame()
    assert await peer.read_frame() == b"POST good"


async def test_requests_over_the_concurrency_limit_are_refused() -> None:
    async with frame_harness(dataclasses.replace(LIMITS, in_flight=1)) as harness:
        busy, other = await harness.connect(), await harness.connect()
        await busy.send(framed(b"wait"))
        await harness.app.entered.wait()
        assert b"limit of 1 requests" in await other.exchange(b"hi")
        harness.app.release.set()
        assert await busy.read_frame() == b"POST wait"
        assert await other.exchange(b"hi") == b"POST hi"


async def test_requests_over_the_memory_limit_are_refused() -> None:
    async with frame_harness(dataclasses.replace(LIMITS, in_flight_bytes=1200)) as harness:
        slow, other = await harness.connect(), await harness.connect()
        await slow.send(struct.pack("<I", 900) + b"x")
        await until(lambda: harness.admission.bytes == 900)
        assert b"1200 bytes" in await other.exchange(b"y" * 301)
        assert await other.exchange(b"y" * 300) == b"POST " + b"y" * 300
        await slow.send(b"x" * 899)
        assert await slow.read_frame() == b"POST " + b"x" * 900


async def test_exceptions_of_the_application_keep_the_connection(peer: FramePeer) -> None:
    assert await peer.exchange(b"bug") == b"internal error"
    assert await peer.exchange(b"selfcancel") == b"internal error"
    assert await peer.exchange(b"nothing") == b""
    assert await peer.exchange(b"good") == b"POST good"


@pytest.mark.parametrize("start", [b"\4", b"\4\0\0", b"\4\0\0\0", b"\4\0\0\0abc"])
@tried_repeatedly
async def test_a_stalled_frame_times_out(quick: FrameHarness, start: bytes) -> None:
    peer = await quick.connect()
    await peer.send(start)
    await quick.check_serving()
    assert await peer.read_frame() == b"the request did not arrive in time"
    assert await peer.reads_eof()


@tried_repeatedly
async def test_a_slow_length_times_out(quick: FrameHarness) -> None:
    peer = await quick.connect()
    start = time.monotonic()
    for byte in b"\4\0\0":
        await peer.send(bytes([byte]))
        await asyncio.sleep(0.6)
    assert await peer.read_frame() == b"the request did not arrive in time"
    assert time.monotonic() - start < 3


@tried_repeatedly
async def test_a_body_below_the_minimum_rate_times_out(quick: FrameHarness) -> None:
    """The client is never idle for 0.2 s, but sends less than 500 bytes per second."""
    peer = await quick.connect()
    await peer.send(struct.pack("<I", 900))
    response = asyncio.create_task(peer.read_frame())
    for _ in range(100):
        await peer.send(b"x")
        await asyncio.sleep(0.05)
        if response.done():
            break
    assert await response == b"the request did not arrive in time"


async def test_a_client_that_does_not_read_is_disconnected(quick: FrameHarness) -> None:
    peer = await quick.connect()
    peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await peer.send(framed(b"large") * 4)
    await until(lambda: not quick.server._connections)
    assert len(quick.app.calls) < 4
    await quick.check_serving()
    peer.writer.transport.abort()


@pytest.mark.parametrize("data", [b"", b"\4\0", b"\4\0\0\0", b"\4\0\0\0ab", framed(b"wait")])
@pytest.mark.parametrize("action", ["close", "reset", "half-close"])
async def test_a_disconnect_cancels_the_request(
    harness: FrameHarness, peer: FramePeer, data: bytes, action: str
) -> None:
    await peer.send(data)
    if data == framed(b"wait"):
        await harness.app.entered.wait()
    else:
        await run_loop(5)
    if action == "reset":
        peer.writer.transport.abort()
    elif action == "close":
        peer.writer.close()
    else:
        peer.writer.write_eof()
    await until(lambda: not harness.server._connections)
    assert harness.app.cancelled.is_set() == (data == framed(b"wait"))
    assert (harness.admission.requests, harness.admission.bytes) == (0, 0)
    await harness.check_serving()
    peer.writer.transport.abort()


async def test_a_drain_finishes_started_requests() -> None:
    async with frame_harness(LIMITS) as harness:
        busy, idle, receiving = [await harness.connect() for _ in range(3)]
        await idle.exchange(b"hi")
        await receiving.send(framed(b"receiving")[:6])
        await busy.send(framed(b"wait") + framed(b"pipelined"))
        await harness.app.entered.wait()
        await until(lambda: harness.admission.requests == 2)
        stopping = asyncio.create_task(harness.server.stop(10))
        assert await idle.reads_eof()
        await receiving.send(framed(b"receiving")[6:])
        assert await receiving.read_frame() == b"POST receiving"
        harness.app.release.set()
        assert await busy.read_frame() == b"POST wait"
        assert await busy.read_frame() == b"POST pipelined", (
            "frames have no response that asks for a retry"
        )
        assert await busy.reads_eof()
        assert await receiving.reads_eof()
        await stopping
        with pytest.raises(ConnectionError):
            await harness.connect()


async def test_a_drain_cancels_requests_after_the_grace_period() -> None:
    async with frame_harness(LIMITS) as harness:
        peer = await harness.connect()
        await peer.send(framed(b"wait"))
        await harness.app.entered.wait()
        await harness.server.stop(0.05)
        assert harness.app.cancelled.is_set()
        assert await peer.read_frame() == b"the gateway is shutting down"
        assert await peer.reads_eof()


async def test_a_response_over_the_frame_limit_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infergate.transport.framed.frame_reader.MAX_LENGTH", 100)
    async with frame_harness(LIMITS) as harness:
        peer = await harness.connect()
        assert await peer.exchange(b"x" * 99) == b""
        assert await peer.exchange(b"y") == b"POST y"
