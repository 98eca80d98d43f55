"""Pass-through between legacy gRPC clients and servers, with the rules of ``http_pass_through``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from infergate.codecs.base import ParsedRequest, PartialInferRequest, RequestSummary
from infergate.codecs.protos.statuses import raise_status
from infergate.codecs.protos.wire_scanner import (
    DELIMITED,
    MAX_NAME_BYTES,
    MAX_VARINT_BYTES,
    VARINT,
    MalformedMessageError,
    field_prefix,
    read_varint,
    remove_fields,
    scan_fields,
    varint_field,
)
from infergate.codecs.trtis import grpc_infer
from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis.grpc_methods import INFER
from infergate.codecs.trtis.infer_request import read_request, version_number
from infergate.codecs.trtis.infer_response import model_version
from infergate.codecs.trtis.options import CompatibilityLevel
from infergate.codecs.trtis.request_status import RequestStatusFactory, check_status
from infergate.codecs.trtis.split_inference import RESPONSE, SplitInference, split_inference
from infergate.codecs.trtis.validated_headers import (
    MAX_KEY_LENGTH,
    ValidatedHeader,
    ValidatedHeaderCache,
    ValidatedResponse,
    validate_response,
)
from infergate.core.errors import backend_garbage, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, join_parts

# The fields are model_name, model_version and meta_data of InferRequest, and request_status and
# meta_data of InferResponse.
_MODEL: Final = 1
_VERSION: Final = 2
_STATUS: Final = 1
_REQUEST_HEADER: Final = 3
_RESPONSE_HEADER: Final = 2
_ID: Final = 5
_FIELDS_PER_TENSOR: Final = 4


@dataclass
class ValidatedRpcRequest(RpcRequest):
    """A validated inference. ``id`` is the client's id, or 0 if the request has no id."""

    header: ValidatedHeader | None = None
    model_and_version: tuple[str, str] = ("", "")
    parse: Callable[[], tuple[Any, PartialInferRequest[ParsedRequest]]] | None = None
    id: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (
            self.method,
            self.message,
            self.metadata,
            self.header,
            self.model_and_version,
            self.parse,
        )
        return ValidatedRpcRequest, (*arguments, self.id)  # `codec_state` is not pickled


class RequestState(NamedTuple):
    """The state of a request: its ``message``, the ``target`` and ``summary`` read from the
    message, and the split message or None."""

    message: Sequence[Buffer]
    target: InferRequest
    summary: RequestSummary
    split: SplitInference | None


def read_names(split: SplitInference) -> tuple[str, int] | None:
    """Return the model name and version of a request, or None if the model name is invalid."""
    if len(split.first) > MAX_NAME_BYTES:
        return None
    try:
        model = str(split.first, "utf-8")
    except UnicodeDecodeError:
        return None
    version = split.version
    return model, version - 2**64 if version >= 2**63 else version


def validate(
    wire: RpcRequest,
    target: InferRequest,
    header_cache: ValidatedHeaderCache,
    level: CompatibilityLevel,
    limits: Limits,
) -> PartialInferRequest[RpcRequest]:
    """Return ``wire`` as a partial request, whose validation needs the model's metadata. Raises
    MalformedMessageError and BAD_REQUEST."""
    state = wire.codec_state
    split = state.split if type(state) is RequestState else None
    parse = partial(_parse_request, wire.message, target, level, limits)
    parsed_request = None
    if split is not None and grpc_infer.may_have_entries(len(split.raw), limits):
        header_bytes: bytes | None = split.header
        number, raw = split.id, split.entries()
    else:
        head, raw = grpc_infer.split_raw(wire.message, grpc_infer.RAW_INPUT, limits)
        header_bytes, number = _split_id(_single_field(head, _REQUEST_HEADER, _MODEL)[0], limits)
    key = None if header_bytes is None else (header_bytes, target.model, target.version)
    entry = header_cache.find(key)
    if entry is None:
        parsed_request = parse()

    def complete(metadata: ModelMetadata) -> RpcRequest:
        validated, id_ = entry, number
        if (
            validated is not None
            and validated.is_valid_for(metadata, limits)
            and tuple(map(len, raw[: len(validated.sizes)])) == validated.sizes
        ):
            if validated.bytes_tensors:
                validated.check_bytes_data(raw)
        else:
            try:
                header, partial_request = parsed_request or parse()
            except MalformedMessageError as error:
                raise bad_request(f"the message cannot be parsed: {error}") from None
            parsed = partial_request.complete(metadata)
            validated, id_ = header_cache.add(key, header, parsed, metadata, limits), header.id
        return ValidatedRpcRequest(
            wire.method,
            wire.message,
            wire.metadata,
            validated,
            (target.model, target.version),
            parse,
            id_,
        )

    return PartialInferRequest(target.model, target.version, complete)


def _parse_request(
    message: Sequence[Buffer], target: InferRequest, level: CompatibilityLevel, limits: Limits
) -> tuple[Any, PartialInferRequest[ParsedRequest]]:
    head, raw = grpc_infer.read_request(message, limits)
    header = head.meta_data
    return header, read_request(header, target, grpc_infer.input_splitter(raw), level, limits)


def _split_id(header: memoryview | None, limits: Limits) -> tuple[bytes | None, int]:
    """Return ``header`` without its id, and the id. If the header is too long for the cache, return
    None and 0."""
    if header is None or len(header) > MAX_KEY_LENGTH:
        return None, 0
    kept_fields: list[memoryview] = []
    id_ = 0
    for field in scan_fields(header, _FIELDS_PER_TENSOR * limits.tensors):
        if field.number == _ID and field.wire_type == VARINT:
            id_ = read_varint(header, field.value_start, MAX_VARINT_BYTES)[0] % 2**64
        else:
            kept_fields.append(header[field.start : field.end])
    return b"".join(kept_fields), id_


def _single_field(
    head: Buffer, number: int, merged_number: int
) -> tuple[memoryview | None, memoryview]:
    """Return the field ``number`` of ``head``, or None if it does not occur exactly once. Also
    return all fields ``merged_number``, merged as in protobuf. Raises MalformedMessageError."""
    view = memoryview(head)
    matches: list[memoryview] = []
    merged: list[memoryview] = []
    for field in scan_fields(view, grpc_infer.MAX_REQUEST_FIELDS):
        if field.wire_type == DELIMITED:
            if field.number == number:
                matches.append(view[field.value_start : field.end])
            elif field.number == merged_number:
                merged.append(view[field.value_start : field.end])
    contents = merged[0] if len(merged) == 1 else memoryview(b"".join(merged))
    return matches[0] if len(matches) == 1 else None, contents


def sequence_of(wire: RpcRequest, limits: Limits) -> SequenceId | None:
    """Return the sequence that ``wire`` belongs to. Raises MalformedMessageError."""
    if isinstance(wire, ValidatedRpcRequest) and wire.header is not None:
        return wire.header.sequence
    head, _ = grpc_infer.split_raw(wire.message, grpc_infer.RAW_INPUT, limits)
    return grpc_infer.parse_head(head).meta_data.correlation_id or None


def rewrite_request(wire: RpcRequest, model: str, version: str) -> RpcRequest | None:
    """Return ``wire`` for another model and version, or None if it must be translated. Raises
    MalformedMessageError and BAD_REQUEST."""
    if isinstance(wire, ValidatedRpcRequest) and wire.header is not None:
        if not wire.header.can_pass_through:
            return None
        if wire.model_and_version == (model, version):
            return RpcRequest(INFER, wire.message)
    elif (
        type(state := wire.codec_state) is RequestState
        and state.message is wire.message
        and state.split is not None
        and (state.target.model, state.target.version) == (model, version)
    ):
        return RpcRequest(INFER, wire.message)
    number = version_number(model, version)
    names = pb.InferRequest(model_name=model, model_version=number).SerializeToString()
    rest = remove_fields(
        join_parts(wire.message), frozenset({_MODEL, _VERSION}), grpc_infer.MAX_REQUEST_FIELDS
    )
    return RpcRequest(INFER, [names, *rest])


def rewrite_response(  # noqa: PLR0913, PLR0917 - the codec's arguments and the status
    wire: RpcResponse,
    request: RpcRequest,
    model: str,
    version: str,
    limits: Limits,
    statuses: RequestStatusFactory,
) -> RpcResponse:
    """Return the response to ``request``, with the gateway's own status.

    ``model`` and ``version``, if not empty, replace the backend's names. Raises the backend's
    error, or BACKEND_GARBAGE.
    """
    if wire.code:
        raise_status(wire)
    try:
        if isinstance(request, ValidatedRpcRequest) and request.header is not None:
            return _rewrite_validated(wire, request, (model, version), limits, statuses)
        return _relay(wire, model, version, limits, statuses)
    except (MalformedMessageError, DecodeError) as error:
        raise backend_garbage("the backend's InferResponse cannot be parsed", str(error)) from None


def _rewrite_validated(
    wire: RpcResponse,
    request: ValidatedRpcRequest,
    names: tuple[str, str],
    limits: Limits,
    statuses: RequestStatusFactory,
) -> RpcResponse:
    """Build the response to a validated request (Rule 2)."""
    entry = request.header
    assert entry is not None
    split = split_inference(join_parts(wire.message), RESPONSE)
    validated = None
    if split is not None and grpc_infer.may_have_entries(len(split.raw), limits):
        validated = entry.responses.get((split.header, *names))
    if split is not None and validated is not None and split.has_sizes(validated.sizes):
        check_status(pb.RequestStatus.FromString(split.first), wire.metadata)
        raw: Sequence[Buffer] = split.entries()
    else:
        validated, raw = _validate_response(wire, request, entry, names, limits)
    return _response(validated.header, request.id, validated.select_outputs(raw), statuses)


def _response(
    header: bytes, id_: int, raw: Sequence[Buffer], statuses: RequestStatusFactory
) -> RpcResponse:
    """Return a response with ``header`` and ``id_``, which is appended to the header."""
    status = statuses.success_bytes()
    if id_:
        header += varint_field(_ID, id_)
    head: Buffer = b"".join(
        (
            field_prefix(_STATUS, len(status)),
            status,
            field_prefix(_RESPONSE_HEADER, len(header)),
            header,
        )
    )
    return RpcResponse(grpc_infer.add_raw([head], grpc_infer.RAW_OUTPUT, raw))


def _validate_response(
    wire: RpcResponse,
    request: ValidatedRpcRequest,
    entry: ValidatedHeader,
    names: tuple[str, str],
    limits: Limits,
) -> tuple[ValidatedResponse, Sequence[Buffer]]:
    assert request.parse is not None
    rest, entries = grpc_infer.split_raw(wire.message, grpc_infer.RAW_OUTPUT, limits)
    header, code = _single_field(rest, _RESPONSE_HEADER, _STATUS)
    header_bytes, _ = _split_id(header, limits)
    validated = None if header_bytes is None else entry.responses.get((header_bytes, *names))
    if validated is not None and tuple(map(len, entries)) == validated.sizes:
        check_status(pb.RequestStatus.FromString(code), wire.metadata)
        return validated, entries
    head = grpc_infer.parse_response_head(rest, limits)
    check_status(head.request_status, wire.metadata)
    parsed = request.parse()[1].complete(entry.metadata)
    split_outputs = grpc_infer.output_splitter(entries)
    validated, raw, is_cacheable = validate_response(
        head.meta_data, split_outputs, parsed, entry, names
    )
    written = validated.header.SerializeToString(deterministic=True)
    validated = replace(validated, header=written)
    if is_cacheable and header_bytes is not None:
        entry.cache_response((header_bytes, *names), validated)
    return validated, raw


def _relay(
    wire: RpcResponse, model: str, version: str, limits: Limits, statuses: RequestStatusFactory
) -> RpcResponse:
    """Relay the response to a request that was not validated (Rule 3)."""
    if not model and not version:
        split = split_inference(join_parts(wire.message), RESPONSE)
        if split is not None and grpc_infer.may_have_entries(len(split.raw), limits):
            check_status(pb.RequestStatus.FromString(split.first), wire.metadata)
            pb.InferResponseHeader.FromString(split.header)  # an invalid header is not relayed
            return _response(split.header, split.id, split.entries(), statuses)
    head, raw = grpc_infer.read_response(wire.message, limits)
    check_status(head.request_status, wire.metadata)
    if model:
        head.meta_data.model_name = model
    if version:
        head.meta_data.model_version = model_version(version)
    head.request_status.CopyFrom(statuses.success())
    return RpcResponse(grpc_infer.message_parts(head, grpc_infer.RAW_OUTPUT, raw))
