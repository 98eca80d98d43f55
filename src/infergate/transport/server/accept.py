"""Accepts connections from sockets that several worker processes share, and spreads the connections
evenly.

Without balancing, the first process to wake up would accept all waiting connections, and gRPC
clients keep their few connections for hours. Each process publishes its number of connections
(``WorkerLoads``), and a process that has clearly more connections than another waits briefly before
it accepts. If no other process accepts during that time, the process accepts a growing number of
connections. A busy or hanging process therefore delays a connection by only two milliseconds.
(Measurements: docs/decisions/0025-workers.md.)"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

from infergate.core.log_events import BUG, CANNOT_ACCEPT
from infergate.transport.worker_loads import WorkerLoads

_log = logging.getLogger(__name__)
_WAIT_FOR_OTHERS: Final = 0.002
"""Seconds to wait for another process. An idle process wakes up in a tenth of that time."""
_MAX_BATCH: Final = 64
"""Maximum number of connections accepted in a row if other processes do not accept."""
_RETRY_AFTER_EXHAUSTION: Final = 1.0
"""Seconds until the next attempt if the system is out of descriptors or memory. asyncio uses the
same delay."""


class Acceptor:
    """Creates a protocol with ``create_protocol`` for each connection accepted from ``sockets``.
    The caller must call ``update_load`` when the result of ``count_connections`` decreases."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        loads: WorkerLoads,
        create_protocol: Callable[[], asyncio.BaseProtocol],
        count_connections: Callable[[], int],
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._sockets: Final = sockets
        self._loads: Final = loads
        self._create_protocol: Final = create_protocol
        self._count_connections: Final = count_connections
        self._starting: Final[set[asyncio.Task[None]]] = set()
        self._is_open = True
        self._batch = 1
        self._other_loads: tuple[int, ...] = ()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self.update_load()
        for sock in sockets:
            self._listen(sock)

    def update_load(self) -> None:
        """Publish the current number of connections."""
        if self._is_open:
            self._loads.report(self._count_connections() + len(self._starting))

    def close(self) -> None:
        """Stop accepting connections. The caller keeps ownership of the sockets."""
        self._is_open = False
        for sock in self._sockets:
            self._loop.remove_reader(sock)
        for timer in self._timers.values():
            timer.cancel()
        self._loads.mark_absent()

    def _listen(self, sock: socket.socket) -> None:
        self._loop.add_reader(sock, self._on_readable, sock)

    def _on_readable(self, sock: socket.socket) -> None:
        if self._loads.is_overloaded:
            self._other_loads = self._loads.others()
            self._pause(sock, _WAIT_FOR_OTHERS, self._accept_batch)
        else:
            self._accept(sock)

    def _pause(
        self, sock: socket.socket, seconds: float, callback: Callable[[socket.socket], None]
    ) -> None:
        self._loop.remove_reader(sock)
        self._timers[sock.fileno()] = self._loop.call_later(seconds, callback, sock)

    def _accept_batch(self, sock: socket.socket) -> None:
        """Accept up to ``_batch`` connections if no other process has accepted a connection."""
        self._listen(sock)
        if self._other_loads != self._loads.others():
            self._batch = 1
            return
        for _ in range(self._batch):
            if not self._accept(sock):
                return
        self._batch = min(2 * self._batch, _MAX_BATCH)

    def _accept(self, sock: socket.socket) -> bool:
        """Accept one connection. Return False if no connection was accepted."""
        try:
            connection, _ = sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return False  # another process was faster, or the client has disconnected
        except OSError as error:
            _log.error("cannot accept a connection: %s", error, extra=CANNOT_ACCEPT)
            self._pause(sock, _RETRY_AFTER_EXHAUSTION, self._listen)
            return False
        connection.setblocking(False)  # noqa: FBT003 - setblocking has no keyword
        task = self._loop.create_task(self._start(connection))
        self._starting.add(task)
        task.add_done_callback(self._on_started)
        self.update_load()
        return True

    async def _start(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._create_protocol, connection)
        except OSError:
            connection.close()  # the client has disconnected

    def _on_started(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        self.update_load()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("cannot serve an accepted connection", exc_info=error, extra=BUG)
