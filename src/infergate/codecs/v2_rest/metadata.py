"""Everything but inference: health, server metadata, model metadata and the model index.

*Rule.* Written as the specification says; read as servers write it: null or absent for what is
optional (KServe), dimensions as strings (rest-proxy), datatypes in lower case (MLServer models),
an index as a list of objects (Triton, MLServer) or as ``{"models": [names]}`` (KServe).
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
"""Entries of one list in a server's answer: far more models than a server holds."""
LONGEST_HEALTH: Final = 16 * KIB
"""Bytes of the answer to a health question, which has 15."""
_ENUM: Final = "State."
"""How MLServer 1.7 begins a state: with the name of its enumeration."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")


# ---- written ----------------------------------------------------------------------------------


def write_health(answer: Health, operation: Operation) -> HttpResponse:
    """200, or 400: "a 4xx status code indicates false". The body says the same, as the Open
    Inference Protocol has it and KServe's clients read it; where a model is not ready also as the
    ``error`` of a failed call, which clients show."""
    status = 200 if answer.ok else 400
    if not isinstance(operation, ModelReadyRequest):
        key = "live" if isinstance(operation, ServerLiveRequest) else "ready"
        return _json(status, {key: answer.ok})
    told: dict[str, Any] = {"name": operation.model, "ready": answer.ok}
    if not answer.ok:
        version = f" version '{operation.version}'" if operation.version else ""
        told["error"] = f"model '{operation.model}'{version} is not ready"
    return _json(status, told)


def write_server(answer: ServerMetadata) -> HttpResponse:
    """The metadata_server_response object."""
    return _json(
        200,
        {
            "name": answer.name,
            "version": answer.version,
            "extensions": answer.extensions,
        },
    )


def write_model(answer: ModelMetadata) -> HttpResponse:
    """The metadata_model_response object; ``parameters`` and ``properties`` where there are any."""
    told: dict[str, Any] = {"name": answer.name}
    if answer.versions:
        told["versions"] = answer.versions
    told["platform"] = answer.platform
    told["inputs"] = [_tensor_written(tensor) for tensor in answer.inputs]
    told["outputs"] = [_tensor_written(tensor) for tensor in answer.outputs]
    if answer.parameters:
        told["parameters"] = dict(answer.parameters)
    if answer.properties:
        told["properties"] = dict(answer.properties)
    return _json(200, told)


def _tensor_written(tensor: TensorMetadata) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
    }
    if tensor.parameters:
        told["parameters"] = dict(tensor.parameters)
    return told


def write_names(answer: ModelIndex) -> HttpResponse:
    """The index as ``GET /v2/models`` gives it."""
    names = dict.fromkeys(entry.name for entry in answer.models)
    return _json(200, {"models": list(names)})


def write_entries(answer: ModelIndex) -> HttpResponse:
    """The index as the model repository extension gives it."""
    return _json(200, [_entry_written(entry) for entry in answer.models])


def _entry_written(entry: ModelIndexEntry) -> dict[str, str]:
    optional = {"version": entry.version, "state": entry.state, "reason": entry.reason}
    return {"name": entry.name, **{key: value for key, value in optional.items() if value}}


def write_config(answer: ModelConfig) -> HttpResponse:
    """The model_configuration object of Triton's extension. Raises UNSUPPORTED."""
    return _json(200, {**answer.settings, "name": answer.name})


def write_statistics(answer: ModelStatistics) -> HttpResponse:
    """The statistics of Triton's extension. Raises UNSUPPORTED."""
    return _json(200, {"model_stats": [dict(each) for each in answer.models]})


def _json(status: int, told: Any) -> HttpResponse:
    try:
        return HttpResponse(status, {"content-type": JSON_TYPE}, [orjson.dumps(told)])
    except TypeError:  # an integer of over 64 bits
        raise GatewayError(Kind.UNSUPPORTED, "the answer cannot be told as JSON") from None


# ---- read -------------------------------------------------------------------------------------
# All raise BAD_REQUEST naming the field; the caller says whose mistake that is.


def read_index_request(body: bytes, limits: Limits) -> ModelIndexRequest:
    """The body of an index request: none, or ``{"ready": bool}``."""
    if not body:
        return ModelIndexRequest()
    check_json_size(len(body), limits)
    ready = members(read(body), "the body", ("ready",)).get("ready", False)
    if not isinstance(ready, bool):
        raise bad_request(f"ready must be a boolean, not {kind(ready)}")
    return ModelIndexRequest(ready_only=ready)


def read_ready(body: bytes) -> Health:
    """What a 200 to a health question says: yes, unless its body says no (Open Inference
    Protocol: ``{"live": …}``, ``{"ready": …}``)."""
    if len(body) > LONGEST_HEALTH:
        raise bad_request(f"it has {len(body)} bytes, the limit is {LONGEST_HEALTH}")
    if body.lstrip()[:1] != b"{":
        return Health(ok=True)
    told = members(read(body), "the body", ("live", "ready"))
    return Health(ok=False not in (told.get("live"), told.get("ready")))


def read_server(document: Node) -> ServerMetadata:
    """The metadata_server_response object."""
    told = members(document, "the body", ("name", "version", "extensions"))
    return ServerMetadata(
        _text(told, "name"),
        _text(told, "version"),
        _texts(told, "extensions"),
    )


def read_model(document: Node) -> ModelMetadata:
    """The metadata_model_response object."""
    keys = ("name", "versions", "platform", "inputs", "outputs", "parameters", "properties")
    told = members(document, "the body", keys)
    return ModelMetadata(
        _text(told, "name"),
        _texts(told, "versions"),
        _text(told, "platform"),
        _tensors(told, "inputs"),
        _tensors(told, "outputs"),
        parameters(told["parameters"], "parameters") if "parameters" in told else {},
        parameters(told["properties"], "properties") if "properties" in told else {},
    )


def read_config(document: Node) -> ModelConfig:
    """The model_configuration object of Triton's extension."""
    settings = parameters(document, "the body")
    return ModelConfig(string(settings.get("name", ""), "name"), settings)


def read_statistics(document: Node) -> ModelStatistics:
    """The statistics of Triton's extension."""
    told = members(document, "the body", ("model_stats",)).get("model_stats", [])
    listed = items(told, "model_stats", _MOST)
    return ModelStatistics(
        tuple(parameters(each, f"model_stats[{i}]") for i, each in enumerate(listed))
    )


def read_index(document: Node) -> ModelIndex:
    """The index in either form."""
    path = "the body"
    if not is_array(document):
        document = members(document, path, ("models",)).get("models")
        path = "models"
    listed = items(document, path, _MOST)
    return ModelIndex(tuple(_entry(item, f"{path}[{i}]") for i, item in enumerate(listed)))


def _entry(node: Node, path: str) -> ModelIndexEntry:
    if isinstance(node, str):
        return ModelIndexEntry(string(node, path))
    told = members(node, path, ("name", "version", "state", "reason"))
    name, version, state, reason = (
        _text(told, key) for key in ("name", "version", "state", "reason")
    )
    return ModelIndexEntry(name, version, state.removeprefix(_ENUM), reason)


def _text(told: Mapping[str, Node], key: str) -> str:
    return string(told.get(key, ""), key)


def _texts(told: Mapping[str, Node], key: str) -> tuple[str, ...]:
    """A list of strings; numbers (versions) as text."""
    listed = items(told.get(key, []), key, _MOST)
    return tuple(
        str(item) if type(item) is int else string(item, f"{key}[{i}]")
        for i, item in enumerate(listed)
    )


def _tensors(told: Mapping[str, Node], key: str) -> tuple[TensorMetadata, ...]:
    listed = items(told.get(key, []), key, _MOST)
    return tuple(_tensor(item, f"{key}[{i}]") for i, item in enumerate(listed))


def _tensor(node: Node, path: str) -> TensorMetadata:
    told = members(node, path, ("name", "datatype", "shape", "parameters"))
    spelt = string(told.get("datatype", ""), f"{path}.datatype")
    shape = items(told.get("shape", []), f"{path}.shape", _MOST)
    return TensorMetadata(
        string(told.get("name", ""), f"{path}.name"),
        spelt.upper() if spelt.upper() in BY_NAME else spelt,
        tuple(_dimension(item, f"{path}.shape") for item in shape),
        parameters(told["parameters"], f"{path}.parameters") if "parameters" in told else {},
    )


def _dimension(node: Node, path: str) -> int:
    if isinstance(node, str) and _INTEGER.fullmatch(node):
        return int(node)
    if type(node) is not int:
        raise bad_request(f"{path} has {shown(node)} where an integer is expected")
    return node
