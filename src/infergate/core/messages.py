"""Operations and their answers: what every frontend asks and every backend answers.

Names follow the Open Inference Protocol. An empty ``version`` or ``id`` means that none was given.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from infergate.core.places import Place
from infergate.core.records import record
from infergate.core.tensor import NO_PARAMETERS, Parameters, Tensor

# ---- operations -------------------------------------------------------------------------------


@record
class ServerLiveRequest:
    """Does the server run?"""


@record
class ServerReadyRequest:
    """Can the server serve its models?"""


@record
class ServerMetadataRequest:
    """Name, version and extensions of the server."""


@record
class ModelIndexRequest:
    """Which models are there? With ``ready_only``, those that serve now."""

    ready_only: bool = False


@record
class ModelReadyRequest:
    """Can this model serve?"""

    model: str
    version: str = ""


@record
class ModelMetadataRequest:
    """Inputs, outputs, versions and platform of a model."""

    model: str
    version: str = ""


@record
class RequestedOutput:
    """An output the client wants, with protocol-neutral parameters such as ``classification``, and
    the ``place`` in shared memory that it is to be written to, if any."""

    name: str
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    place: Place | None = None


@record
class InferRequest:
    """One inference. Empty ``outputs`` means all outputs of the model."""

    model: str
    version: str = ""
    id: str = ""
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[RequestedOutput, ...] = ()


@record
class ModelConfigRequest:
    """How a server is set up to serve a model (Triton's configuration of it)."""

    model: str
    version: str = ""


@record
class ServerStatusRequest:
    """Everything about the server and its models, or about one ``model``, in one answer (the
    legacy API's status)."""

    model: str = ""


@record
class ModelStatisticsRequest:
    """What has been counted and measured of a model; an empty ``model`` means all."""

    model: str = ""
    version: str = ""


@record
class ModelLoadRequest:
    """Load a model, or load it again, from any of a server's repositories or the one named.

    ``parameters`` are Triton's: ``config``, the model's configuration as JSON text, and ``file:…``,
    a file's bytes.
    """

    model: str
    repository: str = ""
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)


@record
class ModelUnloadRequest:
    """Unload a model. Triton's only parameter is ``unload_dependents``, a bool."""

    model: str
    repository: str = ""
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)


@record
class TraceSettingsRequest:
    """How requests (of ``model``, or all) are traced, once ``settings`` are changed. Each of these
    is a list of strings; an empty one takes a setting back to that of all models."""

    model: str = ""
    settings: Parameters = field(default_factory=lambda: NO_PARAMETERS)


@record
class LogSettingsRequest:
    """What a server logs, once ``settings`` (bool, int or str) are changed."""

    settings: Parameters = field(default_factory=lambda: NO_PARAMETERS)


@record
class SharedMemoryStatusRequest:
    """Which shared memory regions are registered? An empty ``name`` means all. ``cuda`` asks for
    those on GPUs alone or for those of the system alone; None for both."""

    name: str = ""
    cuda: bool | None = None


@record
class SharedMemoryRegisterRequest:
    """Register ``size`` bytes from ``offset`` of the region that the system calls ``key``.

    ``device`` and ``handle`` are of memory on a GPU (CUDA IPC), which has no ``key``.
    """

    name: str
    key: str = ""
    offset: int = 0
    size: int = 0
    device: int | None = None
    handle: bytes = b""


@record
class SharedMemoryUnregisterRequest:
    """Forget a region; an empty ``name`` means all. ``cuda`` as for
    :class:`SharedMemoryStatusRequest`."""

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
ControlOperation = (
    RepositoryOperation
    | SettingsOperation
    | SharedMemoryStatusRequest
    | SharedMemoryRegisterRequest
    | SharedMemoryUnregisterRequest
)
Operation = (
    ServerLiveRequest
    | ServerReadyRequest
    | ServerMetadataRequest
    | ModelIndexRequest
    | ModelReadyRequest
    | ModelMetadataRequest
    | ModelConfigRequest
    | ModelStatisticsRequest
    | ServerStatusRequest
    | InferRequest
    | ControlOperation
)

OPERATIONS: Final[dict[type, str]] = {
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
"""How metrics and logs call each operation."""
STREAMED: Final = "stream_infer"
"""How they call an inference that is answered by a stream."""

# ---- answers ----------------------------------------------------------------------------------


@record
class Health:
    """The answer to live, ready and model ready."""

    ok: bool


@record
class ServerMetadata:
    """The answer to :class:`ServerMetadataRequest`."""

    name: str
    version: str
    extensions: tuple[str, ...] = ()


@record
class TensorMetadata:
    """One input or output. ``datatype`` as the server spells it; -1 is a free dimension.
    ``description`` as that of :class:`ModelMetadata`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    description: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Shorter than the default: a model may have many, which come from a helper."""
        return TensorMetadata, (
            self.name,
            self.datatype,
            self.shape,
            self.parameters,
            self.description,
        )


@record
class ModelMetadata:
    """The answer to :class:`ModelMetadataRequest`.

    ``parameters`` (MLServer) and ``properties`` (Open Inference Protocol) share a field number
    on the wire and are kept apart here. Where ``max_batch_size`` is over 0 the first dimension of
    every shape is the batch; 0 means that shapes are the whole; None that it was not told.
    ``decoupled``: whether it gives any number of answers to a request; None: it was not told.
    ``sequence_batching`` is that of Triton's configuration; None where the model was not told to
    have sequences. ``unavailable``: its server says that it cannot be used now. ``schedules``: its
    legacy server knows the parameters ``priority`` and ``timeout``. ``description``, ``server`` and
    ``server_version`` are a GraphPipe server's words, for GraphPipe's clients.
    """

    name: str
    versions: tuple[str, ...] = ()
    platform: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    properties: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    max_batch_size: int | None = None
    decoupled: bool | None = None
    sequence_batching: Parameters | None = None
    unavailable: bool = False
    schedules: bool = False
    description: str = ""
    server: str = ""
    server_version: str = ""


@record
class ModelConfig:
    """The answer to :class:`ModelConfigRequest`. ``settings`` are named and nested as in Triton's
    ``model_config.proto`` told as JSON. ``message`` is that message where a server sent it: it may
    hold fields that ``settings`` do not."""

    name: str
    settings: Parameters
    message: bytes | bytearray | memoryview = b""


@record
class ModelStatistics:
    """The answer to :class:`ModelStatisticsRequest`: an object for each model and version, named
    and nested as in Triton's extension told as JSON. Durations are in nanoseconds."""

    models: tuple[Parameters, ...] = ()


@record
class ModelIndexEntry:
    """One model (version) of the index. ``state`` is READY, UNAVAILABLE, ... or empty if untold."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """As that of TensorMetadata."""
        return ModelIndexEntry, (self.name, self.version, self.state, self.reason)


@record
class ModelIndex:
    """The answer to :class:`ModelIndexRequest`."""

    models: tuple[ModelIndexEntry, ...] = ()


@record
class InferResponse:
    """The answer to :class:`InferRequest`, or one of several that a stream of them gives.

    ``last``: it is known that no other follows. That of a stream may be false for all.
    """

    model: str
    version: str = ""
    id: str = ""
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    outputs: tuple[Tensor, ...] = ()
    last: bool = False


@record
class ModelStatus:
    """One model of a :class:`ServerStatus`: what it is, each of its versions, and what has been
    counted of these, as in :class:`ModelStatistics`."""

    metadata: ModelMetadata
    versions: tuple[ModelIndexEntry, ...] = ()
    statistics: tuple[Parameters, ...] = ()
    config: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    """The settings of its :class:`ModelConfig`, as far as they are known."""


@record
class ServerStatus:
    """The answer to :class:`ServerStatusRequest`."""

    name: str
    version: str
    ready: bool
    models: tuple[ModelStatus, ...] = ()
    uptime_ns: int = 0


@record
class SharedMemoryRegion:
    """A registered region; see :class:`SharedMemoryRegisterRequest`."""

    name: str
    key: str = ""
    offset: int = 0
    size: int = 0
    device: int | None = None


@record
class SharedMemoryStatus:
    """The answer to :class:`SharedMemoryStatusRequest`."""

    regions: tuple[SharedMemoryRegion, ...] = ()


@record
class Settings:
    """The answer to trace and log settings: all of them, as they are now."""

    values: Parameters = field(default_factory=lambda: NO_PARAMETERS)


@record
class Done:
    """The answer to an operation that changes something: it was done."""


Answer = (
    Health
    | ServerMetadata
    | ModelMetadata
    | ModelConfig
    | ModelStatistics
    | ModelIndex
    | ServerStatus
    | SharedMemoryStatus
    | Settings
    | Done
    | InferResponse
)
