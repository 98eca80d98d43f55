"""Cost estimates for codecs whose bodies are JSON with tensors as nested lists."""

from __future__ import annotations

from infergate.codecs.base import ParsedRequest, Profile
from infergate.codecs.binary_estimates import BinaryEstimates
from infergate.codecs.json_tensors.row_writer import row_cost, row_size_bounds
from infergate.core.messages import InferRequest, InferResponse, Response
from infergate.core.wire import HttpRequest, HttpResponse, total_size


class NestedListEstimates(BinaryEstimates):
    """Implements ``SupportsLongText`` for tensors as nested lists in uncompressed bodies."""

    def request_text_bytes(self, wire: HttpRequest) -> int:
        return total_size(wire.body)

    def json_bytes(self, wire: HttpRequest | HttpResponse, max_bytes: int) -> int:
        return min(total_size(wire.body), max_bytes)

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:  # noqa: ARG002
        return row_cost(response.outputs) if isinstance(response, InferResponse) else 0

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:  # noqa: ARG002
        return row_size_bounds(response.outputs)

    def backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:  # noqa: ARG002
        return row_cost(operation.inputs)

    def max_backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:  # noqa: ARG002
        return row_size_bounds(operation.inputs)[1]
