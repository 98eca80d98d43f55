"""References to tensor data in shared memory: the parameters of the V2 shared memory extension."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from infergate.core.datatypes import Datatype
from infergate.core.errors import bad_request
from infergate.core.name_rules import check_region_name
from infergate.core.records import record

REGION_PARAMETER: Final = "shared_memory_region"
_OFFSET: Final = "shared_memory_offset"
_SIZE: Final = "shared_memory_byte_size"
_REGION_PARAMETERS: Final = frozenset({REGION_PARAMETER, _OFFSET, _SIZE})
_MAX_UINT64: Final = 2**64 - 1


@record
class RegionRef:
    """``size`` bytes from ``offset`` of the registered ``region``. Both numbers are from 0 to
    2^64-1 and have not been compared with the size of the region."""

    region: str
    offset: int
    size: int


def parse_region_ref(
    parameters: Mapping[str, Any], owner: str
) -> tuple[RegionRef | None, Mapping[str, Any]]:
    """Return the reference in ``parameters``, or None, and the remaining parameters.

    ``owner`` names the tensor in errors ("tensor 'x'"). A missing size counts as 0, as in Triton.
    Raises BAD_REQUEST."""
    if REGION_PARAMETER not in parameters:
        return None, parameters
    region = parameters[REGION_PARAMETER]
    if not isinstance(region, str) or not region:
        raise bad_request(f"{owner}: {REGION_PARAMETER} must be the name of a region")
    check_region_name(region)
    region_ref = RegionRef(
        region, _parse_uint64(parameters, _OFFSET, owner), _parse_uint64(parameters, _SIZE, owner)
    )
    return region_ref, without_region_parameters(parameters)


def without_region_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``parameters`` without the parameters of a region reference."""
    return {key: value for key, value in parameters.items() if key not in _REGION_PARAMETERS}


def region_parameters(region_ref: RegionRef) -> dict[str, Any]:
    """Return the parameters for ``region_ref``. An offset of 0 is omitted, as in Triton's
    clients."""
    parameters: dict[str, Any] = {REGION_PARAMETER: region_ref.region, _SIZE: region_ref.size}
    if region_ref.offset:
        parameters[_OFFSET] = region_ref.offset
    return parameters


def written_region(region_ref: RegionRef, datatype: Datatype, shape: Sequence[int]) -> RegionRef:
    """Return the part of ``region_ref`` to which a server has written a tensor. For BYTES,
    ``region_ref`` is returned unchanged, because the written size is unknown."""
    if datatype is Datatype.BYTES:
        return region_ref
    return replace(region_ref, size=min(math.prod(shape) * datatype.itemsize, region_ref.size))


def _parse_uint64(parameters: Mapping[str, Any], key: str, owner: str) -> int:
    value = parameters.get(key, 0)
    if type(value) is not int or not 0 <= value <= _MAX_UINT64:
        raise bad_request(f"{owner}: {key} must be an integer from 0 to 2^64-1")
    return value
