"""A worker process, seen from the supervisor. It is a new interpreter, connected by two socket
pairs."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

from infergate.runtime.interpreter import python_command
from infergate.runtime.workers.channel import ChannelClosedError, WorkerChannel, send_descriptors
from infergate.runtime.workers.shared_files import SharedFiles

_WORKER_MODULE: Final = "infergate.runtime.workers.process"


class Worker(asyncio.SubprocessProtocol):
    """A worker process. The future ``exited`` is done when the process has ended; its result is the
    exit code, or the negated number of a signal. ``channel`` exists after ``start``.
    ``is_outdated`` is set if the supervisor has killed the process because its configuration was
    replaced."""

    def __init__(self) -> None:
        self.exited: Final[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
        self.started_at: Final = time.monotonic()
        self.channel: WorkerChannel
        self.pid: int | None = None
        self.is_outdated = False
        self._process: asyncio.SubprocessTransport | None = None
        self._descriptors: socket.socket

    async def start(
        self, number: int, engine: str, files: SharedFiles, handle: Callable[[Any], Awaitable[Any]]
    ) -> None:
        """Start the process of worker ``number``. ``handle`` responds to the worker's requests.
        Raises OSError if the system cannot start a process."""
        loop = asyncio.get_running_loop()
        supervisor_end, worker_end = socket.socketpair()
        self._descriptors, descriptors = socket.socketpair()
        with worker_end, descriptors:
            try:
                passed_fds = (worker_end.fileno(), descriptors.fileno(), *files)
                await loop.subprocess_exec(
                    lambda: self,
                    *python_command(_WORKER_MODULE, str(number), engine, *map(str, passed_fds)),
                    pass_fds=passed_fds,
                    stdin=subprocess.DEVNULL,
                    stdout=None,  # inherit both streams of this process
                    stderr=None,
                )
            except BaseException:
                supervisor_end.close()
                if self._process is None:
                    self._descriptors.close()
                    self.exited.set_result(1)
                raise
        assert self._process is not None
        self.pid = self._process.get_pid()
        _, self.channel = await loop.create_unix_connection(
            lambda: WorkerChannel(handle), sock=supervisor_end
        )

    def hand_over_sockets(self, descriptors: Sequence[int]) -> None:
        """Send the ``descriptors`` that the next request on ``channel`` refers to. Raises
        ChannelClosedError and OSError."""
        if self.exited.done():
            raise ChannelClosedError("the worker has ended")
        self._descriptors.setblocking(False)  # noqa: FBT003 - the method's name explains it
        try:
            send_descriptors(self._descriptors, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            raise ChannelClosedError("the worker is ending") from None

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and not self.exited.done()

    def kill(self) -> None:
        if self._process is not None and not self.exited.done():
            self._process.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of asyncio's.
        self._process = cast("asyncio.SubprocessTransport", transport)

    def process_exited(self) -> None:
        assert self._process is not None
        code = self._process.get_returncode()
        self._process.close()
        self._descriptors.close()
        self.exited.set_result(1 if code is None else code)


def describe_exit(code: int) -> str:
    """Return a description of an exit code for a log line."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # most real-time signals have no name
        return f"signal {-code}"
