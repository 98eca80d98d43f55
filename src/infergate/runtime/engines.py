"""The transports that the option ``engine`` selects.

The modules of an engine are imported when it is selected, because an unused library costs every
process memory.
"""

# ruff: noqa: PLC0415 - see the module's docstring

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from infergate.core.limits import Limits
from infergate.core.tls_settings import ClientTls
from infergate.transport.base import (
    Address,
    BindFunction,
    HttpApp,
    HttpStreamingUpstream,
    RpcApp,
    RpcUpstream,
    Server,
)
from infergate.transport.net.bind import bind_sockets
from infergate.transport.server.admission import Admission
from infergate.transport.server.connection_gate import ConnectionGate


class MakeHttpServer(Protocol):
    """Creates an HTTP/1.1 server."""

    def __call__(  # noqa: PLR0913 - constructor parameters of a server
        self,
        address: Address,
        app: HttpApp,
        limits: Limits,
        admission: Admission,
        gate: ConnectionGate | None = None,
        *,
        accept_both_lengths: bool = False,
    ) -> Server:
        """Return a server for ``app`` on ``address``, behind ``gate``."""
        ...


class MakeGrpcServer(Protocol):
    """Creates a gRPC server."""

    def __call__(
        self,
        address: Address,
        app: RpcApp,
        limits: Limits,
        admission: Admission,
        gate: ConnectionGate | None = None,
    ) -> Server:
        """Return a server for ``app`` on ``address``, behind ``gate``."""
        ...


class MakeHttpUpstream(Protocol):
    """Creates an HTTP client for backends."""

    def __call__(self, limits: Limits, tls: ClientTls | None = None) -> HttpStreamingUpstream:
        """Return a client. Without ``tls``, it trusts the system's certificate authorities."""
        ...


class MakeGrpcUpstream(Protocol):
    """Creates a gRPC client for backends."""

    def __call__(self, limits: Limits, tls: ClientTls | None = None) -> RpcUpstream:
        """Return a client. Without ``tls``, it trusts the system's certificate authorities."""
        ...


class Engine(NamedTuple):
    """The factories of one engine. ``bind_grpc`` binds an address on which several processes can
    listen. A listening gRPC server cannot change ``fixed_grpc_limits``, and its TLS files and
    server names only with ``can_change_grpc_tls``. ``make_loop`` creates the engine's event
    loop; None: asyncio's default."""

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
    except ImportError:  # not available on Windows
        return None
    return uvloop.new_event_loop


def _compat_engine() -> Engine:
    from infergate.transport.compat.aiohttp_client import AiohttpUpstream
    from infergate.transport.compat.aiohttp_server import AiohttpServer
    from infergate.transport.compat.grpcio_client import GrpcioUpstream
    from infergate.transport.compat.grpcio_server import FIXED_LIMITS, GrpcioServer

    beside = functools.partial(bind_sockets, listen=False)
    return Engine(
        AiohttpServer,
        GrpcioServer,
        AiohttpUpstream,
        GrpcioUpstream,
        beside,
        FIXED_LIMITS,
        can_change_grpc_tls=False,
        make_loop=None,
    )


_ENGINES: Final[Mapping[str, Callable[[], Engine]]] = {"own": _own_engine, "compat": _compat_engine}


def load_engine(name: str) -> Engine:
    """Return the engine that the configuration names."""
    return _ENGINES[name]()
