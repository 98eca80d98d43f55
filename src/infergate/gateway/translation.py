"""The pipeline for all operations and all pairs of protocols, which translates messages through the
canonical form."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from infergate.codecs.base import ParsedRequest, PartialInferRequest, RequestSummary
from infergate.core.accounting import body_parts, charge_tensors, needs_accounting
from infergate.core.errors import GatewayError
from infergate.core.limits import NeedsOffloadError
from infergate.core.messages import InferRequest, Response
from infergate.core.request_context import RequestContext
from infergate.gateway.codec_offload import CodecOffload
from infergate.gateway.http_stream import open_http_stream, single_response
from infergate.gateway.inference_gateway import InferenceGateway
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.steps import PARSE, RENDER, Steps

Req = TypeVar("Req")
Resp = TypeVar("Resp")
T = TypeVar("T")


class Translation(Generic[Req, Resp]):
    """Parses wire messages, runs the operation in canonical form, and builds wire responses."""

    name: Final = "translate"

    def __init__(
        self, codec_offload: CodecOffload[Req, Resp], gateway: InferenceGateway, steps: Steps
    ) -> None:
        self.codec_offload: Final = codec_offload
        self._gateway: Final = gateway
        self._build: Final = codec_offload.codec.build_response
        self.parse: Final = steps.awaited(PARSE, self._parse)
        """Parses a message and completes the operation with the model's metadata if necessary."""
        self._write: Final = steps.awaited(RENDER, codec_offload.write_response)

    async def infer(
        self,
        wire: Req,
        summary: RequestSummary,
        binding: RouteBinding,
        context: RequestContext,
        parsed: ParsedRequest | PartialInferRequest[ParsedRequest] | None = None,
    ) -> Resp:
        """Parse the request, run the inference, and build the response. ``parsed`` is the result of
        ``parse_inline`` if the caller has called it."""
        del summary
        parsed = await self.parse(wire, context, parsed)
        if parsed.wants_stream:
            response: Resp = await open_http_stream(
                self._gateway, self.codec_offload, parsed, wire, context
            )
            return response
        if parsed.single_response_error:
            result: Response = await single_response(self._gateway, parsed, context)
        else:
            assert isinstance(parsed.operation, InferRequest)
            result = await self._gateway.infer(parsed.operation, binding, context)
        return await self.write(context, result, parsed)

    async def write(self, context: RequestContext, result: Response, parsed: ParsedRequest) -> Resp:
        """Write ``result`` as the response to ``parsed``."""
        return (await self._write(context, self._build, result, parsed))[0]

    async def perform(self, wire: Req, context: RequestContext) -> Resp:
        """Return the response to ``wire``, an operation other than an inference."""
        parsed = await self.parse(wire, context)
        self._gateway.name_rule.check_operation(parsed.operation)
        result = await self._gateway.perform(parsed.operation, context)
        return await self.write(context, result, parsed)

    def parse_inline(self, wire: Req) -> ParsedRequest | PartialInferRequest[ParsedRequest] | None:
        """Run ``Codec.parse_request`` on the event loop. Return None if this would take too
        long."""
        offload = self.codec_offload
        if offload.is_always_inline or offload.can_read_inline(wire):
            try:
                return offload.codec.parse_request(wire, offload.limits)
            except NeedsOffloadError:
                pass
        return None

    async def _parse(
        self,
        wire: Req,
        context: RequestContext,
        parsed: ParsedRequest | PartialInferRequest[ParsedRequest] | None = None,
    ) -> ParsedRequest:
        offload = self.codec_offload
        if parsed is None:
            parsed = self.parse_inline(wire)
        inline = parsed is not None
        if parsed is None:
            parsed = await offload.run_in_helper(context, offload.parse_request, wire)
        if isinstance(parsed, PartialInferRequest):
            partial = parsed
            try:
                parsed = await self.complete(partial, context, inline=inline)
            except NeedsOffloadError:
                parsed = await self.complete(partial, context, inline=False)
        operation = parsed.operation
        if isinstance(operation, InferRequest) and needs_accounting(operation.inputs):
            charge_tensors(operation.inputs, body_parts(wire), context.memory)
        return parsed

    async def complete(
        self, partial: PartialInferRequest[T], context: RequestContext, *, inline: bool
    ) -> T:
        """Complete ``partial`` with the model's metadata. If the request contradicts the cached
        metadata, try again with fresh metadata."""
        model, version = partial.model, partial.version
        metadata = await self._gateway.describe(model, version, context)
        try:
            return await self.codec_offload.complete(partial, metadata, context, inline=inline)
        except GatewayError:
            fresh = await self._gateway.describe(model, version, context, newer=True)
            if fresh == metadata:
                raise
        return await self.codec_offload.complete(partial, fresh, context, inline=inline)
