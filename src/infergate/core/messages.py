"""Operations and their answers: what every frontend asks and every backend answers.

Names follow the Open Inference Protocol. An empty ``version`` or ``id`` means that none was given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from infergate.core.tensor import NO_PARAMETERS, Buffer, Parameters, Tensor

# ---- operations -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerLiveRequest:
    """Does the server run?"""


@dataclass(frozen=True, slots=True)
class ServerReadyRequest:
    """Can the server serve its models?"""


@dataclass(frozen=True, slots=True)
class ServerMetadataRequest:
    """Name, version and extensions of the server."""


@dataclass(frozen=True, slots=True)
class ModelIndexRequest:
    """Which models are there? With ``ready_only``, those that serve now."""

    ready_only: bool = False


@dataclass(frozen=True, slots=True)
class ModelReadyRequest:
    """Can this model serve?"""

    model: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class ModelMetadataRequest:
    """Inputs, outputs, versions and platform of a model."""

    model: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output the client wants, with protocol-neutral parameters such as ``classification``."""

    name: str
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One inference. Empty ``outputs`` means all outputs of the model."""

    model: str
    version: str = ""
    id: str = ""
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[RequestedOutput, ...] = ()


@dataclass(frozen=True, slots=True)
class RawInferRequest:
    """One inference whose request is bare tensor data (V2 REST's raw binary request).

    ``data`` is the model's only input: its name, datatype and shape are the model's to tell.
    """

    model: str
    version: str = ""
    id: str = ""
    data: Buffer = b""


ModelOperation = ModelReadyRequest | ModelMetadataRequest | InferRequest
Operation = (
    ServerLiveRequest
    | ServerReadyRequest
    | ServerMetadataRequest
    | ModelIndexRequest
    | ModelReadyRequest
    | ModelMetadataRequest
    | InferRequest
    | RawInferRequest
)

OPERATIONS: Final[dict[type, str]] = {
    ServerLiveRequest: "server_live",
    ServerReadyRequest: "server_ready",
    ServerMetadataRequest: "server_metadata",
    ModelIndexRequest: "model_index",
    ModelReadyRequest: "model_ready",
    ModelMetadataRequest: "model_metadata",
    InferRequest: "infer",
    RawInferRequest: "infer",
}
"""How metrics and logs call each operation."""

# ---- answers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to live, ready and model ready."""

    ok: bool


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """The answer to :class:`ServerMetadataRequest`."""

    name: str
    version: str
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """One input or output. ``datatype`` as the server spells it; -1 is a free dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The answer to :class:`ModelMetadataRequest`.

    ``parameters`` (MLServer) and ``properties`` (Open Inference Protocol) share a field number
    on the wire and are kept apart here.
    """

    name: str
    versions: tuple[str, ...] = ()
    platform: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    properties: Parameters = field(default_factory=lambda: NO_PARAMETERS)


@dataclass(frozen=True, slots=True)
class ModelIndexEntry:
    """One model (version) of the index. ``state`` is READY, UNAVAILABLE, ... or empty if untold."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """The answer to :class:`ModelIndexRequest`."""

    models: tuple[ModelIndexEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The answer to :class:`InferRequest`."""

    model: str
    version: str = ""
    id: str = ""
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    outputs: tuple[Tensor, ...] = ()


Answer = Health | ServerMetadata | ModelMetadata | ModelIndex | InferResponse
