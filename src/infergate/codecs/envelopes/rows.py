"""Inferences as nested JSON lists, which MLflow and Vertex AI's own API use as bodies.

*Rule 1.* The model's metadata supplies the names and the datatypes of the inputs, so a body is read
only after the metadata is known (``json_tensors.row_reader``). *Rule 2.* The response is
``{"predictions": …}``. If all outputs have the same number of rows, ``predictions`` is a list with
an element for each row. Otherwise it is a single element. If the model has several outputs, an
element is an object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import orjson

from infergate.codecs.base import (
    Capabilities,
    ParsedRequest,
    PartialInferRequest,
    RequestSummary,
)
from infergate.codecs.encodings import is_unencoded
from infergate.codecs.envelopes.frontend_only_codec import FrontendOnlyCodec
from infergate.codecs.http_status import STATUS_BY_KIND, client_message, method_not_allowed
from infergate.codecs.json_tensors.json_document import check_json_size, read_plain_object
from infergate.codecs.json_tensors.row_document import JsonValue
from infergate.codecs.json_tensors.row_writer import have_rows, write_columns, write_rows
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request, error_headers
from infergate.core.limits import Limits
from infergate.core.messages import (
    HealthStatus,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Operation,
    Response,
    ServerMetadata,
)
from infergate.core.tensor import NO_PARAMETERS, Buffer, Parameters, Tensor
from infergate.core.wire import HttpRequest, HttpResponse, join_parts, total_size

JSON_HEADERS: Final = {"content-type": "application/json"}
TEXT_HEADERS: Final = {"content-type": "text/plain"}

BodyReader = Callable[[bytes, ModelMetadata, Limits], tuple[tuple[Tensor, ...], Parameters]]
"""Returns the tensors and the parameters in a body. Raises BAD_REQUEST, TOO_LARGE and UNSUPPORTED,
and NeedsOffloadError for a long body on the event loop."""


class RowsCodec(FrontendOnlyCodec, ABC):
    """Serves inferences of ``model`` at ``predict_path``. ``operations`` maps the paths of
    GET requests to operations."""

    name: str
    capabilities: Capabilities = Capabilities(
        datatypes=frozenset(Datatype), supports_sequences=False
    )

    def __init__(self, model: str, predict_path: str, operations: Mapping[str, Operation]) -> None:
        self._model: Final = model
        self._operations: Final = operations
        self.claims: tuple[str, ...] = (*operations, predict_path)

    @abstractmethod
    def body_reader(self, wire: HttpRequest) -> BodyReader:
        """Return the function that reads the body of an inference. Raises GatewayError."""

    def error_document(self, status: int, message: str) -> dict[str, Any]:
        """Return the body of an error response."""
        del status
        return {"error": message}

    def summarize(self, wire: HttpRequest) -> RequestSummary:
        allowed = self._allowed_method(wire.path)
        if wire.method != allowed:
            raise method_not_allowed(wire.method, allowed)
        operation = self._operations.get(wire.path)
        if operation is not None:
            return RequestSummary(type(operation))
        return RequestSummary(InferRequest, self._model)

    def _allowed_method(self, path: str) -> str:
        return "GET" if path in self._operations else "POST"

    def parse_request(
        self, wire: HttpRequest, limits: Limits
    ) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
        self.summarize(wire)
        operation = self._operations.get(wire.path)
        if operation is not None:
            return ParsedRequest(operation)
        if not is_unencoded(wire.headers):
            raise GatewayError(Kind.UNSUPPORTED_ENCODING, "the body must not be compressed")
        read = self.body_reader(wire)
        size = total_size(wire.body)
        check_json_size(size, limits.json)
        complete = partial(_complete, self._model, read, join_parts(wire.body), limits)
        return PartialInferRequest(self._model, "", complete, size)

    def build_response(self, response: Response, parsed: ParsedRequest) -> HttpResponse:  # noqa: ARG002
        match response:
            case HealthStatus(ok):
                return HttpResponse(200 if ok else 503, JSON_HEADERS, [b"\n"])
            case ServerMetadata(_, version):
                return HttpResponse(200, TEXT_HEADERS, [version.encode()])
        assert isinstance(response, InferResponse)
        return HttpResponse(
            200, JSON_HEADERS, [b'{"predictions": ', _predictions(response.outputs), b"}"]
        )

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        status = STATUS_BY_KIND[error.kind]
        message = client_message(error.public)
        headers = {**JSON_HEADERS, **error_headers(error)}
        if error.kind is Kind.METHOD_NOT_ALLOWED and wire is not None:
            headers["allow"] = self._allowed_method(wire.path)
        return HttpResponse(status, headers, [orjson.dumps(self.error_document(status, message))])


def _complete(
    model: str, read: BodyReader, body: Buffer, limits: Limits, metadata: ModelMetadata
) -> ParsedRequest:
    # A helper process receives a long body as a memoryview.
    tensors, parameters = read(bytes(body), metadata, limits)
    return ParsedRequest(InferRequest(model, parameters=parameters, inputs=tensors))


def _predictions(outputs: tuple[Tensor, ...]) -> bytes:
    """Return the ``predictions`` of a response (Rule 2)."""
    return write_rows(outputs) if have_rows(outputs) or not outputs else write_columns(outputs)


def read_parameters(members: Mapping[str, JsonValue], key: str) -> Parameters:
    """Return the parameters in the member ``key`` of a body, except null parameters. The member may
    be absent or null. Raises BAD_REQUEST and TOO_LARGE."""
    if key not in members or members[key].node is None:
        return NO_PARAMETERS
    values = read_plain_object(members[key].node, key)
    for name, value in values.items():
        if isinstance(value, list | dict):
            raise bad_request(f"{key}.{name[:40]} must be a string, a number or a boolean")
    return {name: value for name, value in values.items() if value is not None} or NO_PARAMETERS
