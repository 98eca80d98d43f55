"""Reads and writes trace and log settings (the trace and logging extensions).

On the wire, a trace setting is a string or a list of strings. ``null`` resets a model's setting
to the global setting. The canonical form is always a list, which is empty for ``null``."""

from __future__ import annotations

from typing import Any, Final

from infergate.codecs.json_tensors.json_document import (
    Node,
    abbreviated,
    check_json_size,
    json_kind,
    parse_json,
    read_plain_object,
)
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.paths import LOGGING_PATH, TRACE_PATH, V2PathMatch, model_path
from infergate.codecs.v2_rest.tensors import encode_json
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.messages import (
    LogSettingsRequest,
    Operation,
    Settings,
    SettingsOperation,
    TraceSettingsRequest,
)
from infergate.core.tensor import Parameters
from infergate.core.wire import HttpRequest, HttpResponse

_ALWAYS_LISTS: Final = frozenset({"trace_level"})


def read_request(match: V2PathMatch, body: bytes, limits: Limits) -> SettingsOperation:
    """Parse a settings request with ``body``, which is empty for a GET."""
    settings: Parameters = {}
    if body:
        check_json_size(len(body), limits.json)
        settings = read_plain_object(parse_json(body), "the body")
    if match.operation is TraceSettingsRequest:
        return TraceSettingsRequest(match.model, _to_lists(settings))
    for name, value in settings.items():
        if not isinstance(value, bool | int | str):
            raise bad_request(
                f"log setting '{abbreviated(name)}' is {json_kind(value)}; expected a boolean, "
                "an integer or a string"
            )
    return LogSettingsRequest(settings)


def read_response(document: Node, operation: Operation) -> Settings:
    """Parse a server's settings. Raises BAD_REQUEST."""
    settings = read_plain_object(document, "the body")
    return Settings(
        _to_lists(settings) if isinstance(operation, TraceSettingsRequest) else settings
    )


def _to_lists(settings: Parameters) -> Parameters:
    return {name: _to_list(name, value) for name, value in settings.items()}


def _to_list(name: str, value: Any) -> list[str]:
    match value:
        case None:
            return []
        case str():
            return [value]
        case list() if all(isinstance(item, str) for item in value):
            return value
    raise bad_request(
        f"trace setting '{abbreviated(name)}' must be a string, a list of strings or null"
    )


def write_request(operation: SettingsOperation) -> HttpRequest:
    """Write a POST that changes settings, or a GET if no setting changes. Raises UNSUPPORTED."""
    if isinstance(operation, LogSettingsRequest):
        path, settings = LOGGING_PATH, dict(operation.settings)
    else:
        path = model_path(operation.model, "", "/trace/setting") if operation.model else TRACE_PATH
        settings = _from_lists(operation.settings)
    if not settings:
        return HttpRequest("GET", path)
    return HttpRequest("POST", path, "", {"content-type": JSON_TYPE}, [encode_json(settings)])


def write_response(response: Settings, operation: Operation) -> HttpResponse:
    """Write the response to a settings request. Raises UNSUPPORTED."""
    values = response.values
    settings = _from_lists(values) if isinstance(operation, TraceSettingsRequest) else dict(values)
    return HttpResponse(200, {"content-type": JSON_TYPE}, [encode_json(settings)])


def _from_lists(settings: Parameters) -> dict[str, Any]:
    return {name: _from_list(name, values) for name, values in settings.items()}


def _from_list(name: str, values: Any) -> Any:
    if not values:
        return None
    return values[0] if len(values) == 1 and name not in _ALWAYS_LISTS else values
