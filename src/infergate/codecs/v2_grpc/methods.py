"""The methods of GRPCInferenceService, except the inference methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from infergate.codecs.base import Profile
from infergate.codecs.v2_grpc import messages as pb
from infergate.codecs.v2_grpc import metadata, repository, settings, shared_memory
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import Acknowledgement, HealthStatus, InferRequest, Operation, Response

SERVICE: Final = "inference.GRPCInferenceService"
HEALTH: Final = "/grpc.health.v1.Health/Check"
"""The method of the gRPC health service, for servers without ServerReady. An empty request checks
the server as a whole."""
_SERVING: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method other than inference, with functions that read and write its two messages."""

    path: str
    operation: type[Operation]
    response_type: type[Response]
    request: Any
    response: Any
    read_request: Callable[[Any], Operation]
    write_request: Callable[[Any, Profile], Any]
    read_response: Callable[[Any], Response]
    write_response: Callable[[Any], Any]
    special_response: Callable[[Any], Any] = lambda _: None
    """Returns KServe's response to a request, or None if `write_response` applies."""
    holds_files: bool = False
    """Whether requests may contain files, and may therefore be as large as inferences."""


def _method(name: str, operation: Any, response_type: type[Response], **fields: Any) -> Method:
    """Return the method `name`. `fields` replace the defaults, which suit requests with at most a
    name and a version, and responses without fields."""
    request, response = getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response")
    defaults: dict[str, Any] = {
        "path": f"/{SERVICE}/{name}",
        "operation": operation,
        "response_type": response_type,
        "request": request,
        "response": response,
        "read_response": lambda _: Acknowledgement(),
        "write_response": lambda _: response(),
    }
    request_fields = request.DESCRIPTOR.fields_by_name
    if "version" in request_fields:
        defaults["read_request"] = lambda message: operation(*_read_model(message))
        defaults["write_request"] = lambda o, _: request(name=o.model, version=o.version)
    elif "name" in request_fields:
        defaults["write_request"] = lambda o, _: request(name=o.name)
    else:
        defaults["read_request"] = lambda _: operation()
        defaults["write_request"] = lambda _, __: request()
    return Method(**{**defaults, **fields})


def _read_model(message: Any) -> tuple[str, str]:
    if not message.name:
        raise bad_request("name (of the model) is missing")
    return message.name, message.version


def _read_index_request(message: Any) -> messages.ModelIndexRequest:
    if message.repository_name:  # Triton also rejects an unknown repository
        raise GatewayError(Kind.UNSUPPORTED, "repository_name is not supported")
    return messages.ModelIndexRequest(ready_only=message.ready)


def _repository_method(name: str, operation: Any, *, holds_files: bool = False) -> Method:
    return _method(
        name,
        operation,
        Acknowledgement,
        response=pb.KServeModelResponse,
        read_request=lambda message: operation(*repository.read_request(message)),
        write_request=repository.write_request,
        read_response=repository.read_acknowledgement,
        special_response=repository.kserve_response,
        holds_files=holds_files,
    )


def _memory_methods(prefix: str, *, cuda: bool) -> tuple[Method, ...]:
    """Return the methods of the extension for system shared memory or CUDA shared memory."""
    status_response = getattr(pb, f"{prefix}SharedMemoryStatusResponse")
    return (
        _method(
            f"{prefix}SharedMemoryStatus",
            messages.SharedMemoryStatusRequest,
            messages.SharedMemoryStatus,
            read_request=lambda message: messages.SharedMemoryStatusRequest(
                message.name, cuda=cuda
            ),
            read_response=shared_memory.read_status,
            write_response=lambda status: shared_memory.write_status(status, status_response()),
        ),
        _method(
            f"{prefix}SharedMemoryRegister",
            messages.SharedMemoryRegisterRequest,
            Acknowledgement,
            read_request=shared_memory.read_register,
            write_request=lambda operation, _: shared_memory.write_register(operation),
        ),
        _method(
            f"{prefix}SharedMemoryUnregister",
            messages.SharedMemoryUnregisterRequest,
            Acknowledgement,
            read_request=lambda message: messages.SharedMemoryUnregisterRequest(
                message.name, cuda=cuda
            ),
        ),
    )


METHODS: Final = (
    _method(
        "ServerLive",
        messages.ServerLiveRequest,
        HealthStatus,
        read_response=lambda message: HealthStatus(message.live),
        write_response=lambda response: pb.ServerLiveResponse(live=response.ok),
    ),
    _method(
        "ServerReady",
        messages.ServerReadyRequest,
        HealthStatus,
        # Also parses the response to HEALTH: ``status`` has the same encoding as ``ready``.
        response=pb.HealthCheckResponse,
        read_response=lambda message: HealthStatus(message.status == _SERVING),
        write_response=lambda response: pb.ServerReadyResponse(ready=response.ok),
    ),
    _method(
        "ModelReady",
        messages.ModelReadyRequest,
        HealthStatus,
        read_response=lambda message: HealthStatus(message.ready),
        write_response=lambda response: pb.ModelReadyResponse(ready=response.ok),
    ),
    _method(
        "ServerMetadata",
        messages.ServerMetadataRequest,
        messages.ServerMetadata,
        read_response=metadata.read_server_metadata,
        write_response=metadata.write_server_metadata,
    ),
    _method(
        "ModelMetadata",
        messages.ModelMetadataRequest,
        messages.ModelMetadata,
        read_response=metadata.read_model_metadata,
        write_response=metadata.write_model_metadata,
    ),
    _method(
        "RepositoryIndex",
        messages.ModelIndexRequest,
        messages.ModelIndex,
        read_request=_read_index_request,
        write_request=lambda operation, _: pb.RepositoryIndexRequest(ready=operation.ready_only),
        read_response=metadata.read_model_index,
        write_response=metadata.write_model_index,
    ),
    _repository_method("RepositoryModelLoad", messages.ModelLoadRequest, holds_files=True),
    _repository_method("RepositoryModelUnload", messages.ModelUnloadRequest),
    _method(
        "ModelConfig",
        messages.ModelConfigRequest,
        messages.ModelConfig,
        read_response=metadata.read_model_config,
        write_response=metadata.write_model_config,
    ),
    _method(
        "ModelStatistics",
        messages.ModelStatisticsRequest,
        messages.ModelStatistics,
        read_request=lambda message: messages.ModelStatisticsRequest(message.name, message.version),
        read_response=metadata.read_statistics,
        write_response=metadata.write_statistics,
    ),
    _method(
        "TraceSetting",
        messages.TraceSettingsRequest,
        messages.Settings,
        read_request=lambda message: messages.TraceSettingsRequest(
            message.model_name, settings.read_trace_settings(message)
        ),
        write_request=lambda operation, _: settings.write_trace_settings(
            pb.TraceSettingRequest(model_name=operation.model), operation.settings
        ),
        read_response=lambda message: messages.Settings(settings.read_trace_settings(message)),
        write_response=lambda response: settings.write_trace_settings(
            pb.TraceSettingResponse(), response.values
        ),
    ),
    _method(
        "LogSettings",
        messages.LogSettingsRequest,
        messages.Settings,
        read_request=lambda message: messages.LogSettingsRequest(
            settings.read_log_settings(message)
        ),
        write_request=lambda operation, _: settings.write_log_settings(
            pb.LogSettingsRequest(), operation.settings
        ),
        read_response=lambda message: messages.Settings(settings.read_log_settings(message)),
        write_response=lambda response: settings.write_log_settings(
            pb.LogSettingsResponse(), response.values
        ),
    ),
    *_memory_methods("System", cuda=False),
)
_CUDA_METHODS: Final = _memory_methods("Cuda", cuda=True)
BY_PATH: Final = {method.path: method for method in (*METHODS, *_CUDA_METHODS)}
_BY_OPERATION: Final = {method.operation: method for method in METHODS}
_CUDA_BY_OPERATION: Final = {method.operation: method for method in _CUDA_METHODS}
INFER: Final = f"/{SERVICE}/ModelInfer"
STREAM: Final = f"/{SERVICE}/ModelStreamInfer"
OPERATIONS: Final[dict[str, type[Operation]]] = {
    INFER: InferRequest,
    STREAM: InferRequest,
    **{path: method.operation for path, method in BY_PATH.items()},
}


def method_of(operation: Operation) -> Method | None:
    """Return the method of `operation`, or None if V2 gRPC has no such method."""
    methods = _CUDA_BY_OPERATION if shared_memory.is_cuda(operation) else _BY_OPERATION
    return methods.get(type(operation))
