"""Reads and writes requests to load and unload models. A parameter whose name begins with ``file:``
contains a file in base64."""

from __future__ import annotations

import base64
from typing import Any, Final

from infergate.codecs.base import Profile
from infergate.codecs.json_tensors.json_data import decode_element
from infergate.codecs.json_tensors.json_document import (
    abbreviated,
    check_json_size,
    check_text_length,
    drop_nulls,
    parse_json,
    read_members,
    read_plain_object,
)
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.paths import V2PathMatch, repository_path
from infergate.codecs.v2_rest.tensors import encode_json
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.messages import ModelLoadRequest, ModelUnloadRequest
from infergate.core.repository import require_name_only
from infergate.core.tensor import NO_PARAMETERS, Parameters
from infergate.core.wire import HttpRequest

_FILE_PREFIX: Final = "file:"
_ACTIONS: Final = {ModelLoadRequest: "load", ModelUnloadRequest: "unload"}


def read_request(
    match: V2PathMatch, body: bytes, limits: Limits
) -> ModelLoadRequest | ModelUnloadRequest:
    """Parse a load or unload request. Raises BAD_REQUEST and TOO_LARGE."""
    kind = ModelLoadRequest if match.operation is ModelLoadRequest else ModelUnloadRequest
    return kind(match.model, match.repository, _read_parameters(body, limits))


def _read_parameters(body: bytes, limits: Limits) -> Parameters:
    if not body:
        return NO_PARAMETERS
    check_json_size(len(body), limits.json)
    parameters = read_members(parse_json(body), "the body", ("parameters",)).get("parameters")
    if parameters is None:
        return NO_PARAMETERS
    values = drop_nulls(read_plain_object(parameters, "parameters"))
    return {key: _read_value(key, value) for key, value in values.items()}


def _read_value(key: str, value: Any) -> Any:
    if not key.startswith(_FILE_PREFIX):
        if isinstance(value, str):
            check_text_length(len(value), f"parameters.{abbreviated(key)}")
        return value
    file = decode_element(value) if isinstance(value, str) else None
    if file is None:
        raise bad_request(f"parameter '{abbreviated(key)}' is not a base64-encoded file")
    return file


def write_request(
    operation: ModelLoadRequest | ModelUnloadRequest, profile: Profile
) -> HttpRequest:
    """Write the request for a server with ``profile``. Raises BAD_REQUEST and UNSUPPORTED."""
    if profile.loads_by_name:
        operation = require_name_only(operation)
    path = repository_path(operation.repository, operation.model, _ACTIONS[type(operation)])
    parameters = {
        key: base64.b64encode(value).decode() if isinstance(value, bytes | memoryview) else value
        for key, value in operation.parameters.items()
    }
    body = encode_json({"parameters": parameters} if parameters else {})
    return HttpRequest("POST", path, "", {"content-type": JSON_TYPE}, [body])
