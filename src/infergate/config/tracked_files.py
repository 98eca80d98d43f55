"""Records the files from which a configuration was read, to detect changes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final


class TrackedFiles:
    """The files that were read to load a configuration, each with the hash of its content."""

    def __init__(self) -> None:
        self._hashes: Final[dict[Path, bytes]] = {}

    def read(self, path: Path) -> bytes:
        """Return the content of ``path`` and record the file. A missing file is also recorded,
        because it may be created later. Raises OSError, or ValueError for an invalid path."""
        self._hashes[path] = b""
        data = path.read_bytes()
        self._hashes[path] = _hash(data)
        return data

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files, in the order in which they were first read."""
        return tuple(self._hashes)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the only file, or of the hashes of all files, in hexadecimal."""
        hashes = list(self._hashes.values())
        return (hashes[0] if len(hashes) == 1 else _hash(b"".join(hashes))).hex()

    def have_changed(self) -> bool:
        """Return whether any file has changed, disappeared or appeared."""
        return any(_current_hash(path) != recorded for path, recorded in list(self._hashes.items()))


def _current_hash(path: Path) -> bytes:
    try:
        return _hash(path.read_bytes())
    except (OSError, ValueError):
        return b""


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
