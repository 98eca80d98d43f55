"""The table of the service's methods, except the inference methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from infergate.codecs.v2_grpc import messages as pb
from infergate.codecs.v2_grpc import metadata, repository, settings, shared_memory
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import Acknowledgement, HealthStatus, InferRequest, Operation, Response

SERVICE: Final = "inference.GRPCInferenceService"
HEALTH: Final = "/grpc.health.v1.Health/Check"
"""The health check for servers without ServerReady. An empty request checks the whole server."""
_SERVING: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method other than inference: readers and writers of its two messages."""

    path: str
    operation: type[Operation]
    response_type: type[Response]
    request: Any
    response: Any
    read_request: Callable[[Any], Operation]
    write_request: Callable[..., Any]
    read_response: Callable[[Any], Response]
    write_response: Callable[[Any], Any]
    needs_profile: bool = False
    """Whether `write_request` also takes the server's profile."""
    special_response: Callable[[Any], Any] = lambda _: None
    """Returns a special response (for KServe) to a request, or None to use `write_response`."""
    holds_files: bool = False
    """Whether a request may hold files, so that it may be as large as an inference."""


def _method(name: str, operation: Any, response_type: type[Response], **fields: Any) -> Method:
    """Return the method `name`. By default, its messages are named after it, and its requests hold
    at most the name and version of a model."""
    request = getattr(pb, f"{name}Request")
    by_model = "version" in request.DESCRIPTOR.fields_by_name
    defaults: dict[str, Any] = {
        "path": f"/{SERVICE}/{name}",
        "operation": operation,
        "response_type": response_type,
        "request": request,
        "response": getattr(pb, f"{name}Response"),
        "read_request": (lambda message: operation(*_read_model(message)))
        if by_model
        else (lambda _: operation()),
        "write_request": (lambda model: request(name=model.model, version=model.version))
        if by_model
        else (lambda _: request()),
    }
    return Method(**{**defaults, **fields})


def _read_model(message: Any) -> tuple[str, str]:
    if not message.name:
        raise bad_request("name (of the model) is missing")
    return message.name, message.version


def _read_index_request(message: Any) -> messages.ModelIndexRequest:
    if message.repository_name:  # Triton also rejects an unknown repository
        raise GatewayError(Kind.UNSUPPORTED, "repository_name is not supported")
    return messages.ModelIndexRequest(ready_only=message.ready)


def _memory_methods(
    prefix: str,
    *,
    cuda: bool,
    read_register: Callable[[Any], Operation],
    write_register: Callable[[Any], Any],
    write_status: Callable[[Any], Any],
) -> tuple[Method, ...]:
    """Return the methods of a shared memory extension."""
    status = getattr(pb, f"{prefix}SharedMemoryStatusRequest")
    unregister = getattr(pb, f"{prefix}SharedMemoryUnregisterRequest")
    registered = getattr(pb, f"{prefix}SharedMemoryRegisterResponse")
    unregistered = getattr(pb, f"{prefix}SharedMemoryUnregisterResponse")
    return (
        _method(
            f"{prefix}SharedMemoryStatus",
            messages.SharedMemoryStatusRequest,
            messages.SharedMemoryStatus,
            read_request=lambda message: messages.SharedMemoryStatusRequest(
                message.name, cuda=cuda
            ),
            write_request=lambda operation: status(name=operation.name),
            read_response=shared_memory.read_status,
            write_response=write_status,
        ),
        _method(
            f"{prefix}SharedMemoryRegister",
            messages.SharedMemoryRegisterRequest,
            Acknowledgement,
            read_request=read_register,
            write_request=write_register,
            read_response=lambda _: Acknowledgement(),
            write_response=lambda _: registered(),
        ),
        _method(
            f"{prefix}SharedMemoryUnregister",
            messages.SharedMemoryUnregisterRequest,
            Acknowledgement,
            read_request=lambda message: messages.SharedMemoryUnregisterRequest(
                message.name, cuda=cuda
            ),
            write_request=lambda operation: unregister(name=operation.name),
            read_response=lambda _: Acknowledgement(),
            write_response=lambda _: unregistered(),
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
        response=pb.HealthCheckResponse,  # ``ready`` has the encoding of ``status`` (see HEALTH)
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
        write_request=lambda operation: pb.RepositoryIndexRequest(ready=operation.ready_only),
        read_response=metadata.read_model_index,
        write_response=metadata.write_model_index,
    ),
    _method(
        "RepositoryModelLoad",
        messages.ModelLoadRequest,
        Acknowledgement,
        response=pb.KServeModelResponse,
        read_request=lambda message: messages.ModelLoadRequest(*repository.read_request(message)),
        write_request=repository.write_request,
        needs_profile=True,
        read_response=repository.read_done,
        write_response=lambda _: pb.RepositoryModelLoadResponse(),
        special_response=repository.kserve_response,
        holds_files=True,
    ),
    _method(
        "RepositoryModelUnload",
        messages.ModelUnloadRequest,
        Acknowledgement,
        response=pb.KServeModelResponse,
        read_request=lambda message: messages.ModelUnloadRequest(*repository.read_request(message)),
        write_request=repository.write_request,
        needs_profile=True,
        read_response=repository.read_done,
        write_response=lambda _: pb.RepositoryModelUnloadResponse(),
        special_response=repository.kserve_response,
    ),
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
        write_request=lambda operation: settings.write_trace_settings(
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
        write_request=lambda operation: settings.write_log_settings(
            pb.LogSettingsRequest(), operation.settings
        ),
        read_response=lambda message: messages.Settings(settings.read_log_settings(message)),
        write_response=lambda response: settings.write_log_settings(
            pb.LogSettingsResponse(), response.values
        ),
    ),
    *_memory_methods(
        "System",
        cuda=False,
        read_register=shared_memory.read_register,
        write_register=shared_memory.write_register,
        write_status=shared_memory.write_status,
    ),
)
_CUDA_METHODS: Final = _memory_methods(
    "Cuda",
    cuda=True,
    read_register=shared_memory.read_cuda_register,
    write_register=shared_memory.write_cuda_register,
    write_status=shared_memory.write_cuda_status,
)
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
    """Return the method for `operation`, or None if there is no method."""
    methods = _CUDA_BY_OPERATION if shared_memory.is_cuda(operation) else _BY_OPERATION
    return methods.get(type(operation))
