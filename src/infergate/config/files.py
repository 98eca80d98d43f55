"""What a configuration is read from: its own file, and those that it names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final


class Files:
    """Files that were read, each with what it held then. To be used for one reading."""

    def __init__(self) -> None:
        self._read: Final[dict[Path, bytes]] = {}

    def read(self, path: Path) -> bytes:
        """What ``path`` holds. Raises OSError, ValueError (what can be no path); it is one of them
        all the same, for it may come."""
        self._read[path] = b""
        data = path.read_bytes()
        self._read[path] = _hash(data)
        return data

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them, the configuration's own first."""
        return tuple(self._read)

    @property
    def sha256(self) -> str:
        """Of the one file, as sha256sum tells it; of several, the hash of their hashes."""
        hashes = list(self._read.values())
        return (hashes[0] if len(hashes) == 1 else _hash(b"".join(hashes))).hex()

    def have_changed(self) -> bool:
        """Whether any holds something else now, is there no more, or has come."""
        return any(_now(path) != known for path, known in self._read.items())


def _now(path: Path) -> bytes:
    try:
        return _hash(path.read_bytes())
    except (OSError, ValueError):
        return b""


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
