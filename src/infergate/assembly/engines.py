"""The transports that the option ``engine`` selects.

The modules of an engine are imported when the engine is selected, because an unused library would
take memory in every process."""

# ruff: noqa: PLC0415 - see the module's docstring

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import NamedTuple

from infergate.core.limits import Limits
from infergate.core.tls_settings import ClientTls
from infergate.transport.base import BindFunction, HttpStreamingUpstream, RpcUpstream, Server
from infergate.transport.net.bind import bind_sockets

MakeHttpServer = Callable[..., Server]
"""Creates an HTTP/1.1 server from the arguments of ``HttpAppListener``."""
MakeGrpcServer = Callable[..., Server]
"""Creates a gRPC server from an address, an RpcApp, Limits, Admission and a ConnectionGate."""
MakeHttpUpstream = Callable[[Limits, ClientTls | None], HttpStreamingUpstream]
MakeGrpcUpstream = Callable[[Limits, ClientTls | None], RpcUpstream]
"""Creates a client for backends. Without ``ClientTls``, the client trusts the system's certificate
authorities."""


class Engine(NamedTuple):
    """The factories of one engine. ``bind_grpc`` binds sockets on which several processes can
    listen. A listening gRPC server cannot change the limits named in ``fixed_grpc_limits``, and can
    change its TLS files and server names only if ``can_change_grpc_tls`` is set. ``make_loop``
    creates the engine's event loop; None means asyncio's default loop."""

    make_http_server: MakeHttpServer
    make_grpc_server: MakeGrpcServer
    make_http_upstream: MakeHttpUpstream
    make_grpc_upstream: MakeGrpcUpstream
    bind_grpc: BindFunction
    fixed_grpc_limits: tuple[str, ...]
    can_change_grpc_tls: bool
    make_loop: Callable[[], asyncio.AbstractEventLoop] | None


def _own_engine() -> Engine:
    from infergate.transport.grpc.client import H2Upstream
    from infergate.transport.grpc.server import H2Server
    from infergate.transport.http1.client import H1Upstream
    from infergate.transport.http1.server import H1Server

    return Engine(
        H1Server,
        H2Server,
        H1Upstream,
        H2Upstream,
        bind_sockets,
        (),
        can_change_grpc_tls=True,
        make_loop=_uvloop_factory(),
    )


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # Windows has no uvloop
        return None
    return uvloop.new_event_loop


def _compat_engine() -> Engine:
    from infergate.transport.compat.aiohttp_client import AiohttpUpstream
    from infergate.transport.compat.aiohttp_server import AiohttpServer
    from infergate.transport.compat.grpcio_client import GrpcioUpstream
    from infergate.transport.compat.grpcio_server import FIXED_LIMITS, GrpcioServer

    return Engine(
        AiohttpServer,
        GrpcioServer,
        AiohttpUpstream,
        GrpcioUpstream,
        functools.partial(bind_sockets, listen=False),
        FIXED_LIMITS,
        can_change_grpc_tls=False,
        make_loop=None,
    )


def load_engine(name: str) -> Engine:
    """Return the engine called ``own`` or ``compat``."""
    return _compat_engine() if name == "compat" else _own_engine()
