"""The file of a Unix socket. A listener claims the file when it binds, and removes the file when it
stops.

- Rule 1. A socket file without a listening process is replaced, because a killed process leaves its
  file behind. A file with a listening process, and a file that is not a socket, are never changed.
- Rule 2. When a listener stops, it removes only a file that it created, because another process may
  have replaced the file.
- Rule 3. A socket that is bound but not listening yet looks abandoned, so the path is claimed by
  locking ``<path>.lock`` until the socket is closed. The system releases the lock when the process
  ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path


class SocketFile:
    """The socket file at ``path`` with the permissions ``mode``."""

    def __init__(self, path: str, mode: int) -> None:
        self._path = Path(path)
        self._mode = mode
        self._created: tuple[int, int] | None = None
        self._lock_path = Path(path + ".lock")
        self._lock: int | None = None

    def bind(self) -> socket.socket:
        """Return a socket that is bound to the path and does not listen yet. Raises OSError."""
        self._acquire_lock()
        sock = socket.socket(socket.AF_UNIX)
        try:
            self._remove_stale()
            sock.settimeout(0)
            sock.bind(str(self._path))
            self._path.chmod(self._mode)
            self._created = self._identity()
        except OSError:
            sock.close()
            self._release_lock()
            raise
        return sock

    def remove(self) -> None:
        """Delete the file if this object created it, and release the lock."""
        with contextlib.suppress(OSError):
            if self._created is not None and self._identity() == self._created:
                self._path.unlink()
        self._created = None
        self._release_lock()

    def _acquire_lock(self) -> None:
        """Take the lock (Rule 3). Raises OSError if another process holds it."""
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current_lock(lock):
                    self._lock = lock
                    return
            except BlockingIOError:
                os.close(lock)
                raise self._in_use() from None
            os.close(lock)  # the previous holder has deleted the lock file

    def _is_current_lock(self, lock: int) -> bool:
        try:
            return os.path.samestat(os.fstat(lock), self._lock_path.stat())
        except FileNotFoundError:
            return False

    def _release_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                self._lock_path.unlink()
            os.close(lock)

    def _in_use(self) -> OSError:
        return OSError(errno.EADDRINUSE, "address already in use", str(self._path))

    def _identity(self) -> tuple[int, int]:
        status = self._path.lstat()
        return status.st_dev, status.st_ino

    def _remove_stale(self) -> None:
        """Delete an abandoned socket file (Rule 1). Raises OSError for any other file."""
        if not self._path.exists():
            return
        if not self._path.is_socket():
            message = "the file exists and is not a socket"
            raise FileExistsError(errno.EEXIST, message, str(self._path))
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0)  # connect would block if the backlog of a listener is full
            try:
                probe.connect(str(self._path))
            except ConnectionRefusedError:
                self._path.unlink()
                return
            except BlockingIOError:
                pass
        raise self._in_use()
