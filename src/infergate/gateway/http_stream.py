"""Sends the responses to an inference in the body of one HTTP response.

- An error before the first inference response becomes an HTTP error response. A later error becomes
  the last element of the body.
- The transport reads the inference responses one by one. If it closes the body early, the inference
  is cancelled.
- ``single_response`` serves requests that must have exactly one response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

from infergate.codecs.base import ParsedRequest, SupportsStreaming
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import STREAM_OPERATION_NAME, InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.gateway.codec_offload import CodecOffload
from infergate.gateway.inference_gateway import InferenceGateway
from infergate.gateway.internal_error import internal_error


def _start_stream(
    gateway: InferenceGateway, parsed: ParsedRequest, context: RequestContext
) -> AsyncGenerator[InferResponse, None]:
    request = parsed.operation
    assert isinstance(request, InferRequest)
    binding = gateway.bind(request.model, request.version, context)
    context.renew_deadline()
    return gateway.stream(request, binding, context)


async def single_response(
    gateway: InferenceGateway, parsed: ParsedRequest, context: RequestContext
) -> InferResponse:
    """Return the only response to ``parsed``. Raises UNSUPPORTED, with the text
    ``parsed.single_response_error``, if there is not exactly one response."""
    async with aclosing(_start_stream(gateway, parsed, context)) as responses:
        first = await anext(responses, None)
        if first is None or not (first.is_last or await anext(responses, None) is None):
            raise GatewayError(Kind.UNSUPPORTED, parsed.single_response_error)
    return first


async def open_http_stream(
    gateway: InferenceGateway,
    codec_offload: CodecOffload[Any, Any],
    parsed: ParsedRequest,
    wire: Any,
    context: RequestContext,
) -> Any:
    """Return the HTTP response to ``wire``, whose parse result is ``parsed``. The ``body`` of the
    HTTP response is the first inference response, and ``body_stream`` yields the other inference
    responses. Raises the error that prevents the first inference response."""
    context.record.operation = STREAM_OPERATION_NAME
    context.record.response_count = 0
    responses = _start_stream(gateway, parsed, context)
    body = _ResponseBody(responses, codec_offload, parsed, wire, context)
    try:
        response = await body.next_response()
        if response is None:
            response = body.codec.build_stream_end(parsed)
    except BaseException:
        await responses.aclose()
        raise
    response.body_stream = body
    return response


class _ResponseBody:
    """A ``BodyStream`` of the inference responses after the first."""

    def __init__(
        self,
        responses: AsyncGenerator[InferResponse, None],
        codec_offload: CodecOffload[Any, Any],
        parsed: ParsedRequest,
        wire: Any,
        context: RequestContext,
    ) -> None:
        assert isinstance(codec_offload.codec, SupportsStreaming)
        self.codec: Final[SupportsStreaming[Any, Any]] = codec_offload.codec
        self._responses: Final = responses
        self._codec_offload: Final = codec_offload
        self._parsed: Final = parsed
        self._wire: Final = wire
        self._context: Final = context
        self._is_finished = False
        self._counted_bytes = 0  # the bytes of the latest response that are charged to memory

    async def next_response(self) -> Any:
        """Return the next response in the client's protocol, or None after the last response.
        Raises GatewayError."""
        result = await anext(self._responses, None)
        if result is None:
            self._is_finished = True
            return None
        context = self._context
        assert context.record.response_count is not None
        context.memory.shrink(self._counted_bytes)  # the previous response has been sent
        self._counted_bytes = 0
        response, self._counted_bytes = await self._codec_offload.write_response(
            context, self.codec.build_stream_response, result, self._parsed
        )
        context.record.response_count += 1
        return response

    async def next(self) -> Sequence[Buffer] | None:
        if self._is_finished:
            return None
        try:
            response = await self.next_response()
        except GatewayError as error:
            return self._error_body(error)
        except asyncio.CancelledError:
            if self._context.abort_error is None:
                raise
            return self._error_body(self._context.abort_error)
        except Exception:  # noqa: BLE001 - a bug must fail only one request
            protocol = self._context.record.protocol
            return self._error_body(internal_error(f"serving a stream of {protocol}"))
        body: Sequence[Buffer] | None = None if response is None else response.body
        return body

    def _error_body(self, error: GatewayError) -> Sequence[Buffer]:
        self._is_finished = True
        self._context.record_error(error)
        body: Sequence[Buffer] = self.codec.build_stream_error(error, self._wire).body
        return body

    async def close(self) -> None:
        """Cancel the inference if the body has not been read to its end."""
        if not self._is_finished:  # the client disconnected
            self._context.record.outcome = Kind.CANCELLED.value
        await self._responses.aclose()
