"""The common part of codecs for envelopes that have their own JSON bodies."""

from __future__ import annotations

from typing import Any

from infergate.codecs.base import ParsedRequest
from infergate.codecs.binary_estimates import BinaryEstimates
from infergate.codecs.json_tensors.row_writer import nesting_cost
from infergate.core.errors import GatewayError, Kind
from infergate.core.json_size import json_size_bounds
from infergate.core.messages import InferResponse, Response
from infergate.core.wire import HttpRequest, HttpResponse, total_size


class ClientCodec(BinaryEstimates):
    """The base class of codecs that no backend speaks, with JSON bodies that are not compressed."""

    needs_profile: bool = False
    needs_metadata: bool = True
    streaming_methods: frozenset[str] = frozenset()

    def build_request(self, *_: Any) -> HttpRequest:
        """Raise UNSUPPORTED."""
        raise GatewayError(Kind.UNSUPPORTED, "backends do not speak this protocol")

    def parse_response(self, *_: Any) -> Response:
        """Raise UNSUPPORTED."""
        raise GatewayError(Kind.UNSUPPORTED, "backends do not speak this protocol")

    def request_text_bytes(self, wire: HttpRequest) -> int:
        """Return the size of the body in bytes."""
        return total_size(wire.body)

    def json_bytes(self, wire: HttpRequest | HttpResponse, max_bytes: int) -> int:
        """Return the size of the body."""
        return min(total_size(wire.body), max_bytes)

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:  # noqa: ARG002
        """Return the size of the outputs, which are written as JSON, and the cost of their
        nesting."""
        return nesting_cost(response.outputs) if isinstance(response, InferResponse) else 0

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:  # noqa: ARG002
        """Return the minimum and the maximum size of the outputs as JSON."""
        return 0, json_size_bounds(response.outputs)[1]
