"""The numbers of GraphPipe's datatypes (the enum ``Type`` in GraphPipe's schema)."""

from __future__ import annotations

from typing import Final

from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
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
"""GraphPipe has no numbers for BOOL and BF16."""
BY_NUMBER: Final = {number: datatype for datatype, number in TYPE_NUMBERS.items()}
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


def metadata_type_number(datatype: str) -> int:
    """Return the type number for a datatype in metadata, or ``NULL_TYPE`` if GraphPipe does not
    have the datatype."""
    supported = DATATYPES_BY_NAME.get(datatype)
    return NULL_TYPE if supported is None else TYPE_NUMBERS.get(supported, NULL_TYPE)


def metadata_datatype(number: int) -> str:
    """Return the datatype for a type number in metadata, or an empty string if the number is
    unknown."""
    datatype = BY_NUMBER.get(number)
    return "" if datatype is None else datatype.value
