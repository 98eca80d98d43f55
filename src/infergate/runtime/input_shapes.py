"""The inputs of a failed or slow request, for the console: names, datatypes and shapes."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from infergate.codecs.base import Codec, PartialInferRequest, SupportsLongText
from infergate.codecs.registry import plugins
from infergate.core.limits import Limits, event_loop_limits
from infergate.core.messages import InferRequest
from infergate.core.wire import HttpRequest, total_size
from infergate.observe.recent_requests import TensorShape

MAX_TENSORS: Final = 16
_MAX_NAME: Final = 64
_MAX_DIMENSIONS: Final = 8
_MAX_TEXT_BYTES: Final = 64 * 1024
"""Maximum number of bytes of text, such as JSON, that are parsed again for the console. If a codec
cannot estimate the text, the limit applies to the whole message."""
_READS_PER_SECOND: Final = 10.0
"""Maximum number of requests per second that are parsed again. Thousands of requests may fail in a
second."""


class InputShapes:
    """Parses requests again, within ``limits`` and at most about ten times a second, to read their
    inputs."""

    def __init__(self, limits: Limits) -> None:
        self._limits: Final = event_loop_limits(limits)
        self._allowance, self._read_at = _READS_PER_SECOND, 0.0

    def read(self, protocol: str, wire: Any, now: float) -> tuple[TensorShape, ...]:
        """Return the first inputs of ``wire``, a request of ``protocol`` that ended at ``now`` (in
        seconds). The result is empty if the inputs are unknown, if reading them is expensive, or if
        too many requests were read in the last second."""
        codec = _codec(protocol)
        if codec is None or wire is None:
            return ()
        self._allowance += max(now - self._read_at, 0.0) * _READS_PER_SECOND
        self._allowance, self._read_at = min(self._allowance, _READS_PER_SECOND), now
        if self._allowance < 1.0:
            return ()
        self._allowance -= 1.0
        if _text_bytes(codec, wire) > _MAX_TEXT_BYTES:
            return ()
        try:
            parsed = codec.parse_request(wire, self._limits)
        except Exception:  # noqa: BLE001 - the frontend has already reported the error or bug
            return ()
        operation = None if isinstance(parsed, PartialInferRequest) else parsed.operation
        if not isinstance(operation, InferRequest):
            return ()
        return tuple(
            TensorShape(
                tensor.name[:_MAX_NAME], tensor.datatype.value, tensor.shape[:_MAX_DIMENSIONS]
            )
            for tensor in operation.inputs[:MAX_TENSORS]
        )


def _text_bytes(codec: Codec[Any, Any], wire: Any) -> int:
    if isinstance(codec, SupportsLongText):
        return codec.request_text_bytes(wire)
    return total_size(wire.body if isinstance(wire, HttpRequest) else wire.message)


@cache
def _codec(protocol: str) -> Codec[Any, Any] | None:
    plugin = plugins().get(protocol)
    return None if plugin is None else plugin.create({})
