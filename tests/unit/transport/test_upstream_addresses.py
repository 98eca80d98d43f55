"""Each address of a name has its own connections, which can be closed separately."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from transport_kit import RPC_LIMITS, FakeBackend, fake_backend, read_request

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


def limited_upstream(limits: Any) -> LimitedUpstream:
    return LimitedUpstream(HttpOrFrameUpstream(limits, H1Upstream), 4)


HTTP_UPSTREAMS = [AiohttpUpstream, H1Upstream, HttpOrFrameUpstream, limited_upstream]
GRPC_UPSTREAMS = [H2Upstream, GrpcioUpstream]


@asynccontextmanager
async def http_server() -> AsyncIterator[tuple[FakeBackend, list[str]]]:
    """Start a server that records the host of each request."""
    hosts: list[str] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            hosts.extend(re.findall(r"(?i)\nhost: (.*)\r", (await read_request(reader)).decode()))
            writer.write(OK)

    async with fake_backend(script) as fake:
        yield fake, hosts


@asynccontextmanager
async def grpc_server() -> AsyncIterator[tuple[FakeBackend, list[str]]]:
    """Start a server that records the authority of each request."""
    hosts: list[str] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        peer.initiate_connection()
        writer.write(peer.data_to_send())
        while data := await reader.read(65536):
            for event in peer.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    hosts.append(dict(event.headers)[":authority"])  # type: ignore[arg-type, call-overload]
                if isinstance(event, h2.events.StreamEnded):
                    fields = [(":status", "200"), ("content-type", "application/grpc")]
                    peer.send_headers(event.stream_id, fields)
                    peer.send_data(event.stream_id, b"\0\0\0\0\2ok")
                    peer.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
            writer.write(peer.data_to_send())

    async with fake_backend(script) as fake:
        yield fake, hosts


Server = Callable[[], Any]
UPSTREAMS = [(create, http_server) for create in HTTP_UPSTREAMS] + [
    (create, grpc_server) for create in GRPC_UPSTREAMS
]
all_upstreams = pytest.mark.parametrize(("create", "serve"), UPSTREAMS)


async def send_request(upstream: Any, endpoint: Endpoint, serve: Server) -> bytes:
    if serve is http_server:
        response = await upstream.exchange(HttpRequest("POST", "/", body=(b"x",)), endpoint, 10)
        return bytes(join_parts(response.body))
    response = await upstream.exchange(RpcRequest("/t.T/Echo", (b"x",)), endpoint, 10)
    return bytes(join_parts(response.message))


@all_upstreams
async def test_the_host_is_the_name_not_the_address(create: Any, serve: Server) -> None:
    async with serve() as (fake, hosts):
        upstream = create(RPC_LIMITS)
        backend = fake.endpoint._replace(host="pods.test", address="127.0.0.1")
        for _ in range(2):
            assert await send_request(upstream, backend, serve) == b"ok"
        assert hosts == [f"pods.test:{fake.endpoint.port}"] * 2
        assert fake.connections == 1
        assert str(backend) == f"127.0.0.1:{fake.endpoint.port}"
        await upstream.close()


@all_upstreams
async def test_disconnecting_an_endpoint_keeps_the_others(create: Any, serve: Server) -> None:
    async with serve() as (first, _), serve() as (second, _):
        upstream = create(RPC_LIMITS)
        assert isinstance(upstream, SupportsDisconnect)
        for each in (first, second, first, second):
            await send_request(upstream, each.endpoint, serve)
        assert [(each.connections, each.closed) for each in (first, second)] == [(1, 0)] * 2
        await upstream.disconnect(first.endpoint)
        await upstream.disconnect(Endpoint("127.0.0.1", 1))
        await until(lambda: first.closed == 1)
        await send_request(upstream, second.endpoint, serve)
        assert (second.connections, second.closed) == (1, 0)
        assert await send_request(upstream, first.endpoint, serve) == b"ok"
        assert first.connections == 2
        await upstream.close()


def test_an_ipv6_address_is_in_brackets() -> None:
    endpoint = Endpoint("pods.test", 8000, address="fe80::1")
    assert str(endpoint) == "[fe80::1]:8000"
    assert endpoint.authority == "pods.test:8000"
