"""The base of all listeners on asyncio sockets: bind, track connections, drain.

A listener that stops accepts no new connections, closes the idle ones, and lets each of the others
close itself after its response.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from infergate.core.limits import Limits
from infergate.transport.accepting import Acceptor
from infergate.transport.base import Address, Bind, Bound, HttpApp
from infergate.transport.binding import BACKLOG, bound
from infergate.transport.door import Door
from infergate.transport.guard import Admission, shutting_down
from infergate.transport.hosting import Accepted
from infergate.transport.secured import Scratches, Secured

_LAST_WORDS: Final = 1.0
"""Seconds that clients get to read how their requests ended, and cancelled requests to clean up."""


class Sockets:
    """A ``Server`` on TCP or on a Unix socket.

    ``create_protocol`` returns the asyncio protocol of one connection. ``gate`` decides which
    connections are admitted; None admits all, without TLS.
    """

    def __init__(
        self,
        address: Address,
        limits: Limits,
        admission: Admission,
        accept: Callable[[], asyncio.BaseProtocol],
        door: Door | None = None,
    ) -> None:
        self._wanted = address
        self._address = address
        self.door: Final = door or Door()
        self._accept: Final = self._secured(accept)
        self.limits = limits
        self.admission = admission
        self.stopping = False
        self.loop: asyncio.AbstractEventLoop
        self._bound: Bound | None = None
        self._listeners: list[asyncio.Server] = []
        self._acceptor: Acceptor | None = None
        self._connections: set[Accepted] = set()
        self._empty: Final = asyncio.Event()
        self._empty.set()

    def _secured(
        self, accept: Callable[[], asyncio.BaseProtocol]
    ) -> Callable[[], asyncio.BaseProtocol]:
        """Wrap the protocols of ``create_protocol`` in TLS if the gate has certificates."""
        if self.door.certificates is None:
            return accept
        scratches = Scratches()
        return lambda: Secured(self, accept(), scratches)

    @property
    def address(self) -> Address:
        """The address that was actually bound."""
        return self._address

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The listening sockets currently open."""
        return () if self._bound is None else self._bound.sockets

    async def bind(self, bind: Bind | None = None, beside: Sequence[socket.socket] = ()) -> None:
        """Open the listening sockets, with ``bind`` if given, but do not accept yet."""
        self._bound = await (bind(self._wanted) if bind else bound(self._wanted, beside=beside))
        self._address = replace(self._wanted, port=self._bound.port)

    async def start(self) -> None:
        """Start accepting on every socket."""
        self.loop = asyncio.get_running_loop()
        if self._bound is None:
            await self.bind()
        assert self._bound is not None
        if (loads := self._bound.loads) is not None:
            self._acceptor = Acceptor(
                self._bound.sockets, loads, self._accept, lambda: len(self._connections)
            )
            return
        create = self.loop.create_unix_server if self._wanted.unix else self.loop.create_server
        for sock in self._bound.sockets:
            self._listeners.append(await create(self._accept, sock=sock, backlog=BACKLOG))

    def keep(self, limits: Limits) -> None:
        """Apply new limits from now on."""
        self.limits = limits
        self.admission.keep(limits)

    def calls(self) -> Iterator[asyncio.Task[None]]:
        """Return the tasks that are serving requests on all connections."""
        for connection in self._connections:
            yield from connection.calls()

    def leave(self) -> None:
        """Stop accepting and close the listening sockets; connections stay open."""
        listeners, self._listeners = self._listeners, []
        for server in listeners:
            server.close()
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    async def stop(self, grace: float) -> None:
        """Drain: let requests finish for ``grace`` seconds, then answer them with an error, then
        abort."""
        self.leave()
        self.stopping = True
        for connection in tuple(self._connections):
            connection.finish()
        if not await self._emptied(grace):
            for connection in tuple(self._connections):
                connection.give_up(shutting_down())
        if not await self._emptied(_LAST_WORDS):
            for connection in tuple(self._connections):
                connection.abort()
            await self._emptied(_LAST_WORDS)

    async def _emptied(self, seconds: float) -> bool:
        if self._empty.is_set():
            return True
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # ---- called by connections

    def opened(self, connection: Accepted, peer: str) -> bool:
        """Register a new connection; return False if it is refused and must be aborted."""
        # A connection may be accepted at the moment at which the listener closes.
        if self.stopping or not self.door.enter(peer):
            return False
        self._connections.add(connection)
        self._empty.clear()
        return True

    def closed(self, connection: Accepted) -> None:
        """Forget a connection whose socket is closed and whose task has ended."""
        if connection in self._connections:
            self._connections.remove(connection)
            self.door.leave()
        if not self._connections:
            self._empty.set()
        if self._acceptor is not None:
            self._acceptor.changed()


class Listener(Sockets):
    """A listener that serves an ``HttpApp``."""

    def __init__(  # noqa: PLR0913, PLR0917 - the arguments of SocketListener and the app
        self,
        address: Address,
        app: HttpApp,
        limits: Limits,
        admission: Admission,
        accept: Callable[[], asyncio.BaseProtocol],
        door: Door | None = None,
    ) -> None:
        super().__init__(address, limits, admission, accept, door)
        self.app = app

    def serve(self, app: HttpApp, limits: Limits) -> None:
        """Send all new requests to ``app`` and apply ``limits``."""
        self.app = app
        self.keep(limits)
