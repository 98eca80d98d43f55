"""Reads the Tensor tables of a message as canonical tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable

from infergate.codecs.graphpipe.datatypes import BY_NUMBER, NULL_TYPE
from infergate.codecs.graphpipe.fields import DATA, SHAPE, STRING_VAL, TYPE
from infergate.codecs.graphpipe.flatbuffer_reader import FlatbufferTable
from infergate.core.datatypes import Datatype
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer, Tensor, add_bytes_elements, check_data, check_shape


def read_tensors(
    tables: Iterable[tuple[str, FlatbufferTable]], limits: Limits
) -> tuple[Tensor, ...]:
    """Return a tensor for each pair of a name and a table. Only strings are copied.

    The tensor's type selects the field, ``data`` or ``string_val``, as in all servers. Raises
    BAD_REQUEST, TOO_LARGE and NeedsOffloadError."""
    tensors: list[Tensor] = []
    elements = 0
    for name, table in tables:
        datatype = _read_datatype(name, table.uint8(TYPE))
        shape = check_shape(name, table.int64s(SHAPE, limits.rank), limits)
        if datatype is Datatype.BYTES:
            elements = add_bytes_elements(name, shape, elements, limits)
            data: Buffer = _read_strings(name, shape, table)
        else:
            data = table.data(DATA)
            check_data(name, datatype, shape, data)
        tensors.append(Tensor(name, datatype, shape, data))
    return tuple(tensors)


def _read_strings(name: str, shape: tuple[int, ...], table: FlatbufferTable) -> Buffer:
    count, expected = table.length(STRING_VAL), math.prod(shape)
    if count != expected:
        raise bad_request(
            f"tensor '{name}': shape {list(shape)} requires {expected} strings, "
            f"but there are {count}"
        )
    return table.packed_strings(STRING_VAL)


def _read_datatype(name: str, number: int) -> Datatype:
    datatype = BY_NUMBER.get(number)
    if datatype is None:
        problem = "Null, which has no elements" if number == NULL_TYPE else "not a GraphPipe type"
        raise bad_request(f"tensor '{name}': type {number} is {problem}")
    return datatype
