"""Several processes accept from the same sockets, so that each has about as many connections.

*Strategy.* Whoever notices first would take all who wait, and clients of gRPC stay for hours on
the few connections they have. So each process tells in memory that all share how many connections
it has, and one that has more than another steps aside for a moment: long enough for an idle one to
take who waits. Where none has taken any by then, they are taken all the same, ever more at once: a
process that is busy, or hangs, costs a connection two milliseconds.
(docs/decisions/0025-workers.md has what else was measured.)
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
"""Seconds: a process that is not busy wakes up within a tenth of that."""
_MOST: Final = 64
"""Connections that are taken at once from those that others left waiting."""
_NO_ROOM: Final = 1.0
"""Seconds until accepting is tried again where the system has no descriptor or memory left: as
asyncio does."""


class Acceptor:
    """Accepts from ``sockets``, and has ``make`` make the protocol of each connection. ``count``
    tells how many there are; ``changed`` is to be called when that becomes less."""

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
        for each in sockets:
            self._listen(each)

    def changed(self) -> None:
        """There are more connections, or fewer."""
        if self._is_open:
            self._loads.tell(self._count() + len(self._beginning))

    def close(self) -> None:
        """Accept nobody any more. The sockets remain the caller's."""
        self._is_open = False
        for each in self._sockets:
            self._loop.remove_reader(each)
        for later in self._later.values():
            later.cancel()
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
        """Those that wait because nobody else takes any."""
        self._listen(each)
        if self._others != self._loads.others():
            self._several = 1
            return
        for _ in range(self._several):
            if not self._take(each):
                return
        self._several = min(2 * self._several, _MOST)

    def _take(self, each: socket.socket) -> bool:
        """Accept one connection; whether there was one."""
        try:
            connection, _ = each.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return False  # another process was faster, or the client is gone again
        except OSError as error:
            _log.error("cannot accept: %s", error, extra=CANNOT_ACCEPT)
            self._pause(each, _NO_ROOM, self._listen)
            return False
        connection.setblocking(False)  # noqa: FBT003 - its name says it
        task = self._loop.create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._begun)
        self.changed()
        return True

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError:
            connection.close()  # it was gone before it began

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        self.changed()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a connection could not begin", exc_info=error, extra=BUG)
