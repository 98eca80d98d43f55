"""Converts between the fields of a request header and the id and parameters of a canonical request.

| header | canonical |
|---|---|
| ``id``, 0 if absent | ``id`` in decimal; an id that is not a number is not sent |
| ``correlation_id``, 0 if absent | ``sequence_id`` |
| ``flags`` 1, 2 | ``sequence_start``, ``sequence_end`` |
| ``priority``, 0 if absent | ``priority`` |
| ``timeout_microseconds``, 0 if absent | ``timeout`` |

Releases before 1.12 reject a text header with ``priority`` or ``timeout_microseconds``.

The codec drops all other parameters. V2 servers also ignore unknown parameters.
"""

from __future__ import annotations

from typing import Any, Final

from infergate.core.decimals import parse_decimal
from infergate.core.errors import bad_request
from infergate.core.tensor import NO_PARAMETERS, Parameters

_SEQUENCE: Final = "sequence_id"
_FLAGS: Final = {"sequence_start": 1, "sequence_end": 2}
_NUMERIC_FIELDS: Final = {
    # The header field of each parameter, and the number of bits of the field.
    _SEQUENCE: ("correlation_id", 64),
    "priority": ("priority", 32),
    "timeout": ("timeout_microseconds", 64),
}
_SCHEDULING: Final = frozenset({"priority", "timeout"})
_MAX_NUMBER: Final = 10**20 - 1
"""The largest number with as many digits as the largest uint64."""


def read_parameters(header: Any) -> Parameters:
    """Return the parameters in ``header`` in canonical form."""
    parameters: dict[str, Any] = {}
    for name, (field, _) in _NUMERIC_FIELDS.items():
        if value := getattr(header, field):
            parameters[name] = value
    for name, flag in _FLAGS.items():
        if header.flags & flag:
            parameters[name] = True
    return parameters or NO_PARAMETERS


def write_parameters(header: Any, id_: str, parameters: Parameters, *, schedules: bool) -> None:
    """Write the id and the parameters to ``header``. If ``schedules`` is false, omit the priority
    and the timeout. Raises BAD_REQUEST for values that the fields cannot hold."""
    number = parse_decimal(id_, 2**64 - 1)
    if number is not None:
        header.id = number
    for name, (field, bits) in _NUMERIC_FIELDS.items():
        if name in parameters:
            number = _checked_number(name, parameters[name], bits)
            if schedules or name not in _SCHEDULING:
                setattr(header, field, number)
    for name, flag in _FLAGS.items():
        value = parameters.get(name, False)
        if not isinstance(value, bool):
            raise bad_request(f"parameter '{name}' must be true or false")
        header.flags |= flag * value


def _checked_number(name: str, value: Any, bits: int) -> int:
    number = value
    if name == _SEQUENCE and isinstance(value, str):  # V2 allows strings as sequence ids
        number = parse_decimal(value, _MAX_NUMBER)
        if number is None:
            raise bad_request(
                f"parameter '{name}' is {value[:40]!r}: the backend only supports numbers"
            )
    if type(number) is not int or not 0 <= number < 2**bits:
        raise bad_request(f"parameter '{name}' must be an integer from 0 to 2^{bits}-1")
    return number
