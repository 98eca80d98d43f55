"""The datatypes of GraphPipe: the numbers of its Type."""

from __future__ import annotations

from typing import Final

from infergate.core.datatypes import BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind

NUMBERS: Final[dict[Datatype, int]] = {
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
"""BOOL and BF16 have none."""
BY_NUMBER: Final = {number: datatype for datatype, number in NUMBERS.items()}
_NULL: Final = 0
"""A type that is unknown, or that GraphPipe lacks."""


def number_of(name: str, datatype: Datatype) -> int:
    """The number of a tensor's datatype. Raises UNSUPPORTED naming the tensor."""
    number = NUMBERS.get(datatype)
    if number is None:
        raise GatewayError(
            Kind.UNSUPPORTED, f"tensor '{name}' is {datatype.value}, which GraphPipe lacks"
        )
    return number


def told_number(datatype: str) -> int:
    """The number that metadata tells of a server's ``datatype``."""
    known = BY_NAME.get(datatype)
    return _NULL if known is None else NUMBERS.get(known, _NULL)


def told_name(number: int) -> str:
    """What metadata with ``number`` tells; nothing where it is unknown."""
    datatype = BY_NUMBER.get(number)
    return "" if datatype is None else datatype.value
