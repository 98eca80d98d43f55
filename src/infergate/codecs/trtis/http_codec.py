"""The codec of the HTTP API of the TensorRT Inference Server 1.x (the legacy API).

The references are the API's protobuf files, and messages captured from its servers and clients
(docs/fidelity-trtis.md)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from infergate.codecs.base import ParsedRequest, PartialInferRequest, Profile, RequestSummary
from infergate.codecs.trtis import (
    http_backend,
    http_frontend,
    http_pass_through,
    message_fields,
    response_messages,
)
from infergate.codecs.trtis.base_codec import TrtisCodec
from infergate.codecs.trtis.http_paths import match_path
from infergate.codecs.trtis.infer_request import TrtisResponseOptions, read_request
from infergate.codecs.trtis.infer_response import write_response
from infergate.codecs.trtis.messages import InferRequestHeader, InferResponseHeader
from infergate.codecs.trtis.messages import SharedMemoryStatus as Regions
from infergate.codecs.trtis.server_status import not_ready_if_unknown, write_status
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind, error_headers
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.sequences import SequenceId
from infergate.core.wire import HttpRequest, HttpResponse, join_parts


class TrtisHttpCodec(TrtisCodec):
    """The codec of the legacy HTTP API."""

    name: str = "trtis-http"
    streaming_methods: frozenset[str] = frozenset()

    # ---- for the console

    def request_fields(self, wire: HttpRequest) -> dict[str, Any] | None:
        return message_fields.describe(InferRequestHeader, http_frontend.REQUEST_HEADER, wire)

    def response_fields(self, wire: HttpResponse) -> dict[str, Any] | None:
        return message_fields.describe(InferResponseHeader, http_frontend.RESPONSE_HEADER, wire)

    # ---- for clients

    def summarize(self, wire: HttpRequest) -> RequestSummary:
        """Return the operation, model and version that the path names. The header
        NV-InferRequest is not parsed. If an inference has no valid NV-InferRequest, ``build_error``
        reports the missing or invalid header instead of ``error``."""
        match = match_path(wire.method, wire.path)
        wire.codec_state = match.operation
        return match.summary

    def parse_request(
        self, wire: HttpRequest, limits: Limits
    ) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
        operation = _operation_of(wire)
        match operation:
            case InferRequest():
                return read_request(
                    http_frontend.parse_header(wire, limits),
                    operation,
                    partial(http_frontend.split_inputs, wire.body),
                    self._options.level,
                    limits,
                    http_frontend.body_format_of(wire),
                )
            case messages.ServerStatusRequest():
                return ParsedRequest(
                    operation, http_frontend.status_format_of(wire, self._options.level)
                )
            case messages.SharedMemoryRegisterRequest(device=int()):
                return ParsedRequest(replace(operation, handle=bytes(join_parts(wire.body))))
        return ParsedRequest(operation, http_frontend.body_format_of(wire))

    def build_response(self, response: Response, parsed: ParsedRequest) -> HttpResponse:
        status = self._status_factory.success
        match response:
            case InferResponse():
                options: TrtisResponseOptions = parsed.response_options
                assert isinstance(parsed.operation, InferRequest)
                header, raw = write_response(
                    response, parsed.operation, options, data_type=self._options.data_type
                )
                return http_frontend.infer_response(
                    header, raw, options.body_format, self._status_factory.success_line()
                )
            case messages.HealthStatus(ok):
                return http_frontend.status_response(status(), ok=ok)
            case messages.Acknowledgement():
                return http_frontend.status_response(status(), ok=True)
            case messages.ServerStatus():
                message = write_status(response, self._options.server_id)
            case messages.ModelIndex():
                message = response_messages.index_message(response)
            case messages.SharedMemoryStatus():
                message = Regions()
                response_messages.add_regions(message.shared_memory_region, response)
            case _:
                raise GatewayError(
                    Kind.UNSUPPORTED,
                    f"the legacy HTTP API cannot express {type(response).__name__}",
                )
        return http_frontend.message_response(message, parsed.response_options, status())

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        """Build the response for ``error``. The response has no NV-Status if legacy servers have no
        handler for the request or cannot parse its header."""
        error_response = self._error_response(error, wire)
        return replace(error_response, headers={**error_response.headers, **error_headers(error)})

    def _error_response(self, error: GatewayError, wire: HttpRequest | None) -> HttpResponse:
        operation: Operation | None = None
        if wire is not None:
            try:
                operation = match_path(wire.method, wire.path).operation
            except GatewayError as path_error:
                not_allowed = path_error.kind is Kind.METHOD_NOT_ALLOWED
                return http_frontend.bare_response(405 if not_allowed else 400)
            if isinstance(operation, InferRequest):
                return http_frontend.infer_error(
                    wire, error, lambda: self._status_factory.error(error, operation)
                )
        return http_frontend.status_response(self._status_factory.error(error, operation), ok=False)

    def number_response(self, wire: HttpResponse) -> HttpResponse:
        return http_frontend.with_number(wire, self._status_factory.next_number())

    # ---- for backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        del profile
        return http_backend.build_request(operation, model)

    def parse_response(
        self,
        wire: HttpResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        try:
            return http_backend.parse_response(wire, operation, limits, model)
        except GatewayError as error:
            return not_ready_if_unknown(error, operation)

    # ---- pass-through

    def validate(
        self, wire: HttpRequest, limits: Limits
    ) -> HttpRequest | PartialInferRequest[HttpRequest]:
        operation = _operation_of(wire)
        if isinstance(operation, InferRequest):
            level = self._options.level
            return http_pass_through.validate(wire, operation, self._header_cache, level, limits)
        self.parse_request(wire, limits)
        return wire

    def sequence_of(self, wire: HttpRequest, limits: Limits) -> SequenceId | None:
        return http_pass_through.sequence_of(wire, limits)

    def rewrite_request(
        self, wire: HttpRequest, model: str, version: str, profile: Profile
    ) -> HttpRequest | None:
        del profile
        return http_pass_through.rewrite_request(wire, model, version)

    def rewrite_response(
        self, wire: HttpResponse, request: HttpRequest, model: str, version: str, limits: Limits
    ) -> HttpResponse:
        return http_pass_through.rewrite_response(
            wire, request, model, version, self._status_factory, limits
        )


def _operation_of(wire: HttpRequest) -> Operation:
    """Return the operation that ``summarize`` stored in ``wire``, or match the path."""
    operation: Operation | None = wire.codec_state
    return match_path(wire.method, wire.path).operation if operation is None else operation
