"""Inferences as nested JSON lists, which MLflow and Vertex AI's own API use as bodies.

*Rule 1.* Names and datatypes of the inputs come from the model's metadata, so a body is read when
the metadata is known (``json_tensors.row_reader``). *Rule 2.* The response is ``{"predictions":
…}``. If all outputs have the same number of rows, it holds a list with an element for each row.
Otherwise it holds a single element. If the model has several outputs, an element is an object."""

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
from infergate.codecs.envelopes.client_codec import ClientCodec
from infergate.codecs.http_status import STATUS_BY_KIND
from infergate.codecs.json_tensors.row_writer import (
    check_rows,
    write_columns,
    write_rows,
)
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, error_headers
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
MAX_MESSAGE_CHARACTERS: Final = 2000

BodyReader = Callable[[bytes, ModelMetadata, Limits], tuple[tuple[Tensor, ...], Parameters]]
"""Returns the tensors and the parameters in a body. Raises BAD_REQUEST and TOO_LARGE."""


class RowsCodec(ClientCodec, ABC):
    """Serves inferences of ``model`` at ``predict_path``, and ``operations`` by the paths of their
    GET requests."""

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
        operation = self._operations.get(wire.path)
        allowed = self._allowed_method(wire.path)
        if wire.method != allowed:
            raise GatewayError(
                Kind.METHOD_NOT_ALLOWED,
                f"method {wire.method[:20]} is not allowed here, only {allowed}",
            )
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
        if size > limits.json:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"{size} bytes of JSON exceed the limit of {limits.json}",
                limit="json",
            )
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
        message = error.public[:MAX_MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()
        headers = {**JSON_HEADERS, **error_headers(error)}
        if error.kind is Kind.METHOD_NOT_ALLOWED and wire is not None:
            headers["allow"] = self._allowed_method(wire.path)
        return HttpResponse(status, headers, [orjson.dumps(self.error_document(status, message))])


def _complete(
    model: str, read: BodyReader, body: Buffer, limits: Limits, metadata: ModelMetadata
) -> ParsedRequest:
    # A helper process receives long bytes as a view.
    tensors, parameters = read(body if isinstance(body, bytes) else bytes(body), metadata, limits)
    return ParsedRequest(InferRequest(model, parameters=parameters, inputs=tensors))


def _predictions(outputs: tuple[Tensor, ...]) -> bytes:
    """Return the ``predictions`` of a response (Rule 2)."""
    try:
        check_rows(outputs)
    except GatewayError:
        return write_columns(outputs)
    return write_rows(outputs)


def plain_parameters(values: Mapping[str, Any], key: str) -> Parameters:
    """Return the members of ``key`` as parameters. Raises BAD_REQUEST for lists and objects."""
    for name, value in values.items():
        if isinstance(value, list | dict):
            raise GatewayError(
                Kind.BAD_REQUEST, f"{key}.{name[:40]} must be a string, a number or a boolean"
            )
    return {name: value for name, value in values.items() if value is not None} or NO_PARAMETERS
