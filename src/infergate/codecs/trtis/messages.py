"""The message classes of ``nvidia.inferenceserver``, from a private descriptor pool."""

from __future__ import annotations

from typing import Any, Final

from infergate.codecs.protos import SCHEMA

SERVICE: Final = "nvidia.inferenceserver.GRPCService"


def _message(name: str) -> Any:
    return SCHEMA.message_class(f"nvidia.inferenceserver.{name}")


InferRequestHeader: Final = _message("InferRequestHeader")
InferResponseHeader: Final = _message("InferResponseHeader")
RequestStatus: Final = _message("RequestStatus")
ServerStatus: Final = _message("ServerStatus")
ModelRepositoryIndex: Final = _message("ModelRepositoryIndex")
SharedMemoryStatus: Final = _message("SharedMemoryStatus")
StatusRequest: Final = _message("StatusRequest")
StatusResponse: Final = _message("StatusResponse")
HealthRequest: Final = _message("HealthRequest")
HealthResponse: Final = _message("HealthResponse")
ModelControlRequest: Final = _message("ModelControlRequest")
ModelControlResponse: Final = _message("ModelControlResponse")
SharedMemoryControlRequest: Final = _message("SharedMemoryControlRequest")
SharedMemoryControlResponse: Final = _message("SharedMemoryControlResponse")
RepositoryRequest: Final = _message("RepositoryRequest")
RepositoryResponse: Final = _message("RepositoryResponse")
InferRequest: Final = _message("InferRequest")
InferResponse: Final = _message("InferResponse")

_CODE: Final = RequestStatus.DESCRIPTOR.fields_by_name["code"].enum_type
CODES: Final[dict[str, int]] = {name: value.number for name, value in _CODE.values_by_name.items()}
"""The numbers of the enum RequestStatusCode, by name."""


class PicklableMessage:
    """A wrapper that makes ``message`` picklable, so that it can be sent to a helper process."""

    __slots__ = ("message",)

    def __init__(self, message: Any) -> None:
        self.message: Final = message

    def __reduce__(self) -> tuple[Any, ...]:
        name = self.message.DESCRIPTOR.full_name
        return _unpickle, (name, self.message.SerializeToString())


def _unpickle(name: str, data: bytes) -> PicklableMessage:
    return PicklableMessage(SCHEMA.message_class(name).FromString(data))
