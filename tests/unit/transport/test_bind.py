"""Listeners on sockets that were bound by another process."""

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


def listening(address: Address) -> socket.socket:
    made = socket.create_server((address.host, address.port))
    made.setblocking(False)
    return made


def beside(address: Address) -> socket.socket:
    """The sockets that grpcio binds in addition."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((address.host, address.port))
    return made


class Given:
    """A Bind that returns one socket, and checks when it is closed."""

    def __init__(self, made: socket.socket) -> None:
        self.made = made
        self.has_gone = False

    async def __call__(self, address: Address) -> BoundSockets:
        return BoundSockets((self.made,), self.let_go)

    def let_go(self) -> None:
        assert self.made.fileno() == -1, "closed before it is released"
        self.has_gone = True


async def test_http_on_an_inherited_socket(engine: Engine) -> None:
    given = Given(listening(LOCAL))
    where = given.made.getsockname()
    server = engine.http(LOCAL, HttpEcho(), LIMITS, Admission(LIMITS))
    await server.bind(given)
    assert (server.address.host, server.address.port) == where
    reader, writer = await asyncio.open_connection(*where)  # waits for an accept
    peer = Peer(reader, writer)
    await server.start()
    await peer.send(REQUEST)
    assert (await peer.answer()).status == 200
    await peer.close()
    assert not given.has_gone
    await server.stop(0)
    assert given.has_gone
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where)


async def test_grpc_on_an_inherited_socket(engine: Engine) -> None:
    given = Given((beside if engine.name == "compat" else listening)(LOCAL))
    server = engine.server(LOCAL, RpcEcho(), RPC_LIMITS, Admission(RPC_LIMITS))
    await server.bind(given)
    assert server.address.port == given.made.getsockname()[1]
    await server.start()
    async with grpc.aio.insecure_channel(str(server.address)) as channel:
        assert await channel.unary_unary("/any.Service/Echo")(b"hi")
    await server.stop(0)
    assert given.has_gone


async def test_an_address_is_bound_before_accepting(engine: Engine) -> None:
    server = engine.http(LOCAL, HttpEcho(), LIMITS, Admission(LIMITS))
    await server.bind()
    with pytest.raises(OSError, match="in use"):
        await bind_sockets(server.address)
    await server.stop(0)
    again = await bind_sockets(server.address)
    again.close()


async def test_all_addresses_of_a_name_have_one_port() -> None:
    made = await bind_sockets(Address("localhost", 0))
    try:
        assert {each.getsockname()[1] for each in made.sockets} == {made.port}
    finally:
        made.close()


async def test_processes_share_a_port_only_intentionally() -> None:
    kept = await bind_sockets(LOCAL, listen=False)
    address = Address(LOCAL.host, kept.port)

    async def beside(_: Address) -> BoundSockets:
        return BoundSockets(tuple(each.dup() for each in kept.sockets))

    sharing = [GrpcioServer(LOCAL, RpcEcho(), RPC_LIMITS, Admission(RPC_LIMITS)) for _ in range(2)]
    try:
        for moment in ("nobody listens", "all listen"):
            for listen in (True, False):
                with pytest.raises(OSError, match="in use"):
                    await bind_sockets(address, listen=listen)
            if moment == "nobody listens":
                for each in sharing:
                    await each.bind(beside)
                    await each.start()
        assert {each.address for each in sharing} == {address}
        async with grpc.aio.insecure_channel(str(address)) as channel:
            assert await channel.unary_unary("/any.Service/Echo")(b"hi")
    finally:
        for each in sharing:
            await each.stop(0)
        kept.close()
    (await bind_sockets(address)).close()
