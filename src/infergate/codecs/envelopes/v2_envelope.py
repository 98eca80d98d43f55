"""The base class of envelopes with V2 REST bodies."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from infergate.codecs.base import ParsedRequest, PartialInferRequest, Profile, RequestSummary
from infergate.codecs.v2_rest import V2RestCodec
from infergate.core.errors import GatewayError, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import Response
from infergate.core.sequences import SequenceId
from infergate.core.wire import HttpRequest, HttpResponse, total_size

JSON_LENGTH_HEADER: Final = "inference-header-content-length"
_HEADER_SIZE: Final = re.compile(r"\s*;\s*json-header-size=([0-9]{1,18})\s*", re.ASCII)
_UNENCODED: Final = ("", "identity")


class V2Envelope(V2RestCodec, ABC):
    """The V2 REST codec for requests that arrive under other paths.

    The codec converts each request to a V2 REST request with V2 REST's path, method and header for
    the length of the JSON. Clients send this length in the content type
    (``binary_type;json-header-size=N``), because the platform does not forward V2 REST's header.
    Responses with binary data have a content type of the same form.

    The codec's name remains ``v2-rest``, so that inferences pass through to V2 REST servers.
    """

    claims: tuple[str, ...]
    binary_type: str

    def __init__(self, v2: Mapping[str, Any], **arguments: Any) -> None:
        super().__init__(**v2)
        self._arguments: Final = {"v2": v2, **arguments}

    def __reduce__(self) -> Any:
        return partial(type(self), **self._arguments), ()

    @abstractmethod
    def rewrite_path(self, wire: HttpRequest) -> None:
        """Change the path and the method of ``wire``, a copy of the client's request, to those of
        V2 REST. Raises GatewayError."""

    def _v2(self, wire: HttpRequest) -> HttpRequest:
        """Return ``wire`` as a V2 REST request. Raises GatewayError."""
        if wire.path == "/v2" or wire.path.startswith("/v2/"):  # a copy from ``validate``
            return wire
        copy: HttpRequest | None = wire.codec_state
        if copy is None:
            copy = HttpRequest(
                wire.method, wire.path, wire.query, self._v2_headers(wire), wire.body
            )
            self.rewrite_path(copy)
            wire.codec_state = copy
        return copy

    def _v2_headers(self, wire: HttpRequest) -> Mapping[str, str]:
        """Return the client's headers, with the length of the JSON in V2 REST's own header. Raises
        BAD_REQUEST."""
        headers = {name: text for name, text in wire.headers.items() if name != JSON_LENGTH_HEADER}
        content_type = headers.get("content-type", "")
        position = content_type.lower().find(self.binary_type)
        if position < 0:
            return headers
        size = _HEADER_SIZE.fullmatch(content_type, position + len(self.binary_type))
        if position > 0 or size is None:
            raise bad_request(
                f"the content type is '{content_type[:100]}'; "
                f"expected '{self.binary_type};json-header-size=' and a number of bytes"
            )
        body_bytes = total_size(wire.body)
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding in _UNENCODED and int(size[1]) > body_bytes:
            raise bad_request(f"json-header-size is {size[1]}, but the body has {body_bytes} bytes")
        headers["content-type"] = "application/octet-stream"
        headers[JSON_LENGTH_HEADER] = size[1]
        return headers

    def summarize(self, wire: HttpRequest) -> RequestSummary:
        return super().summarize(self._v2(wire))

    def parse_request(
        self, wire: HttpRequest, limits: Limits
    ) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
        return super().parse_request(self._v2(wire), limits)

    def open_request(self, wire: HttpRequest) -> None:
        if "content-encoding" in wire.headers:
            super().open_request(wire)
            wire.codec_state = None  # the stored copy has the encoded body

    def request_text_bytes(self, wire: HttpRequest) -> int:
        return super().request_text_bytes(self._v2_for_estimate(wire))

    def json_bytes(self, wire: HttpRequest | HttpResponse, max_bytes: int) -> int:
        return super().json_bytes(
            self._v2_for_estimate(wire) if isinstance(wire, HttpRequest) else wire, max_bytes
        )

    def _v2_for_estimate(self, wire: HttpRequest) -> HttpRequest:
        """Return ``wire`` as a V2 REST request for an estimate. An invalid request is returned
        without its body, because ``parse_request`` rejects the request before reading the body."""
        try:
            return self._v2(wire)
        except GatewayError:
            return HttpRequest(wire.method, wire.path)

    def validate(self, wire: HttpRequest, limits: Limits) -> HttpRequest:
        return super().validate(self._v2(wire), limits)

    def sequence_of(self, wire: HttpRequest, limits: Limits) -> SequenceId | None:
        return super().sequence_of(self._v2(wire), limits)

    def rewrite_request(
        self, wire: HttpRequest, model: str, version: str, profile: Profile
    ) -> HttpRequest | None:
        return super().rewrite_request(self._v2(wire), model, version, profile)

    def build_response(self, response: Response, parsed: ParsedRequest) -> HttpResponse:
        return self._wrap_response(super().build_response(response, parsed))

    def rewrite_response(
        self, wire: HttpResponse, request: HttpRequest, model: str, version: str, limits: Limits
    ) -> HttpResponse:
        sent = self._v2(request)
        return self._wrap_response(super().rewrite_response(wire, sent, model, version, limits))

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        """Return the response for ``error``, with the body ``{"error": …}`` and, if the method is
        not allowed, the methods that the V2 REST path allows."""
        return super().build_error(error, wire and (wire.codec_state or wire))

    def _wrap_response(self, response: HttpResponse) -> HttpResponse:
        """Move the length of the JSON from its header to the content type."""
        if JSON_LENGTH_HEADER in response.headers:
            headers = dict(response.headers)
            size = headers.pop(JSON_LENGTH_HEADER)
            headers["content-type"] = f"{self.binary_type};json-header-size={size}"
            response.headers = headers
        return response
