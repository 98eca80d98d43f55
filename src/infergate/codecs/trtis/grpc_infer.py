"""Reads and writes the gRPC messages InferRequest and InferResponse without copying raw data.

The tensors of a received message are memoryviews of that message. A message to send is a list of
parts in which each tensor is a part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from infergate.codecs.protos.bounded_parser import max_fields_on_loop, parse
from infergate.codecs.protos.wire_scanner import (
    DELIMITED,
    MAX_NAME_BYTES,
    MAX_VARINT_BYTES,
    VARINT,
    FieldBudget,
    MalformedMessageError,
    budgeted_fields,
    field_prefix,
    read_varint,
    scan_fields,
    split_raw_fields,
)
from infergate.codecs.trtis.header_checks import CheckedInput
from infergate.codecs.trtis.messages import InferRequest, InferResponse
from infergate.core.classification import MAX_CLASSES
from infergate.core.errors import GatewayError, Kind, backend_garbage, bad_request
from infergate.core.limits import KIB, MIB, Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import join_parts

RAW_INPUT: Final = 4
RAW_OUTPUT: Final = 3
MAX_HEAD_BYTES: Final = 4 * MIB
"""Maximum size in bytes of a message without its raw data. Parsing takes about 6 ms per MiB."""
MAX_REQUEST_FIELDS: Final = 24 * KIB
"""Maximum number of fields of a request. Scanning a request takes up to 50 ms."""
MAX_RESPONSE_FIELDS: Final = MAX_REQUEST_FIELDS + 4 * MAX_CLASSES
"""Maximum number of fields of a response. A class takes four fields."""
_OTHER_FIELDS: Final = 16
"""Allowance for fields that are not raw data. The messages define at most three such fields."""


class _UnreadableMessageError(GatewayError):
    """The bytes are not a message of the method. The codec reports this error as a gRPC status."""

    def __init__(self, reason: str) -> None:
        super().__init__(Kind.BAD_REQUEST, f"the message cannot be parsed: {reason}")


@contextmanager
def reading_request() -> Iterator[None]:
    """Convert MalformedMessageError to BAD_REQUEST."""
    try:
        yield
    except MalformedMessageError as error:
        raise _UnreadableMessageError(str(error)) from None


def is_unreadable(error: GatewayError) -> bool:
    """Return whether ``error`` reports a request that cannot be parsed."""
    return isinstance(error, _UnreadableMessageError)


@reading_request()
def read_names(message: Sequence[Buffer]) -> tuple[str, int]:
    """Return ``model_name`` and ``model_version`` (fields 1 and 2). If a field occurs twice, the
    last value counts. Raises BAD_REQUEST."""
    data = join_parts(message)
    model, version = "", 0
    for number, wire_type, _, value, end in scan_fields(data, MAX_REQUEST_FIELDS):
        if number == 1 and wire_type == DELIMITED:
            if end - value > MAX_NAME_BYTES:
                raise bad_request(f"model_name is longer than {MAX_NAME_BYTES} bytes")
            model = _text(data[value:end])
        elif number == 2 and wire_type == VARINT:
            version = _uint64(data, value)
    return model, version - 2**64 if version >= 2**63 else version


@reading_request()
def read_id(message: Sequence[Buffer]) -> int:
    """Return ``meta_data.id`` (field 5 of field 3). Raises BAD_REQUEST."""
    id_ = 0
    data = memoryview(join_parts(message))
    budget = FieldBudget(MAX_REQUEST_FIELDS)
    for field in budgeted_fields(data, budget):
        if field.number == 3 and field.wire_type == DELIMITED:
            header = data[field.value_start : field.end]
            for header_field in budgeted_fields(header, budget):
                if header_field.number == 5 and header_field.wire_type == VARINT:
                    id_ = _uint64(header, header_field.value_start)
    return id_


def _text(value: Buffer) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise MalformedMessageError("a string is not UTF-8") from None


def _uint64(data: Buffer, position: int) -> int:
    return read_varint(data, position, MAX_VARINT_BYTES)[0] % 2**64


def read_request(message: Sequence[Buffer], limits: Limits) -> tuple[Any, list[memoryview]]:
    """Parse an InferRequest. Return the message without its raw data, and the raw data. Raises
    BAD_REQUEST."""
    try:  # not `reading_request`, whose generator costs a microsecond per request
        head, raw = split_raw(message, RAW_INPUT, limits)
        return parse(InferRequest, head, MAX_REQUEST_FIELDS, MAX_HEAD_BYTES), raw
    except MalformedMessageError as error:
        raise _UnreadableMessageError(str(error)) from None


def read_response(message: Sequence[Buffer], limits: Limits) -> tuple[Any, list[memoryview]]:
    """Parse an InferResponse. Return the message without its raw data, and the raw data. Raises
    BACKEND_GARBAGE and NeedsOffloadError."""
    max_on_loop = max_fields_on_loop(limits)
    try:
        head, raw = split_raw(message, RAW_OUTPUT, limits)
        return parse(InferResponse, head, MAX_RESPONSE_FIELDS, MAX_HEAD_BYTES, max_on_loop), raw
    except MalformedMessageError as error:
        raise backend_garbage("the backend's InferResponse cannot be parsed", str(error)) from None


def split_raw(
    message: Sequence[Buffer], raw_number: int, limits: Limits
) -> tuple[Buffer, list[memoryview]]:
    """Return ``message`` without its raw data, and the raw data. Raises MalformedMessageError."""
    max_fields = 2 * limits.tensors + _OTHER_FIELDS
    rest, entries = split_raw_fields(join_parts(message), raw_number, max_fields)
    if len(rest) > MAX_HEAD_BYTES:
        raise MalformedMessageError(
            f"it has {len(rest)} bytes besides raw data; the limit is {MAX_HEAD_BYTES}"
        )
    return rest, entries


def may_have_entries(count: int, limits: Limits) -> bool:
    """Return whether a message may have ``count`` entries of raw data."""
    return count <= 2 * limits.tensors


def message_parts(head: Any, raw_number: int, raw: Iterable[Buffer]) -> list[Buffer]:
    """Return ``head`` and a field ``raw_number`` for each entry of ``raw``. No entry is copied."""
    return add_raw([head.SerializeToString(deterministic=True)], raw_number, raw)


def add_raw(parts: list[Buffer], raw_number: int, raw: Iterable[Buffer]) -> list[Buffer]:
    """Append a field ``raw_number`` for each entry of ``raw`` to ``parts``. Return ``parts``."""
    for entry in raw:
        parts.append(field_prefix(raw_number, len(entry)))
        if len(entry):
            parts.append(entry)
    return parts


def split_inputs(
    raw: Sequence[Buffer], inputs: Sequence[CheckedInput], model: str
) -> Sequence[Buffer]:
    """Assign an entry to each input that is not in shared memory. Like legacy servers, ignore
    surplus entries. Raises BAD_REQUEST."""
    in_message = [tensor for tensor in inputs if tensor.shared_memory is None]
    for index, tensor in enumerate(in_message):
        if index >= len(raw):
            raise bad_request(
                f"expected tensor data for at least {index} inputs but got only {len(raw)} "
                f"sets of data for model '{model}'"
            )
        if len(raw[index]) != tensor.size:
            raise bad_request(
                f"unexpected size {len(raw[index])} for input '{tensor.name}', expecting "
                f"{tensor.size} for model '{model}'"
            )
    entries = iter(raw)
    return [next(entries) if tensor.shared_memory is None else b"" for tensor in inputs]


def split_outputs(raw: Sequence[Buffer], sizes: Sequence[int | None]) -> Sequence[Buffer]:
    """Return ``raw``, which has an entry for each output. Entries of outputs with classes or in
    shared memory are empty. Raises BACKEND_GARBAGE."""
    if len(raw) != len(sizes):
        raise backend_garbage(f"it has {len(raw)} raw_output entries for {len(sizes)} outputs")
    return raw
