"""References to tensor data in shared memory.

The parameters that hold a reference are those of the V2 shared memory extension, which all V2
protocols spell alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from infergate.core.datatypes import Datatype
from infergate.core.errors import bad_request
from infergate.core.names import check_region
from infergate.core.records import record

REGION: Final = "shared_memory_region"
_OFFSET: Final = "shared_memory_offset"
_SIZE: Final = "shared_memory_byte_size"
_KEYS: Final = frozenset({REGION, _OFFSET, _SIZE})
_MOST: Final = 2**64 - 1


@record
class Place:
    """``size`` bytes from ``offset`` of the registered ``region``. Both are from 0 to 2^64-1 and
    have not been compared with the size of the region."""

    region: str
    offset: int
    size: int


def read_place(parameters: Mapping[str, Any], owner: str) -> tuple[Place | None, Mapping[str, Any]]:
    """Return the reference in ``parameters``, if any, and the remaining parameters.

    ``owner`` names the tensor in errors ("tensor 'x'"). Raises BAD_REQUEST. A missing size is 0, as
    with Triton.
    """
    if REGION not in parameters:
        return None, parameters
    region = parameters[REGION]
    if not isinstance(region, str) or not region:
        raise bad_request(f"{owner}: {REGION} must be the name of a region")
    check_region(region)
    region_ref = Place(
        region, _number(parameters, _OFFSET, owner), _number(parameters, _SIZE, owner)
    )
    return region_ref, without_place(parameters)


def without_place(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``parameters`` without those of a reference."""
    return {key: value for key, value in parameters.items() if key not in _KEYS}


def write_place(place: Place) -> dict[str, Any]:
    """Return the parameters for ``region_ref``; an offset of 0 is omitted, as clients do."""
    parameters: dict[str, Any] = {REGION: place.region, _SIZE: place.size}
    if place.offset:
        parameters[_OFFSET] = place.offset
    return parameters


def written_place(place: Place, datatype: Datatype, shape: Sequence[int]) -> Place:
    """Return the part of ``region_ref`` that a server has written a tensor to. For BYTES it is
    unknown: all of it."""
    if datatype is Datatype.BYTES:
        return place
    return replace(place, size=min(math.prod(shape) * datatype.itemsize, place.size))


def _number(parameters: Mapping[str, Any], key: str, owner: str) -> int:
    value = parameters.get(key, 0)
    if type(value) is not int or not 0 <= value <= _MOST:
        raise bad_request(f"{owner}: {key} must be an integer from 0 to 2^64-1")
    return value
