"""The transports that the option ``engine`` chooses between.

*Why late.* What an engine stands on is loaded when it is chosen: a library that serves nobody is
memory of every process.
"""

# ruff: noqa: PLC0415 - see the module

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
    """Makes a listener of HTTP/1.1."""

    def __call__(  # noqa: PLR0913 - what every listener is made of, and what is HTTP's own
        self,
        address: Address,
        app: HttpApp,
        limits: Limits,
        admission: Admission,
        door: Door | None = None,
        *,
        accept_both_lengths: bool = False,
    ) -> Server:
        """For ``app`` on ``address``, behind ``door``."""
        ...


class ServeGrpc(Protocol):
    """Makes a listener of gRPC."""

    def __call__(
        self,
        address: Address,
        app: RpcApp,
        limits: Limits,
        admission: Admission,
        door: Door | None = None,
    ) -> Server:
        """For ``app`` on ``address``, behind ``door``."""
        ...


class AskHttp(Protocol):
    """Makes a client of backends over HTTP."""

    def __call__(self, limits: Limits, tls: ClientTls | None = None) -> HttpStreamUpstream:
        """``tls``: whom it trusts; None: whom the system does."""
        ...


class AskGrpc(Protocol):
    """Makes a client of backends over gRPC."""

    def __call__(self, limits: Limits, tls: ClientTls | None = None) -> RpcUpstream:
        """``tls``: whom it trusts; None: whom the system does."""
        ...


class Engine(NamedTuple):
    """``bind_grpc`` has what several processes need to listen at an address together. ``fixed`` are
    the limits that a listener of gRPC keeps as long as it listens. ``changes_tls``: whether one
    takes other files and names of TLS while it listens. ``new_loop`` makes the event loop that it
    is at its best on; None: asyncio does."""

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
    except ImportError:  # there is none for Windows
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
    """The one that the configuration names."""
    return _ENGINES[name]()
