"""A unix socket's file: claimed when a listener binds, removed when it stops.

*Rule 1.* What nobody listens on any more is replaced: a process that was killed leaves its file.
What somebody listens on, or is no socket, is never touched.
*Rule 2.* Nobody connects before the file has its mode: the socket listens only afterwards.
*Rule 3.* Only the file made here is removed; another process may have put its own in its place.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path


class SocketFile:
    """The file at ``path``."""

    def __init__(self, path: str, mode: int) -> None:
        self._path = Path(path)
        self._mode = mode
        self._made: tuple[int, int] | None = None

    def bind(self) -> socket.socket:
        """A socket bound there, which does not listen yet. Raises OSError."""
        self._clear()
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(0)
            made.bind(str(self._path))
            self._path.chmod(self._mode)
            self._made = self._identity()
        except OSError:
            made.close()
            raise
        return made

    def remove(self) -> None:
        """Take the file away, if it is still the one made here."""
        with contextlib.suppress(OSError):
            if self._made is not None and self._identity() == self._made:
                self._path.unlink()
        self._made = None

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
        raise OSError(errno.EADDRINUSE, "address already in use", str(self._path))
