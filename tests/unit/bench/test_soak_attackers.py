"""The outcomes of a soak's client that does not read its response."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from bench import soak_attackers
from bench.soak_attackers import Attack
from bench.soak_faults import Target

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
UNREAD = Attack("http", lambda: REQUEST, frozenset(), reads=False)


@asynccontextmanager
async def serving(length: int, closes_after: float) -> AsyncIterator[Target]:
    """Run a server that sends ``length`` bytes, and disconnects after ``closes_after`` seconds."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(REQUEST))
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n"
        writer.write(head.encode() + bytes(length))
        asyncio.get_running_loop().call_later(closes_after, writer.transport.abort)

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        yield Target(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_attackers, "_UNREAD", 0.0)


async def test_the_client_waits_until_a_late_server_disconnects_it() -> None:
    async with serving(32 << 20, closes_after=1.0) as target:
        assert await UNREAD.outcomes(target) == {"cut off"}


async def test_a_disconnect_after_the_limit_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_attackers, "_PATIENCE", 0.5)
    async with serving(32 << 20, closes_after=2.0) as target:
        assert await UNREAD.outcomes(target) == {"late"}


async def test_a_response_that_fits_into_buffers_is_complete() -> None:
    async with serving(10, closes_after=0.2) as target:
        assert await UNREAD.outcomes(target) == {"200"}
