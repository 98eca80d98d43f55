"""Binding of sockets, and listeners on sockets that another process has bound."""

import asyncio
import socket

import grpc
import grpc.aio
import pytest
from transport_kit import LIMITS, LOCAL, RPC_LIMITS, Engine, HttpEcho, Peer, RpcEcho

from infergate.transport.base import Address, BoundSockets
from infergate.transport.compat.grpcio_server import GrpcioServer
from infergate.transport.net.bind import bind_sockets
from infergate.transport.server.admission import Admission

REQUEST = b"POST /any HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"


def listening_socket(address: Address) -> socket.socket:
    result = socket.create_server((address.host, address.port))
    result.setblocking(False)
    return result


def shared_socket(address: Address) -> socket.socket:
    """Bind a socket to a port that grpcio can share."""
    result = socket.socket()
    result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    result.bind((address.host, address.port))
    return result


class FakeBind:
    """A ``BindFunction`` that returns one socket and records its release."""

    def __init__(self, bound: socket.socket) -> None:
        self.socket = bound
        self.is_released = False

    async def __call__(self, address: Address) -> BoundSockets:
        return BoundSockets((self.socket,), self.release)

    def release(self) -> None:
        assert self.socket.fileno() == -1, "the socket is closed before its release"
        self.is_released = True


async def test_http_is_served_on_a_bound_socket(engine: Engine) -> None:
    bind = FakeBind(listening_socket(LOCAL))
    address = bind.socket.getsockname()
    server = engine.http(LOCAL, HttpEcho(), LIMITS, Admission(LIMITS))
    await server.bind(bind)
    assert (server.address.host, server.address.port) == address
    reader, writer = await asyncio.open_connection(*address)  # the connection is not accepted yet
    peer = Peer(reader, writer)
    await server.start()
    assert (await peer.request(REQUEST)).status == 200
    await peer.close()
    assert not bind.is_released
    await server.stop(0)
    assert bind.is_released
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


async def test_grpc_is_served_on_a_bound_socket(engine: Engine) -> None:
    bind = FakeBind((shared_socket if engine.name == "compat" else listening_socket)(LOCAL))
    server = engine.server(LOCAL, RpcEcho(), RPC_LIMITS, Admission(RPC_LIMITS))
    await server.bind(bind)
    assert server.address.port == bind.socket.getsockname()[1]
    await server.start()
    async with grpc.aio.insecure_channel(str(server.address)) as channel:
        assert await channel.unary_unary("/any.Service/Echo")(b"hi")
    await server.stop(0)
    assert bind.is_released


async def test_a_bound_address_is_in_use_before_the_start(engine: Engine) -> None:
    server = engine.http(LOCAL, HttpEcho(), LIMITS, Admission(LIMITS))
    await server.bind()
    with pytest.raises(OSError, match="in use"):
        await bind_sockets(server.address)
    await server.stop(0)
    rebound = await bind_sockets(server.address)
    rebound.close()


async def test_all_addresses_of_a_name_have_one_port() -> None:
    bound = await bind_sockets(Address("localhost", 0))
    try:
        assert {each.getsockname()[1] for each in bound.sockets} == {bound.port}
    finally:
        bound.close()


async def test_a_port_shared_by_processes_cannot_be_bound_by_others() -> None:
    reserved = await bind_sockets(LOCAL, listen=False)
    address = Address(LOCAL.host, reserved.port)

    async def share(_: Address) -> BoundSockets:
        return BoundSockets(tuple(each.dup() for each in reserved.sockets))

    servers = [GrpcioServer(LOCAL, RpcEcho(), RPC_LIMITS, Admission(RPC_LIMITS)) for _ in range(2)]
    try:
        for is_started in (False, True):
            for listen in (True, False):
                with pytest.raises(OSError, match="in use"):
                    await bind_sockets(address, listen=listen)
            if not is_started:
                for each in servers:
                    await each.bind(share)
                    await each.start()
        assert {each.address for each in servers} == {address}
        async with grpc.aio.insecure_channel(str(address)) as channel:
            assert await channel.unary_unary("/any.Service/Echo")(b"hi")
    finally:
        for each in servers:
            await each.stop(0)
        reserved.close()
    (await bind_sockets(address)).close()
