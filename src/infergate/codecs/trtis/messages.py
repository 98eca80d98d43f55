"""The message classes of ``proto/legacy_inference_server.proto``, from a private descriptor pool.
Each class is an attribute with the name of its message in the package ``nvidia.inferenceserver``.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from infergate.codecs.protos import SCHEMA

SERVICE: Final = "nvidia.inferenceserver.GRPCService"


def __getattr__(name: str) -> Any:
    return SCHEMA.attribute(__name__, f"nvidia.inferenceserver.{name}")


_STATUS: Final = SCHEMA.message_class("nvidia.inferenceserver.RequestStatus")
_CODE: Final = _STATUS.DESCRIPTOR.fields_by_name["code"].enum_type
CODES: Final[dict[str, int]] = {name: value.number for name, value in _CODE.values_by_name.items()}
"""The numbers of the enum RequestStatusCode, by name."""


class BodyFormat(enum.Enum):
    """The format in which an HTTP client requests a message."""

    TEXT = "text"
    BINARY = "binary"
    JSON = "json"


class PicklableMessage:
    """A wrapper that makes ``message`` picklable for a helper process."""

    __slots__ = ("message",)

    def __init__(self, message: Any) -> None:
        self.message: Final = message

    def __reduce__(self) -> tuple[Any, ...]:
        name = self.message.DESCRIPTOR.full_name
        return _unpickle, (name, self.message.SerializeToString())


def _unpickle(name: str, data: bytes) -> PicklableMessage:
    return PicklableMessage(SCHEMA.message_class(name).FromString(data))
