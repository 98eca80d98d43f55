"""A unix socket's file: claimed when a listener binds, removed when it stops.

*Rule 1.* What nobody listens on any more is replaced: a process that was killed leaves its file.
What somebody listens on, or is no socket, is never touched.
*Rule 2.* Nobody connects before the file has its mode: the socket listens only afterwards.
*Rule 3.* Only the file made here is removed; another process may have put its own in its place.
*Rule 4.* A socket that is bound but does not listen yet looks like a dead one. So whoever claims
the path holds the lock of a file beside it (``<path>.lock``), from before he looks until his own
socket is gone. The lock ends with its process, whatever becomes of that; the file goes with it
where it can.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path


class SocketFile:
    """The file at ``path``."""

    def __init__(self, path: str, mode: int) -> None:
        self._path = Path(path)
        self._mode = mode
        self._made: tuple[int, int] | None = None
        self._beside = Path(path + ".lock")
        self._lock: int | None = None

    def bind(self) -> socket.socket:
        """A socket bound there, which does not listen yet. Raises OSError."""
        self._claim()
        made = socket.socket(socket.AF_UNIX)
        try:
            self._clear()
            made.settimeout(0)
            made.bind(str(self._path))
            self._path.chmod(self._mode)
            self._made = self._identity()
        except OSError:
            made.close()
            self._release()
            raise
        return made

    def remove(self) -> None:
        """Take the file away, if it is still the one made here."""
        with contextlib.suppress(OSError):
            if self._made is not None and self._identity() == self._made:
                self._path.unlink()
        self._made = None
        self._release()

    def _claim(self) -> None:
        """Rule 4. Raises OSError where another holds the lock."""
        while True:
            lock = os.open(self._beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_beside(lock):
                    self._lock = lock
                    return
            except BlockingIOError:
                os.close(lock)
                raise self._taken() from None
            os.close(lock)  # its holder took the file away meanwhile

    def _is_beside(self, lock: int) -> bool:
        try:
            return os.path.samestat(os.fstat(lock), self._beside.stat())
        except FileNotFoundError:
            return False

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                self._beside.unlink()
            os.close(lock)

    def _taken(self) -> OSError:
        return OSError(errno.EADDRINUSE, "address already in use", str(self._path))

    def _identity(self) -> tuple[int, int]:
        found = self._path.lstat()
        return found.st_dev, found.st_ino

    def _clear(self) -> None:
        """Rule 1. Raises OSError where the path is taken."""
        if not self._path.exists():
            return
        if not self._path.is_socket():
            taken = "there is a file that is no socket"
            raise FileExistsError(errno.EEXIST, taken, str(self._path))
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0)  # a full backlog, which would block, is a listener too
            try:
                probe.connect(str(self._path))
            except ConnectionRefusedError:
                self._path.unlink()
                return
            except BlockingIOError:
                pass
        raise self._taken()
