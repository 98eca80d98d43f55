"""Clients of each protocol, in each of its tensor formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from infergate.backends.backend_settings import BackendSettings
from infergate.backends.remote import HTTP_MESSAGES, RPC_MESSAGES, RemoteBackend
from infergate.codecs.base import Codec, Profile, TransportKind
from infergate.codecs.profiles import GENERIC, TRITON, TRTSERVER
from infergate.codecs.registry import plugins
from infergate.codecs.v2_grpc.codec import V2Grpc
from infergate.codecs.v2_grpc.messages import ModelInferRequest
from infergate.codecs.v2_grpc.tensors import can_be_typed, write_typed
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, ModelMetadata, Operation
from infergate.core.wire import RpcRequest, join_parts
from infergate.transport.base import Endpoint
from infergate.transport.compat.grpcio_client import GrpcioUpstream
from infergate.transport.framed.client import HttpOrFrameUpstream


class _TypedContentsCodec(V2Grpc):
    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest:
        wire = super().build_request(operation, profile, model)
        if not isinstance(operation, InferRequest):
            return wire
        if not can_be_typed(operation.inputs):
            raise GatewayError(Kind.UNSUPPORTED, "this datatype has no typed contents")
        message = ModelInferRequest.FromString(bytes(join_parts(wire.message)))
        message.ClearField("raw_input_contents")
        for input_message, tensor in zip(message.inputs, operation.inputs, strict=True):
            write_typed(input_message, tensor)
        return RpcRequest(wire.method, (message.SerializeToString(),))


RAW_SOCKETS: Final = "frames"
"""The name of the raw-socket listeners. There is a listener for each model."""


@dataclass(frozen=True, slots=True)
class ClientKind:
    """A protocol and tensor format. The client connects to ``listener``: ``http``, ``grpc``,
    ``grpc typed``, ``additional.<protocol>`` or ``RAW_SOCKETS``. If the URL identifies the model,
    ``path_prefix`` precedes the model's name."""

    name: str
    protocol: str
    listener: str
    profile: Profile = GENERIC
    codec: Callable[[Mapping[str, Any]], Codec[Any, Any]] | None = None
    path_prefix: str = ""

    def path(self, model: str, version: str) -> str:
        """Return the URL path of ``model``, or an empty path if the URL does not identify the
        model."""
        path = f"{self.path_prefix}{model}" + (f"/versions/{version}" if version else "")
        return path if self.path_prefix else ""

    def create_client(self, endpoint: Endpoint) -> RemoteBackend[Any, Any]:
        plugin = plugins()[self.protocol]
        codec = (self.codec or plugin.create)({})
        server = BackendSettings(self.name, (endpoint,), profile=self.profile)
        limits = DEFAULT_LIMITS
        if plugin.transport_kind is TransportKind.HTTP:
            upstream = HttpOrFrameUpstream(limits)
            return RemoteBackend(server, codec, upstream, HTTP_MESSAGES, limits)
        return RemoteBackend(server, codec, GrpcioUpstream(limits), RPC_MESSAGES, limits)


WITHOUT_METADATA: Final = ("kserve-v1",)
"""Protocols without metadata. The clients know the metadata, and the gateways declare it."""
CLIENT_KINDS: Final = (
    ClientKind("V2 REST, JSON", "v2-rest", "http"),
    ClientKind("V2 REST, binary", "v2-rest", "http", TRITON),
    ClientKind("V2 gRPC, raw", "v2-grpc", "grpc"),
    ClientKind(
        "V2 gRPC, typed", "v2-grpc", "grpc typed", codec=lambda _: _TypedContentsCodec("typed")
    ),
    ClientKind("GraphPipe, HTTP", "graphpipe", "http", path_prefix="/graphpipe/"),
    ClientKind("GraphPipe, TCP", "graphpipe", RAW_SOCKETS),
    ClientKind("legacy TRT, HTTP", "trtis-http", "http", TRTSERVER),
    ClientKind("legacy TRT, gRPC", "trtis-grpc", "grpc", TRTSERVER),
    ClientKind("TF Serving, gRPC", "tfs-grpc", "grpc"),
    ClientKind("TF Serving, REST", "tfs-rest", "http"),
    ClientKind("KServe V1", "kserve-v1", f"additional.{WITHOUT_METADATA[0]}"),
)
