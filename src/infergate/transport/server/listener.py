"""The base class of all listeners on asyncio sockets: it binds, tracks connections and drains. When
a listener stops, it closes idle connections, and each busy connection closes itself after its
response."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from infergate.core.limits import Limits
from infergate.core.request_context import RequestContext
from infergate.transport.base import (
    Address,
    BindFunction,
    BoundSockets,
    Cancellable,
    HttpApp,
    RelayApp,
)
from infergate.transport.net.bind import BACKLOG, bind_sockets
from infergate.transport.server.accept import Acceptor
from infergate.transport.server.admission import Admission, shutting_down
from infergate.transport.server.connection import AcceptedConnection
from infergate.transport.server.connection_gate import ConnectionGate
from infergate.transport.server.tls_transport import TlsBuffers, TlsTransport

_CLEANUP_SECONDS: Final = 1.0
"""Time in seconds for cancelled requests to clean up and for clients to read the last responses."""

AppT = TypeVar("AppT")
RelayFunction = Callable[[Any, RequestContext, Any], Cancellable | None]


def _relay_of(app: object) -> RelayFunction | None:
    return app.relay if isinstance(app, RelayApp) else None


class SocketListener(Generic[AppT]):
    """A ``Server`` on TCP or on a Unix socket, which serves ``app``. Without ``gate``, it admits
    all connections and does not use TLS."""

    def __init__(
        self,
        address: Address,
        app: AppT,
        limits: Limits,
        admission: Admission,
        gate: ConnectionGate | None = None,
    ) -> None:
        self._requested_address = address
        self.address = address  # after ``bind``, the bound address
        self.app = app
        self.relay: RelayFunction | None = _relay_of(app)
        """The application's ``relay``, or None."""
        self.gate: Final = gate or ConnectionGate()
        self._create_protocol: Callable[[], asyncio.BaseProtocol] = self._create_connection
        if self.gate.certificates is not None:
            buffers = TlsBuffers()
            self._create_protocol = lambda: TlsTransport(self, self._create_connection(), buffers)
        self.limits = limits
        self.admission = admission
        self.is_stopping = False
        self.loop: asyncio.AbstractEventLoop
        self._bound_sockets: BoundSockets | None = None
        self._servers: list[asyncio.Server] = []
        self._acceptor: Acceptor | None = None
        self._connections: set[AcceptedConnection] = set()
        self._all_closed: Final = asyncio.Event()
        self._all_closed.set()

    def _create_connection(self) -> asyncio.BaseProtocol:
        raise NotImplementedError

    @property
    def sockets(self) -> Sequence[socket.socket]:
        return () if self._bound_sockets is None else self._bound_sockets.sockets

    async def bind(
        self, bind: BindFunction | None = None, closing: Sequence[socket.socket] = ()
    ) -> None:
        address = self._requested_address
        bound = await (bind(address) if bind else bind_sockets(address, closing=closing))
        self._bound_sockets = bound
        self.address = replace(address, port=bound.port)

    async def start(self) -> None:
        """Accept connections on every socket."""
        self.loop = asyncio.get_running_loop()
        if self._bound_sockets is None:
            await self.bind()
        assert self._bound_sockets is not None
        if (loads := self._bound_sockets.worker_loads) is not None:
            self._acceptor = Acceptor(
                self._bound_sockets.sockets,
                loads,
                self._create_protocol,
                lambda: len(self._connections),
            )
            return
        is_unix = bool(self._requested_address.unix)
        create = self.loop.create_unix_server if is_unix else self.loop.create_server
        for sock in self._bound_sockets.sockets:
            self._servers.append(await create(self._create_protocol, sock=sock, backlog=BACKLOG))

    def set_app(self, app: AppT, limits: Limits) -> None:
        self.app = app
        self.relay = _relay_of(app)
        self.limits = limits
        self.admission.apply_limits(limits)

    def active_requests(self) -> Iterator[asyncio.Future[None]]:
        for connection in self._connections:
            yield from connection.active_requests()

    def stop_accepting(self) -> None:
        listeners, self._servers = self._servers, []
        for server in listeners:
            server.close()
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        if self._bound_sockets is not None:
            self._bound_sockets.close()
            self._bound_sockets = None

    async def stop(self, grace: float) -> None:
        """Let requests finish for up to ``grace`` seconds, then end them with an error."""
        self.stop_accepting()
        self.is_stopping = True
        for connection in tuple(self._connections):
            connection.close_when_idle()
        if not await self._wait_all_closed(grace):
            for connection in tuple(self._connections):
                connection.cancel_with(shutting_down())
        if not await self._wait_all_closed(_CLEANUP_SECONDS):
            for connection in tuple(self._connections):
                connection.abort()
            await self._wait_all_closed(_CLEANUP_SECONDS)

    async def _wait_all_closed(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all_closed.wait(), seconds)
        return self._all_closed.is_set()

    # ---- called by connections

    def register(self, connection: AcceptedConnection, peer: str) -> bool:
        # A connection may be accepted at the moment when the listener closes.
        if self.is_stopping or not self.gate.admit(peer):
            return False
        self._connections.add(connection)
        self._all_closed.clear()
        return True

    def unregister(self, connection: AcceptedConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self.gate.release()
        if not self._connections:
            self._all_closed.set()
        if self._acceptor is not None:
            self._acceptor.update_load()


class HttpAppListener(SocketListener[HttpApp]):
    """A listener that serves an ``HttpApp``. With ``accept_both_lengths``, the first request of a
    connection may have both Content-Length and Transfer-Encoding
    (docs/decisions/0009-content-length-with-chunked.md)."""

    def __init__(  # noqa: PLR0913 - the parameters of every HTTP listener
        self,
        address: Address,
        app: HttpApp,
        limits: Limits,
        admission: Admission,
        gate: ConnectionGate | None = None,
        *,
        accept_both_lengths: bool = False,
    ) -> None:
        super().__init__(address, app, limits, admission, gate)
        self._accept_both_lengths: Final = accept_both_lengths
