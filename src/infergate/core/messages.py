"""The canonical operations and responses.

Names follow the Open Inference Protocol. An empty ``version`` or ``id`` means that the message
contains no version or id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from infergate.core.records import record
from infergate.core.region_ref import RegionRef
from infergate.core.tensor import NO_PARAMETERS, OpaqueParameters, Parameters, Tensor

# ---- operations -------------------------------------------------------------------------------


@record
class ServerLiveRequest:
    """Ask whether the server is alive."""


@record
class ServerReadyRequest:
    """Ask whether the server is ready for inference."""


@record
class ServerMetadataRequest:
    """Get the name, version and extensions of the server."""


@record
class ModelIndexRequest:
    """List the models. With ``ready_only``, list only models that are ready.

    With a ``model``, list its versions, or only ``version`` if ``version`` is not empty. Servers
    that cannot list the versions of one model list all models."""

    ready_only: bool = False
    model: str = ""
    version: str = ""


@record
class ModelReadyRequest:
    """Ask whether the model is ready for inference."""

    model: str
    version: str = ""


@record
class ModelMetadataRequest:
    """Get the inputs, outputs, versions and platform of a model."""

    model: str
    version: str = ""


@record
class RequestedOutput:
    """An output that the client requests, with protocol-neutral parameters such as
    ``classification``, and the shared memory region that receives it, or None."""

    name: str
    parameters: Parameters = NO_PARAMETERS
    shared_memory: RegionRef | None = None


@record
class InferRequest:
    """An inference. Empty ``outputs`` requests all outputs of the model."""

    model: str
    version: str = ""
    id: str = ""
    parameters: Parameters = NO_PARAMETERS
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[RequestedOutput, ...] = ()

    @property
    def is_forwarded(self) -> bool:
        """Whether the request's data is a body that only servers of certain protocols understand.
        The response is also a body, in a single output."""
        parameters = self.parameters
        is_body = isinstance(parameters, OpaqueParameters) and bool(parameters.text)
        return is_body and not self.inputs


@record
class ModelConfigRequest:
    """Get a model's configuration (Triton's model configuration)."""

    model: str
    version: str = ""


@record
class ServerStatusRequest:
    """Get the status of the server and all models, or only of ``model`` (the legacy status API)."""

    model: str = ""


@record
class ModelStatisticsRequest:
    """Get the statistics of a model, or of all models if ``model`` is empty."""

    model: str = ""
    version: str = ""


@record
class ModelLoadRequest:
    """Load or reload a model from the named repository, or from any repository.

    ``parameters`` are Triton's parameters: ``config`` is the model's configuration as JSON text,
    and ``file:…`` is the contents of a file."""

    model: str
    repository: str = ""
    parameters: Parameters = NO_PARAMETERS


@record
class ModelUnloadRequest:
    """Unload a model. Triton's only parameter is ``unload_dependents``, a bool."""

    model: str
    repository: str = ""
    parameters: Parameters = NO_PARAMETERS


@record
class TraceSettingsRequest:
    """Apply the changes in ``settings``, then get the trace settings of ``model``, or the global
    trace settings if ``model`` is empty. Each value is a list of strings; an empty list resets the
    setting to the global value."""

    model: str = ""
    settings: Parameters = NO_PARAMETERS


@record
class LogSettingsRequest:
    """Apply ``settings`` (bool, int or str), then get the log settings of the server."""

    settings: Parameters = NO_PARAMETERS


@record
class SharedMemoryStatusRequest:
    """List the registered shared memory region ``name``, or all regions if ``name`` is empty.
    ``cuda`` selects CUDA regions (true), system regions (false) or all regions (None)."""

    name: str = ""
    cuda: bool | None = None


@record
class SharedMemoryRegisterRequest:
    """Register the region ``name``: ``size`` bytes from ``offset`` of the POSIX shared memory
    object ``key``.

    ``device`` and ``handle`` describe GPU memory (CUDA IPC), which has no ``key``."""

    name: str
    key: str = ""
    offset: int = 0
    size: int = 0
    device: int | None = None
    handle: bytes = b""


@record
class SharedMemoryUnregisterRequest:
    """Unregister regions; the fields select them as in :class:`SharedMemoryStatusRequest`."""

    name: str = ""
    cuda: bool | None = None


ModelOperation = (
    ModelReadyRequest
    | ModelMetadataRequest
    | ModelConfigRequest
    | ModelStatisticsRequest
    | InferRequest
)
RepositoryOperation = ModelLoadRequest | ModelUnloadRequest
SettingsOperation = TraceSettingsRequest | LogSettingsRequest
Operation = (
    ServerLiveRequest
    | ServerReadyRequest
    | ServerMetadataRequest
    | ServerStatusRequest
    | ModelIndexRequest
    | ModelOperation
    | RepositoryOperation
    | SettingsOperation
    | SharedMemoryStatusRequest
    | SharedMemoryRegisterRequest
    | SharedMemoryUnregisterRequest
)

OPERATION_NAMES: Final[dict[type, str]] = {
    ServerLiveRequest: "server_live",
    ServerReadyRequest: "server_ready",
    ServerMetadataRequest: "server_metadata",
    ModelIndexRequest: "model_index",
    ModelReadyRequest: "model_ready",
    ModelMetadataRequest: "model_metadata",
    ModelConfigRequest: "model_config",
    ModelStatisticsRequest: "model_statistics",
    ServerStatusRequest: "server_status",
    ModelLoadRequest: "model_load",
    ModelUnloadRequest: "model_unload",
    TraceSettingsRequest: "trace_settings",
    LogSettingsRequest: "log_settings",
    SharedMemoryStatusRequest: "shared_memory_status",
    SharedMemoryRegisterRequest: "shared_memory_register",
    SharedMemoryUnregisterRequest: "shared_memory_unregister",
    InferRequest: "infer",
}
"""The name of each operation in metrics and logs."""
STREAM_OPERATION_NAME: Final = "stream_infer"
"""The name of an inference with a stream of responses."""

# ---- responses --------------------------------------------------------------------------------


@record
class HealthStatus:
    """The response to the requests for liveness, readiness and model readiness."""

    ok: bool


@record
class ServerMetadata:
    """The response to :class:`ServerMetadataRequest`."""

    name: str
    version: str
    extensions: tuple[str, ...] = ()


@record
class TensorMetadata:
    """An input or output of a model. ``datatype`` has the server's spelling; a dimension of -1 is
    variable. :class:`ModelMetadata` explains ``description``."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: Parameters = NO_PARAMETERS
    description: str = ""

    def accepts_shape(self, shape: Sequence[int]) -> bool:
        """Return whether ``shape`` matches the declared dimensions."""
        return len(shape) == len(self.shape) and all(
            declared in {-1, size} for size, declared in zip(shape, self.shape, strict=True)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a compact pickle, because models may have many tensors."""
        fields = self.name, self.datatype, self.shape, self.parameters, self.description
        return TensorMetadata, fields


@record
class ModelSignature:
    """A signature of a TensorFlow model in ``ModelMetadata.signatures``. ``method`` is its
    TensorFlow method name."""

    name: str
    method: str
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()


@record
class ModelMetadata:
    """The response to :class:`ModelMetadataRequest`.

    - ``parameters`` (MLServer) and ``properties`` (Open Inference Protocol) share a field number on
      the wire, but are separate fields of this class.
    - ``max_batch_size`` is above 0 if the first dimension of every shape is the batch. It is 0 if
      shapes have no batch dimension, and None if the server did not report it.
    - ``decoupled`` is true if the model may return any number of responses to a request, and None
      if this is unknown.
    - ``sequence_batching`` is the setting of that name in Triton's configuration, or None.
    - ``unavailable`` is true if the server reports that the model cannot be used now.
    - ``supports_scheduling`` is true if the legacy server accepts the parameters ``priority`` and
      ``timeout``.
    - ``description``, ``server`` and ``server_version`` come from a GraphPipe server, for GraphPipe
      clients.
    - ``signatures`` are the signatures of a TensorFlow model, except the signature that ``inputs``
      and ``outputs`` describe. They are for clients of TensorFlow Serving."""

    name: str
    versions: tuple[str, ...] = ()
    platform: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    parameters: Parameters = NO_PARAMETERS
    properties: Parameters = NO_PARAMETERS
    max_batch_size: int | None = None
    decoupled: bool | None = None
    sequence_batching: Parameters | None = None
    unavailable: bool = False
    supports_scheduling: bool = False
    description: str = ""
    server: str = ""
    server_version: str = ""
    signatures: tuple[ModelSignature, ...] = ()


@record
class ModelConfig:
    """The response to :class:`ModelConfigRequest`. ``settings`` has the names and nesting of
    Triton's ``model_config.proto`` as JSON. ``message`` is the server's original protobuf message,
    or empty. It may contain fields that ``settings`` omits."""

    name: str
    settings: Parameters
    message: bytes | bytearray | memoryview = b""


@record
class ModelStatistics:
    """The response to :class:`ModelStatisticsRequest`: an object for each model version, with the
    names and nesting of Triton's statistics extension as JSON. Durations are in nanoseconds."""

    models: tuple[Parameters, ...] = ()


@record
class ModelIndexEntry:
    """A model version in the index. ``state`` is READY, UNAVAILABLE, and so on, or empty if it is
    unknown. ``reason_code`` is the gRPC status code of ``reason``, or 0 without a code."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""
    reason_code: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a compact pickle, because an index may have many models."""
        return ModelIndexEntry, (self.name, self.version, self.state, self.reason, self.reason_code)


@record
class ModelIndex:
    """The response to :class:`ModelIndexRequest`."""

    models: tuple[ModelIndexEntry, ...] = ()


@record
class InferResponse:
    """The response to :class:`InferRequest`, or one response of a stream.

    ``is_last`` is true if no other response follows. It may be false for every response of a
    stream."""

    model: str
    version: str = ""
    id: str = ""
    parameters: Parameters = NO_PARAMETERS
    outputs: tuple[Tensor, ...] = ()
    is_last: bool = False


@record
class ModelStatus:
    """One model of a :class:`ServerStatus`: its metadata, each of its versions, and their
    statistics as in :class:`ModelStatistics`."""

    metadata: ModelMetadata
    versions: tuple[ModelIndexEntry, ...] = ()
    statistics: tuple[Parameters, ...] = ()
    config: Parameters = NO_PARAMETERS
    """The settings of the model's :class:`ModelConfig`, if known."""


@record
class ServerStatus:
    """The response to :class:`ServerStatusRequest`."""

    name: str
    version: str
    ready: bool
    models: tuple[ModelStatus, ...] = ()
    uptime_ns: int = 0


@record
class SharedMemoryRegion:
    """A registered region, as in :class:`SharedMemoryRegisterRequest` but without ``handle``."""

    name: str
    key: str = ""
    offset: int = 0
    size: int = 0
    device: int | None = None


@record
class SharedMemoryStatus:
    """The response to :class:`SharedMemoryStatusRequest`."""

    regions: tuple[SharedMemoryRegion, ...] = ()


@record
class Settings:
    """The response to requests for trace or log settings: all current settings."""

    values: Parameters = NO_PARAMETERS


@record
class Acknowledgement:
    """The response to a successful operation that returns no data."""


Response = (
    HealthStatus
    | ServerMetadata
    | ModelMetadata
    | ModelConfig
    | ModelStatistics
    | ModelIndex
    | ServerStatus
    | SharedMemoryStatus
    | Settings
    | Acknowledgement
    | InferResponse
)
