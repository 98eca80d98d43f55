"""The methods of the gRPC service other than inferences, towards clients.

Every response contains ``request_status``, which the caller fills.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis import response_messages
from infergate.codecs.trtis.request_status import TrtisStatusError
from infergate.core.messages import (
    Acknowledgement,
    HealthStatus,
    ModelIndex,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelUnloadRequest,
    Operation,
    Response,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerStatus,
    ServerStatusRequest,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
)

INFER: Final = f"/{pb.SERVICE}/Infer"
STREAM_INFER: Final = f"/{pb.SERVICE}/StreamInfer"
STATUS: Final = f"/{pb.SERVICE}/Status"
HEALTH: Final = f"/{pb.SERVICE}/Health"
MODEL_CONTROL: Final = f"/{pb.SERVICE}/ModelControl"
SHARED_MEMORY: Final = f"/{pb.SERVICE}/SharedMemoryControl"
_UNLOAD: Final = 0
LOAD: Final = 1


@dataclass(frozen=True, slots=True)
class TrtisMethod:
    """A method. ``write`` takes a response message, a ``response_types`` and the server's id."""

    request_class: Any
    response_class: Any
    response_types: tuple[type[Response], ...]
    read: Callable[[Any], Operation]
    write: Callable[[Any, Any, str], None]


def _read_health(message: Any) -> Operation:
    match message.mode:
        case "live":
            return ServerLiveRequest()
        case "ready":
            return ServerReadyRequest()
    raise TrtisStatusError("UNKNOWN", f"unknown health mode '{message.mode}'")


def _read_control(message: Any) -> Operation:
    kind = ModelLoadRequest if message.type == LOAD else ModelUnloadRequest
    return kind(message.model_name)


def _read_repository(message: Any) -> Operation:
    if message.WhichOneof("request_type") is None:
        raise TrtisStatusError("UNKNOWN", "request type is not specified")
    return ModelIndexRequest()


def _read_memory(message: Any) -> Operation:
    match message.WhichOneof("shared_memory_control"):
        case "register":
            return _read_register(message.register)
        case "unregister":
            return SharedMemoryUnregisterRequest(message.unregister.name)
        case "unregister_all":
            return SharedMemoryUnregisterRequest()
        case "status":
            return SharedMemoryStatusRequest()
    raise TrtisStatusError("UNKNOWN", "unknown sharedmemorycontrol request type")


def _read_register(message: Any) -> Operation:
    match message.WhichOneof("shared_memory_types"):
        case "system_shared_memory":
            memory = message.system_shared_memory
            return SharedMemoryRegisterRequest(
                message.name, memory.shared_memory_key, memory.offset, message.byte_size
            )
        case "cuda_shared_memory":
            memory = message.cuda_shared_memory
            return SharedMemoryRegisterRequest(
                message.name,
                size=message.byte_size,
                device=memory.device_id,
                handle=memory.raw_handle,
            )
    raise TrtisStatusError(
        "INVALID_ARG",
        f"failed to register shared memory region: '{message.name}', improperly formed request.",
    )


def _write_health(response: Any, answer: Any, _: str) -> None:
    response.health = answer.ok


def _write_status(response: Any, answer: Any, server_id: str) -> None:
    response.server_status.CopyFrom(response_messages.status_message(answer, server_id))


def _write_index(response: Any, answer: Any, _: str) -> None:
    response.index.CopyFrom(response_messages.index_message(answer))


def _write_memory(response: Any, answer: Any, _: str) -> None:
    if isinstance(answer, SharedMemoryStatus):
        response.shared_memory_status.SetInParent()
        response_messages.add_regions(response.shared_memory_status.shared_memory_region, answer)


def _write_nothing(response: Any, answer: Any, server_id: str) -> None:
    del response, answer, server_id


METHODS: Final[dict[str, TrtisMethod]] = {
    STATUS: TrtisMethod(
        pb.StatusRequest,
        pb.StatusResponse,
        (ServerStatus,),
        lambda message: ServerStatusRequest(message.model_name),
        _write_status,
    ),
    HEALTH: TrtisMethod(
        pb.HealthRequest, pb.HealthResponse, (HealthStatus,), _read_health, _write_health
    ),
    MODEL_CONTROL: TrtisMethod(
        pb.ModelControlRequest,
        pb.ModelControlResponse,
        (Acknowledgement,),
        _read_control,
        _write_nothing,
    ),
    f"/{pb.SERVICE}/Repository": TrtisMethod(
        pb.RepositoryRequest, pb.RepositoryResponse, (ModelIndex,), _read_repository, _write_index
    ),
    SHARED_MEMORY: TrtisMethod(
        pb.SharedMemoryControlRequest,
        pb.SharedMemoryControlResponse,
        (SharedMemoryStatus, Acknowledgement),
        _read_memory,
        _write_memory,
    ),
}
