"""The numbers and names of the datatypes in the legacy API's DataType enum."""

from __future__ import annotations

from typing import Final

from infergate.core.datatypes import INTEGERS, Datatype

DATATYPE_NUMBERS: Final[dict[Datatype, int]] = {
    Datatype.BOOL: 1,
    Datatype.UINT8: 2,
    Datatype.UINT16: 3,
    Datatype.UINT32: 4,
    Datatype.UINT64: 5,
    Datatype.INT8: 6,
    Datatype.INT16: 7,
    Datatype.INT32: 8,
    Datatype.INT64: 9,
    Datatype.FP16: 10,
    Datatype.FP32: 11,
    Datatype.FP64: 12,
    Datatype.BYTES: 13,
}
"""The numbers of the datatypes. BF16 has no number."""
NUMBERS_BY_NAME: Final = {datatype.value: number for datatype, number in DATATYPE_NUMBERS.items()}
NAMES_BY_NUMBER: Final = {number: name for name, number in NUMBERS_BY_NAME.items()}
"""The canonical names of the datatypes, by number."""
INVALID_TYPE: Final = "TYPE_INVALID"
"""The name of number 0, which stands for a datatype without a number."""
CLASSIFIABLE: Final = INTEGERS | {Datatype.FP32, Datatype.FP64}
"""The datatypes for which servers support classification."""


def legacy_name(datatype: Datatype) -> str:
    """Return the name that messages of the API use for ``datatype``."""
    return "TYPE_STRING" if datatype is Datatype.BYTES else f"TYPE_{datatype.value}"
