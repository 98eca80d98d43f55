"""Amazon SageMaker's container API, as Triton serves it.

The API consists of ``GET /ping``, ``POST /invocations`` for one model, and the multi-model API
under ``/models``. The source is Triton's ``sagemaker_server.cc``, and docs/envelopes.md lists the
differences."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from infergate.codecs.base import ParsedRequest, PartialInferRequest
from infergate.codecs.encodings import is_unencoded
from infergate.codecs.envelopes.v2_envelope import V2Envelope
from infergate.codecs.http_status import method_not_allowed
from infergate.codecs.json_tensors.json_document import parse_json, read_members, read_string
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.paths import INDEX_PATH, model_path, repository_path
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import KIB, Limits
from infergate.core.messages import (
    HealthStatus,
    ModelIndex,
    ModelIndexRequest,
    ModelReadyRequest,
    Operation,
    Response,
)
from infergate.core.path_segments import decode_segment
from infergate.core.wire import NO_HEADERS, HttpRequest, HttpResponse, join_parts, total_size

_PING: Final = "/ping"
_INVOCATIONS: Final = "/invocations"
_MODEL_PATH: Final = re.compile(r"/models(?:/([^/]+)(/invoke)?)?")
_METHODS: Final = "GET, POST"
_METHODS_OF_MODEL: Final = "DELETE, GET"
_TARGET_MODEL_HEADER: Final = "x-amzn-sagemaker-target-model"
MAX_LOAD_BYTES: Final = 16 * KIB
"""Maximum size in bytes of a request to load a model. The request has a name and a URL."""
_FORBIDDEN_FOLDERS: Final = ("/dev/", "/proc/", "/sys/")
_OUT_OF_MEMORY: Final = re.compile(
    r"out[ _]?of[ _]?memory|MemoryError|\bOOM\b|CUDNN_STATUS_NOT_INITIALIZED|CUBLAS_STATUS_ALLOC"
    r"|(?:Dst|Src) tensor is not initialized|failed to allocate memory|No space left on device",
    re.IGNORECASE,
)
_DESCRIPTION_OPERATIONS: Final = frozenset({ModelIndexRequest, ModelReadyRequest})
"""The operations whose responses do not have V2 REST's form."""
_MEMORY_KINDS: Final = frozenset({Kind.BAD_REQUEST, Kind.BACKEND_ERROR, Kind.NO_BACKEND})


class SageMakerCodec(V2Envelope):
    """Serves SageMaker's container API.

    ``model`` is the model of ``/invocations``. Without ``model``, only the multi-model API accepts
    inferences. ``inference`` is the V2 REST action of ``/invocations``: ``infer``, ``generate`` or
    ``generate_stream``. ``ping`` is the state that ``/ping`` reports, ``ready`` or ``live``."""

    claims: tuple[str, ...] = (_PING, _INVOCATIONS, "models")
    binary_type: str = "application/vnd.sagemaker-triton.binary+json"

    def __init__(
        self, v2: Mapping[str, Any], model: str = "", inference: str = "infer", ping: str = "ready"
    ) -> None:
        super().__init__(v2, model=model, inference=inference, ping=ping)
        self._model: Final = model
        self._inference: Final = inference
        self._health_path: Final = f"/v2/health/{ping}"

    def rewrite_path(self, wire: HttpRequest) -> None:
        if wire.path == _PING:
            wire.path = self._health_path
        elif wire.path == _INVOCATIONS:
            if not self._model:
                raise GatewayError(
                    Kind.NOT_FOUND,
                    "no model is configured for /invocations; use /models/<name>/invoke",
                )
            wire.path = model_path(self._model, "", f"/{self._inference}")
        else:
            match = _MODEL_PATH.fullmatch(wire.path)
            if match is None:
                raise GatewayError(Kind.NOT_FOUND, f"no such path: {wire.path[:200]}")
            segment, invoke = match.groups()
            if invoke:
                wire.path = model_path(_target_model(wire, segment), "", "/infer")
            else:
                if segment is None:
                    _rewrite_list_path(wire)
                else:
                    _rewrite_model_path(wire, segment)
                wire.headers = NO_HEADERS  # the headers describe the client's body

    def parse_request(
        self, wire: HttpRequest, limits: Limits
    ) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
        parsed = super().parse_request(wire, limits)
        if isinstance(parsed, ParsedRequest) and type(parsed.operation) in _DESCRIPTION_OPERATIONS:
            return ParsedRequest(parsed.operation, _write_models)
        return parsed

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        """Return the response for ``error``, with the body ``{"error": …}``. The multi-model API
        defines two statuses: 409 for a model that is already loaded, and 507 if memory is
        insufficient."""
        response = super().build_error(error, wire)
        if error.kind is Kind.ALREADY_EXISTS:
            response.status = 409
        elif error.kind in _MEMORY_KINDS and _OUT_OF_MEMORY.search(error.public):
            response.status = 507
        if wire is not None and error.kind is Kind.METHOD_NOT_ALLOWED:
            match = _MODEL_PATH.fullmatch(wire.path)
            if match is not None:
                allowed = _METHODS if match[1] is None else _METHODS_OF_MODEL
                response.headers = {**response.headers, "allow": allowed}
        return response


def _target_model(wire: HttpRequest, segment: str) -> str:
    """Return the model's name from SageMaker's header or, without the header, from the path."""
    return wire.headers.get(_TARGET_MODEL_HEADER) or decode_segment(segment, "model name")


def _rewrite_list_path(wire: HttpRequest) -> None:
    """Rewrite a request for ``/models``, which lists the ready models or loads a model."""
    if wire.method == "GET":
        wire.method, wire.path, wire.body = "POST", INDEX_PATH, [b'{"ready":true}']
    elif wire.method == "POST":
        wire.path, wire.body = repository_path("", _read_load(wire), "load"), ()
    else:
        raise method_not_allowed(wire.method, _METHODS)


def _rewrite_model_path(wire: HttpRequest, segment: str) -> None:
    """Rewrite a request for ``/models/<name>``, which describes or unloads the model."""
    if wire.method == "GET":
        wire.path = model_path(decode_segment(segment, "model name"), "", "/ready")
    elif wire.method == "DELETE":
        wire.path = repository_path("", _target_model(wire, segment), "unload")
        wire.method, wire.body = "POST", [b'{"parameters":{"unload_dependents":true}}']
    else:
        raise method_not_allowed(wire.method, _METHODS_OF_MODEL)


def _read_load(wire: HttpRequest) -> str:
    """Return the name of the model to load. The ``url`` is checked as in Triton, but not used,
    because the backend loads the model from its own repository."""
    size = total_size(wire.body)
    if size > MAX_LOAD_BYTES:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"the request to load a model has {size} bytes; the limit is {MAX_LOAD_BYTES}",
        )
    if not is_unencoded(wire.headers):
        raise GatewayError(
            Kind.UNSUPPORTED_ENCODING, "a request to load a model must not be compressed"
        )
    document = parse_json(bytes(join_parts(wire.body)))
    members = read_members(document, "the body", ("model_name", "url"))
    url = posixpath.normpath("/" + read_string(members.get("url", ""), "url").lstrip("/"))
    if f"{url}/".startswith(_FORBIDDEN_FOLDERS):
        raise bad_request("url must not be below /dev, /proc or /sys")
    model = wire.headers.get(_TARGET_MODEL_HEADER) or read_string(
        members.get("model_name", ""), "model_name"
    )
    if not model:
        raise bad_request("model_name is missing")
    return model


def _write_models(response: Response, operation: Operation) -> HttpResponse:
    """Write the response to an operation that lists models or describes a model."""
    if isinstance(response, ModelIndex):
        names = dict.fromkeys(entry.name for entry in response.models)
        return _json_response({"models": list(map(_describe, names))})
    assert isinstance(operation, ModelReadyRequest)
    if response == HealthStatus(ok=True):
        return _json_response(_describe(operation.model))
    return HttpResponse(404, {"content-type": JSON_TYPE}, [b'{"error":"not ready"}'])


def _describe(model: str) -> dict[str, str]:
    return {"modelName": model, "modelUrl": ""}


def _json_response(document: Any) -> HttpResponse:
    return HttpResponse(200, {"content-type": JSON_TYPE}, [orjson.dumps(document)])
