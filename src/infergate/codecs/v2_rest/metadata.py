"""Reads and writes messages about health, server metadata, model metadata, model configuration,
statistics and the model index.

Messages are written as the specification defines, and are read in all forms that servers write.
Optional members may be null or absent (KServe), dimensions may be strings (rest-proxy), datatypes
may be in lower case (MLServer models), and an index is a list of objects (Triton, MLServer) or
``{"models": [names]}`` (KServe)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from infergate.codecs.json_tensors.json_document import (
    Node,
    abbreviated,
    check_json_size,
    is_array,
    json_kind,
    parse_json,
    read_items,
    read_members,
    read_plain_object,
    read_string,
)
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.tensors import encode_json
from infergate.core import messages
from infergate.core.datatypes import DATATYPES_BY_NAME
from infergate.core.errors import bad_request
from infergate.core.limits import KIB, Limits
from infergate.core.wire import HttpResponse

_MAX_ENTRIES: Final = 32_768
"""Maximum number of entries in a list of a server's response."""
MAX_HEALTH_BYTES: Final = 16 * KIB
"""Maximum size in bytes of a health response. The usual size is 15 bytes."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")


# ---- for clients --------------------------------------------------------------------------------


def write_health(response: messages.HealthStatus, operation: messages.Operation) -> HttpResponse:
    """Write status 200, or 400 ("a 4xx status code indicates false").

    The body also contains the result, as the Open Inference Protocol defines, because KServe's
    clients read it there. For a model that is not ready, the body also has an ``error``, which
    clients display.
    """
    status = 200 if response.ok else 400
    if not isinstance(operation, messages.ModelReadyRequest):
        key = "live" if isinstance(operation, messages.ServerLiveRequest) else "ready"
        return _json_response(status, {key: response.ok})
    members: dict[str, Any] = {"name": operation.model, "ready": response.ok}
    if not response.ok:
        version = f" version '{operation.version}'" if operation.version else ""
        members["error"] = f"model '{operation.model}'{version} is not ready"
    return _json_response(status, members)


def write_server(response: messages.ServerMetadata) -> HttpResponse:
    """Write the metadata_server_response object."""
    return _json_response(
        200, {"name": response.name, "version": response.version, "extensions": response.extensions}
    )


def write_model(response: messages.ModelMetadata) -> HttpResponse:
    """Write the metadata_model_response object."""
    members: dict[str, Any] = {"name": response.name}
    if response.versions:
        members["versions"] = response.versions
    members["platform"] = response.platform
    members["inputs"] = [_write_tensor(tensor) for tensor in response.inputs]
    members["outputs"] = [_write_tensor(tensor) for tensor in response.outputs]
    if response.parameters:
        members["parameters"] = dict(response.parameters)
    if response.properties:
        members["properties"] = dict(response.properties)
    return _json_response(200, members)


def _write_tensor(tensor: messages.TensorMetadata) -> dict[str, Any]:
    members: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
    }
    if tensor.parameters:
        members["parameters"] = dict(tensor.parameters)
    return members


def write_model_list(response: messages.ModelIndex, _: messages.Operation) -> HttpResponse:
    """Write the index in the format of ``GET /v2/models``."""
    names = dict.fromkeys(entry.name for entry in response.models)
    return _json_response(200, {"models": list(names)})


def write_index(response: messages.ModelIndex) -> HttpResponse:
    """Write the index in the format of the model repository extension."""
    return _json_response(200, [_write_entry(entry) for entry in response.models])


def _write_entry(entry: messages.ModelIndexEntry) -> dict[str, str]:
    optional = {"version": entry.version, "state": entry.state, "reason": entry.reason}
    return {"name": entry.name, **{key: value for key, value in optional.items() if value}}


def write_config(response: messages.ModelConfig) -> HttpResponse:
    """Write the model_configuration object of Triton's extension. Raises UNSUPPORTED."""
    return _json_response(200, {**response.settings, "name": response.name})


def write_statistics(response: messages.ModelStatistics) -> HttpResponse:
    """Write the statistics of Triton's extension. Raises UNSUPPORTED."""
    return _json_response(200, {"model_stats": [dict(model) for model in response.models]})


def _json_response(status: int, document: Any) -> HttpResponse:
    return HttpResponse(status, {"content-type": JSON_TYPE}, [encode_json(document)])


# ---- requests, and responses of backends --------------------------------------------------------
# The functions raise BAD_REQUEST and TOO_LARGE. For responses, callers change the kind.


def read_index_request(body: bytes, limits: Limits) -> messages.ModelIndexRequest:
    """Read the body of an index request: empty, or ``{"ready": bool}``."""
    if not body:
        return messages.ModelIndexRequest()
    check_json_size(len(body), limits.json)
    ready = read_members(parse_json(body), "the body", ("ready",)).get("ready", False)
    if not isinstance(ready, bool):
        raise bad_request(f"ready must be a boolean, not {json_kind(ready)}")
    return messages.ModelIndexRequest(ready_only=ready)


def read_health(body: bytes) -> messages.HealthStatus:
    """Read the body of a health response with status 200, in which ``live`` or ``ready`` may be
    false."""
    if len(body) > MAX_HEALTH_BYTES:
        raise bad_request(f"it has {len(body)} bytes; the limit is {MAX_HEALTH_BYTES}")
    if body.lstrip()[:1] != b"{":
        return messages.HealthStatus(ok=True)
    fields = read_members(parse_json(body), "the body", ("live", "ready"))
    return messages.HealthStatus(ok=False not in (fields.get("live"), fields.get("ready")))


def read_server(document: Node) -> messages.ServerMetadata:
    """Read the metadata_server_response object."""
    fields = read_members(document, "the body", ("name", "version", "extensions"))
    return messages.ServerMetadata(
        _read_text(fields, "name"), _read_text(fields, "version"), _read_texts(fields, "extensions")
    )


def read_model(document: Node) -> messages.ModelMetadata:
    """Read the metadata_model_response object."""
    keys = ("name", "versions", "platform", "inputs", "outputs", "parameters", "properties")
    fields = read_members(document, "the body", keys)
    return messages.ModelMetadata(
        _read_text(fields, "name"),
        _read_texts(fields, "versions"),
        _read_text(fields, "platform"),
        _read_tensors(fields, "inputs"),
        _read_tensors(fields, "outputs"),
        read_plain_object(fields["parameters"], "parameters") if "parameters" in fields else {},
        read_plain_object(fields["properties"], "properties") if "properties" in fields else {},
    )


def read_config(document: Node) -> messages.ModelConfig:
    """Read the model_configuration object of Triton's extension."""
    settings = read_plain_object(document, "the body")
    return messages.ModelConfig(read_string(settings.get("name", ""), "name"), settings)


def read_statistics(document: Node) -> messages.ModelStatistics:
    """Read the statistics of Triton's extension."""
    models = read_members(document, "the body", ("model_stats",)).get("model_stats", [])
    model_items = read_items(models, "model_stats", _MAX_ENTRIES)
    return messages.ModelStatistics(
        tuple(read_plain_object(model, f"model_stats[{i}]") for i, model in enumerate(model_items))
    )


def read_index(document: Node) -> messages.ModelIndex:
    """Read an index in either format."""
    path = "the body"
    if not is_array(document):
        document = read_members(document, path, ("models",)).get("models")
        path = "models"
    entries = read_items(document, path, _MAX_ENTRIES)
    return messages.ModelIndex(
        tuple(_read_entry(item, f"{path}[{i}]") for i, item in enumerate(entries))
    )


def _read_entry(node: Node, path: str) -> messages.ModelIndexEntry:
    if isinstance(node, str):
        return messages.ModelIndexEntry(read_string(node, path))
    keys = ("name", "version", "state", "reason")
    fields = read_members(node, path, keys)
    name, version, state, reason = (_read_text(fields, key) for key in keys)
    state = state.removeprefix("State.")  # MLServer 1.7 adds the prefix
    return messages.ModelIndexEntry(name, version, state, reason)


def _read_text(members: Mapping[str, Node], key: str) -> str:
    return read_string(members.get(key, ""), key)


def _read_texts(members: Mapping[str, Node], key: str) -> tuple[str, ...]:
    """Read a list of strings. Numbers, such as versions, become strings."""
    values = read_items(members.get(key, []), key, _MAX_ENTRIES)
    return tuple(
        str(item) if type(item) is int else read_string(item, f"{key}[{i}]")
        for i, item in enumerate(values)
    )


def _read_tensors(members: Mapping[str, Node], key: str) -> tuple[messages.TensorMetadata, ...]:
    tensors = read_items(members.get(key, []), key, _MAX_ENTRIES)
    return tuple(_read_tensor(item, f"{key}[{i}]") for i, item in enumerate(tensors))


def _read_tensor(node: Node, path: str) -> messages.TensorMetadata:
    fields = read_members(node, path, ("name", "datatype", "shape", "parameters"))
    datatype = read_string(fields.get("datatype", ""), f"{path}.datatype")
    shape = read_items(fields.get("shape", []), f"{path}.shape", _MAX_ENTRIES)
    return messages.TensorMetadata(
        read_string(fields.get("name", ""), f"{path}.name"),
        datatype.upper() if datatype.upper() in DATATYPES_BY_NAME else datatype,
        tuple(_read_dimension(item, f"{path}.shape") for item in shape),
        read_plain_object(fields["parameters"], f"{path}.parameters")
        if "parameters" in fields
        else {},
    )


def _read_dimension(node: Node, path: str) -> int:
    if isinstance(node, str) and _INTEGER.fullmatch(node):
        return int(node)
    if type(node) is not int:
        raise bad_request(f"{path} has {abbreviated(node)} where an integer is expected")
    return node
