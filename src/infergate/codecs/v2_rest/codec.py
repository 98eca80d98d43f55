"""Converts canonical operations and responses to and from the HTTP messages of V2 REST.

The sources are the specification of the V2 protocol, its binary tensor data extension, and
docs/fidelity-v2.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from infergate.codecs.base import (
    Capabilities,
    CodecPlugin,
    ParsedRequest,
    PartialInferRequest,
    Profile,
    RequestSummary,
    TransportKind,
)
from infergate.codecs.encodings import (
    CONTENT_ENCODING,
    decode_body,
    inflate_small,
    is_unencoded,
    max_decoded_bytes,
    preferred_encoding,
)
from infergate.codecs.json_tensors.json_data import NON_FINITE_SPELLINGS
from infergate.codecs.v2_rest import (
    backend,
    errors,
    metadata,
    pass_through,
    repository,
    settings,
    shared_memory,
    streams,
)
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.generate_frontend import GenerateFormat, write_generate_response
from infergate.codecs.v2_rest.infer_request import RequestHeadCache, read_request
from infergate.codecs.v2_rest.infer_response import (
    ResponseHeadCache,
    read_response,
    response_size,
    response_text_bytes,
    write_response,
)
from infergate.codecs.v2_rest.paths import MODEL_LIST_PATH, V2PathMatch, match_request
from infergate.codecs.v2_rest.tensors import JSON_LENGTH_HEADER
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.decimals import parse_decimal
from infergate.core.errors import GatewayError, Kind
from infergate.core.inflation import MAX_RATIO
from infergate.core.json_size import json_size_bounds
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.sequences import SequenceId
from infergate.core.tensor import data_bytes
from infergate.core.wire import HttpRequest, HttpResponse, total_size

_DEFAULT_COMPRESS_MIN: Final = 256
_JSON_HEADERS: Final = {"content-type": JSON_TYPE}
_MAX_LENGTH: Final = 10**18 - 1
"""Maximum value of a length header. Headers with larger values are ignored."""


class V2RestCodec:
    """The V2 REST codec.

    ``non_finite`` (``literal``, ``string``, ``null``) is the form of NaN and infinity in responses
    to clients. Responses of at least ``compress_min`` bytes may be compressed.
    """

    name: str = "v2-rest"
    capabilities: Capabilities = Capabilities(
        datatypes=frozenset(Datatype), supports_streaming=True
    )
    needs_profile: bool = True
    needs_metadata: bool = False
    streaming_methods: frozenset[str] = frozenset()
    streaming_method: str = ""

    def __init__(
        self, non_finite: str = "literal", compress_min: int = _DEFAULT_COMPRESS_MIN
    ) -> None:
        if non_finite not in NON_FINITE_SPELLINGS:
            raise ValueError(
                f"non_finite is {non_finite!r}; expected one of {sorted(NON_FINITE_SPELLINGS)}"
            )
        self._options: Final = (non_finite, compress_min)
        self._spelling: Final = NON_FINITE_SPELLINGS[non_finite]
        self._compress_min: Final = compress_min
        # A response that passes through keeps the backend's form of NaN and infinity.
        self.can_pass_through: bool = non_finite == "literal"
        self._request_heads: Final = RequestHeadCache()
        self._response_heads: Final = ResponseHeadCache()

    def __reduce__(self) -> tuple[type[V2RestCodec], tuple[str, int]]:
        return type(self), self._options  # a pickled codec has empty caches

    # ---- for clients

    def summarize(self, wire: HttpRequest) -> RequestSummary:
        """Read the operation, model and version from the path."""
        match = wire.codec_state = match_request(wire.method, wire.path)
        return match.summary

    def parse_request(
        self, wire: HttpRequest, limits: Limits
    ) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
        match: V2PathMatch = wire.codec_state or match_request(wire.method, wire.path)
        operation = match.operation
        if operation is InferRequest:
            if not match.summary.can_pass_through:
                return streams.read_request(wire, match, limits)
            return read_request(wire, match.model, match.version, limits, self._request_heads)
        if (operation_class := _MODEL_OPERATIONS.get(operation)) is not None:
            return ParsedRequest(operation_class(match.model, match.version))
        if operation is messages.ModelIndexRequest and wire.path == MODEL_LIST_PATH:
            return ParsedRequest(messages.ModelIndexRequest(), metadata.write_model_list)
        if operation is messages.SharedMemoryStatusRequest:
            return ParsedRequest(messages.SharedMemoryStatusRequest(match.region, cuda=match.cuda))
        if match.method == "POST":
            is_post = wire.method == "POST"
            body = bytes(decode_body(wire.headers, wire.body, limits)) if is_post else b""
            return ParsedRequest(_POST_READERS[operation](match, body, limits))
        return ParsedRequest(operation())  # type: ignore[call-arg]  # all other operations have no fields

    def build_response(self, response: Response, parsed: ParsedRequest) -> HttpResponse:
        if isinstance(response, InferResponse):
            if isinstance(parsed.response_options, GenerateFormat):
                return HttpResponse(
                    200, _JSON_HEADERS, [write_generate_response(response, self._spelling)]
                )
            return write_response(response, parsed, self._spelling, self._compress_min)
        write = parsed.response_options or _WRITERS.get(type(response))
        if write is None:
            raise GatewayError(
                Kind.UNSUPPORTED, f"V2 REST cannot express {type(response).__name__}"
            )
        http_response: HttpResponse = write(response, parsed.operation)
        return http_response

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        return errors.build_error(error, wire)

    def open_request(self, wire: HttpRequest) -> None:
        if CONTENT_ENCODING in wire.headers:
            inflate_small(wire)

    def request_text_bytes(self, wire: HttpRequest) -> int:
        headers, size = wire.headers, total_size(wire.body)
        if CONTENT_ENCODING in headers and not is_unencoded(headers):
            return max_decoded_bytes(headers, wire.body)
        return _max_json_bytes(wire, size) if JSON_LENGTH_HEADER in headers else size

    def json_bytes(self, wire: HttpRequest | HttpResponse, max_bytes: int) -> int:
        json_bytes = _max_json_bytes(wire, max_bytes)
        return (
            json_bytes
            if json_bytes < max_bytes
            else min(max_decoded_bytes(wire.headers, wire.body), max_bytes)
        )

    def rewrite_bytes(self, wire: HttpResponse, request: HttpRequest) -> int:
        if not is_unencoded(wire.headers):
            return total_size(wire.body) * MAX_RATIO
        accept = request.headers.get("accept-encoding", "")
        return total_size(wire.body) if accept and preferred_encoding(accept) else 0

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:
        return response_text_bytes(response, parsed) if isinstance(response, InferResponse) else 0

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:
        return response_size(response, parsed)

    def max_backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        return 0 if profile.supports_binary else json_size_bounds(operation.inputs)[1]

    def backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        return 0 if profile.supports_binary else data_bytes(operation.inputs)

    # ---- for backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        del model
        return backend.build_request(operation, profile)

    def parse_response(
        self,
        wire: HttpResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        del model
        if isinstance(operation, InferRequest):
            return read_response(wire, operation, limits, self._response_heads)
        return backend.parse_response(wire, operation, limits)

    # ---- streams

    def build_stream_response(self, response: InferResponse, parsed: ParsedRequest) -> HttpResponse:
        if not isinstance(parsed.response_options, GenerateFormat):
            parsed = replace(parsed, response_options=None)  # events contain only JSON
        return streams.event_response(self.build_response(response, parsed).body)

    def build_stream_end(self, parsed: ParsedRequest) -> HttpResponse:  # noqa: ARG002
        return streams.event_response(())

    def build_stream_error(self, error: GatewayError, wire: HttpRequest) -> HttpResponse:
        return streams.event_response(errors.build_error(error, wire).body)

    def streams_need_metadata(self, profile: Profile) -> bool:
        return profile.has_generate_stream

    def build_stream_request(
        self, operation: InferRequest, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest | None:
        return streams.build_request(operation, profile, model)

    def parse_stream_response(
        self,
        wire: HttpResponse,
        operation: InferRequest,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> InferResponse:
        return streams.read_response(wire, operation, limits, model)

    # ---- V2 REST on both sides

    def validate(self, wire: HttpRequest, limits: Limits) -> HttpRequest:
        match: V2PathMatch = wire.codec_state or match_request(wire.method, wire.path)
        if match.operation is InferRequest:
            return pass_through.validate_inference(wire, match, limits, self._request_heads)
        self.parse_request(wire, limits)
        return wire

    def sequence_of(self, wire: HttpRequest, limits: Limits) -> SequenceId | None:
        return pass_through.sequence_of(wire, limits)

    def priority_of(self, wire: HttpRequest) -> int:
        return wire.priority if isinstance(wire, pass_through.CheckedRequest) else 0

    def rewrite_request(
        self, wire: HttpRequest, model: str, version: str, profile: Profile
    ) -> HttpRequest | None:
        return pass_through.rewrite_request(wire, model, version, profile)

    def rewrite_response(
        self, wire: HttpResponse, request: HttpRequest, model: str, version: str, limits: Limits
    ) -> HttpResponse:
        names = {"model": model, "version": version}
        return pass_through.rewrite_response(wire, request, names, limits, self._compress_min)


def _max_json_bytes(wire: HttpRequest | HttpResponse, max_bytes: int) -> int:
    """Return the length of the JSON, at most ``max_bytes``. Return ``max_bytes`` if the headers
    contain no valid length."""
    length = parse_decimal(wire.headers.get(JSON_LENGTH_HEADER, ""), _MAX_LENGTH)
    return max_bytes if length is None else min(length, max_bytes)


def _read_index(match: V2PathMatch, body: bytes, limits: Limits) -> Operation:
    if match.repository:  # Triton also rejects an unknown repository
        raise GatewayError(Kind.UNSUPPORTED, "an index of one repository is not supported")
    return metadata.read_index_request(body, limits)


_POST_READERS: Final[
    Mapping[type[Operation], Callable[[V2PathMatch, bytes, Limits], Operation]]
] = {
    messages.ModelIndexRequest: _read_index,
    messages.ModelLoadRequest: repository.read_request,
    messages.ModelUnloadRequest: repository.read_request,
    messages.TraceSettingsRequest: settings.read_request,
    messages.LogSettingsRequest: settings.read_request,
    messages.SharedMemoryRegisterRequest: shared_memory.read_register,
    messages.SharedMemoryUnregisterRequest: shared_memory.read_unregister,
}
_MODEL_OPERATIONS: Final[Mapping[type[Operation], Callable[[str, str], Operation]]] = {
    messages.ModelReadyRequest: messages.ModelReadyRequest,
    messages.ModelMetadataRequest: messages.ModelMetadataRequest,
    messages.ModelConfigRequest: messages.ModelConfigRequest,
    messages.ModelStatisticsRequest: messages.ModelStatisticsRequest,
}


_WRITERS: Final[Mapping[type[Response], Callable[[Any, Operation], HttpResponse]]] = {
    messages.HealthStatus: metadata.write_health,
    messages.ServerMetadata: lambda response, _: metadata.write_server(response),
    ModelMetadata: lambda response, _: metadata.write_model(response),
    messages.ModelIndex: lambda response, _: metadata.write_index(response),
    messages.ModelConfig: lambda response, _: metadata.write_config(response),
    messages.ModelStatistics: lambda response, _: metadata.write_statistics(response),
    messages.Settings: settings.write_response,
    messages.SharedMemoryStatus: lambda response, _: shared_memory.write_status(response),
    messages.Acknowledgement: lambda _, __: HttpResponse(200),
}


PLUGIN: Final = CodecPlugin(
    name="v2-rest",
    transport_kind=TransportKind.HTTP,
    claims=("v2",),
    create=lambda options: V2RestCodec(**options),
    is_fallback=True,
    supports_shared_memory=True,
)
