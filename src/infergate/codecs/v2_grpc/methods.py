"""The methods of the service: which operation each asks for, and its messages both ways.

*Strategy.* One row a method. Inference has rows of its own kind: its messages are split by the
scanner, all others are small and go through the protobuf runtime whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from infergate.codecs.v2_grpc import messages as pb
from infergate.codecs.v2_grpc.metadata import (
    read_model_index,
    read_model_metadata,
    read_server_metadata,
    write_model_index,
    write_model_metadata,
    write_server_metadata,
)
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import (
    Answer,
    Health,
    InferRequest,
    ModelIndex,
    ModelIndexRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    Operation,
    ServerLiveRequest,
    ServerMetadata,
    ServerMetadataRequest,
    ServerReadyRequest,
)

SERVICE: Final = "inference.GRPCInferenceService"


@dataclass(frozen=True, slots=True)
class Method:
    """A method other than ModelInfer: readers and writers of its two messages."""

    path: str
    operation: type[Operation]
    answer: type[Answer]
    request: Any
    response: Any
    read_request: Callable[[Any], Operation]
    write_request: Callable[[Any], Any]
    read_response: Callable[[Any], Answer]
    write_response: Callable[[Any], Any]


def _read_index_request(message: Any) -> ModelIndexRequest:
    if message.repository_name:  # as Triton answers: this names no repository that we know
        raise GatewayError(Kind.UNSUPPORTED, "repository_name is not supported")
    return ModelIndexRequest(ready_only=message.ready)


def _read_model(message: Any) -> tuple[str, str]:
    if not message.name:
        raise bad_request("name (of the model) is missing")
    return message.name, message.version


METHODS: Final = (
    Method(
        f"/{SERVICE}/ServerLive",
        ServerLiveRequest,
        Health,
        pb.ServerLiveRequest,
        pb.ServerLiveResponse,
        lambda _: ServerLiveRequest(),
        lambda _: pb.ServerLiveRequest(),
        lambda message: Health(message.live),
        lambda answer: pb.ServerLiveResponse(live=answer.ok),
    ),
    Method(
        f"/{SERVICE}/ServerReady",
        ServerReadyRequest,
        Health,
        pb.ServerReadyRequest,
        pb.ServerReadyResponse,
        lambda _: ServerReadyRequest(),
        lambda _: pb.ServerReadyRequest(),
        lambda message: Health(message.ready),
        lambda answer: pb.ServerReadyResponse(ready=answer.ok),
    ),
    Method(
        f"/{SERVICE}/ModelReady",
        ModelReadyRequest,
        Health,
        pb.ModelReadyRequest,
        pb.ModelReadyResponse,
        lambda message: ModelReadyRequest(*_read_model(message)),
        lambda asked: pb.ModelReadyRequest(name=asked.model, version=asked.version),
        lambda message: Health(message.ready),
        lambda answer: pb.ModelReadyResponse(ready=answer.ok),
    ),
    Method(
        f"/{SERVICE}/ServerMetadata",
        ServerMetadataRequest,
        ServerMetadata,
        pb.ServerMetadataRequest,
        pb.ServerMetadataResponse,
        lambda _: ServerMetadataRequest(),
        lambda _: pb.ServerMetadataRequest(),
        read_server_metadata,
        write_server_metadata,
    ),
    Method(
        f"/{SERVICE}/ModelMetadata",
        ModelMetadataRequest,
        ModelMetadata,
        pb.ModelMetadataRequest,
        pb.ModelMetadataResponse,
        lambda message: ModelMetadataRequest(*_read_model(message)),
        lambda asked: pb.ModelMetadataRequest(name=asked.model, version=asked.version),
        read_model_metadata,
        write_model_metadata,
    ),
    Method(
        f"/{SERVICE}/RepositoryIndex",
        ModelIndexRequest,
        ModelIndex,
        pb.RepositoryIndexRequest,
        pb.RepositoryIndexResponse,
        _read_index_request,
        lambda asked: pb.RepositoryIndexRequest(ready=asked.ready_only),
        read_model_index,
        write_model_index,
    ),
)
BY_PATH: Final = {method.path: method for method in METHODS}
BY_OPERATION: Final = {method.operation: method for method in METHODS}
INFER: Final = f"/{SERVICE}/ModelInfer"
OPERATIONS: Final[dict[str, type[Operation]]] = {
    INFER: InferRequest,
    **{method.path: method.operation for method in METHODS},
}
