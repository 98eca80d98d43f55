"""Builds requests to servers and parses their responses. Explanations are forwarded unchanged.

V1 has no versions, so the codec drops the version of a request. V1 has no metadata, so the
configuration must declare the metadata under ``models``.
"""

from __future__ import annotations

from typing import Any, Final

from infergate.codecs.base import no_request
from infergate.codecs.json_tensors.json_document import (
    MAX_SLOW_BYTES_ON_LOOP,
    check_json_size,
    parse_backend_json,
    read_items,
    read_members,
    read_string,
)
from infergate.codecs.kserve_v1.errors import JSON_HEADERS, backend_error
from infergate.codecs.kserve_v1.paths import EXPLAIN, MODELS_PATH, PREDICT, PROTOCOL, model_path
from infergate.codecs.kserve_v1.predict import read_predictions, write_instances
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, as_backend_error, backend_garbage
from infergate.core.limits import MIB, Limits, check_loop_cost
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.tensor import OpaqueParameters, Tensor, pack_bytes, unpack_bytes
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

_EXPLANATION: Final = "explanation"
_NO_EXPLAINER: Final = (
    "Could not find explainer_host. The backend of the model must speak KServe's V1 protocol"
)
_MAX_MODELS: Final = 32_768
_MAX_BYTES: Final = 8 * MIB
"""Maximum size in bytes of a response to a request other than an inference."""


def explanation_request(model: str, body: bytes) -> InferRequest:
    """Return an explanation request, which only servers with KServe's V1 protocol can serve."""
    parameters = OpaqueParameters({}, (PROTOCOL,), body, (Kind.UNSUPPORTED, _NO_EXPLAINER))
    return InferRequest(model, parameters=parameters)


def explanation_of(response: InferResponse) -> bytes:
    """Return the body of the response to an explanation request."""
    for tensor in response.outputs:
        for body in unpack_bytes(tensor.data):
            return body
    raise backend_garbage("the backend's response has no explanation")


def _explained_body(operation: InferRequest) -> bytes | None:
    """Return the body of an explanation request, or None for a prediction."""
    parameters = operation.parameters
    if isinstance(parameters, OpaqueParameters) and PROTOCOL in parameters.protocols:
        return parameters.text
    return None


def build_request(operation: Operation, model: ModelMetadata | None) -> HttpRequest:
    """Return the request for ``operation``. Raises UNSUPPORTED, BAD_REQUEST and TOO_LARGE."""
    match operation:
        case InferRequest():
            body, verb = _explained_body(operation), EXPLAIN
            if body is None:
                assert model is not None
                body, verb = write_instances(operation, model), PREDICT
            return HttpRequest("POST", model_path(operation.model, verb), "", JSON_HEADERS, [body])
        case messages.ServerLiveRequest() | messages.ServerReadyRequest():
            return HttpRequest("GET", "/")
        case messages.ModelIndexRequest(_, ""):
            return HttpRequest("GET", MODELS_PATH)
        case messages.ModelReadyRequest(name) | messages.ModelIndexRequest(_, name):
            return HttpRequest("GET", model_path(name))
    raise no_request("KServe's V1 protocol", operation)


def parse_response(
    wire: HttpResponse, operation: Operation, limits: Limits, model: ModelMetadata | None
) -> Response:
    """Parse the response. Raises the server's error, BACKEND_GARBAGE, TOO_LARGE and
    NeedsOffloadError."""
    if isinstance(operation, messages.ServerLiveRequest | messages.ServerReadyRequest):
        # Only KServe's own servers have the liveness path. Other live servers respond with 4xx.
        if wire.status in {401, 403}:
            raise backend_error(wire)
        return messages.HealthStatus(ok=wire.status < 500)
    if isinstance(operation, InferRequest):
        if wire.status != 200:
            raise backend_error(wire)
        return _read_inference(wire, operation, limits, model)
    name = getattr(operation, "model", "")
    if wire.status != 200 and not (name and wire.status == 503):  # a model that is not ready
        raise backend_error(wire)
    if not name:
        return _read_list(wire, limits)
    is_ready = wire.status == 200 and _read(wire, "ready", limits) is not False
    if isinstance(operation, messages.ModelReadyRequest):
        return messages.HealthStatus(ok=is_ready)
    state = "READY" if is_ready else "UNAVAILABLE"
    return messages.ModelIndex((messages.ModelIndexEntry(name, state=state),))


def _read_inference(
    wire: HttpResponse, operation: InferRequest, limits: Limits, model: ModelMetadata | None
) -> InferResponse:
    if _explained_body(operation) is None:
        assert model is not None
        return read_predictions(wire, operation, model, limits)
    data = pack_bytes((bytes(join_parts(wire.body)),))
    explanation = Tensor(_EXPLANATION, Datatype.BYTES, (1,), data)
    return InferResponse(operation.model, operation.version, outputs=(explanation,))


def _read_list(wire: HttpResponse, limits: Limits) -> messages.ModelIndex:
    try:
        names = read_items(_read(wire, "models", limits), "models", _MAX_MODELS)
        return messages.ModelIndex(
            tuple(
                messages.ModelIndexEntry(read_string(name, f"models[{index}]"))
                for index, name in enumerate(names)
            )
        )
    except GatewayError as error:
        raise as_backend_error(error) from None


def _read(wire: HttpResponse, name: str, limits: Limits) -> Any:
    """Return the member ``name`` of the body, or None if it is absent. Raises BACKEND_GARBAGE,
    TOO_LARGE and NeedsOffloadError."""
    body = bytes(join_parts(wire.body))
    check_loop_cost(limits, len(body), MAX_SLOW_BYTES_ON_LOOP)
    try:
        check_json_size(len(body), min(_MAX_BYTES, limits.json))
        return read_members(parse_backend_json(body, limits), "the body", (name,)).get(name)
    except GatewayError as error:
        raise as_backend_error(error) from None
