"""Collects the request and the responses of an inference for observers."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from infergate.core.errors import GatewayError, Kind, internal_error
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.tensor import data_bytes

_RESPONSE_BYTES: Final = 1024
"""The memory in bytes that is charged for a response in addition to its tensors' data, because a
stream may have millions of responses without data."""


class Observation:
    """Collects the responses to ``request``, and the error that ends the inference."""

    def __init__(self, request: InferRequest, context: RequestContext, *, is_stream: bool) -> None:
        self.request: Final = request
        self.context: Final = context
        self.is_stream: Final = is_stream
        self._started_at: Final = time.time()
        self._started: Final = time.monotonic()
        self._offsets: Final[list[float]] = []
        self._charged = 0
        self.responses: Final[list[InferResponse]] = []
        self.error: GatewayError | None = None

    def add(self, response: InferResponse) -> bool:
        """Keep ``response`` of a stream. If memory is short, drop all responses and return
        False."""
        size = _RESPONSE_BYTES + data_bytes(response.outputs)
        try:
            self.context.memory.grow(size)
        except GatewayError:
            self.release()
            return False
        self._charged += size
        self.responses.append(response)
        self._offsets.append(time.monotonic() - self._started)
        return True

    def fail(self, error: BaseException) -> None:
        """Record that ``error`` ended the inference."""
        if isinstance(error, GatewayError):
            # The copy drops the traceback, whose frames would keep the request in memory.
            self.error = error.reworded(error.public)
        elif isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            self.error = GatewayError(Kind.CANCELLED, "the client ended the request")
        else:
            self.error = internal_error()

    def outcome(self) -> Outcome:
        """Return the outcome. The duration of the inference ends with this call."""
        duration = time.monotonic() - self._started
        return Outcome(tuple(self.responses), self.error, duration, tuple(self._offsets))

    def exchange(self) -> Exchange:
        """Return the inference with its outcome."""
        context = self.context
        return Exchange(
            self.request,
            self.outcome(),
            context.record.protocol,
            context.record.route,
            context.record.backend,
            context.request_id,
            context.headers,
            self._started_at,
            self.is_stream,
        )

    def release(self) -> None:
        """Drop the responses and release the memory charged for them."""
        self.context.memory.shrink(self._charged)
        self._charged = 0
        self.responses.clear()
