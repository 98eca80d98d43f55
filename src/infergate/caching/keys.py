"""The keys of cached responses: a hash over everything that can change the response to an
inference."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from infergate.core.limits import KIB
from infergate.core.messages import InferRequest
from infergate.core.tensor import Buffer, OpaqueParameters, Parameters

MAX_WEIGHT: Final = 64 * KIB
"""Maximum weight of the parameters and names of an inference or a response. Serializing this weight
takes less than a millisecond. Messages with a larger weight are not cached."""
_VALUE_WEIGHT: Final = 8
"""The weight of a value without its text. Each character adds 1."""


class UncacheableError(Exception):
    """The message cannot be cached, because its parameters are too large or are not JSON, or
    because an output is in shared memory."""


def check_weight(values: Iterable[object]) -> None:
    """Raise UncacheableError if the total weight of ``values``, including nested values, exceeds
    ``MAX_WEIGHT``."""
    weight, waiting = 0, list(values)
    while waiting:
        value = waiting.pop()
        weight += _VALUE_WEIGHT
        if isinstance(value, str):
            weight += len(value)
        elif isinstance(value, Mapping):
            weight += _VALUE_WEIGHT * len(value)
            if weight <= MAX_WEIGHT:
                waiting += value.keys()
                waiting += value.values()
        elif isinstance(value, list | tuple):
            weight += _VALUE_WEIGHT * len(value)
            if weight <= MAX_WEIGHT:
                waiting += value
        elif isinstance(value, int):
            weight += value.bit_length() // 3
        if weight > MAX_WEIGHT:
            raise UncacheableError("the parameters are too large")


def to_json(value: object, *, sorts: bool) -> bytes:
    """Return ``value`` as JSON. With ``sorts``, the members of objects are sorted by name.
    Different values, such as 1, 1.0 and true, have different JSON. Raises UncacheableError."""
    try:
        return json.dumps(value, sort_keys=sorts, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        raise UncacheableError("a parameter is not JSON") from None


def key_parts(request: InferRequest, extra: Sequence[str], ignored: frozenset[str]) -> list[Buffer]:
    """Return the bytes that identify ``request`` among all inferences: a description without the
    request's id, the text of opaque parameters, and the data of the inputs.

    ``extra`` contains other values that can change the response, such as headers that the backend
    receives. ``ignored`` contains the names of request parameters that cannot change the response.
    Raises UncacheableError."""
    data: list[Buffer] = []

    def plain(parameters: Parameters, skipped: frozenset[str] = frozenset()) -> Any:
        if not parameters:
            return _opaque(parameters, data) if type(parameters) is OpaqueParameters else 0
        kept = {name: parameters[name] for name in parameters if name not in skipped}
        if type(parameters) is OpaqueParameters:
            return [kept, *_opaque(parameters, data)]
        return kept or 0

    inputs = []
    for tensor in request.inputs:
        size, parameters = len(tensor.data), plain(tensor.parameters)
        inputs.append([tensor.name, tensor.datatype.value, tensor.shape, parameters, size])
    description = [
        request.model,
        request.version,
        plain(request.parameters, ignored),
        inputs,
        [[output.name, plain(output.parameters)] for output in request.outputs],
        extra,
    ]
    check_weight(description)
    text = to_json(description, sorts=True)
    # The description contains the lengths of all parts, so different requests have different bytes.
    return [len(text).to_bytes(8), text, *data, *(tensor.data for tensor in request.inputs)]


def _opaque(parameters: OpaqueParameters, data: list[Buffer]) -> list[Any]:
    data.append(parameters.text)
    kind = "" if parameters.rejection is None else parameters.rejection[0].value
    return [parameters.protocols, len(parameters.text), kind]


def digest(scope: bytes, parts: Iterable[Buffer]) -> bytes:
    """Return the SHA-256 hash of ``scope`` and ``parts``. All scopes must have the same length."""
    hashed = hashlib.sha256(scope)
    for part in parts:
        hashed.update(part)
    return hashed.digest()
