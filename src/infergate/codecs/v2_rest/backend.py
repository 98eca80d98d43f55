"""Builds requests to servers, and parses the responses to all operations except inferences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from infergate.codecs.base import Profile, no_request
from infergate.codecs.json_tensors.json_document import (
    MAX_SLOW_BYTES_ON_LOOP,
    Node,
    check_json_size,
    parse_backend_json,
)
from infergate.codecs.v2_rest import metadata, repository, settings, shared_memory
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.infer_request import write_request
from infergate.codecs.v2_rest.infer_response import read_response_body, unusable_response
from infergate.codecs.v2_rest.paths import INDEX_PATH, MODEL_LIST_PATH, STATISTICS_PATH, model_path
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import MIB, Limits, check_loop_cost
from infergate.core.messages import InferRequest, Operation, Response
from infergate.core.wire import HttpRequest, HttpResponse

# ---- requests -----------------------------------------------------------------------------------


def build_request(operation: Operation, profile: Profile) -> HttpRequest:
    """Build a request. Raises BAD_REQUEST, and UNSUPPORTED for an operation or a value that V2 REST
    or the server does not support."""
    build = _BUILDERS.get(type(operation))
    if build is None:
        raise no_request("V2 REST", operation)
    return build(operation, profile)


def _server_get(path: str) -> Callable[[Operation, Profile], HttpRequest]:
    return lambda _, __: HttpRequest("GET", path)


def _model_get(suffix: str) -> Callable[[messages.ModelOperation, Profile], HttpRequest]:
    def build(operation: messages.ModelOperation, profile: Profile) -> HttpRequest:
        version = operation.version if profile.accepts_versions else ""
        return HttpRequest("GET", model_path(operation.model, version, suffix))

    return build


def _index_request(operation: messages.ModelIndexRequest, profile: Profile) -> HttpRequest:
    """Request the repository extension's index, or KServe's model list."""
    if profile.has_model_list:
        return HttpRequest("GET", MODEL_LIST_PATH)
    body = b'{"ready":true}' if operation.ready_only else b"{}"  # MLServer requires a body
    return HttpRequest("POST", INDEX_PATH, "", {"content-type": JSON_TYPE}, [body])


def _statistics_request(
    operation: messages.ModelStatisticsRequest, profile: Profile
) -> HttpRequest:
    if not operation.model:
        return HttpRequest("GET", STATISTICS_PATH)
    return _model_get("/stats")(operation, profile)


_BUILDERS: Final[Mapping[type[Operation], Callable[[Any, Profile], HttpRequest]]] = {
    InferRequest: write_request,
    messages.ServerLiveRequest: _server_get("/v2/health/live"),
    messages.ServerReadyRequest: _server_get("/v2/health/ready"),
    messages.ServerMetadataRequest: _server_get("/v2"),
    messages.ModelReadyRequest: _model_get("/ready"),
    messages.ModelMetadataRequest: _model_get(""),
    messages.ModelConfigRequest: _model_get("/config"),
    messages.ModelStatisticsRequest: _statistics_request,
    messages.ModelIndexRequest: _index_request,
    messages.ModelLoadRequest: repository.write_request,
    messages.ModelUnloadRequest: repository.write_request,
    messages.TraceSettingsRequest: lambda operation, _: settings.write_request(operation),
    messages.LogSettingsRequest: lambda operation, _: settings.write_request(operation),
    messages.SharedMemoryRegisterRequest: lambda operation, _: shared_memory.write_request(
        operation
    ),
    messages.SharedMemoryUnregisterRequest: lambda operation, _: shared_memory.write_request(
        operation
    ),
}

MAX_BYTES: Final = 8 * MIB
"""Maximum size in bytes of a response to an operation other than an inference. A description of a
model takes 1 to 4 KiB."""
MAX_VALUES: Final = 1 << 19
"""Maximum number of values in a response to an operation other than an inference."""

# ---- responses ----------------------------------------------------------------------------------


def parse_response(wire: HttpResponse, operation: Operation, limits: Limits) -> Response:
    """Parse the response to any operation except an inference. Raises the backend's error,
    BACKEND_GARBAGE and NeedsOffloadError."""
    if _is_negative(wire.status, operation):
        return messages.HealthStatus(ok=False)
    body = bytes(read_response_body(wire, limits))
    try:
        if isinstance(operation, _HEALTH_REQUESTS):
            return metadata.read_health(body)
        _check_size(body, limits)
        if isinstance(operation, _STATE_CHANGES):  # some servers return a body
            return messages.Acknowledgement()
        return _READERS[type(operation)](parse_backend_json(body, limits), operation)
    except GatewayError as error:
        raise unusable_response(error) from None


def _check_size(body: bytes, limits: Limits) -> None:
    """Raise TOO_LARGE, or NeedsOffloadError if a helper process must parse ``body``. The number of
    values is limited because each value becomes an object."""
    check_json_size(len(body), limits.json)
    if len(body) > MAX_BYTES or body.count(b",") > MAX_VALUES:
        raise GatewayError(
            Kind.TOO_LARGE, f"it exceeds the limit of {MAX_BYTES} bytes or {MAX_VALUES} values"
        )
    check_loop_cost(limits, len(body), MAX_SLOW_BYTES_ON_LOOP)


def _is_negative(status: int, operation: Operation) -> bool:
    """Return whether ``status`` means "not live" or "not ready". For an unknown model, MLServer and
    KServe return an error (404), but Triton reports that the model is not ready (400)."""
    match operation:
        case messages.ServerLiveRequest() | messages.ServerReadyRequest():
            return 400 <= status < 500 or status == 503
        case messages.ModelReadyRequest():
            return status in (400, 503)
        case _:
            return False


_HEALTH_REQUESTS: Final = (
    messages.ServerLiveRequest,
    messages.ServerReadyRequest,
    messages.ModelReadyRequest,
)
_STATE_CHANGES: Final = (
    messages.ModelLoadRequest,
    messages.ModelUnloadRequest,
    messages.SharedMemoryRegisterRequest,
    messages.SharedMemoryUnregisterRequest,
)
_READERS: Final[Mapping[type[Operation], Callable[[Node, Operation], Response]]] = {
    messages.ServerMetadataRequest: lambda document, _: metadata.read_server(document),
    messages.ModelMetadataRequest: lambda document, _: metadata.read_model(document),
    messages.ModelConfigRequest: lambda document, _: metadata.read_config(document),
    messages.ModelStatisticsRequest: lambda document, _: metadata.read_statistics(document),
    messages.ModelIndexRequest: lambda document, _: metadata.read_index(document),
    messages.TraceSettingsRequest: settings.read_response,
    messages.LogSettingsRequest: settings.read_response,
}
