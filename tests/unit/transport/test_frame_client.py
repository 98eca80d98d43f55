"""The frame client with this project's server and with misbehaving backends."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from frame_kit import frame_harness, framed
from transport_kit import LIMITS, FakeBackend, HttpHarness, Script, fake_backend

from gateway_errors import raises_kind
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import Limits
from infergate.core.wire import HttpRequest, join_parts
from infergate.transport.base import Endpoint
from infergate.transport.framed.client import FrameUpstream, HttpOrFrameUpstream
from waiting import until

POST = HttpRequest("POST", "/", body=[b"he", memoryview(b"llo")])


@pytest.fixture
async def upstream() -> AsyncIterator[FrameUpstream]:
    upstream = FrameUpstream(LIMITS)
    yield upstream
    await upstream.close()


async def failure(upstream: FrameUpstream, endpoint: Endpoint, timeout: float = 5) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await upstream.exchange(POST, endpoint, timeout)
    return caught.value


def framed_endpoint(fake: FakeBackend) -> Endpoint:
    return Endpoint(fake.endpoint.host, fake.endpoint.port, framed=True)


def responding_with(response: bytes, *, keep_open: bool = False) -> Script:
    """Return a script that reads a frame, sends ``response``, and closes unless ``keep_open``."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack("<I", await reader.readexactly(4))
        await reader.readexactly(length)
        writer.write(response)
        await writer.drain()
        if keep_open:
            await reader.read()

    return script


async def test_sequential_exchanges_share_a_connection(upstream: FrameUpstream) -> None:
    async with frame_harness(LIMITS) as harness:
        for _ in range(3):
            response = await upstream.exchange(POST, harness.endpoint, 5)
            assert (response.status, join_parts(response.body)) == (200, b"POST hello")
        assert len(harness.server._connections) == 1
        await asyncio.gather(*(upstream.exchange(POST, harness.endpoint, 5) for _ in range(20)))
        assert len(harness.server._connections) > 1


async def test_an_exchange_over_a_unix_socket(upstream: FrameUpstream, tmp_path: Path) -> None:
    async with frame_harness(LIMITS, tmp_path / "raw.sock") as harness:
        response = await upstream.exchange(POST, harness.endpoint, 5)
        assert join_parts(response.body) == b"POST hello"
        assert harness.app.calls[0].peer == "unix"


async def test_methods_other_than_post_are_unsupported(upstream: FrameUpstream) -> None:
    with raises_kind(Kind.UNSUPPORTED):
        await upstream.exchange(HttpRequest("GET", "/"), Endpoint("127.0.0.1", 1), 5)


@pytest.mark.parametrize("transport", ["tcp", "unix"])
async def test_a_socket_without_a_listener_is_a_connect_error(
    upstream: FrameUpstream, tmp_path: Path, unused_tcp_port: int, transport: str
) -> None:
    endpoint = Endpoint("127.0.0.1", unused_tcp_port, framed=True)
    if transport == "unix":
        endpoint = Endpoint(unix=str(tmp_path / "none.sock"), framed=True)
    error = await failure(upstream, endpoint)
    assert (error.kind, error.origin) == (Kind.CONNECT, Origin.BACKEND)
    assert str(endpoint) in error.detail
    assert str(endpoint) not in error.public


@pytest.mark.parametrize(
    ("response", "public"),
    [
        (b"", "the backend closed the connection before it responded"),
        (b"\4", "the backend's response is incomplete"),
        (b"\4\0\0\0", "the backend's response is incomplete"),
        (b"\4\0\0\0abc", "the backend's response is incomplete"),
        (framed(b""), "the backend's response is an empty frame"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the backend speaks HTTP, not frames"),
    ],
)
async def test_malformed_frames_fail(upstream: FrameUpstream, response: bytes, public: str) -> None:
    async with fake_backend(responding_with(response)) as fake:
        error = await failure(upstream, framed_endpoint(fake))
        assert (error.kind, error.public) == (Kind.BACKEND_GARBAGE, public)
        assert fake.connections == 1  # the request is not retried


async def test_a_response_over_the_limit_is_refused(upstream: FrameUpstream) -> None:
    async with fake_backend(responding_with(struct.pack("<I", 1001), keep_open=True)) as fake:
        error = await failure(upstream, framed_endpoint(fake))
        assert (error.kind, error.origin) == (Kind.TOO_LARGE, Origin.BACKEND)


@pytest.mark.parametrize("body", [b"a" * 1000, b"a"])
async def test_bytes_after_a_response_end_the_connection(
    upstream: FrameUpstream, body: bytes
) -> None:
    async with fake_backend(responding_with(framed(body) + b"!", keep_open=True)) as fake:
        for _ in range(2):
            response = await upstream.exchange(POST, framed_endpoint(fake), 5)
            assert join_parts(response.body) == body
        assert fake.connections == 2


async def test_bytes_after_a_long_response_end_the_connection() -> None:
    """The bytes are detected with the response, although the response fills its own buffer."""
    body = b"a" * 500_000
    upstream = FrameUpstream(Limits())
    async with fake_backend(
        responding_with(framed(body) + b"\4\0\0\0evil", keep_open=True)
    ) as fake:
        for _ in range(3):
            response = await upstream.exchange(POST, framed_endpoint(fake), 5)
            assert join_parts(response.body) == body
    await upstream.close()


async def test_a_silent_backend_is_a_timeout(upstream: FrameUpstream) -> None:
    async with fake_backend(responding_with(b"", keep_open=True)) as fake:
        error = await failure(upstream, framed_endpoint(fake), 0.1)
        assert error.kind is Kind.TIMEOUT
        await until(lambda: fake.closed == 1)


async def test_cancelling_closes_the_connection(upstream: FrameUpstream) -> None:
    async with frame_harness(LIMITS) as harness:
        wait = HttpRequest("POST", "/", body=[b"wait"])
        task = asyncio.create_task(upstream.exchange(wait, harness.endpoint, 5))
        await harness.app.entered.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(harness.app.cancelled.wait(), 5)


async def test_the_endpoint_selects_http_or_frames(harness: HttpHarness) -> None:
    upstream = HttpOrFrameUpstream(LIMITS)
    async with frame_harness(LIMITS) as frame_server:
        for endpoint in (harness.endpoint, frame_server.endpoint):
            response = await upstream.exchange(POST, endpoint, 5)
            assert join_parts(response.body) == b"POST hello"
    await upstream.close()


async def test_unsolicited_bytes_end_the_connection(upstream: FrameUpstream) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(9)
        writer.write(framed(b"response"))
        await writer.drain()
        await proceed.wait()
        writer.write(framed(b"unsolicited"))
        assert await reader.read() == b""

    proceed = asyncio.Event()
    async with fake_backend(script) as fake:
        response = await upstream.exchange(POST, framed_endpoint(fake), 5)
        assert join_parts(response.body) == b"response"
        proceed.set()
        await until(lambda: fake.closed == 1)
