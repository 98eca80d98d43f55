"""Arguments and results on their way between processes.

*Strategy.* Objects are pickled; what they hold of long buffers goes through memory that both
processes have mapped (an :class:`Arena`), and the pickle only says where.
*Rule.* One job at a time uses an arena. The sender lays buffers down from a place of its choice;
the receiver reads them before the next job.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

from infergate.core.errors import GatewayError
from infergate.core.limits import KIB

_LONG: Final = 16 * KIB
"""Buffers from this size on travel through the arena."""
HEAD: Final = struct.Struct("<QQQ")
"""Before each pickle on a pipe: its length, the size of the arena, how much of that is taken."""
_PAGE: Final = mmap.PAGESIZE


class Arena:
    """Memory shared by the two processes that have the file ``fd`` open."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        """-1: closed."""
        self.size = 0
        self._map: mmap.mmap | None = None

    @classmethod
    def new(cls) -> Arena:
        """An empty one. Its file lives as long as a process has it open."""
        return cls(os.memfd_create("infergate-aside"))

    def resize(self, size: int) -> None:
        """Make the file ``size`` bytes long, in whole pages. Raises OSError where there is no
        memory for them: without that, the first use of a page would be a SIGBUS."""
        size = -(-size // _PAGE) * _PAGE
        os.ftruncate(self.fd, size)
        if size > self.size:
            os.posix_fallocate(self.fd, self.size, size - self.size)
        self.follow(size)

    def follow(self, size: int) -> None:
        """Map ``size`` bytes: the other process has made the file so long."""
        if size != self.size:
            # the old map goes when its last view does
            self._map = mmap.mmap(self.fd, size) if size else None
            self.size = size

    def put(self, buffer: bytes | bytearray | memoryview, place: int) -> None:
        """Copy ``buffer`` to ``place``, making room for it."""
        end = place + len(buffer)
        if end > self.size:
            self.resize(end + end // 2)
        assert self._map is not None
        self._map[place:end] = buffer

    def view(self, place: int, size: int) -> memoryview:
        """``size`` bytes from ``place``: what is there until the next job."""
        assert self._map is not None
        return memoryview(self._map)[place : place + size]

    def close(self) -> None:
        """Close this process's half, once."""
        self._map = None
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def pack(value: Any, arena: Arena, start: int = 0) -> tuple[bytes, int]:
    """The pickle of ``value``, whose long buffers now lie in ``arena`` from ``start`` on, and
    where they end."""
    file = io.BytesIO()
    packer = _Packer(file, arena, start)
    packer.dump(value)
    return file.getvalue(), packer.end


def unpack(pickled: bytes | bytearray, arena: Arena, take: Callable[[memoryview], Any]) -> Any:
    """What was packed. Long buffers are what ``take`` makes of a view of the arena."""
    return _Unpacker(io.BytesIO(pickled), arena, take).load()


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, arena: Arena, start: int) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.dispatch_table = _REDUCERS
        self.end = start
        self._arena = arena

    def reducer_override(self, value: Any) -> Any:
        """Errors: pickle would call ``type(value)`` with ``args``, which are not all it takes."""
        if isinstance(value, GatewayError):
            return _error, (type(value), value.args, vars(value))
        return NotImplemented

    def persistent_id(self, value: Any) -> tuple[int, int] | None:
        if type(value) not in _BUFFERS or len(value) < _LONG:
            return None
        place = self.end
        self._arena.put(value, place)
        self.end = place + len(value)
        return place, len(value)


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arena: Arena, take: Callable[[memoryview], Any]) -> None:
        super().__init__(file)
        self._arena = arena
        self._take = take

    def persistent_load(self, where: Any) -> Any:
        return self._take(self._arena.view(*where))


_BUFFERS: Final = frozenset({bytes, bytearray, memoryview})


def _error(kind: type[GatewayError], told: tuple[Any, ...], held: dict[str, Any]) -> GatewayError:
    error = kind.__new__(kind, *told)
    vars(error).update(held)
    return error


def _reduce_mapping(mapping: MappingProxyType[Any, Any]) -> tuple[Any, ...]:
    return _mapping, (dict(mapping),)


def _mapping(held: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(held)


def _reduce_view(view: memoryview) -> tuple[Any, ...]:
    return bytes, (view.tobytes(),)


_REDUCERS: Final[dict[type, Callable[[Any], tuple[Any, ...]]]] = {
    MappingProxyType: _reduce_mapping,
    memoryview: _reduce_view,
}
"""How that is pickled which pickle knows nothing of, or not enough."""
