"""Messages that carry arguments and results between processes.

A message consists of a header, the pickle of a function (empty in a response), the pickle of a
value, and the long buffers of the value. The pickle of the value refers to the buffers by offset.
Buffers are copied neither for sending nor after receiving."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any, Final

from infergate.core.errors import GatewayError
from infergate.core.limits import KIB
from infergate.core.tensor import Buffer

HEADER: Final = struct.Struct("<QQQ")
"""The header: the sizes of the parts that follow, which are the pickled function, the pickled value
and the buffers."""
MIN_BUFFER_BYTES: Final = 64 * KIB
"""Buffers of at least this size are not pickled."""
_ALIGNMENT_BYTES: Final = 16
"""Alignment of buffers in a message, which lets numpy use them in place."""


def pack(value: Any) -> tuple[bytes, list[Buffer]]:
    """Return the pickle of ``value``, and the long buffers that it refers to."""
    file = io.BytesIO()
    buffers: list[Buffer] = []
    _MessagePickler(file, buffers).dump(value)
    return file.getvalue(), buffers


def message_parts(pickled: bytes, buffers: Sequence[Buffer], function: bytes = b"") -> list[Buffer]:
    """Return the parts of a message. ``function`` is a separate pickle."""
    # Unpickling ignores bytes after the end of the pickle.
    padding = bytes(-(HEADER.size + len(function) + len(pickled)) % _ALIGNMENT_BYTES)
    header = HEADER.pack(len(function), len(pickled) + len(padding), sum(map(len, buffers)))
    return [b"".join((header, function, pickled, padding)), *buffers]


def unpack(pickled: Buffer, buffers: memoryview) -> Any:
    """Unpickle a value. Its long buffers are slices of ``buffers``."""
    return _MessageUnpickler(io.BytesIO(pickled), buffers).load()


class _MessagePickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, buffers: list[Buffer]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._buffers = buffers
        self._end = 0

    def reducer_override(self, value: Any) -> Any:
        """Pickle errors with their attributes, because pickle would save only their ``args``.
        Pickle short views as bytes, because pickle does not support views."""
        if isinstance(value, GatewayError):
            return _rebuild_error, (type(value), value.args, vars(value))
        if isinstance(value, memoryview):
            return bytes, (value.tobytes(),)
        return NotImplemented

    def persistent_id(self, value: Any) -> tuple[int, int] | None:
        if type(value) not in _BUFFER_TYPES or len(value) < MIN_BUFFER_BYTES:
            return None
        begin, end = self._end, self._end + len(value)
        padding = bytes(-end % _ALIGNMENT_BYTES)
        self._buffers += (value, padding) if padding else (value,)
        self._end = end + len(padding)
        return begin, end


class _MessageUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffers: memoryview) -> None:
        super().__init__(file)
        self._buffers = buffers

    def persistent_load(self, buffer_range: Any) -> Any:
        begin, end = buffer_range
        return self._buffers[begin:end]


_BUFFER_TYPES: Final = frozenset({bytes, bytearray, memoryview})


def _rebuild_error(
    error_type: type[GatewayError], arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> GatewayError:
    error = error_type.__new__(error_type, *arguments)
    vars(error).update(attributes)
    return error
