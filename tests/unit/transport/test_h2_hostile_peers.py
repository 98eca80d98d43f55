"""Peers of the HTTP/2 engine that disappear, stall, send slowly or cancel, on real sockets."""

import asyncio
import dataclasses
import gc
import gzip
from contextlib import aclosing, suppress

import pytest
from test_h2_engine import (
    QUICK,
    WIRE,
    Connect,
    Peer,
    ReceivedFrame,
    connect,
    is_end,
    is_request,
    message,
    open_stream,
    response_frames,
    serve,
    status,
)
from transport_kit import RPC_LIMITS, connected_pair, tried_repeatedly

from gateway_errors import raises_kind
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import MIB
from infergate.core.wire import RpcRequest
from infergate.transport.grpc import (
    client,
    client_calls,
    headers,
    server_stream_call,
    server_unary_call,
)
from infergate.transport.grpc.client_connection import GrpcClientConnection
from infergate.transport.http2 import frames
from infergate.transport.http2.frames import frame, settings
from waiting import until

__all__ = ["connect"]

LONG_LENGTH = (50 * MIB).to_bytes(4)
LONG_BODY = dataclasses.replace(RPC_LIMITS, body=64 * MIB)


def data(number: int, payload: bytes) -> bytes:
    return frame(frames.DATA, 0, number, payload)


@pytest.mark.parametrize("method", ["Repeat", "Stream"])
async def test_a_streams_message_is_counted_before_it_is_received(
    connect: Connect, method: str
) -> None:
    """Streams that announce long messages and never send them cannot exceed the memory budget."""
    harness, peer = await connect(dataclasses.replace(LONG_BODY, in_flight_bytes=120 * MIB))
    for number in (1, 3, 5):
        peer.send(open_stream(number, method) + data(number, b"\0" + LONG_LENGTH + b"x"))
    code, text = status(await peer.until(is_end))
    assert (code, "limit of" in text) == (headers.UNAVAILABLE, True)
    await until(lambda: harness.admission.bytes == 2 * (50 * MIB + 5))
    peer.send(frames.reset(1, 8) + frames.reset(3, 8))
    await until(lambda: not harness.admission.bytes)


@tried_repeatedly
async def test_a_slow_message_of_a_stream_is_accepted(connect: Connect) -> None:
    _, peer = await connect(dataclasses.replace(QUICK, keepalive_time=60))
    wire = b"\0\0\0\x08\0" + b"hi 1" + b" " * 2044
    peer.send(open_stream(1, "Stream"))
    for start in range(0, len(wire), 100):
        peer.send(data(1, wire[start : start + 100]))
        await asyncio.sleep(0.05)
    assert len((await peer.read_kind(frames.DATA))[3]) == 5 + 2048 + 1


@tried_repeatedly
async def test_split_data_frames_do_not_count_as_slow_headers(connect: Connect) -> None:
    """While small DATA frames arrive, the last frame is always incomplete."""
    _, peer = await connect(dataclasses.replace(QUICK, keepalive_time=60))
    peer.send(open_stream(1, "Stream"))
    piece = data(1, b"\0\0\0\0\1x")
    peer.send(piece[:5])
    for _ in range(40):
        peer.send(piece[5:] + piece[:5])
        await asyncio.sleep(0.02)
    peer.send(piece[5:])
    for _ in range(41):
        assert (await peer.read_kind(frames.DATA))[2] == 1


@pytest.mark.parametrize("method", ["Repeat", "Wait"])
async def test_a_vanished_client_is_disconnected(connect: Connect, method: str) -> None:
    """A machine that loses power sends no FIN."""
    harness, peer = await connect(dataclasses.replace(QUICK, idle_body_time=60))
    peer.send(open_stream(1, method) + (message(1, b"x") if method == "Wait" else b""))
    await until(lambda: harness.admission.streams + harness.admission.requests == 1)
    received = await peer.read_to_end()
    assert frames.PING in [each[0] for each in received]
    await until(lambda: harness.admission.streams + harness.admission.requests == 0)


async def test_a_compressed_message_is_counted_once(connect: Connect) -> None:
    harness, peer = await connect(RPC_LIMITS)
    compressed = gzip.compress(bytes(50_000))
    peer.send(open_stream(1, "Wait", ("grpc-encoding", "gzip")))
    peer.send(data(1, b"\1" + len(compressed).to_bytes(4) + compressed))
    await until(lambda: harness.admission.bytes == 50_000)
    peer.send(frame(frames.DATA, frames.END_STREAM, 1, b""))
    await harness.app.entered.wait()
    assert harness.admission.bytes == 50_000
    harness.app.release.set()
    assert status(await peer.until(is_end))[0] == 0


async def test_a_drain_serves_the_current_message_of_a_stream(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes after the current message are discarded."""
    monkeypatch.setattr(server_stream_call, "DRAIN_GRACE", 0)
    harness, peer = await connect(RPC_LIMITS)
    peer.send(open_stream(1, "Stream") + message(1, b"stay", 0))
    await harness.app.stream_waiting.wait()
    ping = frame(frames.PING, 0, 0, b"received")
    peer.send(data(1, b"\0" + (100).to_bytes(4) + bytes(50)) + ping)
    await peer.until(lambda received: received[3] == b"received")
    stopping = asyncio.ensure_future(harness.server.stop(20))
    await peer.read_kind(frames.GOAWAY)
    await asyncio.sleep(0)  # let the drain's grace period pass
    peer.send(data(1, bytes(50) + b"\0" + (3).to_bytes(4) + b"not") + ping)
    await peer.until(lambda received: received[3] == b"received")
    harness.app.release.set()
    received = [await peer.until(lambda received: received[0] in {frames.DATA, frames.HEADERS})]
    while not is_end(received[-1]):
        received.append(await peer.read_frame())
    assert [each[3] for each in received if each[0] == frames.DATA] == [
        b"\0\0\0\0\5stay!",
        b"\0" + (101).to_bytes(4) + bytes(100) + b"!",
    ]
    assert status(received[-1])[0] == 0
    await stopping


@tried_repeatedly
async def test_a_client_that_acknowledges_pings_may_wait(connect: Connect) -> None:
    harness, peer = await connect(dataclasses.replace(QUICK, idle_body_time=60))
    peer.send(open_stream(1, "Wait") + message(1, b"x"))
    for _ in range(4):
        ping = await peer.read_kind(frames.PING)
        peer.send(frame(frames.PING, frames.ACK, 0, ping[3]))
    harness.app.release.set()
    assert status(await peer.until(is_end))[0] == 0


async def test_responses_continue_after_a_window_setting(connect: Connect) -> None:
    harness, peer = await connect(RPC_LIMITS, frames.PREFACE + settings([(4, 0)]))
    count = 20
    for number in range(1, 2 * count, 2):
        peer.send(open_stream(number, "Echo") + message(number, b"y" * 1000))
    for _ in range(count):
        assert (await peer.read_kind(frames.HEADERS))[1] == frames.END_HEADERS
    await until(lambda: not harness.admission.requests)
    peer.send(settings([(4, 2000)]))
    sizes = [0] * 2 * count
    ends = 0
    while ends < count:
        received = await peer.read_frame()
        if received[0] == frames.DATA:
            sizes[received[2]] += len(received[3])
        ends += is_end(received)
    assert sizes == [0, 1005] * count


async def test_a_stalled_client_is_disconnected(connect: Connect) -> None:
    """The client announces maximum windows, but does not read the responses of 900 KB."""
    limits = dataclasses.replace(QUICK, keepalive_time=60, idle_body_time=0.5)
    start = frames.PREFACE + settings([(4, 2**31 - 1)]) + frames.window_update(0, 2**30)
    harness, peer = await connect(limits, start)
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for number in range(1, 200, 2):
        peer.send(open_stream(number, "Large") + message(number, b""))
    await until(lambda: bool(harness.app.calls))
    await until(lambda: not harness.server._connections)  # type: ignore[attr-defined]


@pytest.mark.parametrize("sends_frames", [False, True])
async def test_a_server_that_does_not_read_is_disconnected(
    sends_frames: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has large windows and may send frames, but never reads."""
    release = asyncio.Event()

    async def script(peer: Peer, number: int) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(frames.window_update(0, 2**30))
        if sends_frames:
            await asyncio.sleep(0.2)
            peer.send(frames.window_update(0, 1))
        await release.wait()

    connections: list[GrpcClientConnection] = []
    wait_ready = GrpcClientConnection.wait_ready

    async def record(connection: GrpcClientConnection, protocol: str) -> None:
        await wait_ready(connection, protocol)
        connections.append(connection)

    monkeypatch.setattr(GrpcClientConnection, "wait_ready", record)
    async with serve(script, settings([(4, 2**31 - 1)])) as (upstream, endpoint):
        upstream._limits = LONG_BODY  # type: ignore[misc]
        wire = RpcRequest("/t.T/Echo", (bytes(32 * MIB),))
        for count in (1, 2):
            seconds = 0.4
            # On a busy machine, the timeout may pass before the request is sent: double it.
            while len(connections) < count or not connections[-1].closed_future.done():
                with raises_kind(Kind.TIMEOUT):
                    await upstream.exchange(wire, endpoint, seconds)
                if connections:
                    await asyncio.wait([connections[-1].closed_future], timeout=10)
                seconds *= 2
            assert len(connections) == count
        release.set()


async def test_waiting_calls_use_freed_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_CONNECTIONS", 1)

    async def script(peer: Peer, number: int) -> None:
        await asyncio.sleep(0.3)
        peer.send(settings([(3, 5)]))
        for _ in range(5):
            received = await peer.until(is_request)
            peer.send(response_frames(received[2]))
        await peer.read_to_end()

    async with serve(script, settings([(3, 0)])) as (upstream, endpoint):
        exchanges = [upstream.exchange(WIRE, endpoint, 5) for _ in range(5)]
        assert [each.code for each in await asyncio.gather(*exchanges)] == [0] * 5


async def test_timeout_while_waiting_for_a_stream_names_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_MAX_CONNECTIONS", 1)
    is_busy, proceed = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer, number: int) -> None:
        received = await peer.until(is_request)
        is_busy.set()
        await proceed.wait()
        peer.send(response_frames(received[2]))

    async with serve(script, settings([(3, 1)])) as (upstream, endpoint):
        first = asyncio.ensure_future(upstream.exchange(WIRE, endpoint, 5))
        await is_busy.wait()
        with raises_kind(Kind.TIMEOUT, "the backend was busy with other requests"):
            await upstream.exchange(WIRE, endpoint, 0.01)
        proceed.set()
        assert (await first).code == 0


async def test_capacity_offered_to_a_cancelled_waiter_goes_to_the_next_waiter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_MAX_CONNECTIONS", 1)
    proceed = asyncio.Event()

    async def script(peer: Peer, number: int) -> None:
        received = await peer.until(is_request)
        await proceed.wait()
        while True:
            peer.send(response_frames(received[2]))
            received = await peer.until(is_request)

    async with serve(script, settings([(3, 1)])) as (upstream, endpoint):
        first, second, third = (
            asyncio.ensure_future(upstream.exchange(WIRE, endpoint, 5)) for _ in range(3)
        )
        await until(lambda: bool(upstream._pools))
        pool = upstream._pools[endpoint]
        await until(lambda: len(pool._waiters) == 2)
        notify = pool.notify_capacity

        def notify_and_cancel(connection: GrpcClientConnection | None = None) -> None:
            notify(connection)
            second.cancel()  # just after the waiter was notified

        monkeypatch.setattr(pool, "notify_capacity", notify_and_cancel)
        for connection in pool._connections:
            monkeypatch.setattr(connection, "_capacity_callback", notify_and_cancel)
        proceed.set()
        assert (await first).code == 0
        assert (await third).code == 0
        with pytest.raises(asyncio.CancelledError):
            await second


async def test_a_goaway_causes_retries_of_unprocessed_requests() -> None:
    """Unprocessed requests are retried on another connection; the others get their responses."""

    async def script(peer: Peer, number: int) -> None:
        requests: list[ReceivedFrame] = [
            await peer.until(is_request) for _ in range(4 if number == 1 else 2)
        ]
        if number == 1:
            peer.send(frames.goaway(requests[1][2], 0, "enough"))
            await asyncio.sleep(0.1)
            requests = requests[:2]
        peer.send(b"".join(response_frames(each[2], str(number).encode()) for each in requests))
        assert not [each for each in await peer.read_to_end() if each[0] == frames.HEADERS]

    async with serve(script) as (upstream, endpoint):
        exchanges = [upstream.exchange(WIRE, endpoint, 5) for _ in range(4)]
        responses = await asyncio.gather(*exchanges)
        assert sorted(bytes(each.message[0]) for each in responses) == [b"1", b"1", b"2", b"2"]


async def test_a_flooding_server_is_disconnected() -> None:
    async def script(peer: Peer, number: int) -> None:
        await peer.until(is_request)
        while not peer.writer.is_closing():
            peer.send(frames.reset(1, 0) * 100 + settings([]) * 100)
            await asyncio.sleep(0)
            if peer.reader.at_eof():
                return

    async with serve(script) as (upstream, endpoint):
        with raises_kind(Kind.BACKEND_GARBAGE):
            await upstream.exchange(WIRE, endpoint, 10)


async def test_calls_leave_no_reference_cycles() -> None:
    """A cycle would keep long messages in memory until the garbage collector runs."""
    call_types = (
        server_unary_call.UnaryCall,
        server_stream_call.StreamCall,
        client_calls.UnaryClientCall,
        client_calls.StreamingClientCall,
    )

    async def unary(method: str, data: bytes = b"x", timeout: float = 10) -> None:
        with suppress(GatewayError):
            wire = RpcRequest(f"/t.T/{method}", (data,))
            await upstream.exchange(wire, harness.endpoint, timeout)

    async def stream(method: str, data: bytes) -> None:
        with suppress(GatewayError):
            wire = RpcRequest(f"/t.T/{method}", (data,))
            async with aclosing(upstream.stream(wire, harness.endpoint, 10)) as responses:
                async for _ in responses:
                    pass

    def unfreed_calls() -> list[object]:
        return [each for each in gc.get_objects() if isinstance(each, call_types)]

    async with connected_pair(dataclasses.replace(RPC_LIMITS, body=8 * MIB)) as (harness, upstream):
        await unary("Echo")
        gc.collect()
        gc.disable()
        try:
            await unary("Echo", bytes(3 * MIB))
            await unary("Echo", bytes(9 * MIB))
            await unary("Fail", b"3")
            await unary("Unknown")
            await unary("Large")
            await unary("Wait", timeout=0.1)
            pending = asyncio.ensure_future(unary("Wait"))
            await asyncio.sleep(0.05)
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
            del pending
            await stream("Stream", b"hi")
            await stream("Stream", b"fail")
            await stream("Stream", bytes(3 * MIB))
            await stream("Repeat", b"hi 3")
            await until(lambda: not unfreed_calls())
        finally:
            gc.enable()
