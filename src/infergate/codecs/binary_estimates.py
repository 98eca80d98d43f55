"""Cost estimates for codecs whose messages contain no JSON and are never compressed."""

from __future__ import annotations

from typing import Any

from infergate.codecs.base import ParsedRequest, Profile
from infergate.core.messages import InferRequest, InferResponse, Response


class BinaryEstimates:
    """Implements ``SupportsLongText``. A subclass states the cost of its loops as the number of
    bytes of JSON that take the same time to write."""

    def request_text_bytes(self, wire: Any) -> int:  # noqa: ARG002
        """Return 0, because requests contain no JSON."""
        return 0

    def json_bytes(self, wire: Any, max_bytes: int) -> int:  # noqa: ARG002
        """Return 0, because messages contain no JSON."""
        return 0

    def rewrite_bytes(self, wire: Any, request: Any) -> int:  # noqa: ARG002
        """Return 0, because messages are never compressed."""
        return 0

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:
        """Return the cost of writing ``response``."""
        raise NotImplementedError

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:
        """Return 0 and the cost of writing ``response``. Tensors are not copied."""
        return 0, self.response_text_bytes(response, parsed)

    def backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:  # noqa: ARG002
        """Return 0, because requests contain tensors as raw data."""
        return 0

    def max_backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        """Return the cost of writing the request."""
        return self.backend_text_bytes(operation, profile)
