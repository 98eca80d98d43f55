"""Builds requests to gRPC servers and parses their responses.

Servers report most errors in the field ``request_status`` of the response, and not in the gRPC
status.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from infergate.codecs.base import no_request
from infergate.codecs.protos.bounded_parser import parse
from infergate.codecs.protos.statuses import raise_status
from infergate.codecs.protos.wire_scanner import MalformedMessageError
from infergate.codecs.trtis import grpc_infer
from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis.grpc_methods import (
    HEALTH,
    INFER,
    LOAD,
    MODEL_CONTROL,
    SHARED_MEMORY,
    STATUS,
)
from infergate.codecs.trtis.infer_request import version_number, write_request
from infergate.codecs.trtis.infer_response import read_response
from infergate.codecs.trtis.request_status import check_status
from infergate.codecs.trtis.server_status import MAX_BYTES, parse_status, response_from_status
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind, backend_garbage, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata, Operation, Response
from infergate.core.repository import require_name_only
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, join_parts

MAX_FIELDS: Final = 4096
"""Maximum number of fields of a response that is neither an inference nor a server status. Such a
response has about ten fields."""


def build_request(operation: Operation, model: ModelMetadata | None) -> RpcRequest:
    """Return the request for ``operation``. Raises UNSUPPORTED, BAD_REQUEST, NOT_FOUND and
    NO_BACKEND."""
    try:
        if isinstance(operation, InferRequest):
            assert model is not None
            return RpcRequest(INFER, _infer_parts(operation, model))
        method, message = _method_and_message(operation)
        return RpcRequest(method, (message.SerializeToString(deterministic=True),))
    except UnicodeEncodeError:
        raise bad_request("a name in the request is not valid Unicode") from None
    except ValueError as error:  # a number is out of range; the text names the number
        raise bad_request(f"the legacy gRPC API: {error}") from None


def _method_and_message(operation: Operation) -> tuple[str, Any]:
    match operation:
        case messages.ServerLiveRequest():
            return HEALTH, pb.HealthRequest(mode="live")
        case messages.ServerReadyRequest():
            return HEALTH, pb.HealthRequest(mode="ready")
        case messages.ServerMetadataRequest() | messages.ModelIndexRequest():
            return STATUS, pb.StatusRequest()
        case (
            messages.ModelMetadataRequest(model)
            | messages.ModelReadyRequest(model)
            | messages.ModelConfigRequest(model)
            | messages.ModelStatisticsRequest(model)
            | messages.ServerStatusRequest(model)
        ):
            # An empty name requests the status of all models.
            if not model and not isinstance(operation, messages.ServerStatusRequest):
                raise GatewayError(Kind.NOT_FOUND, "no model has the name ''")
            return STATUS, pb.StatusRequest(model_name=model)
        case messages.ModelLoadRequest():
            name = require_name_only(operation).model
            return MODEL_CONTROL, pb.ModelControlRequest(model_name=name, type=LOAD)
        case messages.ModelUnloadRequest():
            name = require_name_only(operation).model
            return MODEL_CONTROL, pb.ModelControlRequest(model_name=name)
        case messages.SharedMemoryRegisterRequest() | messages.SharedMemoryUnregisterRequest():
            return SHARED_MEMORY, _shared_memory_message(operation)
    raise no_request("the legacy gRPC API", operation)


def _shared_memory_message(
    operation: messages.SharedMemoryRegisterRequest | messages.SharedMemoryUnregisterRequest,
) -> Any:
    message = pb.SharedMemoryControlRequest()
    match operation:
        case messages.SharedMemoryUnregisterRequest(""):
            message.unregister_all.SetInParent()
        case messages.SharedMemoryUnregisterRequest(name):
            message.unregister.name = name
        case messages.SharedMemoryRegisterRequest(name):
            register = message.register
            register.name, register.byte_size = name, operation.size
            if operation.device is None:
                register.system_shared_memory.shared_memory_key = operation.key
                register.system_shared_memory.offset = operation.offset
            else:
                register.cuda_shared_memory.device_id = operation.device
                register.cuda_shared_memory.raw_handle = operation.handle
    return message


def _infer_parts(operation: InferRequest, model: ModelMetadata) -> Sequence[Buffer]:
    head = pb.InferRequest(
        model_name=operation.model,
        model_version=version_number(operation.model, operation.version),
        # Servers without support for priority and timeout ignore these fields.
        meta_data=write_request(operation, model, schedules=True),
    )
    return grpc_infer.message_parts(
        head,
        grpc_infer.RAW_INPUT,
        [tensor.data for tensor in operation.inputs if tensor.shared_memory is None],
    )


def parse_response(
    wire: RpcResponse, operation: Operation, limits: Limits, model: ModelMetadata | None
) -> Response:
    """Parse the response. Raises the backend's error, BACKEND_GARBAGE, TOO_LARGE, NOT_FOUND and
    NeedsOffloadError."""
    if wire.code:
        raise_status(wire)
    match operation:
        case InferRequest():
            head, raw = grpc_infer.read_response(wire.message, limits)
            check_status(head.request_status, wire.metadata)
            assert model is not None
            split_outputs = partial(grpc_infer.split_outputs, raw)
            return read_response(head.meta_data, split_outputs, operation, model, limits)
        case messages.ServerLiveRequest() | messages.ServerReadyRequest():
            return messages.HealthStatus(ok=_parse_successful(pb.HealthResponse, wire).health)
        case messages.ModelLoadRequest() | messages.ModelUnloadRequest():
            _parse_successful(pb.ModelControlResponse, wire)
            return messages.Acknowledgement()
        case messages.SharedMemoryRegisterRequest() | messages.SharedMemoryUnregisterRequest():
            _parse_successful(pb.SharedMemoryControlResponse, wire)
            return messages.Acknowledgement()
    response = parse_status(pb.StatusResponse, join_parts(wire.message), limits)
    check_status(response.request_status, wire.metadata)
    return response_from_status(response.server_status, operation)


def _parse_successful(message_class: Any, wire: RpcResponse) -> Any:
    """Parse ``wire`` as a ``message_class``. Raises the backend's error and BACKEND_GARBAGE."""
    try:
        message = parse(message_class, join_parts(wire.message), MAX_FIELDS, MAX_BYTES)
    except MalformedMessageError as error:
        raise backend_garbage(
            f"the backend's {message_class.DESCRIPTOR.name} cannot be parsed", str(error)
        ) from None
    check_status(message.request_status, wire.metadata)
    return message
