"""Cached responses as bytes: the length of a JSON description, the description, and tensor data."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from infergate.caching.keys import MAX_WEIGHT, UncacheableError, check_weight, to_json
from infergate.core.datatypes import DATATYPES_BY_NAME
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.messages import InferResponse
from infergate.core.records import record
from infergate.core.tensor import (
    NO_PARAMETERS,
    OpaqueParameters,
    Parameters,
    Tensor,
    check_data,
    check_shape,
)

_LENGTH_BYTES: Final = 4
_MAX_JSON: Final = 16 * MAX_WEIGHT
"""Maximum length of a description in bytes. JSON represents a character with up to 12 bytes."""
_SHAPE_LIMITS: Final = Limits(rank=1024)


@record
class CachedResponse:
    """A response without an id, and the backend's headers that clients receive with it."""

    response: InferResponse
    headers: Mapping[str, str]


def encode(response: InferResponse, headers: Mapping[str, str]) -> bytes:
    """Return ``response``, without its id, together with ``headers`` as bytes. Raises
    UncacheableError."""
    if any(tensor.shared_memory is not None for tensor in response.outputs):
        raise UncacheableError("an output is in shared memory")
    outputs = [
        [
            tensor.name,
            tensor.datatype.value,
            tensor.shape,
            _plain(tensor.parameters),
            len(tensor.data),
        ]
        for tensor in response.outputs
    ]
    description = [
        response.model,
        response.version,
        response.is_last,
        _plain(response.parameters),
        outputs,
        dict(headers),
    ]
    check_weight(description)
    text = to_json(description, sorts=False)
    data = (tensor.data for tensor in response.outputs)
    return b"".join((len(text).to_bytes(_LENGTH_BYTES), text, *data))


def decode(value: bytes) -> CachedResponse:
    """Return the response and the headers that ``encode`` converted to ``value``. The outputs' data
    are views of ``value``. May raise ValueError, TypeError, KeyError, IndexError or RecursionError
    for other bytes; ``check`` validates completely."""
    start = _LENGTH_BYTES + int.from_bytes(value[:_LENGTH_BYTES])
    if start > _LENGTH_BYTES + _MAX_JSON:
        raise ValueError("the description is too long")
    description = json.loads(value[_LENGTH_BYTES:start])
    model, version, is_last, parameters, outputs, headers = description
    view, position, tensors = memoryview(value), start, []
    for name, datatype, shape, tensor_parameters, size in outputs:
        data = view[position : position + size]
        position += size
        tensors.append(
            Tensor(
                name, DATATYPES_BY_NAME[datatype], tuple(shape), data, _original(tensor_parameters)
            )
        )
    if position != len(value):
        raise ValueError("the size of the tensor data does not match the outputs")
    response = InferResponse(model, version, "", _original(parameters), tuple(tensors), is_last)
    return CachedResponse(response, headers)


def check(value: bytes) -> None:
    """Raise ValueError if ``value`` is not a valid cached response. Another program may have
    written ``value``."""
    try:
        entry = decode(value)
        response = entry.response
        texts = (response.model, response.version, *entry.headers, *entry.headers.values())
        for tensor in response.outputs:
            check_shape(tensor.name, tensor.shape, _SHAPE_LIMITS)
            check_data(tensor.name, tensor.datatype, tensor.shape, tensor.data)
        is_valid = (
            all(type(text) is str for text in (*texts, *(t.name for t in response.outputs)))
            and type(response.is_last) is bool
            and isinstance(response.parameters, dict)
            and all(isinstance(tensor.parameters, dict) for tensor in response.outputs)
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, GatewayError) as e:
        raise ValueError("the value is not a cached response") from e
    if not is_valid:
        raise ValueError("the value is not a cached response")


def _plain(parameters: Parameters) -> Any:
    if type(parameters) is OpaqueParameters:
        rejection = parameters.rejection
        return [
            dict(parameters),
            parameters.protocols,
            base64.b64encode(parameters.text).decode(),
            None if rejection is None else [rejection[0].value, rejection[1]],
        ]
    return dict(parameters) or None


def _original(value: Any) -> Any:
    """Return the parameters that ``_plain`` converted to ``value``."""
    if value is None:
        return NO_PARAMETERS
    if isinstance(value, list):
        parameters, protocols, text, rejection = value
        return OpaqueParameters(
            parameters,
            tuple(protocols),
            base64.b64decode(text),
            None if rejection is None else (Kind(rejection[0]), rejection[1]),
        )
    return value
