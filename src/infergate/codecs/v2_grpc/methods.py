"""The methods of the service: which operation each asks for, and its messages both ways.

*Strategy.* One row a method. Inference has rows of its own kind: its messages are split by the
scanner, all others are small and go through the protobuf runtime whole. A method that is only asked
of servers has a row with one half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from infergate.codecs.v2_grpc import messages as pb
from infergate.codecs.v2_grpc.metadata import (
    read_model_config,
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
    ModelConfigRequest,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A method as it is asked of servers: a writer of its request, a reader of its response."""

    path: str
    operation: type[Operation]
    response: Any
    write_request: Callable[[Any], Any]
    read_response: Callable[[Any], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Asked):
    """A method other than ModelInfer: readers and writers of its two messages."""

    answer: type[Answer]
    request: Any
    read_request: Callable[[Any], Operation]
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
        path=f"/{SERVICE}/ServerLive",
        operation=ServerLiveRequest,
        answer=Health,
        request=pb.ServerLiveRequest,
        response=pb.ServerLiveResponse,
        read_request=lambda _: ServerLiveRequest(),
        write_request=lambda _: pb.ServerLiveRequest(),
        read_response=lambda message: Health(message.live),
        write_response=lambda answer: pb.ServerLiveResponse(live=answer.ok),
    ),
    Method(
        path=f"/{SERVICE}/ServerReady",
        operation=ServerReadyRequest,
        answer=Health,
        request=pb.ServerReadyRequest,
        response=pb.ServerReadyResponse,
        read_request=lambda _: ServerReadyRequest(),
        write_request=lambda _: pb.ServerReadyRequest(),
        read_response=lambda message: Health(message.ready),
        write_response=lambda answer: pb.ServerReadyResponse(ready=answer.ok),
    ),
    Method(
        path=f"/{SERVICE}/ModelReady",
        operation=ModelReadyRequest,
        answer=Health,
        request=pb.ModelReadyRequest,
        response=pb.ModelReadyResponse,
        read_request=lambda message: ModelReadyRequest(*_read_model(message)),
        write_request=lambda asked: pb.ModelReadyRequest(name=asked.model, version=asked.version),
        read_response=lambda message: Health(message.ready),
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
        write_request=lambda asked: pb.ModelMetadataRequest(
            name=asked.model, version=asked.version
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
        write_request=lambda asked: pb.RepositoryIndexRequest(ready=asked.ready_only),
        read_response=read_model_index,
        write_response=write_model_index,
    ),
)
_CONFIG: Final = Asked(
    path=f"/{SERVICE}/ModelConfig",
    operation=ModelConfigRequest,
    response=pb.ModelConfigResponse,
    write_request=lambda asked: pb.ModelConfigRequest(name=asked.model, version=asked.version),
    read_response=read_model_config,
)
"""Triton's extension."""
BY_PATH: Final = {method.path: method for method in METHODS}
BY_OPERATION: Final = {method.operation: method for method in METHODS}
ASKED: Final[dict[type[Operation], Asked]] = {**BY_OPERATION, ModelConfigRequest: _CONFIG}
"""What servers are asked."""
INFER: Final = f"/{SERVICE}/ModelInfer"
STREAM: Final = f"/{SERVICE}/ModelStreamInfer"
OPERATIONS: Final[dict[str, type[Operation]]] = {
    INFER: InferRequest,
    STREAM: InferRequest,
    **{method.path: method.operation for method in METHODS},
}
