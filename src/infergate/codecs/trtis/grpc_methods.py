"""The gRPC methods other than inference, for clients.

Every response contains ``request_status``, which the caller sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis import response_messages
from infergate.codecs.trtis.request_status import TrtisStatusError
from infergate.codecs.trtis.server_status import write_status
from infergate.core import messages
from infergate.core.messages import Operation, Response

INFER: Final = f"/{pb.SERVICE}/Infer"
STREAM_INFER: Final = f"/{pb.SERVICE}/StreamInfer"
STATUS: Final = f"/{pb.SERVICE}/Status"
HEALTH: Final = f"/{pb.SERVICE}/Health"
MODEL_CONTROL: Final = f"/{pb.SERVICE}/ModelControl"
SHARED_MEMORY: Final = f"/{pb.SERVICE}/SharedMemoryControl"
LOAD: Final = 1
"""The value of ModelControlRequest.type that loads a model."""


@dataclass(frozen=True, slots=True)
class TrtisMethod:
    """A gRPC method other than inference. ``read`` returns the operation of a request message."""

    request_class: Any
    response_class: Any
    response_types: tuple[type[Response], ...]
    read: Callable[[Any], Operation]


def _read_health(message: Any) -> Operation:
    match message.mode:
        case "live":
            return messages.ServerLiveRequest()
        case "ready":
            return messages.ServerReadyRequest()
    raise TrtisStatusError("UNKNOWN", f"unknown health mode '{message.mode}'")


def _read_control(message: Any) -> Operation:
    kind = messages.ModelLoadRequest if message.type == LOAD else messages.ModelUnloadRequest
    return kind(message.model_name)


def _read_repository(message: Any) -> Operation:
    if message.WhichOneof("request_type") is None:
        raise TrtisStatusError("UNKNOWN", "request type is not specified")
    return messages.ModelIndexRequest()


def _read_memory(message: Any) -> Operation:
    match message.WhichOneof("shared_memory_control"):
        case "register":
            return _read_register(message.register)
        case "unregister":
            return messages.SharedMemoryUnregisterRequest(message.unregister.name)
        case "unregister_all":
            return messages.SharedMemoryUnregisterRequest()
        case "status":
            return messages.SharedMemoryStatusRequest()
    raise TrtisStatusError("UNKNOWN", "unknown sharedmemorycontrol request type")


def _read_register(message: Any) -> Operation:
    match message.WhichOneof("shared_memory_types"):
        case "system_shared_memory":
            memory = message.system_shared_memory
            return messages.SharedMemoryRegisterRequest(
                message.name, memory.shared_memory_key, memory.offset, message.byte_size
            )
        case "cuda_shared_memory":
            memory = message.cuda_shared_memory
            return messages.SharedMemoryRegisterRequest(
                message.name,
                size=message.byte_size,
                device=memory.device_id,
                handle=memory.raw_handle,
            )
    raise TrtisStatusError(
        "INVALID_ARG",
        f"failed to register shared memory region: '{message.name}', improperly formed request.",
    )


def write_response(message: Any, response: Response, server_id: str) -> None:
    """Fill ``message``, the response message of a method, with ``response``."""
    match response:
        case messages.HealthStatus(ok):
            message.health = ok
        case messages.ServerStatus():
            message.server_status.CopyFrom(write_status(response, server_id))
        case messages.ModelIndex():
            message.index.CopyFrom(response_messages.index_message(response))
        case messages.SharedMemoryStatus():
            status = message.shared_memory_status
            status.SetInParent()
            response_messages.add_regions(status.shared_memory_region, response)


METHODS: Final[dict[str, TrtisMethod]] = {
    STATUS: TrtisMethod(
        pb.StatusRequest,
        pb.StatusResponse,
        (messages.ServerStatus,),
        lambda message: messages.ServerStatusRequest(message.model_name),
    ),
    HEALTH: TrtisMethod(
        pb.HealthRequest, pb.HealthResponse, (messages.HealthStatus,), _read_health
    ),
    MODEL_CONTROL: TrtisMethod(
        pb.ModelControlRequest,
        pb.ModelControlResponse,
        (messages.Acknowledgement,),
        _read_control,
    ),
    f"/{pb.SERVICE}/Repository": TrtisMethod(
        pb.RepositoryRequest, pb.RepositoryResponse, (messages.ModelIndex,), _read_repository
    ),
    SHARED_MEMORY: TrtisMethod(
        pb.SharedMemoryControlRequest,
        pb.SharedMemoryControlResponse,
        (messages.SharedMemoryStatus, messages.Acknowledgement),
        _read_memory,
    ),
}
