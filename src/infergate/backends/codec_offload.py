"""Runs the codec of a backend on the event loop or, if the message is long, in a helper process.

The request is charged for the memory of its messages. ``gateway.codec_offload`` is the counterpart
for clients' messages.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final, Generic, TypeVar

from infergate.backends.base import attribute_parse_error
from infergate.codecs.base import Codec, Profile, SupportsLongText, SupportsStreaming
from infergate.core.accounting import (
    WriteReservation,
    body_parts,
    body_size,
    charge_tensors,
    estimate_read_bytes,
    needs_accounting,
)
from infergate.core.client_key import client_key
from infergate.core.errors import GatewayError
from infergate.core.limits import Limits, NeedsOffloadError, event_loop_limits
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.offload import Offload
from infergate.core.request_context import RequestContext

Req = TypeVar("Req")
Resp = TypeVar("Resp")
T = TypeVar("T")


class BackendCodecOffload(Generic[Req, Resp]):
    """Writes requests to one backend and reads its responses. If ``offload`` is None, the codec
    always runs on the event loop."""

    def __init__(
        self, name: str, codec: Codec[Req, Resp], limits: Limits, offload: Offload | None
    ) -> None:
        self._name: Final = name
        self._codec: Final = codec
        self._limits: Final = limits if offload is None else event_loop_limits(limits)
        self._offload: Final = offload
        self._text_codec: Final = codec if isinstance(codec, SupportsLongText) else None

    # ---- requests

    def write_inline(
        self,
        operation: Operation,
        profile: Profile,
        context: RequestContext,
        model: ModelMetadata | None = None,
    ) -> Req | None:
        """Run ``Codec.build_request`` on the event loop. Return None if that would block the event
        loop for too long."""
        codec = self._text_codec
        if codec is None or not isinstance(operation, InferRequest):
            return self._codec.build_request(operation, profile, model)
        if (
            self._offload is not None
            and codec.backend_text_bytes(operation, profile) > self._limits.json_inline
        ):
            return None
        max_bytes = codec.max_backend_text_bytes(operation, profile)
        if max_bytes <= MIN_ACCOUNTED_BYTES:
            return self._codec.build_request(operation, profile, model)
        with WriteReservation(max_bytes, context.memory) as allocation:
            wire = self._codec.build_request(operation, profile, model)
        allocation.settle(body_size(wire))
        return wire

    async def write_request(
        self,
        operation: Operation,
        profile: Profile,
        context: RequestContext,
        model: ModelMetadata | None = None,
    ) -> Req:
        """Run ``Codec.build_request``, in a helper process if the call takes long."""
        short = self.write_inline(operation, profile, context, model)
        if short is not None:
            return short
        codec, build = self._text_codec, self._codec.build_request
        assert codec is not None
        assert isinstance(operation, InferRequest)
        cost = codec.backend_text_bytes(operation, profile)
        max_bytes = codec.max_backend_text_bytes(operation, profile)
        is_short = max_bytes <= MIN_ACCOUNTED_BYTES
        with nullcontext() if is_short else WriteReservation(max_bytes, context.memory) as writing:
            wire: Req = await self._run_in_helper(context, cost, build, operation, profile, model)
        if writing is not None:
            writing.settle(body_size(wire))
        return wire

    # ---- responses

    def read_inline(
        self,
        wire_response: Resp,
        operation: Operation,
        context: RequestContext,
        model: ModelMetadata | None = None,
    ) -> Response:
        """Run ``Codec.parse_response`` on the event loop. Raises NeedsOffloadError."""
        try:
            response = self._codec.parse_response(wire_response, operation, self._limits, model)
        except GatewayError as error:
            raise attribute_parse_error(error, self._name) from None
        return _charge_outputs(response, wire_response, context)

    async def read_in_helper(
        self,
        wire_response: Resp,
        operation: Operation,
        context: RequestContext,
        model: ModelMetadata | None = None,
    ) -> Response:
        """Run ``Codec.parse_response`` in a helper process."""
        parse = self._codec.parse_response
        response = await self._parse_in_helper(parse, wire_response, operation, context, model)
        return _charge_outputs(response, wire_response, context)

    async def read_response(
        self, response: Resp, operation: Operation, context: RequestContext
    ) -> Response:
        """Run ``Codec.parse_response``, in a helper process if the call takes long."""
        try:
            return self.read_inline(response, operation, context)
        except NeedsOffloadError:
            return await self.read_in_helper(response, operation, context)

    async def read_stream_response(
        self,
        message: Resp,
        request: InferRequest,
        context: RequestContext,
        model: ModelMetadata | None,
    ) -> InferResponse | None:
        """Run ``SupportsStreaming.parse_stream_response``, in a helper process if the call takes
        long."""
        assert isinstance(self._codec, SupportsStreaming)
        parse = self._codec.parse_stream_response
        try:
            response: InferResponse | None = parse(message, request, self._limits, model)
        except NeedsOffloadError:
            response = await self._parse_in_helper(parse, message, request, context, model)
        except GatewayError as error:
            raise attribute_parse_error(error, self._name) from None
        return response

    async def _parse_in_helper(
        self,
        parse: Callable[..., T],
        response: Resp,
        operation: Operation,
        context: RequestContext,
        model: ModelMetadata | None,
    ) -> T:
        cost = body_size(response)
        codec = self._text_codec
        json_bytes = 0 if codec is None else codec.json_bytes(response, self._limits.json)
        try:
            return await self._run_in_helper(
                context,
                cost,
                parse,
                response,
                operation,
                self._limits,
                model,
                json_bytes=json_bytes,
            )
        except GatewayError as error:
            raise attribute_parse_error(error, self._name) from None

    async def _run_in_helper(
        self,
        context: RequestContext,
        cost: int,
        function: Callable[..., T],
        *arguments: Any,
        json_bytes: int = 0,
    ) -> T:
        assert self._offload is not None
        return await self._offload.run(
            context.deadline,
            function,
            *arguments,
            client=client_key(context),
            cost=cost,
            memory=context.memory,
            size=estimate_read_bytes(cost, json_bytes),
        )


def _charge_outputs(response: Response, wire_response: Any, context: RequestContext) -> Response:
    """Charge the memory of the outputs to the request, and return ``response``."""
    if isinstance(response, InferResponse) and needs_accounting(response.outputs):
        charge_tensors(response.outputs, body_parts(wire_response), context.memory)
    return response
