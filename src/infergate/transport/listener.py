"""What listeners of asyncio's sockets share: bind, know the connections, drain.

*Rule.* A listener that stops accepts nobody, closes the connections on which nothing is under way,
and leaves the others to close themselves after their answer.
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
"""Seconds that clients have to take how their requests ended, and cancelled requests for their
cleanup."""


class Sockets:
    """A :class:`~infergate.transport.base.Server`, on TCP or on a unix socket.

    ``accept`` makes the asyncio protocol of one connection. ``door`` says who is let in to it;
    None: everybody, in plain text.
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
        """``accept`` behind the door's TLS, if it has any."""
        if self.door.certificates is None:
            return accept
        scratches = Scratches()
        return lambda: Secured(self, accept(), scratches)

    @property
    def address(self) -> Address:
        """The address it really bound."""
        return self._address

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """See Server."""
        return () if self._bound is None else self._bound.sockets

    async def bind(self, bind: Bind | None = None, beside: Sequence[socket.socket] = ()) -> None:
        """See Server."""
        self._bound = await (bind(self._wanted) if bind else bound(self._wanted, beside=beside))
        self._address = replace(self._wanted, port=self._bound.port)

    async def start(self) -> None:
        """See Server."""
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
        for each in self._bound.sockets:
            self._listeners.append(await create(self._accept, sock=each, backlog=BACKLOG))

    def keep(self, limits: Limits) -> None:
        """From now on keep ``limits``."""
        self.limits = limits
        self.admission.keep(limits)

    def calls(self) -> Iterator[asyncio.Task[None]]:
        """See Server."""
        for connection in self._connections:
            yield from connection.calls()

    def leave(self) -> None:
        """See Server."""
        listeners, self._listeners = self._listeners, []
        for each in listeners:
            each.close()
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    async def stop(self, grace: float) -> None:
        """See Server."""
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

    # ---- what connections tell

    def opened(self, connection: Accepted, peer: str) -> bool:
        """A client connected; False where it is not let in, and is to be aborted."""
        # Where the listener closes, one may be accepted in the same moment.
        if self.stopping or not self.door.enter(peer):
            return False
        self._connections.add(connection)
        self._empty.clear()
        return True

    def closed(self, connection: Accepted) -> None:
        """A connection is over, and its task too."""
        if connection in self._connections:
            self._connections.remove(connection)
            self.door.leave()
        if not self._connections:
            self._empty.set()
        if self._acceptor is not None:
            self._acceptor.changed()


class Listener(Sockets):
    """Those of an HttpApp."""

    def __init__(  # noqa: PLR0913, PLR0917 - those of Sockets, and its own
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
        """See Server."""
        self.app = app
        self.keep(limits)
