"""Accepting from sockets that several worker processes share, so that connections spread evenly.

The first process to wake up would otherwise take all waiting connections, and gRPC clients keep
their few connections for hours. Each process therefore publishes its number of connections
(``WorkerLoads``), and one that has more than another waits briefly before it accepts, so that an
idle process can take the connections. If no other process accepts during that time, this one does,
and takes more at once each time: a busy or hanging process costs a connection two milliseconds.
(Measurements: docs/decisions/0025-workers.md.)
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

from infergate.core.vocabulary import BUG, CANNOT_ACCEPT
from infergate.transport.loads import Loads

_log = logging.getLogger(__name__)
_ASIDE: Final = 0.002
"""Seconds to wait for another process; an idle process wakes up in a tenth of that."""
_MOST: Final = 64
"""Maximum number of connections accepted at once when other processes do not accept."""
_NO_ROOM: Final = 1.0
"""Seconds until the next attempt when the system is out of descriptors or memory, as in asyncio."""


class Acceptor:
    """Accepts from ``sockets`` and creates a protocol with ``create_protocol`` for each
    connection.

    ``count_connections`` returns the current number of connections; call ``update_load`` when it
    falls.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        loads: Loads,
        make: Callable[[], asyncio.BaseProtocol],
        count: Callable[[], int],
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._sockets: Final = sockets
        self._loads: Final = loads
        self._make: Final = make
        self._count: Final = count
        self._beginning: Final[set[asyncio.Task[None]]] = set()
        self._is_open = True
        self._several = 1
        self._others: tuple[int, ...] = ()
        self._later: dict[int, asyncio.TimerHandle] = {}
        self.changed()
        for sock in sockets:
            self._listen(sock)

    def changed(self) -> None:
        """Publish the current number of connections."""
        if self._is_open:
            self._loads.tell(self._count() + len(self._beginning))

    def close(self) -> None:
        """Stop accepting. The caller keeps ownership of the sockets."""
        self._is_open = False
        for sock in self._sockets:
            self._loop.remove_reader(sock)
        for timer in self._later.values():
            timer.cancel()
        self._loads.leave()

    def _listen(self, each: socket.socket) -> None:
        self._loop.add_reader(each, self._some_wait, each)

    def _some_wait(self, each: socket.socket) -> None:
        if self._loads.is_fuller:
            self._others = self._loads.others()
            self._pause(each, _ASIDE, self._take_several)
        else:
            self._take(each)

    def _pause(
        self, each: socket.socket, seconds: float, then: Callable[[socket.socket], None]
    ) -> None:
        self._loop.remove_reader(each)
        self._later[each.fileno()] = self._loop.call_later(seconds, then, each)

    def _take_several(self, each: socket.socket) -> None:
        """Accept several connections if no other process took any."""
        self._listen(each)
        if self._others != self._loads.others():
            self._several = 1
            return
        for _ in range(self._several):
            if not self._take(each):
                return
        self._several = min(2 * self._several, _MOST)

    def _take(self, each: socket.socket) -> bool:
        """Accept one connection; return whether there was one."""
        try:
            connection, _ = each.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return False  # another process accepted it, or the client disconnected
        except OSError as error:
            _log.error("cannot accept: %s", error, extra=CANNOT_ACCEPT)
            self._pause(each, _NO_ROOM, self._listen)
            return False
        connection.setblocking(False)  # noqa: FBT003 - setblocking has no keyword
        task = self._loop.create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._begun)
        self.changed()
        return True

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError:
            connection.close()  # the client disconnected first

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        self.changed()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("cannot serve an accepted connection", exc_info=error, extra=BUG)
