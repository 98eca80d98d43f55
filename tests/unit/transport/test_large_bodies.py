"""The memory of long bodies, each of which is received into its own buffer."""

import asyncio
import weakref
from pathlib import Path

import pytest
from frame_kit import frame_harness
from transport_kit import Engine, HttpServe, fake_backend, read_request, responding

from infergate.core.limits import MIB, Limits
from infergate.core.wire import HttpRequest, join_parts
from infergate.transport.http1.client import H1Upstream
from waiting import until

LIMITS = Limits(body=64 * MIB, in_flight_bytes=600 * MIB, connect_time=10)
POST = HttpRequest("POST", "/x", body=(b"hello",))
LARGE = bytes(range(256)) * (5 * 4096)  # 5 MiB


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


async def test_announced_requests_use_little_memory(serve_http: HttpServe) -> None:
    """With huge pages, the first byte of a long body takes up to 2 MiB."""
    harness = await serve_http(LIMITS)
    before = resident_bytes()
    head = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\nx" % (64 * MIB)
    peers = [await harness.connect() for _ in range(8)]
    for peer in peers:
        await peer.send(head)
    await until(lambda: harness.admission.bytes == 512 * MIB)
    for peer in peers:
        await peer.send(b"y" * 1000)
    await harness.check_serving()
    assert resident_bytes() - before < 48 * MIB
    for peer in peers:
        await peer.close()
    await until(lambda: not harness.admission.bytes)


async def test_announced_frames_use_little_memory() -> None:
    async with frame_harness(LIMITS) as harness:
        before = resident_bytes()
        peers = [await harness.connect() for _ in range(8)]
        for peer in peers:
            await peer.send((64 * MIB).to_bytes(4, "little") + b"x")
        await until(lambda: harness.admission.bytes == 512 * MIB)
        assert resident_bytes() - before < 48 * MIB
        for peer in peers:
            await peer.close()
        await until(lambda: not harness.admission.bytes)


async def test_announced_responses_use_little_memory(engine: Engine) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nx" % (64 * MIB))
        await writer.drain()
        body_started.release()
        await reader.read()

    body_started = asyncio.Semaphore(0)
    upstream = engine.http_upstream(LIMITS)
    async with fake_backend(script) as fake:
        before = resident_bytes()
        exchanges = [
            asyncio.create_task(upstream.exchange(POST, fake.endpoint, 30)) for _ in range(8)
        ]
        for _ in exchanges:
            await body_started.acquire()
        assert resident_bytes() - before < 48 * MIB
        for each in exchanges:
            each.cancel()
        await asyncio.wait(exchanges)
    await upstream.close()


@pytest.mark.parametrize("excess", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"])
async def test_long_responses_are_read_without_excess_bytes(engine: Engine, excess: bytes) -> None:
    """Bytes after a response are not read as the response to the next request."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
            writer.write(head + LARGE[:70_000])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(LARGE[70_000:] + excess)

    upstream = engine.http_upstream(LIMITS)
    async with fake_backend(script) as fake:
        for _ in range(3):
            response = await upstream.exchange(POST, fake.endpoint, 30)
            assert bytes(join_parts(response.body)) == LARGE
        assert fake.connections == (3 if excess else 1)
    await upstream.close()


async def test_an_idle_connection_does_not_keep_its_last_response() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    upstream = H1Upstream(LIMITS)
    async with fake_backend(responding(head + LARGE, keep_open=True)) as fake:
        response = await upstream.exchange(POST, fake.endpoint, 30)
        (body,) = response.body
        memory = weakref.ref(body.obj)  # type: ignore[union-attr]
        del response, body
        await asyncio.sleep(0)
        assert memory() is None
        assert fake.closed == 0
    await upstream.close()
