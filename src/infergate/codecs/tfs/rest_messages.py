"""Converts metadata, model states and errors between JSON and the canonical form.

TensorFlow Serving writes ``model_spec`` and ``tensor_shape``. OpenVINO's model server writes
``modelSpec`` and ``tensorShape``. This module reads both forms, and writes the form of TensorFlow
Serving.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

from infergate.codecs.http_status import (
    MAX_MESSAGE_CHARACTERS,
    STATUS_BY_KIND,
    client_message,
    kind_of_status,
)
from infergate.codecs.json_tensors.json_document import parse_backend_json, read_plain_object
from infergate.codecs.tfs import messages as pb
from infergate.codecs.tfs.datatypes import metadata_datatype, type_name
from infergate.codecs.tfs.metadata import (
    MAX_BYTES,
    PLATFORM,
    client_version,
    default_signature,
    signatures_for_client,
    state_name,
    type_number,
    version_states,
)
from infergate.codecs.tfs.model_spec import RequestedModel
from infergate.core.errors import (
    GatewayError,
    Kind,
    Origin,
    backend_garbage,
    error_headers,
    parse_retry_after,
)
from infergate.core.limits import Limits
from infergate.core.messages import (
    ModelIndex,
    ModelIndexEntry,
    ModelMetadata,
    ModelSignature,
    TensorMetadata,
)
from infergate.core.wire import HttpResponse

JSON_HEADERS: Final = {"content-type": "application/json"}
_MAX_INT64: Final = 2**63 - 1
_MAX_ERROR_BYTES: Final = 16 * 1024
_STATE_NAMES: Final = {number: name for name, number in pb.STATES.items()}
_CODE_NAMES: Final = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""The names of the gRPC status codes, by number."""


# ---- for clients


def build_error(error: GatewayError, text: str) -> HttpResponse:
    """Return the response for ``error``, with ``text`` in TensorFlow Serving's layout."""
    body = b'{\n    "error": %b\n}' % orjson.dumps(client_message(text))
    return HttpResponse(
        STATUS_BY_KIND[error.kind], {**JSON_HEADERS, **error_headers(error)}, [body]
    )


def _json_response(members: Mapping[str, Any]) -> HttpResponse:
    text = json.dumps(members, indent=1, ensure_ascii=False) + "\n"
    return HttpResponse(200, JSON_HEADERS, [text.encode("utf-8", "replace")])


def write_status(response: ModelIndex, requested: RequestedModel) -> HttpResponse:
    """Return the response with the states of the versions, newest first. If the request names no
    version or label, the response also has ``name`` and ``ready``, for clients of KServe's V1
    protocol, which has the same path."""
    versions = [
        {
            "version": str(number),
            "state": _STATE_NAMES[state],
            "status": {"error_code": _code_name(code), "error_message": reason},
        }
        for number, state, code, reason in version_states(response)
    ]
    is_ready = any(entry["state"] == "AVAILABLE" for entry in versions)
    members: dict[str, Any] = {"model_version_status": versions}
    if not (requested.version or requested.spec.label):
        members |= {"name": requested.spec.name, "ready": is_ready}
    return _json_response(members)


def write_metadata(response: ModelMetadata, requested: RequestedModel) -> HttpResponse:
    """Return the response with the signatures of the model."""
    signatures = {
        name: {
            "inputs": _tensor_infos(signature.inputs),
            "outputs": _tensor_infos(signature.outputs),
            "method_name": signature.method,
            "defaults": {},
        }
        for name, signature in signatures_for_client(response, requested).items()
    }
    return _json_response(
        {
            "model_spec": {
                "name": requested.spec.name,
                "signature_name": "",
                "version": str(client_version(response, requested)),
            },
            "metadata": {"signature_def": {"signature_def": signatures}},
        }
    )


def _tensor_infos(tensors: tuple[TensorMetadata, ...]) -> dict[str, Any]:
    return {
        tensor.name: {
            "dtype": type_name(type_number(tensor.datatype)),
            "tensor_shape": {
                "dim": [{"size": str(size), "name": ""} for size in tensor.shape],
                "unknown_rank": False,
            },
            "name": f"{tensor.name}:0",
        }
        for tensor in tensors
    }


def _code_name(code: int) -> str:
    return _CODE_NAMES[code] if 0 <= code < len(_CODE_NAMES) else "UNKNOWN"


# ---- from servers


def _read_code(name: Any) -> int:
    return _CODE_NAMES.index(name) if name in _CODE_NAMES else _CODE_NAMES.index("UNKNOWN")


def backend_error(wire: HttpResponse, body: bytes) -> GatewayError:
    """Return the error that a server's response reports."""
    message = ""
    try:
        document = orjson.loads(body[:_MAX_ERROR_BYTES])
        message = document["error"]
    except (ValueError, TypeError, LookupError):
        pass
    if not isinstance(message, str) or not message:
        message = f"the backend responded with HTTP {wire.status}"
    return GatewayError(
        kind_of_status(wire.status),
        message[:MAX_MESSAGE_CHARACTERS],
        origin=Origin.BACKEND,
        detail=f"HTTP {wire.status}: {body[:MAX_MESSAGE_CHARACTERS].decode('utf-8', 'replace')}",
        retry_after=parse_retry_after(wire.headers),
    )


def read_document(body: bytes, limits: Limits) -> dict[str, Any]:
    """Return the JSON object in ``body``, a server's response to a request other than an inference.
    Raises BAD_REQUEST, TOO_LARGE and NeedsOffloadError."""
    if len(body) > MAX_BYTES:
        raise GatewayError(Kind.TOO_LARGE, f"it exceeds the limit of {MAX_BYTES} bytes")
    return read_plain_object(parse_backend_json(body, limits), "the body")


def read_status(document: Mapping[str, Any], model: str) -> ModelIndex:
    """Return the version states of ``model``. Raises LookupError, TypeError and ValueError."""
    entries = []
    for item in _list(document["model_version_status"]):
        entry = _object(item)
        status = _object(entry.get("status", {}))
        entries.append(
            ModelIndexEntry(
                model,
                _version(entry.get("version", 0)),
                state_name(pb.STATES.get(str(entry.get("state", "")), 0)),
                str(status.get("error_message", "")),
                _read_code(status.get("error_code", "OK")),
            )
        )
    return ModelIndex(tuple(entries))


def read_metadata(document: Mapping[str, Any], model: str) -> ModelMetadata:
    """Return the metadata of ``model``. Raises BACKEND_GARBAGE, LookupError, TypeError and
    ValueError."""
    spec = _member(document, "model_spec", "modelSpec")
    outer = _member(_object(document["metadata"]), "signature_def", "signatureDef")
    signatures = {
        name: ModelSignature(
            name,
            str(_object(signature).get("method_name", signature.get("methodName", ""))),
            _read_tensors(signature.get("inputs", {})),
            _read_tensors(signature.get("outputs", {})),
        )
        for name, signature in _member(outer, "signature_def", "signatureDef").items()
    }
    if not signatures:
        raise backend_garbage(f"the metadata of model '{model}' has no signature")
    default = signatures.pop(default_signature(signatures))
    version = spec.get("version")
    return ModelMetadata(
        model,
        versions=() if version is None else (_version(version),),
        platform=PLATFORM,
        inputs=default.inputs,
        outputs=default.outputs,
        signatures=tuple(signatures[name] for name in sorted(signatures)),
    )


def _read_tensors(infos: Any) -> tuple[TensorMetadata, ...]:
    tensors = []
    for name, info in sorted(_object(infos).items()):
        shape = _member(_object(info), "tensor_shape", "tensorShape")
        is_unknown = shape.get("unknown_rank", shape.get("unknownRank", False)) is True
        dims = [_integer(_object(dim)["size"], -1) for dim in _list(shape.get("dim", []))]
        number = pb.DTYPES[str(info["dtype"])]
        tensors.append(
            TensorMetadata(name, metadata_datatype(number), (-1,) if is_unknown else tuple(dims))
        )
    return tuple(tensors)


def _version(value: Any) -> str:
    return str(_integer(value, 0))


def _integer(value: Any, minimum: int) -> int:
    """Return an int64, which servers write as a string or as a number. Raises TypeError and
    ValueError."""
    number = int(value)
    if isinstance(value, bool) or (isinstance(value, float) and number != value):
        raise ValueError(f"{str(value)[:40]} is not an integer")
    if not minimum <= number <= _MAX_INT64:
        raise ValueError(f"{str(value)[:40]} is not from {minimum} to {_MAX_INT64}")
    return number


def _member(document: Mapping[str, Any], name: str, other_name: str) -> dict[str, Any]:
    return _object(document[name] if name in document else document.get(other_name, {}))


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:40]} is not an object")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:40]} is not a list")
    return value
