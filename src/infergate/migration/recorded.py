"""Converts recorded inferences to messages of the client's protocol and to model metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

from infergate.codecs.base import SupportsStreaming
from infergate.codecs.profiles import GENERIC, TRITON
from infergate.codecs.registry import plugins
from infergate.core.errors import GatewayError
from infergate.core.exchange import Exchange
from infergate.core.messages import InferRequest, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, RpcRequest

DEFAULT_PROTOCOL = "v2-rest"
"""The protocol that replaces a client protocol without a codec plugin, or gRPC in curl commands."""


def client_message(
    protocol: str, request: InferRequest, metadata: ModelMetadata | None = None
) -> HttpRequest | RpcRequest:
    """Return the message that a client of ``protocol`` sends for ``request``: text, or binary data
    if text cannot carry the tensors exactly. Raises GatewayError."""
    plugin = plugins()[protocol]
    codec = plugin.create({})
    try:
        wire: HttpRequest | RpcRequest = codec.build_request(request, GENERIC, metadata)
    except GatewayError:
        wire = codec.build_request(request, TRITON, metadata)
    if plugin.supports_framing and isinstance(wire, HttpRequest):
        # On a shared listener, the path names the model.
        wire.path = f"/{plugin.claims[0]}/{quoted_model(request)}"
    return wire


def quoted_model(request: InferRequest) -> str:
    """Return the part of a URL path that names the model and the version of ``request``."""
    path = quote(request.model, safe="")
    return f"{path}/versions/{quote(request.version, safe='')}" if request.version else path


def recorded_message(exchange: Exchange) -> HttpRequest | RpcRequest:
    """Return the request of ``exchange`` as the client may have sent it, or as a DEFAULT_PROTOCOL
    message if the client's protocol has no codec plugin. Recordings do not contain messages, so
    details such as the order of JSON keys may differ. Raises GatewayError."""
    is_supported = exchange.protocol in plugins()
    protocol = exchange.protocol if is_supported else DEFAULT_PROTOCOL
    wire = client_message(protocol, exchange.request, recorded_metadata(exchange))
    codec = plugins()[protocol].create({})
    if isinstance(wire, HttpRequest):
        return replace(wire, headers={**exchange.headers, **wire.headers})
    method = wire.method
    if exchange.is_stream and isinstance(codec, SupportsStreaming):
        method = codec.streaming_method
    return RpcRequest(method, wire.message, {**exchange.headers, **wire.metadata})


def recorded_metadata(exchange: Exchange) -> ModelMetadata:
    """Return metadata derived from the inputs and the first response's outputs of ``exchange``.
    First dimensions are variable."""
    request, responses = exchange.request, exchange.outcome.responses
    outputs = responses[0].outputs if responses else ()
    return ModelMetadata(
        request.model, inputs=_specs(request.inputs), outputs=_specs(outputs), max_batch_size=0
    )


def _specs(tensors: Sequence[Tensor]) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(each.name, each.datatype.value, (-1, *each.shape[1:]) if each.shape else ())
        for each in tensors
    )
