"""The messages of ModelStreamInfer, in Triton's form and in MLServer's form.

Triton wraps each response in a ModelStreamInferResponse with ``error_message`` (1) or
``infer_response`` (2). MLServer and Seldon send the ModelInferResponse itself, which always has an
id (3) or outputs (5), so the field numbers distinguish the two forms.

Triton marks the last response to a request with a response parameter. A decoupled model may detect
the end only after its last response. In this case, Triton sends an empty final response if a
parameter of the request asks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from infergate.codecs.base import ParsedRequest
from infergate.codecs.protos.wire_scanner import (
    DECODE_ERROR,
    DELIMITED,
    MalformedMessageError,
    field_prefix,
    read_strings,
    scan_fields,
)
from infergate.codecs.v2_grpc import error_text, infer_response
from infergate.codecs.v2_grpc.head_limits import MAX_FIELDS, max_fields
from infergate.codecs.v2_grpc.messages import ModelInferResponse, ModelStreamInferResponse
from infergate.codecs.v2_grpc.validated_heads import ID, MODEL
from infergate.core.errors import GatewayError, backend_failure, backend_garbage
from infergate.core.limits import MIB, Limits
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, join_parts, total_size

_FINAL_RESPONSE: Final = "triton_final_response"
_WANTS_EMPTY_FINAL: Final = "triton_enable_empty_final_response"
_WANTS_STATUS: Final = "triton_grpc_error"
"""The metadata key with which a client requests errors as a gRPC status."""
_MAX_TEXT: Final = MIB
"""Maximum size in bytes of an error message, and of the model name and id that an error message
repeats."""
# Field numbers of ModelStreamInferResponse.
_ERROR: Final = 1
_RESPONSE: Final = 2

# ---- for clients


def without_stream_parameter(request: InferRequest) -> ParsedRequest:
    """Return `request` without Triton's stream parameter, which the gateway itself implements. The
    `response_options` state whether the client wants an empty final response.

    Clients also set the parameter outside streams, but Triton's REST API rejects it."""
    if _WANTS_EMPTY_FINAL not in request.parameters:
        return ParsedRequest(request, response_options=False)
    parameters = dict(request.parameters)
    wants_empty_final = parameters.pop(_WANTS_EMPTY_FINAL)
    return ParsedRequest(replace(request, parameters=parameters), wants_empty_final is True)


def with_final_flag(response: InferResponse) -> InferResponse:
    """Return `response` with the parameter that marks the last response."""
    return replace(response, parameters={**response.parameters, _FINAL_RESPONSE: response.is_last})


def wrap(response: RpcResponse) -> RpcResponse:
    """Wrap a ModelInferResponse in a ModelStreamInferResponse."""
    return RpcResponse((field_prefix(_RESPONSE, total_size(response.message)), *response.message))


def build_end(parsed_request: ParsedRequest) -> RpcResponse | None:
    """Return Triton's empty final response, or None if the client did not request it."""
    request = parsed_request.operation
    if not parsed_request.response_options or not isinstance(request, InferRequest):
        return None
    return _final_message(request.model, request.id)


def wants_status(wire: RpcRequest) -> bool:
    """Return whether the client wants errors as a gRPC status."""
    return wire.metadata.get(_WANTS_STATUS) == "true"


def build_error(error: GatewayError, wire: RpcRequest) -> RpcResponse:
    """Return `error` as a stream message, with the model and id of `wire` if they can be read."""
    try:
        names = read_strings(
            join_parts(wire.message), frozenset({MODEL, ID}), MAX_FIELDS, _MAX_TEXT
        )
    except MalformedMessageError:
        names = {}
    text = error.public.encode("utf-8", "replace").decode()
    return _final_message(names.get(MODEL, ""), names.get(ID, ""), text)


def _final_message(model: str, request_id: str, error: str = "") -> RpcResponse:
    response = ModelInferResponse(model_name=model, id=request_id)
    response.parameters[_FINAL_RESPONSE].bool_param = True
    message = ModelStreamInferResponse(error_message=error, infer_response=response)
    return RpcResponse((message.SerializeToString(deterministic=True),))


# ---- for backends


def read_response(message: Buffer, limits: Limits, request: InferRequest) -> InferResponse | None:
    """Parse a backend's `message` in either form. Return None for Triton's empty final response.
    Raises the backend's error, BACKEND_GARBAGE, TOO_LARGE and NeedsOffloadError."""
    try:
        inner = _unwrap(message, limits, request)
    except MalformedMessageError as error:
        raise backend_garbage(
            "the backend's ModelStreamInferResponse cannot be read", str(error)
        ) from None
    response = infer_response.read_response((inner,), limits, request)
    if _FINAL_RESPONSE not in response.parameters:
        return response
    parameters = dict(response.parameters)
    is_last = parameters.pop(_FINAL_RESPONSE) is True
    if is_last and not response.outputs:
        return None
    return replace(response, parameters=parameters, is_last=is_last)


def _unwrap(message: Buffer, limits: Limits, request: InferRequest) -> Buffer:
    """Return the ModelInferResponse in `message`. Raises the error in `message`, and
    MalformedMessageError."""
    by_number = {field.number: field for field in scan_fields(message, max_fields(limits))}
    if max(by_number, default=0) > _RESPONSE:
        return message
    error = read_strings(message, frozenset({_ERROR}), MAX_FIELDS, _MAX_TEXT).get(_ERROR, "")
    if error:
        raise backend_failure(error_text.kind_of(error, request.id), error)
    field = by_number.get(_RESPONSE)
    if field is None or field.wire_type != DELIMITED:
        raise MalformedMessageError(DECODE_ERROR)
    return memoryview(message)[field.value_start : field.end]
