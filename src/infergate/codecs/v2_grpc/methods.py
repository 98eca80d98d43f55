"""The methods of the service other than inferences, one row for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from infergate.codecs.v2_grpc import messages as pb
from infergate.codecs.v2_grpc import repository, settings, shared_memory
from infergate.codecs.v2_grpc.metadata import (
    read_model_config,
    read_model_index,
    read_model_metadata,
    read_server_metadata,
    read_statistics,
    write_model_config,
    write_model_index,
    write_model_metadata,
    write_server_metadata,
    write_statistics,
)
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import (
    Acknowledgement,
    HealthStatus,
    InferRequest,
    LogSettingsRequest,
    ModelConfig,
    ModelConfigRequest,
    ModelIndex,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    Operation,
    Response,
    ServerLiveRequest,
    ServerMetadata,
    ServerMetadataRequest,
    ServerReadyRequest,
    Settings,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
    TraceSettingsRequest,
)

SERVICE: Final = "inference.GRPCInferenceService"
HEALTH: Final = "/grpc.health.v1.Health/Check"
"""The health check of servers without ServerReady; an empty message means the whole server."""
_SERVING: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method other than inference: readers and writers of its two messages."""

    path: str
    operation: type[Operation]
    answer: type[Response]
    request: Any
    response: Any
    read_request: Callable[[Any], Operation]
    write_request: Callable[..., Any]
    read_response: Callable[[Any], Response]
    write_response: Callable[[Any], Any]
    needs_profile: bool = False
    """Whether `write_request` also takes the server's profile."""
    reply: Callable[[Any], Any] = lambda _: None
    """Returns the response that the form of a request requires, or None for `write_response`."""
    holds_files: bool = False
    """Whether a request may be as large as an inference."""


def _read_index_request(message: Any) -> ModelIndexRequest:
    if message.repository_name:  # like Triton for an unknown repository
        raise GatewayError(Kind.UNSUPPORTED, "repository_name is not supported")
    return ModelIndexRequest(ready_only=message.ready)


def _read_model(message: Any) -> tuple[str, str]:
    if not message.name:
        raise bad_request("name (of the model) is missing")
    return message.name, message.version


METHODS: Final = (
    Method(
        path=f"/{SERVICE}/ServerLive",
        operation=ServerLiveRequest,
        answer=HealthStatus,
        request=pb.ServerLiveRequest,
        response=pb.ServerLiveResponse,
        read_request=lambda _: ServerLiveRequest(),
        write_request=lambda _: pb.ServerLiveRequest(),
        read_response=lambda message: HealthStatus(message.live),
        write_response=lambda answer: pb.ServerLiveResponse(live=answer.ok),
    ),
    Method(
        path=f"/{SERVICE}/ServerReady",
        operation=ServerReadyRequest,
        answer=HealthStatus,
        request=pb.ServerReadyRequest,
        response=pb.HealthCheckResponse,  # SERVING has the encoding of ``ready``; see HEALTH
        read_request=lambda _: ServerReadyRequest(),
        write_request=lambda _: pb.ServerReadyRequest(),
        read_response=lambda message: HealthStatus(message.status == _SERVING),
        write_response=lambda answer: pb.ServerReadyResponse(ready=answer.ok),
    ),
    Method(
        path=f"/{SERVICE}/ModelReady",
        operation=ModelReadyRequest,
        answer=HealthStatus,
        request=pb.ModelReadyRequest,
        response=pb.ModelReadyResponse,
        read_request=lambda message: ModelReadyRequest(*_read_model(message)),
        write_request=lambda operation: pb.ModelReadyRequest(
            name=operation.model, version=operation.version
        ),
        read_response=lambda message: HealthStatus(message.ready),
        write_response=lambda answer: pb.ModelReadyResponse(ready=answer.ok),
    ),
    Method(
        path=f"/{SERVICE}/ServerMetadata",
        operation=ServerMetadataRequest,
        answer=ServerMetadata,
        request=pb.ServerMetadataRequest,
        response=pb.ServerMetadataResponse,
        read_request=lambda _: ServerMetadataRequest(),
        write_request=lambda _: pb.ServerMetadataRequest(),
        read_response=read_server_metadata,
        write_response=write_server_metadata,
    ),
    Method(
        path=f"/{SERVICE}/ModelMetadata",
        operation=ModelMetadataRequest,
        answer=ModelMetadata,
        request=pb.ModelMetadataRequest,
        response=pb.ModelMetadataResponse,
        read_request=lambda message: ModelMetadataRequest(*_read_model(message)),
        write_request=lambda operation: pb.ModelMetadataRequest(
            name=operation.model, version=operation.version
        ),
        read_response=read_model_metadata,
        write_response=write_model_metadata,
    ),
    Method(
        path=f"/{SERVICE}/RepositoryIndex",
        operation=ModelIndexRequest,
        answer=ModelIndex,
        request=pb.RepositoryIndexRequest,
        response=pb.RepositoryIndexResponse,
        read_request=_read_index_request,
        write_request=lambda operation: pb.RepositoryIndexRequest(ready=operation.ready_only),
        read_response=read_model_index,
        write_response=write_model_index,
    ),
    Method(
        path=f"/{SERVICE}/RepositoryModelLoad",
        operation=ModelLoadRequest,
        answer=Acknowledgement,
        request=pb.RepositoryModelLoadRequest,
        response=pb.KServeModelResponse,
        read_request=repository.read_load,
        write_request=repository.write_request,
        needs_profile=True,
        read_response=repository.read_done,
        write_response=lambda _: pb.RepositoryModelLoadResponse(),
        reply=repository.kserve_reply,
        holds_files=True,
    ),
    Method(
        path=f"/{SERVICE}/RepositoryModelUnload",
        operation=ModelUnloadRequest,
        answer=Acknowledgement,
        request=pb.RepositoryModelUnloadRequest,
        response=pb.KServeModelResponse,
        read_request=repository.read_unload,
        write_request=repository.write_request,
        needs_profile=True,
        read_response=repository.read_done,
        write_response=lambda _: pb.RepositoryModelUnloadResponse(),
        reply=repository.kserve_reply,
    ),
    Method(
        path=f"/{SERVICE}/ModelConfig",
        operation=ModelConfigRequest,
        answer=ModelConfig,
        request=pb.ModelConfigRequest,
        response=pb.ModelConfigResponse,
        read_request=lambda message: ModelConfigRequest(*_read_model(message)),
        write_request=lambda operation: pb.ModelConfigRequest(
            name=operation.model, version=operation.version
        ),
        read_response=read_model_config,
        write_response=write_model_config,
    ),
    Method(
        path=f"/{SERVICE}/ModelStatistics",
        operation=ModelStatisticsRequest,
        answer=ModelStatistics,
        request=pb.ModelStatisticsRequest,
        response=pb.ModelStatisticsResponse,
        read_request=lambda message: ModelStatisticsRequest(message.name, message.version),
        write_request=lambda operation: pb.ModelStatisticsRequest(
            name=operation.model, version=operation.version
        ),
        read_response=read_statistics,
        write_response=write_statistics,
    ),
    Method(
        path=f"/{SERVICE}/TraceSetting",
        operation=TraceSettingsRequest,
        answer=Settings,
        request=pb.TraceSettingRequest,
        response=pb.TraceSettingResponse,
        read_request=settings.read_trace_request,
        write_request=settings.write_trace_request,
        read_response=settings.read_trace,
        write_response=settings.write_trace,
    ),
    Method(
        path=f"/{SERVICE}/LogSettings",
        operation=LogSettingsRequest,
        answer=Settings,
        request=pb.LogSettingsRequest,
        response=pb.LogSettingsResponse,
        read_request=settings.read_log_request,
        write_request=settings.write_log_request,
        read_response=settings.read_log,
        write_response=settings.write_log,
    ),
    Method(
        path=f"/{SERVICE}/SystemSharedMemoryStatus",
        operation=SharedMemoryStatusRequest,
        answer=SharedMemoryStatus,
        request=pb.SystemSharedMemoryStatusRequest,
        response=pb.SystemSharedMemoryStatusResponse,
        read_request=lambda message: SharedMemoryStatusRequest(message.name, cuda=False),
        write_request=lambda operation: pb.SystemSharedMemoryStatusRequest(name=operation.name),
        read_response=shared_memory.read_status,
        write_response=shared_memory.write_status,
    ),
    Method(
        path=f"/{SERVICE}/SystemSharedMemoryRegister",
        operation=SharedMemoryRegisterRequest,
        answer=Acknowledgement,
        request=pb.SystemSharedMemoryRegisterRequest,
        response=pb.SystemSharedMemoryRegisterResponse,
        read_request=shared_memory.read_register,
        write_request=shared_memory.write_register,
        read_response=shared_memory.read_done,
        write_response=lambda _: pb.SystemSharedMemoryRegisterResponse(),
    ),
    Method(
        path=f"/{SERVICE}/SystemSharedMemoryUnregister",
        operation=SharedMemoryUnregisterRequest,
        answer=Acknowledgement,
        request=pb.SystemSharedMemoryUnregisterRequest,
        response=pb.SystemSharedMemoryUnregisterResponse,
        read_request=lambda message: SharedMemoryUnregisterRequest(message.name, cuda=False),
        write_request=lambda operation: pb.SystemSharedMemoryUnregisterRequest(name=operation.name),
        read_response=shared_memory.read_done,
        write_response=lambda _: pb.SystemSharedMemoryUnregisterResponse(),
    ),
)
_CUDA_METHODS: Final = (
    Method(
        path=f"/{SERVICE}/CudaSharedMemoryStatus",
        operation=SharedMemoryStatusRequest,
        answer=SharedMemoryStatus,
        request=pb.CudaSharedMemoryStatusRequest,
        response=pb.CudaSharedMemoryStatusResponse,
        read_request=lambda message: SharedMemoryStatusRequest(message.name, cuda=True),
        write_request=lambda operation: pb.CudaSharedMemoryStatusRequest(name=operation.name),
        read_response=shared_memory.read_status,
        write_response=shared_memory.write_cuda_status,
    ),
    Method(
        path=f"/{SERVICE}/CudaSharedMemoryRegister",
        operation=SharedMemoryRegisterRequest,
        answer=Acknowledgement,
        request=pb.CudaSharedMemoryRegisterRequest,
        response=pb.CudaSharedMemoryRegisterResponse,
        read_request=shared_memory.read_cuda_register,
        write_request=shared_memory.write_cuda_register,
        read_response=shared_memory.read_done,
        write_response=lambda _: pb.CudaSharedMemoryRegisterResponse(),
    ),
    Method(
        path=f"/{SERVICE}/CudaSharedMemoryUnregister",
        operation=SharedMemoryUnregisterRequest,
        answer=Acknowledgement,
        request=pb.CudaSharedMemoryUnregisterRequest,
        response=pb.CudaSharedMemoryUnregisterResponse,
        read_request=lambda message: SharedMemoryUnregisterRequest(message.name, cuda=True),
        write_request=lambda operation: pb.CudaSharedMemoryUnregisterRequest(name=operation.name),
        read_response=shared_memory.read_done,
        write_response=lambda _: pb.CudaSharedMemoryUnregisterResponse(),
    ),
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
    """Return the method for `operation`, or None if there is none."""
    methods = _CUDA_BY_OPERATION if shared_memory.is_cuda(operation) else _BY_OPERATION
    return methods.get(type(operation))
