"""Converts parameters between the five kinds of InferParameter and Python's bool, int, str and
float.

Lists and objects from JSON are written as JSON text in string_param. Null values are omitted.
"""

from __future__ import annotations

import json
from typing import Any, Final

from infergate.core.tensor import NO_PARAMETERS, Parameters

_INT64: Final = range(-(2**63), 2**63)
_UINT64: Final = range(2**64)


def read_parameters(entries: Any) -> Parameters:
    """Return a map<string, InferParameter> as Python values."""
    if not entries:
        return NO_PARAMETERS
    values: dict[str, Any] = {}
    for key, parameter in entries.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is not None:
            values[key] = getattr(parameter, kind)
    return values


def write_parameters(entries: Any, parameters: Parameters) -> None:
    """Fill a map<string, InferParameter>. Raises ValueError for values that it cannot hold."""
    for key, value in parameters.items():
        if value is not None:
            write_parameter(entries[key], key, value)


def write_parameter(message: Any, key: str, value: Any) -> None:
    """Set one InferParameter to `value`, which is not None."""
    if isinstance(value, bool):
        message.bool_param = value
    elif isinstance(value, str):
        message.string_param = value
    elif isinstance(value, float):
        message.double_param = value
    elif isinstance(value, int):
        if value in _INT64:
            message.int64_param = value
        elif value in _UINT64:
            message.uint64_param = value
        else:
            raise ValueError(f"parameter '{key}': the integer has more than 64 bits")
    else:
        message.string_param = json.dumps(value, separators=(",", ":"))
