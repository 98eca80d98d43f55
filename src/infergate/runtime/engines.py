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

from infergate.core.certificates import ClientTls
from infergate.core.limits import Limits
from infergate.transport.base import (
    Address,
    Bind,
    HttpApp,
    HttpStreamUpstream,
    RpcApp,
    RpcUpstream,
    Server,
)
from infergate.transport.binding import bound
from infergate.transport.door import Door
from infergate.transport.guard import Admission


class ServeHttp(Protocol):
    """Creates an HTTP/1.1 server."""

    def __call__(  # noqa: PLR0913 - constructor parameters of a server
        self,
        address: Address,
        app: HttpApp,
        limits: Limits,
        admission: Admission,
        door: Door | None = None,
        *,
        accept_both_lengths: bool = False,
    ) -> Server:
        """Return a server for ``app`` on ``address``, behind ``gate``."""
        ...


class ServeGrpc(Protocol):
    """Creates a gRPC server."""

    def __call__(
        self,
        address: Address,
        app: RpcApp,
        limits: Limits,
        admission: Admission,
        door: Door | None = None,
    ) -> Server:
        """Return a server for ``app`` on ``address``, behind ``gate``."""
        ...


class AskHttp(Protocol):
    """Creates an HTTP client for backends."""

    def __call__(self, limits: Limits, tls: ClientTls | None = None) -> HttpStreamUpstream:
        """Return a client. Without ``tls``, it trusts the system's certificate authorities."""
        ...


class AskGrpc(Protocol):
    """Creates a gRPC client for backends."""

    def __call__(self, limits: Limits, tls: ClientTls | None = None) -> RpcUpstream:
        """Return a client. Without ``tls``, it trusts the system's certificate authorities."""
        ...


class Engine(NamedTuple):
    """The factories of one engine. ``bind_grpc`` binds an address so that several processes can
    listen on it. ``fixed_grpc_limits`` names the limits that a gRPC listener cannot change while it
    listens; ``can_change_grpc_tls`` tells whether it can change its TLS files and server names.
    ``make_loop`` creates the event loop that suits the engine; None: asyncio's default."""

    serve_http: ServeHttp
    serve_grpc: ServeGrpc
    ask_http: AskHttp
    ask_grpc: AskGrpc
    bind_grpc: Bind
    fixed: tuple[str, ...]
    changes_tls: bool
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None


def _own() -> Engine:
    from infergate.transport.h1_client import H1Upstream
    from infergate.transport.h1_server import H1Server
    from infergate.transport.h2_client import H2Upstream
    from infergate.transport.h2_server import H2Server

    return Engine(
        H1Server,
        H2Server,
        H1Upstream,
        H2Upstream,
        bound,
        (),
        changes_tls=True,
        new_loop=_uvloops(),
    )


def _uvloops() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not available on Windows
        return None
    return uvloop.new_event_loop


def _compat() -> Engine:
    from infergate.transport.grpc_client import GrpcUpstream
    from infergate.transport.grpc_server import FIXED, GrpcServer
    from infergate.transport.http_aiohttp_client import AiohttpUpstream
    from infergate.transport.http_server import AiohttpServer

    beside = functools.partial(bound, listen=False)
    return Engine(
        AiohttpServer,
        GrpcServer,
        AiohttpUpstream,
        GrpcUpstream,
        beside,
        FIXED,
        changes_tls=False,
        new_loop=None,
    )


_ENGINES: Final[Mapping[str, Callable[[], Engine]]] = {"own": _own, "compat": _compat}


def engine(name: str) -> Engine:
    """Return the engine that the configuration names."""
    return _ENGINES[name]()
