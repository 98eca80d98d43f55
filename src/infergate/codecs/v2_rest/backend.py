"""Requests to servers, and the responses to everything except inferences, as tables by
operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from infergate.codecs.base import Profile
from infergate.codecs.v2_rest import metadata, repository, settings, shared_memory
from infergate.codecs.v2_rest.document import SLOW_ON_LOOP, Node, read_tolerantly
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.infer_request import write_request
from infergate.codecs.v2_rest.infer_response import answer_body, blamed
from infergate.codecs.v2_rest.paths import INDEX, NAMES, STATISTICS, model_path
from infergate.codecs.v2_rest.tensors import check_json_size
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import MIB, Limits, check_loop
from infergate.core.messages import (
    Answer,
    Done,
    Health,
    InferRequest,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelOperation,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    Operation,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    SharedMemoryRegisterRequest,
    SharedMemoryUnregisterRequest,
    TraceSettingsRequest,
)
from infergate.core.wire import HttpRequest, HttpResponse

# ---- requests -----------------------------------------------------------------------------------


def build_request(operation: Operation, profile: Profile) -> HttpRequest:
    """Raises UNSUPPORTED for an operation that V2 REST or the server does not have."""
    build = _BUILD.get(type(operation))
    if build is None:
        raise GatewayError(
            Kind.UNSUPPORTED, f"V2 REST has no request for {type(operation).__name__}"
        )
    return build(operation, profile)


def _server(path: str) -> Callable[[Operation, Profile], HttpRequest]:
    return lambda _, __: HttpRequest("GET", path)


def _model(rest: str) -> Callable[[ModelOperation, Profile], HttpRequest]:
    def build(operation: ModelOperation, profile: Profile) -> HttpRequest:
        version = operation.version if profile.versions else ""
        return HttpRequest("GET", model_path(operation.model, version, rest))

    return build


def _index(operation: ModelIndexRequest, profile: Profile) -> HttpRequest:
    """Request the repository extension's index (Triton, MLServer, infergate), or KServe's model
    list."""
    if profile.lists_models:
        return HttpRequest("GET", NAMES)
    body = b'{"ready":true}' if operation.ready_only else b"{}"  # MLServer: 422 without a body
    return HttpRequest("POST", INDEX, "", {"content-type": JSON_TYPE}, [body])


def _statistics(operation: ModelStatisticsRequest, profile: Profile) -> HttpRequest:
    if not operation.model:
        return HttpRequest("GET", STATISTICS)
    return _model("/stats")(operation, profile)


_BUILD: Final[Mapping[type[Operation], Callable[[Any, Profile], HttpRequest]]] = {
    InferRequest: write_request,
    ServerLiveRequest: _server("/v2/health/live"),
    ServerReadyRequest: _server("/v2/health/ready"),
    ServerMetadataRequest: _server("/v2"),
    ModelReadyRequest: _model("/ready"),
    ModelMetadataRequest: _model(""),
    ModelConfigRequest: _model("/config"),
    ModelStatisticsRequest: _statistics,
    ModelIndexRequest: _index,
    ModelLoadRequest: repository.write_request,
    ModelUnloadRequest: repository.write_request,
    TraceSettingsRequest: lambda operation, _: settings.write_request(operation),
    LogSettingsRequest: lambda operation, _: settings.write_request(operation),
    SharedMemoryRegisterRequest: lambda operation, _: shared_memory.write_request(operation),
    SharedMemoryUnregisterRequest: lambda operation, _: shared_memory.write_request(operation),
}

MAX_BYTES: Final = 8 * MIB
"""Maximum size of a response other than to an inference. The description of a model takes 1 to 4
KiB."""
MAX_VALUES: Final = 1 << 19
"""Maximum number of values in such a response."""

# ---- responses ----------------------------------------------------------------------------------


def parse_response(wire: HttpResponse, operation: Operation, limits: Limits) -> Answer:
    """Parse the response to any operation except an inference. Raises the backend's error, or
    BACKEND_GARBAGE."""
    if _says_no(wire.status, operation):
        return Health(ok=False)
    body = bytes(answer_body(wire, limits))
    try:
        if isinstance(operation, _HEALTH):
            return metadata.read_ready(body)
        _check_size(body, limits)
        if isinstance(operation, _CHANGES):  # some servers return a body of their own
            return Done()
        return _READ[type(operation)](read_tolerantly(body, limits), operation)
    except GatewayError as error:
        raise blamed(error) from None


def _check_size(body: bytes, limits: Limits) -> None:
    """Raises TOO_LARGE, and NeedsOffloadError on the event loop, because each value becomes a
    Python object."""
    check_json_size(len(body), limits)
    if len(body) > MAX_BYTES or body.count(b",") > MAX_VALUES:
        raise GatewayError(
            Kind.TOO_LARGE, f"it exceeds the limit of {MAX_BYTES} bytes or {MAX_VALUES} values"
        )
    check_loop(limits, len(body), SLOW_ON_LOOP)


def _says_no(status: int, operation: Operation) -> bool:
    """Whether ``status`` is the negative answer to a health request. For a model that does not
    exist, MLServer and KServe return an error (404); Triton reports only that it is not ready
    (400)."""
    match operation:
        case ServerLiveRequest() | ServerReadyRequest():
            return 400 <= status < 500 or status == 503
        case ModelReadyRequest():
            return status in (400, 503)
        case _:
            return False


_HEALTH: Final = (ServerLiveRequest, ServerReadyRequest, ModelReadyRequest)
_CHANGES: Final = (
    ModelLoadRequest,
    ModelUnloadRequest,
    SharedMemoryRegisterRequest,
    SharedMemoryUnregisterRequest,
)
_READ: Final[Mapping[type[Operation], Callable[[Node, Operation], Answer]]] = {
    ServerMetadataRequest: lambda document, _: metadata.read_server(document),
    ModelMetadataRequest: lambda document, _: metadata.read_model(document),
    ModelConfigRequest: lambda document, _: metadata.read_config(document),
    ModelStatisticsRequest: lambda document, _: metadata.read_statistics(document),
    ModelIndexRequest: lambda document, _: metadata.read_index(document),
    TraceSettingsRequest: settings.read_answer,
    LogSettingsRequest: settings.read_answer,
}
