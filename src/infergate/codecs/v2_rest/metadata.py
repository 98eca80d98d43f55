"""Health, server metadata, model metadata, configuration, statistics and the model index.

*Rule.* Messages are written as the specification defines and read as servers write them: null or
absent for optional members (KServe), dimensions as strings (rest-proxy), datatypes in lower case
(MLServer models), an index as a list of objects (Triton, MLServer) or as ``{"models": [names]}``
(KServe).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from infergate.codecs.v2_rest.document import (
    Node,
    is_array,
    items,
    kind,
    members,
    parameters,
    read,
    shown,
    string,
)
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.tensors import check_json_size
from infergate.core.datatypes import BY_NAME
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import KIB, Limits
from infergate.core.messages import (
    Health,
    ModelConfig,
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelMetadata,
    ModelReadyRequest,
    ModelStatistics,
    Operation,
    ServerLiveRequest,
    ServerMetadata,
    TensorMetadata,
)
from infergate.core.wire import HttpResponse

_MOST: Final = 32_768
"""Maximum number of entries of a list in a server's response, far more models than a server
holds."""
LONGEST_HEALTH: Final = 16 * KIB
"""Maximum size in bytes of a health response, which usually has 15."""
_ENUM: Final = "State."
"""The name of MLServer 1.7's enumeration, with which it begins a state."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")


# ---- towards clients ----------------------------------------------------------------------------


def write_health(answer: Health, operation: Operation) -> HttpResponse:
    """Write status 200, or 400: "a 4xx status code indicates false".

    The body repeats the result, as the Open Inference Protocol defines and KServe's clients read
    it. For a model that is not ready it also has an ``error``, which clients display.
    """
    status = 200 if answer.ok else 400
    if not isinstance(operation, ModelReadyRequest):
        key = "live" if isinstance(operation, ServerLiveRequest) else "ready"
        return _json(status, {key: answer.ok})
    members: dict[str, Any] = {"name": operation.model, "ready": answer.ok}
    if not answer.ok:
        version = f" version '{operation.version}'" if operation.version else ""
        members["error"] = f"model '{operation.model}'{version} is not ready"
    return _json(status, members)


def write_server(answer: ServerMetadata) -> HttpResponse:
    """Write the metadata_server_response object."""
    return _json(
        200,
        {
            "name": answer.name,
            "version": answer.version,
            "extensions": answer.extensions,
        },
    )


def write_model(answer: ModelMetadata) -> HttpResponse:
    """Write the metadata_model_response object, with ``parameters`` and ``properties`` if there are
    any."""
    members: dict[str, Any] = {"name": answer.name}
    if answer.versions:
        members["versions"] = answer.versions
    members["platform"] = answer.platform
    members["inputs"] = [_tensor_written(tensor) for tensor in answer.inputs]
    members["outputs"] = [_tensor_written(tensor) for tensor in answer.outputs]
    if answer.parameters:
        members["parameters"] = dict(answer.parameters)
    if answer.properties:
        members["properties"] = dict(answer.properties)
    return _json(200, members)


def _tensor_written(tensor: TensorMetadata) -> dict[str, Any]:
    members: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
    }
    if tensor.parameters:
        members["parameters"] = dict(tensor.parameters)
    return members


def write_names(answer: ModelIndex) -> HttpResponse:
    """Write the index in the format of ``GET /v2/models``."""
    names = dict.fromkeys(entry.name for entry in answer.models)
    return _json(200, {"models": list(names)})


def write_entries(answer: ModelIndex) -> HttpResponse:
    """Write the index in the format of the model repository extension."""
    return _json(200, [_entry_written(entry) for entry in answer.models])


def _entry_written(entry: ModelIndexEntry) -> dict[str, str]:
    optional = {"version": entry.version, "state": entry.state, "reason": entry.reason}
    return {"name": entry.name, **{key: value for key, value in optional.items() if value}}


def write_config(answer: ModelConfig) -> HttpResponse:
    """Write the model_configuration object of Triton's extension. Raises UNSUPPORTED."""
    return _json(200, {**answer.settings, "name": answer.name})


def write_statistics(answer: ModelStatistics) -> HttpResponse:
    """Write the statistics of Triton's extension. Raises UNSUPPORTED."""
    return _json(200, {"model_stats": [dict(model) for model in answer.models]})


def _json(status: int, told: Any) -> HttpResponse:
    try:
        return HttpResponse(status, {"content-type": JSON_TYPE}, [orjson.dumps(told)])
    except TypeError:  # an integer of over 64 bits
        raise GatewayError(Kind.UNSUPPORTED, "the response cannot be expressed in JSON") from None


# ---- requests, and responses of backends --------------------------------------------------------
# All functions raise BAD_REQUEST naming the field; for a response the caller changes the kind.


def read_index_request(body: bytes, limits: Limits) -> ModelIndexRequest:
    """Read the body of an index request: empty, or ``{"ready": bool}``."""
    if not body:
        return ModelIndexRequest()
    check_json_size(len(body), limits)
    ready = members(read(body), "the body", ("ready",)).get("ready", False)
    if not isinstance(ready, bool):
        raise bad_request(f"ready must be a boolean, not {kind(ready)}")
    return ModelIndexRequest(ready_only=ready)


def read_ready(body: bytes) -> Health:
    """Read the body of a 200 to a health request: positive unless the body is negative (Open
    Inference Protocol: ``{"live": …}``, ``{"ready": …}``)."""
    if len(body) > LONGEST_HEALTH:
        raise bad_request(f"it has {len(body)} bytes, the limit is {LONGEST_HEALTH}")
    if body.lstrip()[:1] != b"{":
        return Health(ok=True)
    fields = members(read(body), "the body", ("live", "ready"))
    return Health(ok=False not in (fields.get("live"), fields.get("ready")))


def read_server(document: Node) -> ServerMetadata:
    """Read the metadata_server_response object."""
    fields = members(document, "the body", ("name", "version", "extensions"))
    return ServerMetadata(
        _text(fields, "name"),
        _text(fields, "version"),
        _texts(fields, "extensions"),
    )


def read_model(document: Node) -> ModelMetadata:
    """Read the metadata_model_response object."""
    keys = ("name", "versions", "platform", "inputs", "outputs", "parameters", "properties")
    fields = members(document, "the body", keys)
    return ModelMetadata(
        _text(fields, "name"),
        _texts(fields, "versions"),
        _text(fields, "platform"),
        _tensors(fields, "inputs"),
        _tensors(fields, "outputs"),
        parameters(fields["parameters"], "parameters") if "parameters" in fields else {},
        parameters(fields["properties"], "properties") if "properties" in fields else {},
    )


def read_config(document: Node) -> ModelConfig:
    """Read the model_configuration object of Triton's extension."""
    settings = parameters(document, "the body")
    return ModelConfig(string(settings.get("name", ""), "name"), settings)


def read_statistics(document: Node) -> ModelStatistics:
    """Read the statistics of Triton's extension."""
    models = members(document, "the body", ("model_stats",)).get("model_stats", [])
    model_items = items(models, "model_stats", _MOST)
    return ModelStatistics(
        tuple(parameters(model, f"model_stats[{i}]") for i, model in enumerate(model_items))
    )


def read_index(document: Node) -> ModelIndex:
    """Read the index in either format."""
    path = "the body"
    if not is_array(document):
        document = members(document, path, ("models",)).get("models")
        path = "models"
    entries = items(document, path, _MOST)
    return ModelIndex(tuple(_entry(item, f"{path}[{i}]") for i, item in enumerate(entries)))


def _entry(node: Node, path: str) -> ModelIndexEntry:
    if isinstance(node, str):
        return ModelIndexEntry(string(node, path))
    fields = members(node, path, ("name", "version", "state", "reason"))
    name, version, state, reason = (
        _text(fields, key) for key in ("name", "version", "state", "reason")
    )
    return ModelIndexEntry(name, version, state.removeprefix(_ENUM), reason)


def _text(told: Mapping[str, Node], key: str) -> str:
    return string(told.get(key, ""), key)


def _texts(told: Mapping[str, Node], key: str) -> tuple[str, ...]:
    """Read a list of strings; numbers (versions) become strings."""
    values = items(told.get(key, []), key, _MOST)
    return tuple(
        str(item) if type(item) is int else string(item, f"{key}[{i}]")
        for i, item in enumerate(values)
    )


def _tensors(told: Mapping[str, Node], key: str) -> tuple[TensorMetadata, ...]:
    tensors = items(told.get(key, []), key, _MOST)
    return tuple(_tensor(item, f"{key}[{i}]") for i, item in enumerate(tensors))


def _tensor(node: Node, path: str) -> TensorMetadata:
    fields = members(node, path, ("name", "datatype", "shape", "parameters"))
    datatype = string(fields.get("datatype", ""), f"{path}.datatype")
    shape = items(fields.get("shape", []), f"{path}.shape", _MOST)
    return TensorMetadata(
        string(fields.get("name", ""), f"{path}.name"),
        datatype.upper() if datatype.upper() in BY_NAME else datatype,
        tuple(_dimension(item, f"{path}.shape") for item in shape),
        parameters(fields["parameters"], f"{path}.parameters") if "parameters" in fields else {},
    )


def _dimension(node: Node, path: str) -> int:
    if isinstance(node, str) and _INTEGER.fullmatch(node):
        return int(node)
    if type(node) is not int:
        raise bad_request(f"{path} has {shown(node)} where an integer is expected")
    return node
