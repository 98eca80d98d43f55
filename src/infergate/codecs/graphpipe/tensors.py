"""Tensor tables → canonical tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from infergate.codecs.graphpipe.datatypes import BY_NUMBER
from infergate.codecs.graphpipe.fields import DATA, SHAPE, STRING_VAL, TYPE
from infergate.codecs.graphpipe.reading import Table
from infergate.core.datatypes import Datatype
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer, Tensor, add_bytes_elements, check_data, check_shape


def read_tensors(tables: Iterable[tuple[str, Table]], limits: Limits) -> tuple[Tensor, ...]:
    """Each table as a tensor of the given name, its data not copied unless it is strings.

    Which of ``data`` and ``string_val`` counts is told by the type, as all servers have it. Raises
    BAD_REQUEST naming the tensor, TOO_LARGE.
    """
    found: list[Tensor] = []
    elements = 0
    for name, table in tables:
        datatype = _datatype(name, table.byte(TYPE))
        shape = check_shape(name, table.longs(SHAPE, limits.rank), limits)
        if datatype is Datatype.BYTES:
            elements = add_bytes_elements(name, shape, elements, limits)
            data: Buffer = _strings(name, shape, table)
        else:
            data = table.data(DATA)
            check_data(name, datatype, shape, data)
        found.append(Tensor(name, datatype, shape, data))
    return tuple(found)


def _strings(name: str, shape: tuple[int, ...], table: Table) -> Buffer:
    count, wanted = table.length(STRING_VAL), math.prod(shape)
    if count != wanted:
        raise bad_request(
            f"tensor '{name}': shape {list(shape)} needs {wanted} strings, there are {count}"
        )
    return table.packed(STRING_VAL)


_NULL: Final = 0


def _datatype(name: str, number: int) -> Datatype:
    datatype = BY_NUMBER.get(number)
    if datatype is None:
        what = "Null, which has no elements" if number == _NULL else "none of GraphPipe"
        raise bad_request(f"tensor '{name}': type {number} is {what}")
    return datatype
