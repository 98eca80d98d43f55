"""The base class of envelopes whose bodies are not V2 REST bodies."""

from __future__ import annotations

from typing import Any

from infergate.codecs.json_tensors.estimates import NestedListEstimates
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import Response
from infergate.core.wire import HttpRequest


class FrontendOnlyCodec(NestedListEstimates):
    """The base class of codecs for protocols that no backend speaks. Bodies are not compressed."""

    needs_profile: bool = False
    needs_metadata: bool = True
    streaming_methods: frozenset[str] = frozenset()

    def build_request(self, *_: Any) -> HttpRequest:
        raise GatewayError(Kind.UNSUPPORTED, "backends do not speak this protocol")

    def parse_response(self, *_: Any) -> Response:
        raise GatewayError(Kind.UNSUPPORTED, "backends do not speak this protocol")
