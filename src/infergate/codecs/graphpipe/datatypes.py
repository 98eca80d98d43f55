"""The numbers of GraphPipe's datatypes (the enum ``Type`` in GraphPipe's schema)."""

from __future__ import annotations

from typing import Final

from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind

TYPE_NUMBERS: Final[dict[Datatype, int]] = {
    Datatype.UINT8: 1,
    Datatype.INT8: 2,
    Datatype.UINT16: 3,
    Datatype.INT16: 4,
    Datatype.UINT32: 5,
    Datatype.INT32: 6,
    Datatype.UINT64: 7,
    Datatype.INT64: 8,
    Datatype.FP16: 9,
    Datatype.FP32: 10,
    Datatype.FP64: 11,
    Datatype.BYTES: 12,
}
"""GraphPipe has no numbers for BOOL or BF16."""
BY_NUMBER: Final = {number: datatype for datatype, number in TYPE_NUMBERS.items()}
NUMBERS_BY_NAME: Final = {datatype.value: number for datatype, number in TYPE_NUMBERS.items()}
NAMES_BY_NUMBER: Final = {number: name for name, number in NUMBERS_BY_NAME.items()}
NULL_TYPE: Final = 0
"""The type number of an unknown datatype."""


def type_number(name: str, datatype: Datatype) -> int:
    """Return the type number of the datatype of the tensor ``name``. Raises UNSUPPORTED."""
    number = TYPE_NUMBERS.get(datatype)
    if number is None:
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"tensor '{name}' is {datatype.value}, which GraphPipe does not support",
        )
    return number
