"""Estimates the memory that an exchange holds while it waits to be written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

from infergate.core.exchange import Exchange
from infergate.core.tensor import NO_PARAMETERS

_EXCHANGE_BYTES: Final = 2048
"""An upper bound, in bytes, for an exchange's objects, excluding tensors, parameters, headers and
error texts."""
_TENSOR_BYTES: Final = 512
_RESPONSE_BYTES: Final = 512
_VALUE_BYTES: Final = 128
"""An upper bound, in bytes, for a short value, including its entry in a list or dictionary."""
_MAX_VALUES: Final = 10_000
"""Maximum number of parameters and nested values of an exchange. Counting this many on the event
loop takes about a millisecond."""


def held_bytes(exchange: Exchange) -> int | None:
    """Return an upper bound of the memory of ``exchange`` in bytes, or None if the exchange has
    more than ``_MAX_VALUES`` parameters and nested values."""
    request, responses = exchange.request, exchange.outcome.responses
    outputs = [tensor for response in responses for tensor in response.outputs]
    size = _EXCHANGE_BYTES + _RESPONSE_BYTES * len(responses)
    size += _TENSOR_BYTES * (len(request.inputs) + len(request.outputs) + len(outputs))
    buffers: dict[int, int] = {}
    for tensor in chain(request.inputs, outputs):
        data = tensor.data
        # A memoryview keeps its whole buffer in memory.
        buffer = data.obj if isinstance(data, memoryview) else data
        if id(buffer) not in buffers:
            buffers[id(buffer)] = memoryview(buffer).nbytes
    size += sum(buffers.values())
    owners: Iterable[Any] = chain((request,), request.inputs, request.outputs, responses, outputs)
    values: list[Any] = [
        owner.parameters for owner in owners if owner.parameters is not NO_PARAMETERS
    ]
    if exchange.headers:
        values.append(exchange.headers)
    if (error := exchange.outcome.error) is not None:
        values += error.public, error.detail
    values_bytes = _values_bytes(values)
    return None if values_bytes is None else size + values_bytes


def _values_bytes(values: list[Any]) -> int | None:
    size = count = 0
    while values:
        value = values.pop()
        count += 1
        size += _VALUE_BYTES
        if isinstance(value, str):
            size += 4 * len(value)
        elif isinstance(value, Mapping | list | tuple):
            count += len(value)
            if count > _MAX_VALUES:
                return None
            values.extend(value)
            if isinstance(value, Mapping):
                values.extend(value.values())
                size += len(getattr(value, "text", b""))  # the text of OpaqueParameters
    return size
