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
    MAX_NAME_BYTES,
    field_prefix,
    remove_fields,
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
    HeaderKey,
    ValidatedHeader,
    ValidatedHeaderCache,
    validate_response,
)
from infergate.core.errors import backend_garbage
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, join_parts

_NAMES: Final = frozenset({1, 2})
"""The field numbers of InferRequest.model_name and model_version."""
_STATUS: Final = 1
_HEADER: Final = 2
"""The field numbers of InferResponse.request_status and meta_data."""
_ID: Final = 5
"""The field number of InferResponseHeader.id."""


@dataclass
class ValidatedRpcRequest(RpcRequest):
    """A validated inference. ``id`` is the client's id, or 0 if the request has no id."""

    header: ValidatedHeader | None = None
    model_and_version: tuple[str, str] = ("", "")
    parse: Callable[[], tuple[Any, PartialInferRequest[ParsedRequest]]] | None = None
    id: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        create, arguments = super().__reduce__()
        return create, (*arguments, self.header, self.model_and_version, self.parse, self.id)


class RequestState(NamedTuple):
    """A request's ``message``, the ``target`` that the message names, its ``summary``, and the
    ``split`` message. ``split`` is None for a message in an unusual form."""

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
    state: RequestState,
    header_cache: ValidatedHeaderCache,
    level: CompatibilityLevel,
    limits: Limits,
) -> PartialInferRequest[RpcRequest]:
    """Return ``wire`` as a partial request, whose validation needs the model's metadata. Raises
    BAD_REQUEST."""
    split, target = state.split, state.target
    parse = partial(_parse_request, wire.message, target, level, limits)
    key: HeaderKey | None = None
    number, raw = 0, list[memoryview]()
    if split is not None and grpc_infer.may_have_entries(len(split.raw), limits):
        key = (split.header, target.model, target.version)
        number, raw = split.id, split.entries()
    entry = header_cache.find(key)
    parsed_request = parse() if entry is None else None

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
            header, partial_request = parsed_request or parse()
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
    split_inputs = partial(grpc_infer.split_inputs, raw)
    return header, read_request(header, target, split_inputs, level, limits)


def sequence_of(wire: RpcRequest, limits: Limits) -> SequenceId | None:
    """Return the sequence that ``wire`` belongs to, or None. Raises BAD_REQUEST."""
    if isinstance(wire, ValidatedRpcRequest) and wire.header is not None:
        return wire.header.sequence
    head, _ = grpc_infer.read_request(wire.message, limits)
    return head.meta_data.correlation_id or None


def rewrite_request(wire: RpcRequest, model: str, version: str) -> RpcRequest | None:
    """Return ``wire`` with ``model`` and ``version``, or None if ``wire`` needs translation. Raises
    BAD_REQUEST."""
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
    with grpc_infer.reading_request():
        rest = remove_fields(join_parts(wire.message), _NAMES, grpc_infer.MAX_REQUEST_FIELDS)
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

    ``model`` and ``version`` replace the backend's values unless they are empty. Raises the
    backend's error, BACKEND_GARBAGE, TOO_LARGE and NeedsOffloadError.
    """
    if wire.code:
        raise_status(wire)
    try:
        if isinstance(request, ValidatedRpcRequest) and request.header is not None:
            return _rewrite_validated(wire, request, (model, version), limits, statuses)
        return _relay(wire, model, version, limits, statuses)
    except DecodeError as error:
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
    key: tuple[bytes, str, str] | None = None
    validated = None
    if split is not None and grpc_infer.may_have_entries(len(split.raw), limits):
        key = (split.header, *names)
        validated = entry.responses.get(key)
    if split is not None and validated is not None and split.has_sizes(validated.sizes):
        check_status(pb.RequestStatus.FromString(split.first), wire.metadata)
        raw: Sequence[Buffer] = split.entries()
    else:
        head, entries = grpc_infer.read_response(wire.message, limits)
        check_status(head.request_status, wire.metadata)
        assert request.parse is not None
        parsed = request.parse()[1].complete(entry.metadata)
        split_outputs = partial(grpc_infer.split_outputs, entries)
        validated, raw, is_cacheable = validate_response(
            head.meta_data, split_outputs, parsed, entry, names
        )
        header = validated.header.SerializeToString(deterministic=True)
        validated = replace(validated, header=header)
        if is_cacheable and key is not None:
            entry.cache_response(key, validated)
    return _response(validated.header, request.id, validated.select_outputs(raw), statuses)


def _response(
    header: bytes, id_: int, raw: Sequence[Buffer], statuses: RequestStatusFactory
) -> RpcResponse:
    """Return a response with ``header``, to which ``id_`` is appended."""
    status = statuses.success_bytes()
    if id_:
        header += varint_field(_ID, id_)
    head = field_prefix(_STATUS, len(status)) + status + field_prefix(_HEADER, len(header)) + header
    return RpcResponse(grpc_infer.add_raw([head], grpc_infer.RAW_OUTPUT, raw))


def _relay(
    wire: RpcResponse, model: str, version: str, limits: Limits, statuses: RequestStatusFactory
) -> RpcResponse:
    """Relay the response to a request that was not validated (Rule 3)."""
    if not model and not version:
        split = split_inference(join_parts(wire.message), RESPONSE)
        if split is not None and grpc_infer.may_have_entries(len(split.raw), limits):
            check_status(pb.RequestStatus.FromString(split.first), wire.metadata)
            pb.InferResponseHeader.FromString(split.header)  # rejects an invalid header
            return _response(split.header, split.id, split.entries(), statuses)
    head, raw = grpc_infer.read_response(wire.message, limits)
    check_status(head.request_status, wire.metadata)
    if model:
        head.meta_data.model_name = model
    if version:
        head.meta_data.model_version = model_version(version)
    head.request_status.CopyFrom(statuses.success())
    return RpcResponse(grpc_infer.message_parts(head, grpc_infer.RAW_OUTPUT, raw))
