"""Serializes arguments and results for transfer between processes.

*Strategy.* Objects are pickled, but long buffers lie in memory that both processes have mapped
(``shared_buffer``), and the pickle refers to them by offset.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any, Final

from infergate.core.errors import GatewayError
from infergate.core.tensor import Buffer
from infergate.runtime.offload.mapped_file import MIN_SHARED_BYTES

HEADER: Final = struct.Struct("<QQQQQ")
"""The header before each pickle on a pipe: its length; the length of the pickled function in it;
and the response block's offset, size, and number of allocated bytes."""

StoreBuffer = Callable[[Buffer], "int | None"]
"""Stores a long buffer in shared memory and returns its offset, or None if there is no space: the
buffer is then pickled."""


def pack(value: Any, store_buffer: StoreBuffer) -> bytes:
    """Pickle ``value``."""
    file = io.BytesIO()
    _MessagePickler(file, store_buffer).dump(value)
    return file.getvalue()


def unpack(pickled: bytes | bytearray, get_buffer: Callable[[int, int], Any]) -> Any:
    """Unpickle a value. ``get_buffer`` returns a long buffer by offset and size."""
    return _MessageUnpickler(io.BytesIO(pickled), get_buffer).load()


class _MessagePickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, store_buffer: StoreBuffer) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.dispatch_table = _REDUCERS
        self._store_buffer = store_buffer

    def reducer_override(self, value: Any) -> Any:
        """Pickle errors by their attributes, because by default pickle would call ``type(value)``
        with ``args`` only."""
        if isinstance(value, GatewayError):
            return _rebuild_error, (type(value), value.args, vars(value))
        return NotImplemented

    def persistent_id(self, value: Any) -> tuple[int, int] | None:
        if type(value) not in _BUFFER_TYPES or len(value) < MIN_SHARED_BYTES:
            return None
        offset = self._store_buffer(value)
        return None if offset is None else (offset, len(value))


class _MessageUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, get_buffer: Callable[[int, int], Any]) -> None:
        super().__init__(file)
        self._get_buffer = get_buffer

    def persistent_load(self, where: Any) -> Any:
        return self._get_buffer(*where)


_BUFFER_TYPES: Final = frozenset({bytes, bytearray, memoryview})


def _rebuild_error(
    error_type: type[GatewayError], arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> GatewayError:
    error = error_type.__new__(error_type, *arguments)
    vars(error).update(attributes)
    return error


def _reduce_view(view: memoryview) -> tuple[Any, ...]:
    return bytes, (view.tobytes(),)


_REDUCERS: Final[dict[type, Callable[[Any], tuple[Any, ...]]]] = {
    memoryview: _reduce_view,
}
"""Reducers for types that pickle does not support, or not for this purpose."""
