"""Runs a codec's methods on the event loop or, if they take long, in a helper process.

JSON libraries and loops over the parts of a message hold the interpreter lock, so other requests
would have to wait (docs/decisions/0008-helper-processes.md). A codec estimates the length of a
message's text before it reads or writes the message (``SupportsLongText``). Other costs become
known only while the codec runs. With ``LoopLimits``, the codec raises NeedsOffloadError before a
long step, and a helper calls the same method again (docs/decisions/0037-costly-messages.md).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, Generic, TypeVar

from infergate.codecs.base import (
    Codec,
    ParsedRequest,
    PartialInferRequest,
    SupportsLongText,
    SupportsResponseNumbering,
)
from infergate.core.accounting import (
    JSON_EXPANSION,
    WriteReservation,
    body_size,
    check_response_size,
    estimate_read_bytes,
)
from infergate.core.client_key import client_key
from infergate.core.limits import Limits, event_loop_limits
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.messages import InferResponse, ModelMetadata, Response
from infergate.core.offload import Offload
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse, total_size

Req = TypeVar("Req")
Resp = TypeVar("Resp")
T = TypeVar("T")


class CodecOffload(Generic[Req, Resp]):
    """Runs the methods of ``codec`` that may take long. Without ``offload``, all methods run in
    this process."""

    def __init__(self, codec: Codec[Req, Resp], limits: Limits, offload: Offload | None) -> None:
        self.codec: Final = codec
        self.limits: Final = limits if offload is None else event_loop_limits(limits)
        self._offload: Final = offload
        self._text_codec: Final = codec if isinstance(codec, SupportsLongText) else None
        self._numbering_codec: Final = (
            codec if isinstance(codec, SupportsResponseNumbering) else None
        )
        self._text_estimator: Final = None if offload is None else self._text_codec
        self.is_always_inline: Final = self._text_estimator is None
        """Whether the event loop starts every message itself, because there are no helpers or the
        codec does not estimate text."""
        self._max_short_bytes: Final = min(MIN_ACCOUNTED_BYTES, limits.json_inline)
        self.parse_request: Final = partial(codec.parse_request, limits=self.limits)
        """The codec's method with ``limits``. The partial function is created once, because its
        pickle is cached."""

    def can_read_inline(self, wire: Req) -> bool:
        """Return whether the event loop may read ``wire``. Callers call this method first, so that
        short messages need no await."""
        return (
            self._text_estimator is None
            or self._text_estimator.request_text_bytes(wire) <= self.limits.json_inline
        )

    def is_short(self, response: Response, parsed: ParsedRequest) -> bool:
        """Return whether ``write_response`` would only call ``build`` for ``response``."""
        codec = self._text_codec
        return codec is None or (
            codec.response_text_bytes(response, parsed) <= self._max_short_bytes
        )

    async def write_response(
        self,
        context: RequestContext,
        build: Callable[[Any, ParsedRequest], Resp],
        response: Response,
        parsed: ParsedRequest,
    ) -> tuple[Resp, int]:
        """Return ``build(response, parsed)``, and the number of bytes charged to the request's
        memory. Only long responses to inferences are charged. Raises OVERLOADED, or TOO_LARGE for a
        response of more than ``limits.body`` bytes."""
        codec = self._text_codec
        if codec is None:
            return build(response, parsed), 0
        text_bytes = codec.response_text_bytes(response, parsed)
        if text_bytes <= self._max_short_bytes:
            return build(response, parsed), 0
        reservation = None
        if isinstance(response, InferResponse):
            min_bytes, max_bytes = codec.response_size(response, parsed)
            check_response_size(min_bytes, self.limits)
            reservation = WriteReservation(max_bytes, context.memory)
        with reservation or nullcontext():
            if self.is_always_inline or text_bytes <= self.limits.json_inline:
                wire = build(response, parsed)
            else:
                wire = await self.build_in_helper(context, build, response, parsed)
        if reservation is None:
            return wire, 0
        written = body_size(wire)
        charged = reservation.settle(written)
        check_response_size(written, self.limits)
        return wire, charged

    async def build_in_helper(
        self, context: RequestContext, build: Callable[..., Resp], *arguments: Any
    ) -> Resp:
        """Run ``build``, a codec method that builds a response, in a helper."""
        wire = await self.run_in_helper(context, build, *arguments)
        return (
            wire if self._numbering_codec is None else self._numbering_codec.number_response(wire)
        )

    async def run_in_helper(
        self, context: RequestContext, method: Callable[..., T], *arguments: Any
    ) -> T:
        """Run ``method(*arguments)``, a method of the codec, in a helper. The client of
        ``context`` is the job's client in the fair queue."""
        assert self._offload is not None
        cost = self._processed_bytes(*arguments)
        return await self._offload.run(
            context.deadline,
            method,
            *arguments,
            client=client_key(context),
            cost=cost,
            memory=context.memory,
            size=self._allocated_bytes(arguments[0], cost),
        )

    def _processed_bytes(self, message: Any, *arguments: Any) -> int:
        """Return the maximum number of bytes that the codec processes to read or write
        ``message``."""
        if isinstance(message, PartialInferRequest):
            return message.text_bytes
        estimator, max_bytes = self._text_estimator, self.limits.body
        if estimator is None:
            return body_size(message)
        if isinstance(message, Response):
            return estimator.response_text_bytes(message, arguments[0])
        if isinstance(message, HttpResponse):
            return min(estimator.rewrite_bytes(message, arguments[0]), max_bytes)
        return min(max(estimator.request_text_bytes(message), body_size(message)), max_bytes)

    def _allocated_bytes(self, message: Any, cost: int) -> int:
        """Return the number of bytes that a helper allocates to process ``cost`` bytes of
        ``message``. The text of a response is not included; ``WriteReservation`` charges it."""
        if isinstance(message, Response | HttpResponse):
            return cost
        if isinstance(message, PartialInferRequest):
            return estimate_read_bytes(cost, message.text_bytes)
        if not isinstance(message, HttpRequest) or self._text_estimator is None:
            return estimate_read_bytes(cost, 0)
        json_bytes = self._text_estimator.json_bytes(message, self.limits.json)
        if cost > (body_bytes := total_size(message.body)):  # the body is compressed
            return cost - body_bytes + JSON_EXPANSION * json_bytes
        return estimate_read_bytes(cost, json_bytes)

    def can_rewrite_inline(self, response: Resp, request: Req) -> bool:
        """Return whether the event loop may rewrite ``response``, the passed-through response to
        ``request``."""
        estimator = self._text_estimator
        return (
            estimator is None
            or estimator.rewrite_bytes(response, request) <= self.limits.json_inline
        )

    def can_complete_inline(self, partial: PartialInferRequest[T]) -> bool:
        """Return whether the event loop may complete ``partial``, which it has parsed."""
        return self._offload is None or partial.text_bytes <= self.limits.json_inline

    async def complete(
        self,
        partial: PartialInferRequest[T],
        model: ModelMetadata,
        context: RequestContext,
        *,
        inline: bool,
    ) -> T:
        """Complete ``partial`` with ``model``. With ``inline`` (the event loop has parsed the
        request), the event loop completes it if it is short. Raises NeedsOffloadError."""
        if self._offload is None or (inline and self.can_complete_inline(partial)):
            return partial.complete(model)
        return await self.run_in_helper(context, _complete, partial, model)


def _complete(partial: PartialInferRequest[T], model: ModelMetadata) -> T:
    return partial.complete(model)
