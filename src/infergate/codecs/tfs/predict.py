"""Converts PredictRequests and PredictResponses to and from canonical inferences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from infergate.codecs.protos.wire_scanner import (
    DELIMITED,
    FieldBudget,
    budgeted_fields,
    field_budget,
    field_prefix,
    read_field,
    scan_fields,
    string_field,
)
from infergate.codecs.tfs.model_spec import (
    MAX_TOP_LEVEL_FIELDS,
    REQUEST_SPEC,
    RESPONSE_SPEC,
    decode_name,
    spec_field,
)
from infergate.codecs.tfs.tensor_reader import TensorProtoReader
from infergate.codecs.tfs.tensor_writer import tensor_parts
from infergate.core.errors import GatewayError, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import RequestedOutput
from infergate.core.name_rules import MAX_NAME_BYTES as MAX_TENSOR_NAME_BYTES
from infergate.core.name_rules import find_tensor_name_problem
from infergate.core.tensor import Buffer, Tensor

INPUTS: Final = 2
OUTPUT_FILTER: Final = 3
"""The field numbers of PredictRequest.inputs and output_filter."""
OUTPUTS: Final = 1
"""The field number of PredictResponse.outputs."""
_KEY, _VALUE = 1, 2
_KEY_TAG: Final = _KEY << 3 | DELIMITED
_VALUE_TAG: Final = _VALUE << 3 | DELIMITED
_SHORT_LENGTH: Final = 0x80
_read_name: Final = partial(decode_name, "the name of a tensor", MAX_TENSOR_NAME_BYTES)


def max_fields(limits: Limits) -> int:
    """Return the maximum number of top-level fields of a message: an input and a requested output
    for each tensor, and a few other fields."""
    return min(2 * limits.tensors + 64, MAX_TOP_LEVEL_FIELDS)


def read_tensors(message: Buffer, number: int, kind: str, limits: Limits) -> tuple[Tensor, ...]:
    """Return the tensors of the map in field ``number`` of ``message``, in message order. ``kind``
    is input or output. Raises MalformedMessageError, NeedsOffloadError, BAD_REQUEST and
    TOO_LARGE."""
    budget = field_budget(MAX_TOP_LEVEL_FIELDS, limits)
    reader = TensorProtoReader(limits, budget)
    tensors: dict[str, Tensor] = {}
    for entry in _values(message, number, kind, limits):
        name, proto = _map_entry(entry, budget)
        _check_name(name, kind, len(tensors))
        if name in tensors:
            raise bad_request(f"{kind} '{name}' is given twice")
        try:
            tensors[name] = reader.read(name, proto)
        except GatewayError as error:
            if kind != "input":
                raise
            reason = error.public.removeprefix(f"tensor '{name}': ")
            # TensorFlow Serving's prefix
            raise error.reworded(f"tensor parsing error: {name}: {reason}") from None
    return tuple(tensors.values())


def _map_entry(entry: memoryview, budget: FieldBudget) -> tuple[str, memoryview]:
    """Return the key and the TensorProto of a map entry. Several TensorProtos are merged."""
    size = len(entry)
    if size > 2 and entry[0] == _KEY_TAG and (length := entry[1]) < _SHORT_LENGTH:
        # Protobuf writes the key before the value.
        key_end = 2 + length
        if key_end < size and entry[key_end] == _VALUE_TAG:
            _, _, _, start, end = read_field(entry, key_end)
            if end == size:
                return _read_name(entry[2:key_end]), entry[start:]
    name = ""
    protos: list[memoryview] = []
    for field in budgeted_fields(entry, budget):
        if field.wire_type != DELIMITED:
            continue
        value = entry[field.value_start : field.end]
        if field.number == _KEY:
            name = _read_name(value)
        elif field.number == _VALUE:
            protos.append(value)
    return name, protos[0] if len(protos) == 1 else memoryview(b"".join(protos))


def _values(message: Buffer, number: int, kind: str, limits: Limits) -> Iterator[memoryview]:
    """Yield the values of the repeated field ``number``. Each value belongs to one input or output,
    depending on ``kind``. Raises MalformedMessageError, and BAD_REQUEST for more than
    ``limits.tensors`` values."""
    view = memoryview(message)
    count = 0
    for field in scan_fields(message, max_fields(limits)):
        if field.number != number or field.wire_type != DELIMITED:
            continue
        count += 1
        if count > limits.tensors:
            raise bad_request(
                f"there are over {limits.tensors} {kind}s (the limit)", limit="tensors"
            )
        yield view[field.value_start : field.end]


def read_output_filter(message: Buffer, limits: Limits) -> tuple[RequestedOutput, ...]:
    """Return the requested outputs of a PredictRequest. Raises MalformedMessageError, and
    BAD_REQUEST for a duplicate or invalid name."""
    names: dict[str, None] = {}
    for value in _values(message, OUTPUT_FILTER, "output", limits):
        name = _read_name(value)
        _check_name(name, "output", len(names))
        if name in names:
            raise bad_request(f"duplicate output tensor alias: {name}")
        names[name] = None
    return tuple(map(RequestedOutput, names))


def _check_name(name: str, kind: str, index: int) -> None:
    if not name:
        raise bad_request(f"{kind} {index} has no name")
    if problem := find_tensor_name_problem(name):
        raise bad_request(f"the name of {kind} {index} {problem}")


def request_parts(
    spec: bytes, inputs: Iterable[Tensor], outputs: Sequence[RequestedOutput]
) -> list[Buffer]:
    """Return a PredictRequest with numbers in tensor_content, which every server can read."""
    parts: list[Buffer] = [spec_field(REQUEST_SPEC, spec)]
    _add_tensors(parts, INPUTS, inputs, "raw")
    filters = b"".join([string_field(OUTPUT_FILTER, output.name) for output in outputs])
    return [*parts, filters] if filters else parts


def response_parts(spec: bytes, outputs: Iterable[Tensor], contents: str) -> list[Buffer]:
    """Return a PredictResponse with tensors in the form ``contents`` (see ``tensor_writer``)."""
    parts: list[Buffer] = []
    _add_tensors(parts, OUTPUTS, outputs, contents)
    parts.append(spec_field(RESPONSE_SPEC, spec))
    return parts


def _add_tensors(
    parts: list[Buffer], number: int, tensors: Iterable[Tensor], contents: str
) -> None:
    for tensor in tensors:
        proto = tensor_parts(tensor, contents)
        size = sum(map(len, proto))
        key = string_field(_KEY, tensor.name)
        value_prefix = field_prefix(_VALUE, size)
        entry = len(key) + len(value_prefix) + size
        parts.append(b"".join((field_prefix(number, entry), key, value_prefix, proto[0])))
        parts += proto[1:]
