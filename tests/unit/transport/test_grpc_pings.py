"""Clients that send PINGs, as tritonclient does with KeepAliveOptions, stay connected."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from transport_kit import GrpcHarness, fake_backend, until
from tritonclient.grpc import KeepAliveOptions
from tritonclient.grpc.aio import InferenceServerClient

ENOUGH = 4
"""By default, gRPC disconnects a client without open calls at its fourth ping."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"whatever"
_KIND_PING, _KIND_GOAWAY = 6, 7
_ACK = 1


@dataclasses.dataclass
class Seen:
    """Counts of the frames that a server sent to a client."""

    authority: str = ""
    connections: int = 0
    pongs: int = 0
    goaways: list[bytes] = dataclasses.field(default_factory=list)


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    """HTTP/2 frames, head and payload (RFC 9113, 4.1)."""
    while True:
        head = await reader.readexactly(9)
        yield head, await reader.readexactly(int.from_bytes(head[:3], "big"))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)


async def _watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen) -> None:
    async for head, payload in _frames(reader):
        seen.pongs += head[3] == _KIND_PING and bool(head[4] & _ACK)
        if head[3] == _KIND_GOAWAY:
            seen.goaways.append(payload)
        writer.write(head + payload)


@asynccontextmanager
async def watched(harness: GrpcHarness) -> AsyncIterator[Seen]:
    """A proxy in front of a server that records the server's frames."""
    seen = Seen()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        from_server, to_server = await asyncio.open_connection("127.0.0.1", harness.endpoint.port)
        try:
            await asyncio.gather(_pass_on(reader, to_server), _watch(from_server, writer, seen))
        finally:
            to_server.close()

    async with fake_backend(script) as fake:
        seen.authority = fake.endpoint.authority
        yield seen


async def test_an_idle_client_may_ping(grpc_harness: GrpcHarness) -> None:
    options = KeepAliveOptions(
        keepalive_time_ms=600,  # grpc sends no two pings within a second, whatever the options
        keepalive_timeout_ms=10_000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )
    async with (
        watched(grpc_harness) as seen,
        InferenceServerClient(seen.authority, keepalive_options=options) as client,
    ):
        await client.is_server_live()
        seen.pongs = 0
        await until(lambda: seen.pongs >= ENOUGH or bool(seen.goaways))
        await client.is_server_live()
    assert (seen.goaways, seen.connections) == ([], 1)
    assert len(grpc_harness.app.calls) == 2


async def test_a_ping_flood_closes_the_connection(grpc_harness: GrpcHarness) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", grpc_harness.endpoint.port)
    writer.write(_PREFACE + _SETTINGS + _PING * 10)
    async with asyncio.timeout(10):
        reasons = (payload async for head, payload in _frames(reader) if head[3] == _KIND_GOAWAY)
        assert (await anext(reasons)).endswith(b"too_many_pings")
    writer.close()
