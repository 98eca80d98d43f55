"""The message classes of package ``inference``, from the gateway's private descriptor pool."""

from __future__ import annotations

from typing import Any, Final

from infergate.codecs.protos import SCHEMA


def _message(name: str) -> Any:
    return SCHEMA.message_class(f"inference.{name}")


ServerLiveRequest: Final = _message("ServerLiveRequest")
ServerLiveResponse: Final = _message("ServerLiveResponse")
ServerReadyRequest: Final = _message("ServerReadyRequest")
ServerReadyResponse: Final = _message("ServerReadyResponse")
HealthCheckResponse: Final = SCHEMA.message_class("grpc.health.v1.HealthCheckResponse")
ModelReadyRequest: Final = _message("ModelReadyRequest")
ModelReadyResponse: Final = _message("ModelReadyResponse")
ServerMetadataRequest: Final = _message("ServerMetadataRequest")
ServerMetadataResponse: Final = _message("ServerMetadataResponse")
ModelMetadataRequest: Final = _message("ModelMetadataRequest")
ModelMetadataResponse: Final = _message("ModelMetadataResponse")
ModelConfigRequest: Final = _message("ModelConfigRequest")
ModelConfigResponse: Final = _message("ModelConfigResponse")
ModelConfig: Final = _message("ModelConfig")
ModelStatisticsRequest: Final = _message("ModelStatisticsRequest")
ModelStatisticsResponse: Final = _message("ModelStatisticsResponse")
TraceSettingRequest: Final = _message("TraceSettingRequest")
TraceSettingResponse: Final = _message("TraceSettingResponse")
LogSettingsRequest: Final = _message("LogSettingsRequest")
LogSettingsResponse: Final = _message("LogSettingsResponse")
RepositoryModelLoadRequest: Final = _message("RepositoryModelLoadRequest")
RepositoryModelLoadResponse: Final = _message("RepositoryModelLoadResponse")
RepositoryModelUnloadRequest: Final = _message("RepositoryModelUnloadRequest")
RepositoryModelUnloadResponse: Final = _message("RepositoryModelUnloadResponse")
KServeModelRequest: Final = _message("KServeModelRequest")
KServeModelResponse: Final = _message("KServeModelResponse")
RepositoryIndexRequest: Final = _message("RepositoryIndexRequest")
RepositoryIndexResponse: Final = _message("RepositoryIndexResponse")
SystemSharedMemoryStatusRequest: Final = _message("SystemSharedMemoryStatusRequest")
SystemSharedMemoryStatusResponse: Final = _message("SystemSharedMemoryStatusResponse")
SystemSharedMemoryRegisterRequest: Final = _message("SystemSharedMemoryRegisterRequest")
SystemSharedMemoryRegisterResponse: Final = _message("SystemSharedMemoryRegisterResponse")
SystemSharedMemoryUnregisterRequest: Final = _message("SystemSharedMemoryUnregisterRequest")
SystemSharedMemoryUnregisterResponse: Final = _message("SystemSharedMemoryUnregisterResponse")
CudaSharedMemoryStatusRequest: Final = _message("CudaSharedMemoryStatusRequest")
CudaSharedMemoryStatusResponse: Final = _message("CudaSharedMemoryStatusResponse")
CudaSharedMemoryRegisterRequest: Final = _message("CudaSharedMemoryRegisterRequest")
CudaSharedMemoryRegisterResponse: Final = _message("CudaSharedMemoryRegisterResponse")
CudaSharedMemoryUnregisterRequest: Final = _message("CudaSharedMemoryUnregisterRequest")
CudaSharedMemoryUnregisterResponse: Final = _message("CudaSharedMemoryUnregisterResponse")
ModelInferRequest: Final = _message("ModelInferRequest")
ModelInferResponse: Final = _message("ModelInferResponse")
ModelStreamInferResponse: Final = _message("ModelStreamInferResponse")
InferParameter: Final = _message("InferParameter")
InferTensorContents: Final = _message("InferTensorContents")
