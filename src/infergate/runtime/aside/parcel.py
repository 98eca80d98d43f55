"""Arguments and results on their way between processes.

*Strategy.* Objects are pickled; their long buffers lie in memory that both processes have mapped
(``shared``), and the pickle only says where.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

from infergate.core.errors import GatewayError
from infergate.core.tensor import Buffer
from infergate.runtime.aside.mapped import LONG

HEAD: Final = struct.Struct("<QQQQQ")
"""Before each pickle on a pipe: its length, how much of it is the function's, and of the block for
the answer its place, its size, and how many bytes of it have memory."""

Lay = Callable[[Buffer], "int | None"]
"""Where a long buffer lies from now on; None: it has no room there, and is pickled."""


def pack(value: Any, lay: Lay) -> bytes:
    """The pickle of ``value``."""
    file = io.BytesIO()
    _Packer(file, lay).dump(value)
    return file.getvalue()


def unpack(pickled: bytes | bytearray, take: Callable[[int, int], Any]) -> Any:
    """What was packed. Long buffers are what ``take`` makes of their place and size."""
    return _Unpacker(io.BytesIO(pickled), take).load()


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, lay: Lay) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.dispatch_table = _REDUCERS
        self._lay = lay

    def reducer_override(self, value: Any) -> Any:
        """Errors: pickle would call ``type(value)`` with ``args``, which are not all it takes."""
        if isinstance(value, GatewayError):
            return _error, (type(value), value.args, vars(value))
        return NotImplemented

    def persistent_id(self, value: Any) -> tuple[int, int] | None:
        if type(value) not in _BUFFERS or len(value) < LONG:
            return None
        place = self._lay(value)
        return None if place is None else (place, len(value))


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, take: Callable[[int, int], Any]) -> None:
        super().__init__(file)
        self._take = take

    def persistent_load(self, where: Any) -> Any:
        return self._take(*where)


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
