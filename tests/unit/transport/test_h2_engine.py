"""The HTTP/2 engine on real sockets: timeouts, refusals, retries and long messages."""

import asyncio
import dataclasses
import gzip
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import grpc.aio
import pytest
from transport_kit import (
    OWN,
    RPC_LIMITS,
    GrpcHarness,
    connected_pair,
    fake_backend,
    rpc_harness,
    tried_repeatedly,
)

from gateway_errors import raises_kind
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import KIB, MIB, Limits
from infergate.core.wire import RpcRequest, join_parts
from infergate.transport.base import Endpoint
from infergate.transport.grpc import headers
from infergate.transport.grpc.client import H2Upstream
from infergate.transport.http2 import frames, header_blocks
from infergate.transport.http2.frames import frame
from infergate.transport.http2.header_block_decoder import HeaderBlockDecoder
from infergate.transport.server.admission import Admission, RequestAccount
from waiting import until

QUICK = dataclasses.replace(
    RPC_LIMITS, header_time=0.2, idle_body_time=0.2, keepalive_time=0.2, body=10_000_000
)
HELLO = frames.PREFACE + frames.settings([])
END = frames.END_HEADERS | frames.END_STREAM


def request_block(method: str, *fields: tuple[str, str]) -> bytes:
    return headers.request_prefix(
        f"/t.T/{method}", "x", "http", "test"
    ) + header_blocks.encode_block(*fields)


def open_stream(number: int, method: str, *fields: tuple[str, str]) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS, number, request_block(method, *fields))


def message(number: int, data: bytes, flags: int = frames.END_STREAM) -> bytes:
    return frame(frames.DATA, flags, number, b"\0" + len(data).to_bytes(4) + data)


ReceivedFrame = tuple[int, int, int, bytes]


@dataclasses.dataclass
class Peer:
    """A raw HTTP/2 client or server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read_frame(self) -> ReceivedFrame:
        async with asyncio.timeout(10):
            head = await self.reader.readexactly(9)
            first, flags, stream = frames.FRAME_HEADER.unpack(head)
            return first & 255, flags, stream, await self.reader.readexactly(first >> 8)

    async def until(self, matches: Callable[[ReceivedFrame], bool]) -> ReceivedFrame:
        while not matches(received := await self.read_frame()):
            pass
        return received

    async def read_kind(self, kind: int) -> ReceivedFrame:
        return await self.until(lambda received: received[0] == kind)

    async def read_reset(self) -> tuple[int, int]:
        """Return the stream and the code of the next RST_STREAM."""
        _, _, stream, payload = await self.read_kind(frames.RST_STREAM)
        return stream, int.from_bytes(payload)

    async def read_to_end(self) -> list[ReceivedFrame]:
        received_frames = []
        try:
            while True:
                received_frames.append(await self.read_frame())
        except (asyncio.IncompleteReadError, ConnectionError):
            return received_frames


Connect = Callable[..., Awaitable[tuple[GrpcHarness, Peer]]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Yield a function that starts a server and connects a raw client."""
    async with AsyncExitStack() as stack:

        async def start(limits: Limits = QUICK, data: bytes = HELLO) -> tuple[GrpcHarness, Peer]:
            harness = await stack.enter_async_context(rpc_harness(OWN, limits))
            port = harness.server.address.port
            peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
            stack.callback(peer.writer.close)
            peer.send(data)
            return harness, peer

        yield start


def status(received: ReceivedFrame) -> tuple[int, str]:
    """Check that a frame has trailers, and return their status code and message."""
    kind, flags, _, payload = received
    assert (kind, flags) == (frames.HEADERS, END)
    trailers = headers.ResponseHeaders(HeaderBlockDecoder(9999).decode(payload))
    assert trailers.code is not None
    return trailers.code, trailers.details


def is_end(received: ReceivedFrame) -> bool:
    return received[:2] == (frames.HEADERS, END)


async def test_an_unread_response_is_reset(connect: Connect) -> None:
    _, peer = await connect(dataclasses.replace(QUICK, keepalive_time=60))
    peer.send(open_stream(1, "Large") + message(1, b""))
    assert await peer.read_reset() == (1, frames.Code.CANCEL)


@tried_repeatedly
async def test_a_silent_client_gets_pings_and_is_disconnected(connect: Connect) -> None:
    _, peer = await connect()
    for _ in range(3):
        ping = await peer.read_kind(frames.PING)
        peer.send(frame(frames.PING, frames.ACK, 0, ping[3]))
    assert (await peer.read_to_end())[-1][0] == frames.PING


async def test_the_server_enforces_deadlines(connect: Connect) -> None:
    harness, peer = await connect(RPC_LIMITS)
    peer.send(open_stream(1, "Wait", ("grpc-timeout", "50m")) + message(1, b"x"))
    assert status(await peer.until(is_end)) == (headers.DEADLINE_EXCEEDED, "Deadline Exceeded")
    await harness.app.cancelled.wait()
    await until(lambda: not harness.admission.requests)


async def test_an_early_refusal_ends_the_request(connect: Connect) -> None:
    harness, peer = await connect(dataclasses.replace(RPC_LIMITS, in_flight_bytes=1000))
    peer.send(open_stream(1, "Echo") + frame(0, 0, 1, b"\0\0\0\4\0" + b"x" * 100) * 2)
    code, text = status(await peer.until(is_end))
    assert (code, "limit of 1000 bytes" in text) == (14, True)
    assert await peer.read_reset() == (1, frames.Code.NO_ERROR)
    assert not harness.app.calls


async def test_a_refused_client_may_finish_its_request(connect: Connect) -> None:
    """curl reports a failure if a reset arrives before it has sent its body."""
    _, peer = await connect(RPC_LIMITS)
    invalid_block = request_block("Echo").replace(b"application/grpc", b"application/what")
    peer.send(frame(frames.HEADERS, frames.END_HEADERS, 1, invalid_block))
    await peer.until(is_end)
    peer.send(message(1, b"late") + frame(frames.PING, 0, 0, bytes(8)))
    while (received := await peer.read_frame())[0] != frames.PING:
        assert received[0] != frames.RST_STREAM
    peer.send(frame(frames.HEADERS, frames.END_HEADERS, 3, invalid_block))
    assert await peer.read_reset() == (3, frames.Code.NO_ERROR)


async def test_streams_that_the_client_does_not_end_are_reset(connect: Connect) -> None:
    """The stream is reset even while its response waits for a window update."""
    start = frames.PREFACE + frames.settings([(frames.INITIAL_WINDOW_SIZE, 0)])
    _, peer = await connect(RPC_LIMITS, start)
    peer.send(open_stream(1, "Repeat", ("grpc-timeout", "200m")) + message(1, b"say 1", 0))
    assert await peer.read_reset() == (1, frames.Code.NO_ERROR)


async def test_calls_over_the_stream_limit_are_not_admitted(connect: Connect) -> None:
    harness, peer = await connect(dataclasses.replace(RPC_LIMITS, streams=2))
    peer.send(frames.SETTINGS_ACK)
    peer.send(b"".join(open_stream(n, "Wait") + message(n, b"x") for n in (1, 3, 5)))
    assert await peer.read_reset() == (5, frames.Code.REFUSED_STREAM)
    assert harness.admission.requests == 2
    peer.send(frames.reset(1, 8) + frames.reset(3, 8))
    await until(lambda: not harness.admission.requests)


async def test_calls_before_the_settings_acknowledgement_are_counted(connect: Connect) -> None:
    """The headers of calls over the stream limit are counted too."""
    limits = dataclasses.replace(RPC_LIMITS, streams=2, in_flight_bytes=1000)
    harness, peer = await connect(limits)
    peer.send(b"".join(open_stream(n, "Wait") + message(n, b"x") for n in (1, 3, 5, 7, 9, 11)))
    ends = [status(await peer.until(is_end)) for _ in range(2)]
    assert {code for code, _ in ends} == {headers.RESOURCE_EXHAUSTED}
    assert harness.admission.requests == 4
    assert harness.admission.bytes == 2 * 398 + 4
    peer.send(frames.reset(1, 8) + frames.reset(3, 8))
    await until(lambda: harness.admission.bytes == 2)
    peer.send(frames.reset(5, 8) + frames.reset(7, 8))
    await until(lambda: not harness.admission.requests)
    assert harness.admission.bytes == 0


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_calls_may_be_compressed(connect: Connect, compression: grpc.Compression) -> None:
    harness, _ = await connect(RPC_LIMITS)
    async with grpc.aio.insecure_channel(
        harness.endpoint.authority, compression=compression
    ) as channel:
        data = b"abc" * 10_000
        assert await channel.unary_unary("/t.T/Echo")(data) == data
        stream = channel.stream_stream("/t.T/Stream")(timeout=30)
        await stream.write(data)
        assert await stream.read() == data + b"!"
        await stream.done_writing()


async def test_long_compressed_messages_are_counted_inflated(connect: Connect) -> None:
    harness, _ = await connect(Limits(in_flight_bytes=3 * MIB))
    authority, admission, app = harness.endpoint.authority, harness.admission, harness.app
    data = b"abc" * (MIB // 2)
    async with grpc.aio.insecure_channel(authority, compression=grpc.Compression.Gzip) as channel:
        assert await channel.unary_unary("/t.T/Echo")(data, timeout=60) == data
        stream = channel.stream_stream("/t.T/Stream")(timeout=60)
        for _ in range(2):
            await stream.write(data)
            assert await stream.read() == data + b"!"
        await stream.done_writing()
        pending = channel.unary_unary("/t.T/Wait")(data, timeout=60)
        await app.entered.wait()
        assert len(data) <= admission.bytes < len(data) + 64 * KIB
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t.T/Echo")(3 * data, timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        app.release.set()
        assert await pending == data


async def test_long_messages_are_complete_in_both_directions() -> None:
    data = bytes(range(256)) * (64 * 4096)  # 64 MiB
    async with connected_pair(Limits(connect_time=10)) as (harness, upstream):
        wire = RpcRequest("/t.T/Echo", (data,))
        response = await upstream.exchange(wire, harness.endpoint, 60)
        assert join_parts(response.message) == data
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(harness.endpoint.authority, options) as channel:
            assert await channel.unary_unary("/t.T/Echo")(data, timeout=60) == data


def response_frames(number: int, data: bytes = b"hi") -> bytes:
    head = frame(frames.HEADERS, frames.END_HEADERS, number, headers.RESPONSE_HEADERS)
    return head + message(number, data, 0) + frame(frames.HEADERS, END, number, headers.OK_TRAILERS)


@asynccontextmanager
async def serve(
    script: Callable[[Peer, int], Awaitable[None]], settings: bytes = frames.settings([])
) -> AsyncIterator[tuple[H2Upstream, Endpoint]]:
    count = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        peer = Peer(reader, writer)
        await reader.readexactly(len(frames.PREFACE))
        peer.send(settings)
        await script(peer, count)

    upstream = H2Upstream(RPC_LIMITS)
    async with fake_backend(handle) as fake:
        yield upstream, fake.endpoint
        await upstream.close()


def is_request(received: ReceivedFrame) -> bool:
    return received[0] == frames.DATA and bool(received[1] & frames.END_STREAM)


WIRE = RpcRequest("/t.T/Echo", (b"x",))


@pytest.mark.parametrize(
    "rejection", [frames.reset(1, 7), frames.goaway(0, 0, "")], ids=["REFUSED_STREAM", "GOAWAY"]
)
async def test_an_unprocessed_request_is_retried(rejection: bytes) -> None:
    async def script(peer: Peer, number: int) -> None:
        received = await peer.until(is_request)
        if number == 1 and received[2] == 1:
            peer.send(rejection)
            received = await peer.until(is_request)
        peer.send(response_frames(received[2]))
        await peer.read_to_end()

    async with serve(script) as (upstream, endpoint):
        response = await upstream.exchange(WIRE, endpoint, 10)
        assert join_parts(response.message) == b"hi"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(data)[:-8] + bytes(8)
        for data in (bytes(MIB), random.Random(0).randbytes(MIB // 5))
    ],
    ids=["short", "long"],
)
async def test_a_response_that_cannot_be_inflated_frees_its_memory(
    packed: bytes, *, is_stream: bool
) -> None:
    response_headers = headers.RESPONSE_HEADERS + header_blocks.encode_block(
        ("grpc-encoding", "gzip")
    )
    message = b"\1" + len(packed).to_bytes(4) + packed
    admission = Admission(RPC_LIMITS)
    account = RequestAccount(admission)
    account.admit(0)

    async def script(peer: Peer, number: int) -> None:
        stream = (await peer.until(is_request))[2]
        peer.send(frame(frames.HEADERS, frames.END_HEADERS, stream, response_headers))
        peer.send(frame(frames.DATA, 0, stream, message))
        peer.send(frame(frames.HEADERS, END, stream, headers.OK_TRAILERS))
        await peer.read_to_end()

    async with serve(script) as (upstream, endpoint):
        wire = RpcRequest("/t.T/Echo", (b"x",), memory=account)
        async with aclosing(upstream.stream(wire, endpoint, 10)) as responses:
            response = anext(responses) if is_stream else upstream.exchange(wire, endpoint, 10)
            with pytest.raises(GatewayError) as caught:
                await response
        assert caught.value.kind is Kind.BACKEND_GARBAGE
        assert admission.bytes == 0


async def test_a_request_refused_twice_is_a_connect_error() -> None:
    async def script(peer: Peer, number: int) -> None:
        while True:
            received = await peer.until(is_request)
            peer.send(frames.reset(received[2], 7))

    async with serve(script) as (upstream, endpoint):
        with raises_kind(Kind.CONNECT):
            await upstream.exchange(WIRE, endpoint, 10)


async def test_calls_wait_for_streams_of_a_limited_number_of_connections() -> None:
    connections = 0

    async def script(peer: Peer, number: int) -> None:
        nonlocal connections
        connections = number
        while True:
            received = await peer.until(is_request)
            await asyncio.sleep(0.01)
            peer.send(response_frames(received[2]))

    async with serve(script, frames.settings([(3, 1)])) as (upstream, endpoint):
        responses = await asyncio.gather(
            *(upstream.exchange(WIRE, endpoint, 20) for _ in range(40))
        )
        assert len(responses) == 40
        assert 1 < connections <= 8


async def test_waiting_for_a_stream_times_out() -> None:
    async def script(peer: Peer, number: int) -> None:
        await peer.read_to_end()

    async with serve(script, frames.settings([(3, 0)])) as (upstream, endpoint):
        with raises_kind(Kind.TIMEOUT):
            await upstream.exchange(WIRE, endpoint, 0.3)


async def test_a_silent_server_gets_no_further_requests() -> None:
    connections: list[int] = []

    async def script(peer: Peer, number: int) -> None:
        received = await peer.until(is_request)
        connections.append(number)
        if len(connections) > 1:
            peer.send(response_frames(received[2]))
        await peer.read_to_end()

    async with serve(script) as (upstream, endpoint):
        seconds = 0.2
        while not connections:  # a request may time out before it arrives
            with raises_kind(Kind.TIMEOUT):
                await upstream.exchange(WIRE, endpoint, seconds)
            seconds *= 2
        assert (await upstream.exchange(WIRE, endpoint, 10)).code == 0
        first, second = connections
        assert first != second


async def test_a_late_status_is_a_timeout() -> None:
    async def script(peer: Peer, number: int) -> None:
        received = await peer.until(is_request)
        await asyncio.sleep(0.197)
        block = headers.encode_trailers_only(200, 4, "Deadline Exceeded", {})
        peer.send(frame(frames.HEADERS, END, received[2], block))
        await peer.read_to_end()

    async with serve(script) as (upstream, endpoint):
        with raises_kind(Kind.TIMEOUT):
            await upstream.exchange(WIRE, endpoint, 0.2)


async def test_requests_larger_than_the_servers_windows_are_sent() -> None:
    received = bytearray()

    async def script(peer: Peer, number: int) -> None:
        while True:
            kind, flags, stream, payload = await peer.read_frame()
            if kind == frames.DATA:
                received.extend(payload)
                if flags & frames.END_STREAM:
                    peer.send(response_frames(stream))
                elif payload:
                    peer.send(frames.window_update(stream, len(payload)))
                    peer.send(frames.window_update(0, len(payload)))

    async with serve(script, frames.settings([(4, 1000)])) as (upstream, endpoint):
        wire = RpcRequest("/t.T/Echo", (b"a" * 3, memoryview(b"b" * 500_000)))
        assert (await upstream.exchange(wire, endpoint, 20)).code == 0
    assert bytes(received[5:]) == b"aaa" + b"b" * 500_000


async def test_concurrent_long_messages_are_complete() -> None:
    wire = RpcRequest("/t.T/Echo", (bytes(4_000_000),))
    limits = Limits(connect_time=10, idle_body_time=3600)
    async with asyncio.timeout(250), connected_pair(limits) as (harness, upstream):
        for _ in range(3):
            responses = await asyncio.gather(
                *(upstream.exchange(wire, harness.endpoint, 60) for _ in range(12))
            )
            assert all(len(join_parts(each.message)) == 4_000_000 for each in responses)
