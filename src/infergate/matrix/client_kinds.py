"""A client kind for each tensor format of each protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from infergate.codecs.base import Codec, Profile
from infergate.codecs.profiles import GENERIC, TRITON, TRTSERVER
from infergate.codecs.v2_grpc.codec import V2Grpc
from infergate.codecs.v2_grpc.messages import ModelInferRequest
from infergate.codecs.v2_grpc.tensors import can_be_typed, write_typed
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, ModelMetadata, Operation
from infergate.core.wire import RpcRequest, join_parts


class _TypedContentsCodec(V2Grpc):
    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest:
        wire = super().build_request(operation, profile, model)
        if not isinstance(operation, InferRequest):
            return wire
        if not can_be_typed(operation.inputs):
            raise GatewayError(Kind.UNSUPPORTED, "the datatype of an input has no typed contents")
        message = ModelInferRequest.FromString(bytes(join_parts(wire.message)))
        message.ClearField("raw_input_contents")
        for input_message, tensor in zip(message.inputs, operation.inputs, strict=True):
            write_typed(input_message, tensor)
        return RpcRequest(wire.method, (message.SerializeToString(),))


@dataclass(frozen=True, slots=True)
class ClientKind:
    """A protocol and tensor format. ``codec`` is the client's codec, by default the codec of
    ``protocol``. ``options`` are the options of the listener's codec. ``is_framed`` selects
    size-prefixed messages on a listener for a single model."""

    name: str
    protocol: str
    profile: Profile = GENERIC
    codec: Codec[Any, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    is_framed: bool = False


CLIENT_KINDS: Final = (
    ClientKind("V2 REST, JSON", "v2-rest"),
    ClientKind("V2 REST, binary", "v2-rest", TRITON),
    ClientKind("V2 gRPC, raw", "v2-grpc", options={"contents": "raw"}),
    ClientKind(
        "V2 gRPC, typed",
        "v2-grpc",
        codec=_TypedContentsCodec("typed"),
        options={"contents": "typed"},
    ),
    ClientKind("GraphPipe, HTTP", "graphpipe"),
    ClientKind("GraphPipe, TCP", "graphpipe", options={"errors": "response"}, is_framed=True),
    ClientKind("legacy TRT, HTTP", "trtis-http", TRTSERVER),
    ClientKind("legacy TRT, gRPC", "trtis-grpc", TRTSERVER),
    ClientKind("TF Serving, gRPC", "tfs-grpc"),
    ClientKind("TF Serving, REST", "tfs-rest"),
    ClientKind("KServe V1", "kserve-v1"),
)
