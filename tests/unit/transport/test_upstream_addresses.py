"""Each address of a name has its own connections, which can be closed separately."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from transport_kit import RPC_LIMITS, fake_backend

from infergate.core.wire import HttpRequest, RpcRequest, join_parts
from infergate.transport.base import Endpoint, SupportsDisconnect
from infergate.transport.client.concurrency_limit import LimitedUpstream
from infergate.transport.compat.aiohttp_client import AiohttpUpstream
from infergate.transport.compat.grpcio_client import GrpcioUpstream
from infergate.transport.framed.client import HttpOrFrameUpstream
from infergate.transport.grpc.client import H2Upstream
from infergate.transport.http1.client import H1Upstream
from waiting import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def limited(limits: Any) -> LimitedUpstream:
    return LimitedUpstream(HttpOrFrameUpstream(limits, H1Upstream), 4)


HTTP_UPSTREAMS = [AiohttpUpstream, H1Upstream, HttpOrFrameUpstream, limited]
GRPC_UPSTREAMS = [H2Upstream, GrpcioUpstream]


@dataclass
class ServerLog:
    """The host of each request to a server, and the number of its connections."""

    endpoint: Endpoint = field(default_factory=Endpoint)
    hosts: list[str] = field(default_factory=list)
    open: int = 0
    total: int = 0


@asynccontextmanager
async def http_server() -> AsyncIterator[ServerLog]:
    log = ServerLog()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        log.open += 1
        log.total += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
                log.hosts.append({k.lower(): v for k, v in lines.items()}["host"])
                await reader.readexactly(1)
                writer.write(OK)
        except asyncio.IncompleteReadError:
            pass
        finally:
            log.open -= 1

    async with fake_backend(script) as fake:
        log.endpoint = fake.endpoint
        yield log


@asynccontextmanager
async def grpc_server() -> AsyncIterator[ServerLog]:
    log = ServerLog()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        log.open += 1
        log.total += 1
        peer = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        peer.initiate_connection()
        writer.write(peer.data_to_send())
        try:
            while data := await reader.read(65536):
                for event in peer.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        log.hosts.append(dict(event.headers)[":authority"])  # type: ignore[arg-type, call-overload]
                    if isinstance(event, h2.events.StreamEnded):
                        fields = [(":status", "200"), ("content-type", "application/grpc")]
                        peer.send_headers(event.stream_id, fields)
                        peer.send_data(event.stream_id, b"\0\0\0\0\2ok")
                        peer.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
                writer.write(peer.data_to_send())
        finally:
            log.open -= 1

    async with fake_backend(script) as fake:
        log.endpoint = fake.endpoint
        yield log


Server = Callable[[], Any]
ALL = [(make, http_server) for make in HTTP_UPSTREAMS] + [
    (make, grpc_server) for make in GRPC_UPSTREAMS
]
all_upstreams = pytest.mark.parametrize(("make", "serve"), ALL)


async def send_request(upstream: Any, endpoint: Endpoint, serve: Server) -> bytes:
    if serve is http_server:
        response = await upstream.exchange(HttpRequest("POST", "/", body=(b"x",)), endpoint, 10)
        return bytes(join_parts(response.body))
    response = await upstream.exchange(RpcRequest("/t.T/Echo", (b"x",)), endpoint, 10)
    return bytes(join_parts(response.message))


@all_upstreams
async def test_the_host_is_the_name_not_the_address(make: Any, serve: Server) -> None:
    async with serve() as log:
        upstream = make(RPC_LIMITS)
        named = log.endpoint._replace(host="pods.test", address="127.0.0.1")
        for _ in range(2):
            assert await send_request(upstream, named, serve) == b"ok"
        assert log.hosts == [f"pods.test:{log.endpoint.port}"] * 2
        assert log.total == 1
        assert str(named) == f"127.0.0.1:{log.endpoint.port}"
        await upstream.close()


@all_upstreams
async def test_disconnecting_an_endpoint_keeps_the_others(make: Any, serve: Server) -> None:
    async with serve() as one, serve() as other:
        upstream = make(RPC_LIMITS)
        assert isinstance(upstream, SupportsDisconnect)
        for each in (one, other, one, other):
            await send_request(upstream, each.endpoint, serve)
        assert (one.open, other.open) == (1, 1)
        await upstream.disconnect(one.endpoint)
        await upstream.disconnect(Endpoint("127.0.0.1", 1))
        await until(lambda: not one.open)
        await send_request(upstream, other.endpoint, serve)
        assert (other.open, other.total) == (1, 1)
        assert await send_request(upstream, one.endpoint, serve) == b"ok"
        assert one.total == 2
        await upstream.close()


def test_an_ipv6_address_is_in_brackets() -> None:
    endpoint = Endpoint("pods.test", 8000, address="fe80::1")
    assert str(endpoint) == "[fe80::1]:8000"
    assert endpoint.authority == "pods.test:8000"
