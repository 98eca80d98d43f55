"""The paths of the gRPC methods, and a codec that keeps messages as bytes."""

from typing import Any

from grpclib.encoding.base import CodecBase

SERVICE = "/inference.GRPCInferenceService"
INFER = f"{SERVICE}/ModelInfer"
STREAM = f"{SERVICE}/ModelStreamInfer"


class Raw(CodecBase):  # type: ignore[misc]
    """A codec that returns bytes unchanged."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: Any) -> bytes:
        return message

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data
