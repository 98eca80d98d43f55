"""Loading and unloading models (the model repository extension): request bodies.

*Rule.* A file is sent in base64, as the value of a parameter whose name begins with ``file:``.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import orjson

from infergate.codecs.base import Profile
from infergate.codecs.v2_rest.document import check_length, members, present, read, shown
from infergate.codecs.v2_rest.document import parameters as plain
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.paths import Place, repository_path
from infergate.codecs.v2_rest.tensors import check_json_size
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import ModelLoadRequest, ModelUnloadRequest
from infergate.core.repository import name_alone
from infergate.core.tensor import NO_PARAMETERS, Parameters
from infergate.core.wire import HttpRequest

_FILE: Final = "file:"
_CONTROLS: Final = {ModelLoadRequest: "load", ModelUnloadRequest: "unload"}


def read_request(
    place: Place, body: bytes, limits: Limits
) -> ModelLoadRequest | ModelUnloadRequest:
    """Parse a load or unload request. Raises BAD_REQUEST, TOO_LARGE."""
    kind = ModelLoadRequest if place.operation is ModelLoadRequest else ModelUnloadRequest
    return kind(place.model, place.repository, _read_parameters(body, limits))


def _read_parameters(body: bytes, limits: Limits) -> Parameters:
    if not body:
        return NO_PARAMETERS
    check_json_size(len(body), limits)
    parameters = members(read(body), "the body", ("parameters",)).get("parameters")
    if parameters is None:
        return NO_PARAMETERS
    values = present(plain(parameters, "parameters"))
    return {key: _read_value(key, value) for key, value in values.items()}


def _read_value(key: str, value: Any) -> Any:
    if not key.startswith(_FILE):
        if isinstance(value, str):
            check_length(len(value), f"parameters.{shown(key)}")
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise bad_request(f"parameter '{shown(key)}' is not a base64-encoded file") from None


def write_request(
    operation: ModelLoadRequest | ModelUnloadRequest, profile: Profile
) -> HttpRequest:
    """Write the request in the form that a server of ``profile`` accepts. Raises UNSUPPORTED."""
    if profile.loads_by_name:
        operation = name_alone(operation)
    path = repository_path(operation.repository, operation.model, _CONTROLS[type(operation)])
    parameters = {
        key: base64.b64encode(value).decode() if isinstance(value, bytes | memoryview) else value
        for key, value in operation.parameters.items()
    }
    try:
        body = orjson.dumps({"parameters": parameters} if parameters else {})
    except TypeError:
        raise GatewayError(Kind.UNSUPPORTED, "a parameter cannot be expressed in JSON") from None
    return HttpRequest("POST", path, "", {"content-type": JSON_TYPE}, [body])
