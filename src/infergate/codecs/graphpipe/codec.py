"""The GraphPipe codec, which converts between HTTP messages and canonical operations.

For inferences and metadata, the path or the option ``model`` names the model, and the body, a
flatbuffer, names the operation. A GET requests metadata or, on a control path, health. Raw sockets
carry the same bodies, which the transport passes to the codec as HttpRequests.

The sources are GraphPipe's specification and the observed messages of servers and clients
(docs/fidelity-graphpipe.md)."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, Final

from infergate.codecs.base import (
    Capabilities,
    ParsedRequest,
    PartialInferRequest,
    Profile,
    RequestSummary,
)
from infergate.codecs.binary_estimates import BinaryEstimates
from infergate.codecs.encodings import check_unencoded
from infergate.codecs.graphpipe import backend, message_fields
from infergate.codecs.graphpipe.config_text import PROTOCOL
from infergate.codecs.graphpipe.datatypes import TYPE_NUMBERS
from infergate.codecs.graphpipe.errors import (
    BINARY_HEADERS,
    TEXT_HEADERS,
    infer_error_response,
    status_error_response,
)
from infergate.codecs.graphpipe.fields import INFER, METADATA, REQ, REQ_TYPE
from infergate.codecs.graphpipe.flatbuffer_reader import FlatbufferMessage, FlatbufferTable
from infergate.codecs.graphpipe.infer_request import read_request
from infergate.codecs.graphpipe.infer_response import write_response
from infergate.codecs.graphpipe.metadata import write_json, write_metadata
from infergate.codecs.graphpipe.options import ErrorStyle, Options
from infergate.codecs.graphpipe.paths import GraphPipePathMatch, match_path
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

_STRING_COST_BYTES: Final = 4
"""The cost of writing a string, as the number of bytes of JSON that take the same time."""
_TENSOR_METADATA_COST_BYTES: Final = 512
"""The cost of an input or output in metadata (30 µs), as the number of bytes of JSON that take the
same time."""
_JSON_HEADERS: Final = {"content-type": "application/json"}


class MetadataFormat(enum.Enum):
    """The encoding of a metadata response."""

    FLATBUFFER = "flatbuffer"
    JSON = "json"


class GraphPipeCodec(BinaryEstimates):
    """Translates GraphPipe messages for listeners and backends."""

    name: str = PROTOCOL
    capabilities: Capabilities = Capabilities(
        datatypes=frozenset(TYPE_NUMBERS), supports_sequences=False
    )
    needs_profile: bool = False
    needs_metadata: bool = True
    streaming_methods: frozenset[str] = frozenset()

    def __init__(self, options: Options) -> None:
        self._options: Final = options

    # ---- for the console

    def request_fields(self, wire: HttpRequest) -> dict[str, Any] | None:
        return message_fields.describe_request(join_parts(wire.body)) if wire.body else None

    def response_fields(self, wire: HttpResponse) -> dict[str, Any] | None:
        is_binary = wire.status == 200 and wire.body  # an error is text
        return message_fields.describe_response(join_parts(wire.body)) if is_binary else None

    # ---- for clients

    def summarize(self, wire: HttpRequest) -> RequestSummary:
        match = match_path(wire.path, self._options.model)
        if match.operation is not None:
            return RequestSummary(type(match.operation), getattr(match.operation, "model", ""))
        if wire.method == "GET" or _read_envelope(wire)[0] == METADATA:
            return RequestSummary(messages.ModelMetadataRequest, match.model, match.version)
        return RequestSummary(InferRequest, match.model, match.version)

    def parse_request(
        self, wire: HttpRequest, limits: Limits
    ) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
        match = match_path(wire.path, self._options.model)
        if match.operation is not None:
            return ParsedRequest(match.operation, match.operation)
        if wire.method == "GET":
            return ParsedRequest(
                messages.ModelMetadataRequest(match.model, match.version), MetadataFormat.JSON
            )
        request_type, request = _read_envelope(wire)
        if request_type == METADATA:
            return ParsedRequest(
                messages.ModelMetadataRequest(match.model, match.version), MetadataFormat.FLATBUFFER
            )
        table = request.table(REQ)
        if table is None:
            raise bad_request("the Request has no req; expected an InferRequest")
        return read_request(table, match.model, match.version, limits)

    def build_response(self, response: Response, parsed: ParsedRequest) -> HttpResponse:
        match response:
            case InferResponse():
                return HttpResponse(
                    200, BINARY_HEADERS, write_response(response, parsed.response_options)
                )
            case ModelMetadata() if parsed.response_options is MetadataFormat.JSON:
                return HttpResponse(200, _JSON_HEADERS, [write_json(response)])
            case ModelMetadata():
                return HttpResponse(200, BINARY_HEADERS, [write_metadata(response)])
            case messages.HealthStatus(ok):
                return _health_response(ok, parsed.response_options)
        raise GatewayError(Kind.UNSUPPORTED, f"GraphPipe cannot express {type(response).__name__}")

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        """Write the error as text, or as an InferResponse if the option ``errors`` selects this
        form. The response to a GET, a control path or an unreadable request is always text."""
        if self._options.errors is ErrorStyle.STATUS or wire is None or wire.method in ("", "GET"):
            return status_error_response(error)
        try:
            match = match_path(wire.path, self._options.model)
        except GatewayError:
            match = GraphPipePathMatch()
        return status_error_response(error) if match.operation else infer_error_response(error)

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:  # noqa: ARG002
        """Return the cost of writing strings, or of writing inputs and outputs in metadata."""
        if isinstance(response, ModelMetadata):
            return _TENSOR_METADATA_COST_BYTES * (len(response.inputs) + len(response.outputs))
        return _string_cost(response.outputs) if isinstance(response, InferResponse) else 0

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:  # noqa: ARG002
        """Return 0 and the maximum size of the strings. Other data is not copied."""
        return 0, _max_string_bytes(response.outputs)

    def backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        del profile
        return _string_cost(operation.inputs)

    def max_backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        del profile
        return _max_string_bytes(operation.inputs)

    # ---- for backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        del profile
        return backend.build_request(operation, model)

    def build_alternative_request(
        self,
        operation: Operation,
        error_kind: Kind,  # noqa: ARG002
    ) -> HttpRequest | None:
        """Return a GET for every operation except an inference. graphpipe-go's servers respond to
        a GET with metadata as JSON."""
        return None if isinstance(operation, InferRequest) else HttpRequest("GET", "")

    def parse_response(
        self,
        wire: HttpResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        return backend.parse_response(wire, operation, limits, model)


def _read_envelope(wire: HttpRequest) -> tuple[int, FlatbufferTable]:
    """Return the type and the table of the Request in the body. Raises UNSUPPORTED_ENCODING, and
    BAD_REQUEST for an invalid flatbuffer or an unknown type. (graphpipe-go returns its metadata for
    an unknown type, contrary to the specification.)"""
    check_unencoded(wire.headers, "GraphPipe")
    if wire.codec_state is None:
        wire.codec_state = join_parts(wire.body)
    request = FlatbufferMessage(wire.codec_state).root("Request")
    request_type = request.uint8(REQ_TYPE)
    if request_type not in (INFER, METADATA):
        raise bad_request(
            f"req_type is {request_type}, neither {INFER} (InferRequest) nor {METADATA} "
            "(MetadataRequest)"
        )
    return request_type, request


def _string_cost(tensors: Sequence[Tensor]) -> int:
    counts = [math.prod(tensor.shape) for tensor in tensors if tensor.datatype is Datatype.BYTES]
    return _STRING_COST_BYTES * sum(counts)


def _max_string_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the maximum size of the offsets and strings of ``tensors``."""
    return 3 * sum(len(tensor.data) for tensor in tensors if tensor.datatype is Datatype.BYTES)


def _health_response(ok: bool, operation: Operation) -> HttpResponse:  # noqa: FBT001
    """Write a health response as graphpipe-go does."""
    if ok:
        return HttpResponse(200, TEXT_HEADERS, [b"ok\n"])
    word = b"alive" if isinstance(operation, messages.ServerLiveRequest) else b"ready"
    return HttpResponse(503, TEXT_HEADERS, [b"not " + word + b"\n"])
