"""Converts between canonical operations and the messages that load and unload models.

KServe's requests hold only the model's name, which is field 1. In the requests of other servers,
field 1 is the repository's name. No client sends a repository without a model, so a request that
has only field 1 comes from a KServe client and gets KServe's response."""

from __future__ import annotations

from typing import Any, Final

from infergate.codecs.base import Profile
from infergate.codecs.protos.wire_scanner import MAX_NAME_BYTES, read_strings
from infergate.codecs.v2_grpc import messages as pb
from infergate.codecs.v2_grpc.parameters import read_parameters
from infergate.core.errors import Kind, backend_failure, bad_request
from infergate.core.messages import Acknowledgement, ModelLoadRequest, ModelUnloadRequest
from infergate.core.repository import require_name_only
from infergate.core.tensor import NO_PARAMETERS, Buffer, Parameters

_MESSAGES: Final = {
    ModelLoadRequest: pb.RepositoryModelLoadRequest,
    ModelUnloadRequest: pb.RepositoryModelUnloadRequest,
}
# The field numbers of repository_name (KServe: model_name) and model_name in a request.
_FIRST: Final = 1
_SECOND: Final = 2
_INT64: Final = range(-(2**63), 2**63)


def read_name(message: Buffer, max_fields: int) -> str:
    """Return the model's name from a message that may hold files, without parsing the files. Raises
    MalformedMessageError for malformed data and for more than `max_fields` fields."""
    names = read_strings(message, frozenset({_FIRST, _SECOND}), max_fields, MAX_NAME_BYTES)
    return names.get(_SECOND) or names.get(_FIRST, "")


def read_request(message: Any) -> tuple[str, str, Parameters]:
    """Return the model, repository and parameters of a request from any client. Raises
    BAD_REQUEST."""
    if _is_kserve_request(message):
        return message.repository_name, "", NO_PARAMETERS
    if not message.model_name:
        raise bad_request("model_name is missing")
    return message.model_name, message.repository_name, read_parameters(message.parameters)


def _is_kserve_request(message: Any) -> bool:
    return bool(message.repository_name) and not message.model_name and not message.parameters


def kserve_response(message: Any) -> Any:
    """Return the response to a KServe request, or None for other requests."""
    if not _is_kserve_request(message):
        return None
    return pb.KServeModelResponse(model_name=message.repository_name, is_done=True)


def write_request(operation: ModelLoadRequest | ModelUnloadRequest, profile: Profile) -> Any:
    """Build a request for a server with `profile`. Raises BAD_REQUEST for a parameter that the
    message cannot hold, and UNSUPPORTED for values that the server does not support."""
    if profile.loads_by_name:
        operation = require_name_only(operation)
    if profile.loads_by_field_1:
        return pb.KServeModelRequest(model_name=operation.model)
    message = _MESSAGES[type(operation)](
        repository_name=operation.repository, model_name=operation.model
    )
    for key, value in operation.parameters.items():
        match value:
            case bool():
                message.parameters[key].bool_param = value
            case int() if value in _INT64:
                message.parameters[key].int64_param = value
            case str():
                message.parameters[key].string_param = value
            case bytes() | bytearray() | memoryview():
                message.parameters[key].bytes_param = bytes(value)
            case None:
                pass
            case _:
                raise bad_request(
                    f"parameter '{key}' must be a boolean, a signed 64-bit integer, a string or "
                    "bytes"
                )
    return message


def read_acknowledgement(message: Any) -> Acknowledgement:
    """Read an empty response or KServe's response. Raises BACKEND_ERROR if KServe reports a
    failure."""
    if message.model_name and not message.is_done:
        raise backend_failure(
            Kind.BACKEND_ERROR, f"the server could not load or unload model '{message.model_name}'"
        )
    return Acknowledgement()
