"""Builds requests to servers of TensorFlow Serving's gRPC API and parses their responses.

The API has no health check. Instead, the gateway sends a GetModelStatus request without a model. A
working server rejects such a request.
"""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import no_request
from infergate.codecs.protos.statuses import raise_status
from infergate.codecs.tfs import forwarded_calls, metadata, predict
from infergate.codecs.tfs import messages as pb
from infergate.codecs.tfs.model_spec import (
    GRPC_PROTOCOL,
    REQUEST_SPEC,
    RESPONSE_SPEC,
    find_spec,
    parse_spec,
    spec_field,
    spec_parameters,
    write_spec,
)
from infergate.codecs.tfs.options import TfsOptions
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind, as_backend_error, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.tensor import Tensor
from infergate.core.wire import RpcRequest, RpcResponse, join_parts

_INVALID_ARGUMENT: Final = 3
_UNAVAILABLE: Final = 14
_ALIVE: Final = frozenset({0, 3, 5, 9, 12})
"""The status codes that a working server returns for a GetModelStatus request without a model: OK,
the codes of errors about the request, and UNIMPLEMENTED if the server implements only Predict."""
_NO_OPTIONS: Final = TfsOptions(version_zero="literal")


def build_request(operation: Operation) -> RpcRequest:
    """Return the request for ``operation``. Raises UNSUPPORTED, BAD_REQUEST, and ValueError for a
    name that is not valid Unicode."""
    match operation:
        case InferRequest():
            return _inference_request(operation)
        case messages.ServerLiveRequest() | messages.ServerReadyRequest():
            return RpcRequest(pb.STATUS, (b"",))
        case (
            messages.ModelReadyRequest("")
            | messages.ModelMetadataRequest("")
            | messages.ModelIndexRequest(_, "")
        ):
            raise GatewayError(Kind.UNSUPPORTED, "TensorFlow Serving has no list of models")
        case messages.ModelReadyRequest(model, version) | messages.ModelIndexRequest(
            _, model, version
        ):
            return RpcRequest(pb.STATUS, (_spec(model, version),))
        case messages.ModelMetadataRequest(model, version):
            fields = pb.GetModelMetadataRequest(metadata_field=[metadata.FIELD])
            return RpcRequest(pb.METADATA, (_spec(model, version), fields.SerializeToString()))
    raise no_request("TensorFlow Serving's gRPC API", operation)


def _spec(model: str, version: str) -> bytes:
    return spec_field(REQUEST_SPEC, write_spec(model, version))


def _inference_request(request: InferRequest) -> RpcRequest:
    if not request.model:
        raise bad_request("the name of the model is missing")
    call = forwarded_calls.call_of(request, GRPC_PROTOCOL)
    if call is not None:
        method, message = call
        parts = forwarded_calls.rewrite_request(
            message, method, request.model, request.version, _NO_OPTIONS
        )
        return RpcRequest(method, parts)
    signature, label = spec_parameters(request.parameters)
    spec = write_spec(request.model, request.version, label, signature)
    return RpcRequest(pb.PREDICT, predict.request_parts(spec, request.inputs, request.outputs))


def parse_response(wire: RpcResponse, operation: Operation, limits: Limits) -> Response:
    """Return the response in ``wire``. Raises the server's error, MalformedMessageError,
    NeedsOffloadError, BACKEND_GARBAGE and TOO_LARGE."""
    if isinstance(operation, messages.ServerLiveRequest | messages.ServerReadyRequest):
        if wire.code not in _ALIVE and wire.code != _UNAVAILABLE:
            raise_status(wire)
        return messages.HealthStatus(ok=wire.code != _UNAVAILABLE)
    if wire.code:
        raise_status(wire)
    data = join_parts(wire.message)
    match operation:
        case InferRequest():
            return _read_inference(data, operation, limits)
        case messages.ModelMetadataRequest(model):
            return metadata.read_metadata(bytes(data), model, limits)
    # ``build_request`` rejects all other operations.
    assert isinstance(operation, messages.ModelReadyRequest | messages.ModelIndexRequest)
    index = metadata.read_status(bytes(data), operation.model, limits)
    if isinstance(operation, messages.ModelIndexRequest):
        return index
    return messages.HealthStatus(ok=metadata.is_available(index))


def status_without_model(*, is_ready: bool) -> RpcResponse:
    """Return the response to a GetModelStatus request without a model: TensorFlow Serving's error
    if the server is ready, and UNAVAILABLE if the server is not ready."""
    if is_ready:
        return RpcResponse(code=_INVALID_ARGUMENT, details="Missing ModelSpec")
    return RpcResponse(code=_UNAVAILABLE, details="the server is not ready")


def _read_inference(
    data: bytes | bytearray | memoryview, request: InferRequest, limits: Limits
) -> InferResponse:
    spec = parse_spec(find_spec(data, RESPONSE_SPEC) or b"")
    version = "" if spec.version is None else str(spec.version)
    call = forwarded_calls.call_of(request, GRPC_PROTOCOL)
    if call is not None:
        return forwarded_calls.read_response(data, request, version)
    try:
        outputs = predict.read_tensors(data, predict.OUTPUTS, "output", limits)
    except GatewayError as error:
        raise as_backend_error(error) from None
    return InferResponse(
        spec.name or request.model, version, outputs=_order_outputs(outputs, request)
    )


def _order_outputs(outputs: tuple[Tensor, ...], request: InferRequest) -> tuple[Tensor, ...]:
    """Return ``outputs`` in the order of the request. The order of a protobuf map is arbitrary."""
    order = {output.name: index for index, output in enumerate(request.outputs)}
    if not order:
        return outputs
    return tuple(sorted(outputs, key=lambda tensor: order.get(tensor.name, len(order))))
