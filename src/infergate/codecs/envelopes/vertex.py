"""The container API of Google's Vertex AI, which has a path for health and a path for predictions.

Prediction requests are V2 REST inferences of one model, as in Triton, or JSON objects in Vertex
AI's own form, ``{"instances": […], "parameters": {…}}``. With V2 REST bodies, the header
``X-Vertex-Ai-Triton-Redirect`` of a POST selects another V2 REST path. The sources are Triton's
``vertex_ai_server.cc`` and Vertex AI's requirements for custom containers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infergate.codecs.envelopes.rows import BodyReader, RowsCodec, read_parameters
from infergate.codecs.envelopes.v2_envelope import V2Envelope
from infergate.codecs.json_tensors.row_document import parse_document
from infergate.codecs.json_tensors.row_reader import RowReader, input_types
from infergate.codecs.v2_rest.paths import match_path, model_path
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.tensor import Parameters, Tensor
from infergate.core.wire import HttpRequest

_REDIRECT_HEADER: Final = "x-vertex-ai-triton-redirect"
_ALLOWED_OPERATIONS: Final = frozenset(
    {
        messages.InferRequest,
        messages.ModelConfigRequest,
        messages.ModelIndexRequest,
        messages.ModelMetadataRequest,
        messages.ModelReadyRequest,
        messages.ModelStatisticsRequest,
        messages.ServerLiveRequest,
        messages.ServerMetadataRequest,
        messages.ServerReadyRequest,
        messages.SharedMemoryStatusRequest,
    }
)
"""The operations to which a request may be redirected. They do not change the server."""


def create(
    v2: Mapping[str, Any], model: str, health_route: str, predict_route: str, body: str
) -> VertexCodec | VertexRowsCodec:
    """Create a codec that serves health at ``health_route`` and inferences of ``model`` at
    ``predict_route``. ``body`` is the form of the bodies, ``v2`` or ``instances``."""
    if body == "v2":
        return VertexCodec(v2, model, health_route, predict_route)
    return VertexRowsCodec(model, predict_route, {health_route: messages.ServerReadyRequest()})


class VertexRowsCodec(RowsCodec):
    """Serves Vertex AI's own bodies."""

    name: str = "vertex"

    def body_reader(self, wire: HttpRequest) -> BodyReader:  # noqa: ARG002
        return _read_instances


def _read_instances(
    body: bytes, metadata: messages.ModelMetadata, limits: Limits
) -> tuple[tuple[Tensor, ...], Parameters]:
    members = parse_document(body, ("instances", "parameters"), limits)
    if "instances" not in members:
        raise bad_request("instances is missing")
    parameters = read_parameters(members, "parameters")
    reader = RowReader(input_types(metadata.inputs), limits)
    return reader.read_instances(members["instances"]), parameters


class VertexCodec(V2Envelope):
    """Serves V2 REST bodies on Vertex AI."""

    binary_type: str = "application/vnd.vertex-ai-triton.binary+json"

    def __init__(
        self, v2: Mapping[str, Any], model: str, health_route: str, predict_route: str
    ) -> None:
        super().__init__(v2, model=model, health_route=health_route, predict_route=predict_route)
        self.claims = (health_route, predict_route)
        self._model: Final = model

    def rewrite_path(self, wire: HttpRequest) -> None:
        health_route, predict_route = self.claims
        if wire.path == health_route:
            wire.path = "/v2/health/ready"
            return
        if wire.path != predict_route:
            raise GatewayError(Kind.NOT_FOUND, f"no such path: {wire.path[:200]}")
        target = wire.headers.get(_REDIRECT_HEADER)
        if target is None or wire.method != "POST":  # only POST is allowed at this path
            wire.path = model_path(self._model, "", "/infer")
            return
        path = f"/{target.strip()}"
        match = match_path(path)
        if match.operation not in _ALLOWED_OPERATIONS:
            raise GatewayError(Kind.FORBIDDEN, f"{_REDIRECT_HEADER} may not name {path[:200]}")
        wire.path, wire.method = path, match.method
