"""Serializes arguments and results for transfer between processes.

*Strategy.* Objects are pickled, but long buffers lie in memory that both processes have mapped
(``shared_buffer``), and the pickle refers to them by offset.
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
"""The header before each pickle on a pipe: its length; the length of the pickled function in it;
and the response block's offset, size, and number of allocated bytes."""

Lay = Callable[[Buffer], "int | None"]
"""Places a long buffer in shared memory and returns its offset; None: no room, so it is pickled."""


def pack(value: Any, lay: Lay) -> bytes:
    """Pickle ``value``."""
    file = io.BytesIO()
    _Packer(file, lay).dump(value)
    return file.getvalue()


def unpack(pickled: bytes | bytearray, take: Callable[[int, int], Any]) -> Any:
    """Unpickle a value. ``get_buffer`` returns a long buffer by offset and size."""
    return _Unpacker(io.BytesIO(pickled), take).load()


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, lay: Lay) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.dispatch_table = _REDUCERS
        self._lay = lay

    def reducer_override(self, value: Any) -> Any:
        """Pickle errors by their attributes, because by default pickle would call ``type(value)``
        with ``args`` only."""
        if isinstance(value, GatewayError):
            return _error, (type(value), value.args, vars(value))
        return NotImplemented

    def persistent_id(self, value: Any) -> tuple[int, int] | None:
        if type(value) not in _BUFFERS or len(value) < LONG:
            return None
        offset = self._lay(value)
        return None if offset is None else (offset, len(value))


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
"""Reducers for types that pickle does not support, or not for this purpose."""
