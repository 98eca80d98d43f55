"""The transports that the option ``engine`` chooses between.

*Why late.* What an engine stands on is loaded when it is chosen: a library that serves nobody is
memory of every process.
"""

# ruff: noqa: PLC0415 - see the module

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from infergate.core.limits import Limits
from infergate.transport.base import (
    Address,
    HttpApp,
    HttpStreamUpstream,
    RpcApp,
    RpcUpstream,
    Server,
)
from infergate.transport.guard import Admission


class ServeHttp(Protocol):
    """Makes a listener of HTTP/1.1."""

    def __call__(
        self,
        address: Address,
        app: HttpApp,
        limits: Limits,
        admission: Admission,
        *,
        accept_both_lengths: bool = False,
    ) -> Server:
        """For ``app`` on ``address``."""
        ...


class Engine(NamedTuple):
    """``fixed`` are the limits that a listener of gRPC keeps as long as it listens.
    ``new_loop`` makes the event loop that it is at its best on; None: asyncio does."""

    serve_http: ServeHttp
    serve_grpc: Callable[[Address, RpcApp, Limits, Admission], Server]
    ask_http: Callable[[Limits], HttpStreamUpstream]
    ask_grpc: Callable[[Limits], RpcUpstream]
    fixed: tuple[str, ...]
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None


def _own() -> Engine:
    from infergate.transport.h1_client import H1Upstream
    from infergate.transport.h1_server import H1Server
    from infergate.transport.h2_client import H2Upstream
    from infergate.transport.h2_server import H2Server

    return Engine(H1Server, H2Server, H1Upstream, H2Upstream, (), _uvloops())


def _uvloops() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None
    return uvloop.new_event_loop


def _compat() -> Engine:
    from infergate.transport.grpc_client import GrpcUpstream
    from infergate.transport.grpc_server import FIXED, GrpcServer
    from infergate.transport.http_client import AiohttpUpstream
    from infergate.transport.http_server import AiohttpServer

    return Engine(AiohttpServer, GrpcServer, AiohttpUpstream, GrpcUpstream, FIXED, None)


_ENGINES: Final[Mapping[str, Callable[[], Engine]]] = {"own": _own, "compat": _compat}


def engine(name: str) -> Engine:
    """The one that the configuration names."""
    return _ENGINES[name]()
