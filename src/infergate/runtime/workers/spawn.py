"""A worker, as its supervisor sees it: a fresh interpreter with two pipes."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

from infergate.runtime.workers.channel import Channel, send_descriptors
from infergate.runtime.workers.files import Files

_PROGRAM: Final = (
    "import sys; sys.path[:] = sys.argv[7:]; "
    "from infergate.runtime.workers.process import main; "
    "main(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:7]))"
)
"""Modules are found where this process finds them: ``-m`` would look in the working directory
first, and knows nothing of what this process has added to its path."""


class Worker(asyncio.SubprocessProtocol):
    """A running one. ``ended`` is done, with the exit code (negative: the signal's number), when it
    is no more; ``channel`` is there once it was begun."""

    def __init__(self) -> None:
        self.ended: Final[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
        self.began: Final = time.monotonic()
        self.channel: Channel
        self.pid: int | None = None
        self._process: asyncio.SubprocessTransport | None = None
        self._descriptors: socket.socket

    async def begin(
        self,
        number: int,
        engine: str,
        files: Files,
        answer: Callable[[Any], Awaitable[Any]],
    ) -> None:
        """Start the process of worker ``number``; ``answer`` is what its questions are answered.
        Raises OSError where the system has no room for one."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        self._descriptors, descriptors = socket.socketpair()
        with theirs, descriptors:
            try:
                handed = (theirs.fileno(), descriptors.fileno(), *files)
                arguments = (str(number), engine, *map(str, handed), *sys.path)
                await loop.subprocess_exec(
                    lambda: self,
                    sys.executable,
                    *_flags(),
                    "-c",
                    _PROGRAM,
                    *arguments,
                    pass_fds=handed,
                    stdin=subprocess.DEVNULL,
                    stdout=None,  # this process's own
                    stderr=None,
                )
            except BaseException:
                ours.close()
                if self._process is None:
                    self._descriptors.close()
                    self.ended.set_result(1)
                raise
        assert self._process is not None
        self.pid = self._process.get_pid()
        _, self.channel = await loop.create_unix_connection(lambda: Channel(answer), sock=ours)

    def hand_over(self, descriptors: Sequence[int]) -> None:
        """Those that the next question tells of. Raises OSError."""
        self._descriptors.setblocking(False)  # noqa: FBT003 - its name says it
        send_descriptors(self._descriptors, descriptors)

    @property
    def is_there(self) -> bool:
        """Whether its process was begun, and has not ended."""
        return self._process is not None and not self.ended.done()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and not self.ended.done():
            self._process.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See SubprocessProtocol."""
        # uvloop's is none by name
        self._process = cast("asyncio.SubprocessTransport", transport)

    def process_exited(self) -> None:
        """See SubprocessProtocol."""
        assert self._process is not None
        code = self._process.get_returncode()
        self._process.close()
        self._descriptors.close()
        self.ended.set_result(1 if code is None else code)


def told(code: int) -> str:
    """How a process ended that has this exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # most of those for real time have no name
        return f"signal {-code}"


def _flags() -> list[str]:
    """Of this interpreter, such as ``-I`` and ``-W``; multiprocessing passes the same."""
    found: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    return found
