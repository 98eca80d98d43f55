"""Converts exchanges to and from records, which are messages of ``proto/recording.proto``.

*Rule 1.* The last fields of a record contain tensor data, which is written as views and never
copied. The protobuf runtime handles only the fields before the tensor data.
*Rule 2.* Every record that :func:`encode_exchange` returns can be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from infergate import __version__
from infergate.codecs.protos import SCHEMA
from infergate.codecs.protos.bounded_parser import check_fields, parse_checked
from infergate.codecs.protos.wire_scanner import (
    MalformedMessageError,
    field_prefix,
    split_raw_fields,
)
from infergate.core.datatypes import DATATYPES_BY_NAME
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.exchange import Exchange, Outcome
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.records import EMPTY_MAPPING, record
from infergate.core.sequences import SequenceKey, sequence_key
from infergate.core.tensor import (
    NO_PARAMETERS,
    Buffer,
    OpaqueParameters,
    Parameters,
    Tensor,
    check_data,
    check_shape,
)
from infergate.core.wire import total_size
from infergate.recording.format import FORMAT_VERSION, MAX_METADATA_BYTES, MAX_RECORD_BYTES

_Record: Final = SCHEMA.message_class("infergate.recording.Record")
_TENSOR_DATA: Final = 15
"""The number of the field ``tensor_data``."""
_MAX_FIELDS: Final = 1_000_000
"""Maximum number of fields at all depths, including the elements of lists, but not tensor data."""
_MAX_OBJECTS: Final = 100_000
"""Maximum number of objects in a record: responses, tensors, parameters, headers, other messages,
and names of redacted tensors. An empty object takes only two bytes in the file."""
_MIN_OBJECT_BYTES: Final = 2
_OBJECT_MEMORY: Final = 512
"""An upper bound of the memory in bytes of the Python objects of one message, without its strings
and data."""
_BYTE_MEMORY: Final = 10
"""The estimated memory in bytes of the Python objects for each encoded byte of a text, number or
shape. A single dimension may take up to 18 bytes for each encoded byte."""
_SHAPE_LIMITS: Final = Limits(rank=1024)
_RESPONSES_PER_PAUSE: Final = 16
"""Number of responses of a stream that are encoded between two pauses, which takes about 0.2 ms."""
_INT64: Final = range(-(2**63), 2**63)
_ORIGINS: Final = (Origin.GATEWAY, Origin.BACKEND)


class UnrecordableError(Exception):
    """An exchange cannot be recorded: it is too large, has too many objects, has an invalid
    sequence id, or has a parameter that JSON cannot represent."""


@record
class RecordedExchange:
    """A record of a file. ``position`` and ``length`` are the position and length of the record's
    frame in bytes.

    ``further_outcomes`` has the outcomes of the same request at other backends, by the name of the
    backend. ``redacted`` has the names of tensors that were removed or zeroed, and
    ``redaction.BODY`` if the request's body was removed. ``overhead`` is the estimated memory of
    everything except tensor data, in bytes."""

    exchange: Exchange
    further_outcomes: Mapping[str, Outcome] = EMPTY_MAPPING
    redacted: tuple[str, ...] = ()
    gateway_version: str = __version__
    position: int = 0
    length: int = 0
    overhead: int = 0

    @property
    def size(self) -> int:
        """The estimated memory in bytes."""
        further_bytes = sum(outcome.size for outcome in self.further_outcomes.values())
        return self.overhead + self.exchange.size + further_bytes

    @property
    def sequence(self) -> SequenceKey | None:
        """The sequence of the request, or None."""
        return sequence_key(self.exchange.request)


# ---- writing


def encode_exchange(
    exchange: Exchange,
    further_outcomes: Mapping[str, Outcome] = EMPTY_MAPPING,
    redacted: Sequence[str] = (),
    pause: Callable[[], object] = lambda: None,
) -> list[Buffer]:
    """Return the record of ``exchange`` as parts. The parts with tensor data are views, not copies.
    ``further_outcomes`` and ``redacted`` are fields of :class:`RecordedExchange`. ``pause`` is
    called after every few responses, so that other threads can run. Raises UnrecordableError."""
    message = _Record(
        gateway_version=__version__,
        format_version=FORMAT_VERSION,
        protocol=_encode(exchange.protocol),
        route=_encode(exchange.route),
        backend=_encode(exchange.backend),
        request_id=_encode(exchange.request_id),
        started_at=exchange.started_at,
        is_stream=exchange.is_stream,
        redacted=[_encode(name) for name in redacted],
    )
    for name, value in exchange.headers.items():
        message.headers.add(name=_encode(name), value=_encode(value))
    request, outcomes = exchange.request, (exchange.outcome, *further_outcomes.values())
    try:
        sequence_key(request)  # raises GatewayError for an invalid id, which readers reject
        _write_request(message.request, request)
        _write_outcome(message.outcome, exchange.outcome, pause)
        for name, outcome in further_outcomes.items():
            named = message.further_outcomes.add(name=_encode(name))
            _write_outcome(named.outcome, outcome, pause)
    except (GatewayError, TypeError, ValueError, RecursionError) as error:
        raise UnrecordableError(f"a value cannot be recorded: {error}") from None
    metadata = message.SerializeToString()
    if len(metadata) > MAX_METADATA_BYTES:
        raise UnrecordableError(
            f"the record without its tensors has {len(metadata)} bytes; the limit is "
            f"{MAX_METADATA_BYTES}"
        )
    if len(metadata) > _MIN_OBJECT_BYTES * _MAX_OBJECTS:  # shorter metadata cannot exceed the limit
        try:
            _check_objects(metadata, len(redacted))
        except MalformedMessageError as error:
            raise UnrecordableError(f"the record has too many objects: {error}") from None
    parts: list[Buffer] = [metadata]
    for tensor in chain(request.inputs, *map(_outputs, outcomes)):
        parts += (field_prefix(_TENSOR_DATA, len(tensor.data)), tensor.data)
    if (size := total_size(parts)) > MAX_RECORD_BYTES:
        raise UnrecordableError(f"the record has {size} bytes; the limit is {MAX_RECORD_BYTES}")
    return parts


def _outputs(outcome: Outcome) -> Iterator[Tensor]:
    return chain.from_iterable(response.outputs for response in outcome.responses)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _write_request(message: Any, request: InferRequest) -> None:
    message.model = _encode(request.model)
    message.version = _encode(request.version)
    message.id = _encode(request.id)
    _write_parameters(message, request.parameters)
    _write_tensors(message.inputs, request.inputs)
    for output in request.outputs:
        _write_parameters(message.outputs.add(name=_encode(output.name)), output.parameters)


def _write_outcome(message: Any, outcome: Outcome, pause: Callable[[], object]) -> None:
    message.duration = outcome.duration
    message.offsets.extend(outcome.offsets)
    if outcome.error is not None:
        error = outcome.error
        _write_error(message.error, error.kind, error.public)
        message.error.from_backend = error.origin is Origin.BACKEND
        if error.retry_after is not None:
            message.error.retry_after = error.retry_after
    for number, response in enumerate(outcome.responses, 1):
        if number % _RESPONSES_PER_PAUSE == 0:
            pause()
        written = message.responses.add(
            model=_encode(response.model),
            version=_encode(response.version),
            id=_encode(response.id),
            is_last=response.is_last,
        )
        _write_parameters(written, response.parameters)
        _write_tensors(written.outputs, response.outputs)


def _write_tensors(messages: Any, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        message = messages.add(
            name=_encode(tensor.name), datatype=tensor.datatype.value, shape=tensor.shape
        )
        _write_parameters(message, tensor.parameters)


def _write_error(message: Any, kind: Kind, public: str) -> None:
    message.kind = kind.value
    message.public = _encode(public)


def _write_parameters(owner: Any, parameters: Parameters) -> None:
    """Write ``parameters`` to the parameter field of ``owner``. The field stays unset for empty
    plain parameters."""
    if isinstance(parameters, OpaqueParameters):
        opaque = owner.parameters.opaque
        opaque.protocols.extend(parameters.protocols)
        opaque.text = parameters.text
        if parameters.rejection is not None:
            _write_error(opaque.rejection, *parameters.rejection)
    for name, value in parameters.items():
        entry = owner.parameters.entries.add(name=_encode(name))
        if type(value) is bool:
            entry.bool_value = value
        elif type(value) is int and value in _INT64:
            entry.int_value = value
        elif type(value) is float:
            entry.double_value = value
        elif type(value) is str:
            entry.text_value = _encode(value)
        else:
            entry.json_value = json.dumps(value).encode()


# ---- reading


def decode_exchange(data: Buffer, position: int = 0, length: int = 0) -> RecordedExchange:
    """Return the record ``data``, with tensors that are views of ``data``. ``position`` and
    ``length`` are fields of :class:`RecordedExchange`. Raises MalformedMessageError."""
    # Almost all top-level fields are objects. Twice the object limit is enough for all fields.
    metadata, blobs = split_raw_fields(data, _TENSOR_DATA, 2 * _MAX_OBJECTS)
    if len(metadata) > MAX_METADATA_BYTES:
        raise MalformedMessageError(
            f"it has {len(metadata)} bytes without its tensors; the limit is {MAX_METADATA_BYTES}"
        )
    objects = _check_objects(metadata)
    message = parse_checked(_Record, metadata)
    _check_count(objects + len(message.redacted))
    # Each list and object in the JSON of a parameter is a Python object too.
    objects += len(message.redacted) + sum(map(bytes(metadata).count, (b"[", b"{")))
    tensor_data = iter(blobs)
    try:
        exchange = Exchange(
            _read_request(message.request, tensor_data),
            _read_outcome(message.outcome, tensor_data),
            _decode(message.protocol),
            _decode(message.route),
            _decode(message.backend),
            _decode(message.request_id),
            {_decode(each.name): _decode(each.value) for each in message.headers},
            message.started_at,
            message.is_stream,
        )
        further_outcomes = {
            _decode(each.name): _read_outcome(each.outcome, tensor_data)
            for each in message.further_outcomes
        }
        redacted = tuple(map(_decode, message.redacted))
        recorded = RecordedExchange(
            exchange,
            further_outcomes,
            redacted,
            message.gateway_version,
            position,
            length,
            _OBJECT_MEMORY * objects + _BYTE_MEMORY * len(metadata),
        )
        recorded.sequence  # noqa: B018 - this checks the id of the sequence
    except GatewayError as error:
        raise MalformedMessageError(error.public) from None
    except (ValueError, RecursionError) as error:
        raise MalformedMessageError(str(error)) from None
    if next(tensor_data, None) is not None:
        raise MalformedMessageError("it has data for more tensors than it describes")
    return recorded


def _check_objects(metadata: Buffer, more_objects: int = 0) -> int:
    """Return the number of messages in ``metadata``, a record without tensor data. Raises
    MalformedMessageError for too many fields, or if the messages and ``more_objects`` together are
    too many."""
    messages = check_fields(_Record, metadata, _MAX_FIELDS, max_messages=_MAX_OBJECTS)
    _check_count(messages + more_objects)
    return messages


def _check_count(objects: int) -> None:
    if objects > _MAX_OBJECTS:
        raise MalformedMessageError(
            f"it has more than {_MAX_OBJECTS} responses, tensors, parameters and headers"
        )


def _decode(value: bytes) -> str:
    return str(value, "utf-8", "surrogatepass")


def _read_request(message: Any, data: Iterator[memoryview]) -> InferRequest:
    outputs = [
        RequestedOutput(_decode(each.name), _read_parameters(each)) for each in message.outputs
    ]
    return InferRequest(
        _decode(message.model),
        _decode(message.version),
        _decode(message.id),
        _read_parameters(message),
        tuple([_read_tensor(each, data) for each in message.inputs]),
        tuple(outputs),
    )


def _read_outcome(message: Any, data: Iterator[memoryview]) -> Outcome:
    responses = [
        InferResponse(
            _decode(each.model),
            _decode(each.version),
            _decode(each.id),
            _read_parameters(each),
            tuple([_read_tensor(tensor, data) for tensor in each.outputs]),
            each.is_last,
        )
        for each in message.responses
    ]
    error = None
    if message.HasField("error"):
        written = message.error
        error = GatewayError(
            *_read_error(written),
            origin=_ORIGINS[written.from_backend],
            retry_after=written.retry_after if written.HasField("retry_after") else None,
        )
    return Outcome(tuple(responses), error, message.duration, tuple(message.offsets))


def _read_error(message: Any) -> tuple[Kind, str]:
    return Kind(message.kind), _decode(message.public)


def _read_tensor(message: Any, data: Iterator[memoryview]) -> Tensor:
    name = _decode(message.name)
    datatype = DATATYPES_BY_NAME.get(message.datatype)
    if datatype is None:
        raise MalformedMessageError(f"tensor '{name}' has the unknown datatype {message.datatype}")
    shape = check_shape(name, message.shape, _SHAPE_LIMITS)
    blob = next(data, None)
    if blob is None:
        raise MalformedMessageError(f"the data of tensor '{name}' is missing")
    check_data(name, datatype, shape, blob)
    return Tensor(name, datatype, shape, blob, _read_parameters(message))


def _read_parameters(owner: Any) -> Parameters:
    if not owner.HasField("parameters"):
        return NO_PARAMETERS
    message = owner.parameters
    parameters = {}
    for entry in message.entries:
        kind = entry.WhichOneof("value")
        value: Any = None if kind is None else getattr(entry, kind)
        if kind == "text_value":
            value = _decode(value)
        elif kind == "json_value":
            value = json.loads(value)
        parameters[_decode(entry.name)] = value
    if not message.HasField("opaque"):
        return parameters
    opaque = message.opaque
    rejection = _read_error(opaque.rejection) if opaque.HasField("rejection") else None
    return OpaqueParameters(parameters, tuple(opaque.protocols), opaque.text, rejection)
