"""Long bodies are received into one buffer, which is not allocated before they arrive."""

import asyncio
import dataclasses
import weakref
from pathlib import Path

import pytest
from frame_kit import frame_harness
from transport_kit import Engine, HttpServe, fake_backend, read_request, until

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import MIB, Limits
from infergate.core.wire import HttpRequest, join_parts
from infergate.transport.http1.client import H1Upstream

LIMITS = Limits(body=64 * MIB, in_flight_bytes=600 * MIB)
POST = HttpRequest("POST", "/x", body=(b"hello",))
LARGE = bytes(range(256)) * (5 * 4096)  # 5 MiB


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


async def test_an_announced_request_allocates_nothing(serve_http: HttpServe) -> None:
    """With huge pages, the first byte of a long body may take up to 2 MiB, but no more."""
    harness = await serve_http(LIMITS)
    before = resident()
    head = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\nx" % (64 * MIB)
    peers = [await harness.connect() for _ in range(8)]
    for peer in peers:
        await peer.send(head)
    await until(lambda: harness.admission.bytes == 512 * MIB)
    for peer in peers:
        await peer.send(b"y" * 1000)
    await harness.good()
    assert resident() - before < 48 * MIB
    for peer in peers:
        await peer.close()
    await until(lambda: not harness.admission.bytes)


async def test_an_announced_frame_allocates_nothing() -> None:
    async with frame_harness(LIMITS) as harness:
        before = resident()
        peers = [await harness.connect() for _ in range(8)]
        for peer in peers:
            await peer.send((64 * MIB).to_bytes(4, "little") + b"x")
        await until(lambda: harness.admission.bytes == 512 * MIB)
        assert resident() - before < 48 * MIB
        for peer in peers:
            await peer.close()
        await until(lambda: not harness.admission.bytes)


async def test_an_announced_response_allocates_nothing(engine: Engine) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nx" % (64 * MIB))
        await writer.drain()
        begun.release()
        await reader.read()

    begun = asyncio.Semaphore(0)
    upstream = engine.http_upstream(LIMITS)
    async with fake_backend(script) as fake:
        before = resident()
        exchanges = [
            asyncio.create_task(upstream.exchange(POST, fake.endpoint, 30)) for _ in range(8)
        ]
        for _ in exchanges:
            await begun.acquire()
        assert resident() - before < 48 * MIB
        for each in exchanges:
            each.cancel()
        await asyncio.wait(exchanges)
    await upstream.close()


@pytest.mark.parametrize("behind", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"])
async def test_a_long_response(engine: Engine, behind: bytes) -> None:
    """Bytes after a response are never taken for the response to the next request."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
            writer.write(head + LARGE[:70_000])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(LARGE[70_000:] + behind)

    upstream = engine.http_upstream(LIMITS)
    async with fake_backend(script) as fake:
        for _ in range(3):
            answer = await upstream.exchange(POST, fake.endpoint, 30)
            assert bytes(join_parts(answer.body)) == LARGE
        assert fake.connections == (3 if behind else 1)
    await upstream.close()


async def test_an_idle_connection_holds_no_response() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE) + LARGE)
        await reader.read()

    upstream = H1Upstream(LIMITS)
    async with fake_backend(script) as fake:
        answer = await upstream.exchange(POST, fake.endpoint, 30)
        (body,) = answer.body
        memory = weakref.ref(body.obj)  # type: ignore[union-attr]
        del answer, body
        await asyncio.sleep(0)  # known in the same iteration of the loop
        is_gone = memory() is None
        assert is_gone
        assert fake.closed == 0
    await upstream.close()


async def test_a_truncated_response(engine: Engine) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE) + LARGE[:-1])
        await writer.drain()

    upstream = engine.http_upstream(dataclasses.replace(LIMITS, connect_time=5))
    async with fake_backend(script) as fake:
        with pytest.raises(GatewayError) as caught:
            await upstream.exchange(POST, fake.endpoint, 30)
    assert caught.value.kind is Kind.BACKEND_GARBAGE
    await upstream.close()
