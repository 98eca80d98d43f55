"""The codec of safetensors over HTTP.

- ``POST /safetensors/<model>[/versions/<version>]`` is an inference. The request and the response
  are safetensors files. Their ``__metadata__`` may hold ``id`` and ``parameters`` (JSON). In a
  request, it may also hold ``outputs`` (a JSON list of names), and in a response ``version``.
- With ``Accept: text/event-stream``, the response is a stream of events, one for each response of
  the model. The data of an event is a file in base64; the data of an error begins with ``{``.
- ``GET`` of the same path returns the model's metadata as JSON, and ``GET`` of the path followed by
  ``/ready`` returns 200 or 503.
- An error has an HTTP status and the body ``{"error": "…"}``."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote, unquote

from pydantic import BaseModel

from infergate.plugins import (
    STATUS_BY_KIND,
    Buffer,
    Capabilities,
    CodecPlugin,
    GatewayError,
    HealthStatus,
    HttpRequest,
    HttpResponse,
    InferRequest,
    InferResponse,
    Kind,
    Limits,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    Operation,
    ParsedRequest,
    Profile,
    RequestedOutput,
    RequestSummary,
    Response,
    TensorMetadata,
    TransportKind,
    backend_failure,
    bad_request,
    error_headers,
    join_parts,
    kind_of_status,
)
from infergate_safetensors import tensor_file

NAME = "safetensors"
_FILE_HEADERS = {"content-type": "application/octet-stream"}
_JSON_HEADERS = {"content-type": "application/json"}
_EVENT_HEADERS = {"content-type": "text/event-stream"}
_MAX_ERROR_CHARS = 4096


class Options(BaseModel):
    """The options of the codec."""

    metadata: Literal["full", "none"] = "full"
    """Whether files have ``__metadata__``. Some readers of the format reject it."""


class SafetensorsCodec:
    """Translates between safetensors over HTTP and canonical operations."""

    name = NAME
    capabilities = Capabilities(
        datatypes=frozenset(tensor_file.DTYPES), supports_streaming=True, supports_sequences=False
    )
    needs_profile = False
    needs_metadata = False
    streaming_methods: frozenset[str] = frozenset()
    streaming_method = ""

    def __init__(self, options: Options) -> None:
        self._writes_metadata = options.metadata == "full"

    # ---- for clients

    def summarize(self, wire: HttpRequest) -> RequestSummary:
        model, version, action = _read_path(wire.path)
        if wire.method == "POST" and not action:
            return RequestSummary(InferRequest, model, version)
        if wire.method != "GET":
            raise GatewayError(Kind.METHOD_NOT_ALLOWED, f"{wire.method} is not allowed here")
        return RequestSummary(ModelReadyRequest if action else ModelMetadataRequest, model, version)

    def parse_request(self, wire: HttpRequest, limits: Limits) -> ParsedRequest:
        summary = self.summarize(wire)
        if summary.operation is ModelReadyRequest:
            return ParsedRequest(ModelReadyRequest(summary.model, summary.version))
        if summary.operation is ModelMetadataRequest:
            return ParsedRequest(ModelMetadataRequest(summary.model, summary.version))
        if wire.headers.get("content-encoding", "identity") != "identity":
            raise GatewayError(Kind.UNSUPPORTED_ENCODING, "a compressed body is not supported")
        tensors, metadata = tensor_file.read(join_parts(wire.body), limits)
        outputs = _read_json(metadata, "outputs", list)
        if not all(isinstance(name, str) for name in outputs) or len(outputs) > limits.tensors:
            raise bad_request(f"outputs is not a list of at most {limits.tensors} names")
        request = InferRequest(
            summary.model,
            summary.version,
            metadata.get("id", ""),
            _read_json(metadata, "parameters", dict),
            tensors,
            tuple(RequestedOutput(name) for name in outputs),
        )
        wants_stream = "text/event-stream" in wire.headers.get("accept", "")
        return ParsedRequest(request, wants_stream=wants_stream)

    def build_response(self, response: Response, parsed: ParsedRequest) -> HttpResponse:
        del parsed
        match response:
            case InferResponse():
                return HttpResponse(200, _FILE_HEADERS, self._write_response(response))
            case HealthStatus(ok):
                return HttpResponse(200 if ok else 503, _JSON_HEADERS, [b'{"ready":%d}' % ok])
            case ModelMetadata():
                return HttpResponse(200, _JSON_HEADERS, [_write_model(response)])
        raise GatewayError(
            Kind.UNSUPPORTED, f"safetensors cannot express {type(response).__name__}"
        )

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        del wire
        headers = {**_JSON_HEADERS, **error_headers(error)}
        return HttpResponse(STATUS_BY_KIND[error.kind], headers, [_error_text(error)])

    # ---- for backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        del profile, model
        match operation:
            case InferRequest():
                metadata = self._metadata(operation)
                if operation.outputs and self._writes_metadata:
                    metadata["outputs"] = json.dumps([output.name for output in operation.outputs])
                body = tensor_file.write(operation.inputs, metadata)
                return HttpRequest("POST", _path(operation), "", _FILE_HEADERS, body)
            case ModelMetadataRequest():
                return HttpRequest("GET", _path(operation))
            case ModelReadyRequest():
                return HttpRequest("GET", f"{_path(operation)}/ready")
        raise GatewayError(Kind.UNSUPPORTED, f"safetensors has no {type(operation).__name__}")

    def parse_response(
        self,
        wire: HttpResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        del model
        if isinstance(operation, ModelReadyRequest) and wire.status in {200, 503}:
            return HealthStatus(ok=wire.status == 200)
        body = join_parts(wire.body)
        if wire.status != 200:
            raise backend_failure(kind_of_status(wire.status), _read_error(body))
        try:
            if isinstance(operation, InferRequest):
                return _read_response(body, operation, limits)
            if isinstance(operation, ModelMetadataRequest):
                return _read_model(body, limits)
        except GatewayError as error:  # raised by the checks of requests
            raise backend_failure(Kind.BACKEND_GARBAGE, error.public) from None
        raise backend_failure(Kind.BACKEND_GARBAGE, "the response is for another operation")

    # ---- streams

    def build_stream_response(self, response: InferResponse, parsed: ParsedRequest) -> HttpResponse:
        del parsed
        return _event(base64.b64encode(join_parts(self._write_response(response))))

    def build_stream_end(self, parsed: ParsedRequest) -> HttpResponse:
        del parsed
        return HttpResponse(200, _EVENT_HEADERS)

    def build_stream_error(self, error: GatewayError, wire: HttpRequest) -> HttpResponse:
        del wire
        return _event(_error_text(error))

    def streams_need_metadata(self, profile: Profile) -> bool:
        del profile
        return False

    def build_stream_request(
        self, operation: InferRequest, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        request = self.build_request(operation, profile, model)
        request.headers = {**request.headers, "accept": "text/event-stream"}
        return request

    def parse_stream_response(
        self,
        wire: HttpResponse,
        operation: InferRequest,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> InferResponse:
        data = bytes(join_parts(wire.body))
        if wire.status == 200 and data.startswith(b"{"):
            raise backend_failure(Kind.BACKEND_ERROR, _read_error(data))
        if wire.status == 200:
            try:
                data = base64.b64decode(data, validate=True)
            except binascii.Error:
                raise backend_failure(Kind.BACKEND_GARBAGE, "an event is not base64") from None
        response = self.parse_response(
            HttpResponse(wire.status, wire.headers, [data]), operation, limits, model
        )
        assert isinstance(response, InferResponse)
        return response

    # ---- on both sides

    def _metadata(self, message: InferRequest | InferResponse) -> dict[str, str]:
        if not self._writes_metadata:
            return {}
        metadata = {"id": message.id} if message.id else {}
        if message.parameters:
            metadata["parameters"] = json.dumps(dict(message.parameters))
        return metadata

    def _write_response(self, response: InferResponse) -> list[Buffer]:
        metadata = self._metadata(response)
        if response.version and self._writes_metadata:
            metadata["version"] = response.version
        return tensor_file.write(response.outputs, metadata)


def _read_path(path: str) -> tuple[str, str, str]:
    """Return the model, the version and the action: ``ready`` or nothing."""
    match path.strip("/").split("/"):
        case [_, model] if model:
            return unquote(model), "", ""
        case [_, model, "ready"] if model:
            return unquote(model), "", "ready"
        case [_, model, "versions", version] if model and version:
            return unquote(model), unquote(version), ""
        case [_, model, "versions", version, "ready"] if model and version:
            return unquote(model), unquote(version), "ready"
    raise GatewayError(Kind.NOT_FOUND, f"expected the path /{NAME}/<model>")


def _path(operation: InferRequest | ModelMetadataRequest | ModelReadyRequest) -> str:
    path = f"/{NAME}/{quote(operation.model, safe='')}"
    return f"{path}/versions/{quote(operation.version, safe='')}" if operation.version else path


def _read_json(metadata: Mapping[str, str], key: str, kind: type) -> Any:
    try:
        value = json.loads(metadata[key]) if key in metadata else kind()
    except (ValueError, RecursionError):
        raise bad_request(f"__metadata__.{key} is not JSON") from None
    if not isinstance(value, kind):
        raise bad_request(f"__metadata__.{key} is not a JSON {kind.__name__}")
    if isinstance(value, dict) and not all(
        isinstance(each, str | int | float) for each in value.values()
    ):
        raise bad_request(f"__metadata__.{key} has a value other than text, number or boolean")
    return value


def _read_response(body: Buffer, request: InferRequest, limits: Limits) -> InferResponse:
    tensors, metadata = tensor_file.read(body, limits)
    return InferResponse(
        request.model,
        metadata.get("version", ""),
        metadata.get("id", ""),
        _read_json(metadata, "parameters", dict),
        tensors,
    )


def _write_model(metadata: ModelMetadata) -> bytes:
    def describe(tensors: tuple[TensorMetadata, ...]) -> list[dict[str, Any]]:
        return [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in tensors]

    return json.dumps(
        {
            "name": metadata.name,
            "versions": list(metadata.versions),
            "platform": metadata.platform,
            "inputs": describe(metadata.inputs),
            "outputs": describe(metadata.outputs),
        }
    ).encode()


def _read_model(body: Buffer, limits: Limits) -> ModelMetadata:
    if len(body) > limits.json:
        raise GatewayError(Kind.TOO_LARGE, "the metadata is too long", limit="json")

    def tensors(entries: list[dict[str, Any]]) -> tuple[TensorMetadata, ...]:
        return tuple(
            TensorMetadata(str(e["name"]), str(e["datatype"]), tuple(map(int, e["shape"])))
            for e in entries
        )

    try:
        document = json.loads(bytes(body))
        return ModelMetadata(
            str(document["name"]),
            tuple(map(str, document["versions"])),
            str(document["platform"]),
            tensors(document["inputs"]),
            tensors(document["outputs"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        raise bad_request("the metadata is invalid") from None


def _error_text(error: GatewayError) -> bytes:
    return json.dumps({"error": error.public}).encode()


def _read_error(body: Buffer) -> str:
    text = bytes(body[:_MAX_ERROR_CHARS]).decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return text


def _event(data: bytes) -> HttpResponse:
    return HttpResponse(200, _EVENT_HEADERS, [b"data: ", data, b"\n\n"])


def _create(options: Mapping[str, Any]) -> SafetensorsCodec:
    return SafetensorsCodec(Options.model_validate(options))


PLUGIN = CodecPlugin(NAME, TransportKind.HTTP, (NAME,), _create, options_type=Options)
