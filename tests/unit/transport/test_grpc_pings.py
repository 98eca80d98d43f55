"""PINGs of clients: KeepAliveOptions of tritonclient are accepted; a flood ends the connection."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from transport_kit import GrpcHarness, fake_backend
from tritonclient.grpc import KeepAliveOptions
from tritonclient.grpc.aio import InferenceServerClient

from infergate.transport.http2.frames import ACK, GOAWAY, PING, PREFACE, frame, settings
from waiting import until

# By default, gRPC disconnects a client without open calls at its fourth ping.
DISCONNECTING_PINGS = 4

_PING = frame(PING, 0, 0, b"whatever")


@dataclasses.dataclass
class ServerFrames:
    """The PING acknowledgements and GOAWAY frames that a proxy relayed."""

    authority: str = ""
    connections: int = 0
    pongs: int = 0
    goaways: list[bytes] = dataclasses.field(default_factory=list)


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield the head and the payload of each HTTP/2 frame (RFC 9113, 4.1)."""
    while True:
        head = await reader.readexactly(9)
        yield head, await reader.readexactly(int.from_bytes(head[:3], "big"))


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)


async def _relay_frames(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, relayed: ServerFrames
) -> None:
    async for head, payload in _frames(reader):
        relayed.pongs += head[3] == PING and bool(head[4] & ACK)
        if head[3] == GOAWAY:
            relayed.goaways.append(payload)
        writer.write(head + payload)


@asynccontextmanager
async def recording_proxy(harness: GrpcHarness) -> AsyncIterator[ServerFrames]:
    """Run a proxy that records the frames of the server behind it."""
    relayed = ServerFrames()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relayed.connections += 1
        from_server, to_server = await asyncio.open_connection("127.0.0.1", harness.endpoint.port)
        try:
            await asyncio.gather(
                _relay(reader, to_server), _relay_frames(from_server, writer, relayed)
            )
        finally:
            to_server.close()

    async with fake_backend(script) as fake:
        relayed.authority = fake.endpoint.authority
        yield relayed


async def test_an_idle_client_may_ping(grpc_harness: GrpcHarness) -> None:
    options = KeepAliveOptions(
        keepalive_time_ms=600,  # grpc sends at most one ping per second
        keepalive_timeout_ms=10_000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )
    async with (
        recording_proxy(grpc_harness) as relayed,
        InferenceServerClient(relayed.authority, keepalive_options=options) as client,
    ):
        await client.is_server_live()
        relayed.pongs = 0
        await until(lambda: relayed.pongs >= DISCONNECTING_PINGS or bool(relayed.goaways))
        await client.is_server_live()
    assert (relayed.goaways, relayed.connections) == ([], 1)
    assert len(grpc_harness.app.calls) == 2


async def test_a_flood_of_pings_ends_the_connection(grpc_harness: GrpcHarness) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", grpc_harness.endpoint.port)
    writer.write(PREFACE + settings([]) + _PING * 10)
    async with asyncio.timeout(10):
        reasons = (payload async for head, payload in _frames(reader) if head[3] == GOAWAY)
        assert (await anext(reasons)).endswith(b"too_many_pings")
    writer.close()
