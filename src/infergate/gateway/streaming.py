"""Streams of inferences: any number of requests, each with any number of responses.

- Requests of one sequence run in the order of their arrival.
- As in Triton, requests with a single response or an error are answered in order, so that a client
  can match responses to requests. If a request has several responses, each is sent immediately.
- Each request is measured and recorded like a unary request.
- A stream has one set of trailers, although its requests may use several servers. The trailers are
  the backend's response headers for the request that finished last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from infergate.codecs.base import Codec, ParsedRequest, SupportsStreaming
from infergate.core.errors import GatewayError, Kind, UnauthenticatedError
from infergate.core.memory import UNLIMITED, MemoryAccount
from infergate.core.messages import STREAM_OPERATION_NAME, InferRequest
from infergate.core.request_context import CLOCK_TOLERANCE, RequestContext
from infergate.core.sequences import SequenceKey, sequence_key
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, total_size
from infergate.gateway.frontend import Frontend
from infergate.gateway.internal_error import internal_error
from infergate.gateway.route_binding import RouteBinding

MAX_CONCURRENT_REQUESTS: Final = 16
"""Maximum number of concurrent requests per stream."""

ParsedStreamRequest = tuple[InferRequest, ParsedRequest, RouteBinding]
RequestObserver = Callable[[RequestContext], None]
"""A function that is called with the context of a request."""
RpcStreaming = SupportsStreaming[RpcRequest, RpcResponse]


class UnaryStreamCodec:
    """Adapts ``codec`` to a stream that carries the messages of unary inferences."""

    def __init__(self, codec: Codec[RpcRequest, RpcResponse], stream: str) -> None:
        self.streaming_method: str = stream
        self.build_stream_response: Final = codec.build_response
        self.build_stream_error: Final = codec.build_error

    def build_stream_end(self, parsed: ParsedRequest) -> RpcResponse | None:  # noqa: ARG002 - same signature as codecs
        """Return None, because these streams have no end message."""
        return None


@dataclass(slots=True, eq=False)
class _StreamRequest:
    """One request of a stream. ``parsed`` is the parsed inference or an error. ``previous`` is the
    previous request of the same sequence."""

    wire: RpcRequest
    context: RequestContext
    parsed: ParsedStreamRequest | GatewayError
    previous: _StreamRequest | None = None
    may_respond: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the request's only response or its error may be sent."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)


class InferenceStream:
    """A stream of inferences. Implements ``transport.base.RequestStream``."""

    def __init__(
        self,
        frontend: Frontend[RpcRequest, RpcResponse],
        codec: RpcStreaming | UnaryStreamCodec,
        assign_id: RequestObserver,
        record: RequestObserver,
        context: RequestContext,
    ) -> None:
        """``assign_id`` sets the id of a request. ``record`` is called when a request ends.
        ``context`` describes the stream."""
        self._frontend: Final = frontend
        self._codec: Final = codec
        self._assign_id: Final = assign_id
        self._record: Final = record
        self._context: Final = context
        self._latest_of_sequence: Final[dict[SequenceKey, _StreamRequest]] = {}
        """The latest request of each sequence."""
        self._waiting: Final[dict[_StreamRequest, None]] = {}
        """Requests that may still get a single response, in the order of their arrival."""

    @property
    def max_concurrent(self) -> int:
        return 1 if isinstance(self._codec, UnaryStreamCodec) else MAX_CONCURRENT_REQUESTS

    async def open(self) -> None:
        """Authenticate the client. Raises GatewayError."""
        self._context.record.operation = STREAM_OPERATION_NAME
        await self._frontend.open_stream(self._context)

    async def handle(
        self, message: Buffer, error: GatewayError | None, memory: MemoryAccount = UNLIMITED
    ) -> AsyncGenerator[RpcResponse, None]:
        """Start the request in ``message``, and return an iterator of its responses. ``error`` is
        the transport's reason for rejecting the request, or None."""
        context = self._context.child()
        context.stream_deadline = context.deadline
        context.memory = memory
        record = context.record
        record.operation, record.response_count = STREAM_OPERATION_NAME, 0
        record.bytes_in = len(message)
        self._assign_id(context)
        wire = RpcRequest(self._codec.streaming_method, (message,), context.headers)
        request = _StreamRequest(wire, context, error or await self._parse(wire, context))
        parsed = request.parsed
        sequence = None if isinstance(parsed, GatewayError) else sequence_key(parsed[0])
        if sequence is not None:
            request.previous = self._latest_of_sequence.get(sequence)
            self._latest_of_sequence[sequence] = request
        self._waiting[request] = None
        self._release_next()
        return self._recorded_responses(request, sequence)

    async def _parse(
        self, wire: RpcRequest, context: RequestContext
    ) -> ParsedStreamRequest | GatewayError:
        try:
            return await self._frontend.parse_stream_request(wire, context)
        except GatewayError as error:
            return error
        except Exception:  # noqa: BLE001 - a bug must fail only one request
            return internal_error(f"serving a stream of {context.record.protocol}")

    async def _recorded_responses(
        self, request: _StreamRequest, sequence: SequenceKey | None
    ) -> AsyncGenerator[RpcResponse, None]:
        context = request.context
        record = context.record
        try:
            async with aclosing(self._responses_or_error(request)) as messages:
                async for message in messages:
                    assert record.response_count is not None
                    record.response_count += 1
                    record.bytes_out += total_size(message.message)
                    yield message
        except BaseException:  # the client disconnected, or the gateway aborts the stream
            if self._context.abort_error is None:
                record.outcome = Kind.CANCELLED.value
            else:
                record.record_error(self._context.abort_error)
            raise
        finally:
            self._stop_waiting(request)
            request.finished.set()
            if sequence is not None and self._latest_of_sequence.get(sequence) is request:
                del self._latest_of_sequence[sequence]
            if context.response_headers:
                self._context.response_headers = context.response_headers
            self._record(context)

    async def _responses_or_error(
        self, request: _StreamRequest
    ) -> AsyncGenerator[RpcResponse, None]:
        context = request.context
        if request.previous is not None:
            await request.previous.finished.wait()
            request.previous = None  # a reference would keep all earlier requests alive
        error = None
        try:
            async with aclosing(self._responses(request)) as messages:
                async for message in messages:
                    yield message
        except GatewayError as raised:
            # The frames of the traceback refer to the message and the error. This reference cycle
            # would keep the message in memory until the garbage collector runs.
            error = raised.with_traceback(None)
        except Exception:  # noqa: BLE001 - a bug must fail only one request
            error = internal_error(f"serving a stream of {context.record.protocol}")
        if error is None:
            return
        context.record_error(error)
        if not context.record.response_count:
            await request.may_respond.wait()
        if _ends_stream(error, context):
            yield self._frontend.codec.build_error(error, request.wire)
        else:
            yield self._codec.build_stream_error(error, request.wire)

    async def _responses(self, request: _StreamRequest) -> AsyncGenerator[RpcResponse, None]:
        """Yield the responses to ``request``. Raises the error that prevents the next response."""
        if isinstance(request.parsed, GatewayError):
            raise request.parsed
        operation, parsed, binding = request.parsed
        context = request.context
        context.renew_deadline()
        ended = False
        async with aclosing(
            self._frontend.gateway.stream(operation, binding, context)
        ) as responses:
            async for result in responses:
                ended = result.is_last
                if ended and not context.record.response_count:
                    await request.may_respond.wait()
                else:
                    self._stop_waiting(request)
                message, counted_bytes = await self._frontend.codec_offload.write_response(
                    context, self._codec.build_stream_response, result, parsed
                )
                yield message
                if counted_bytes:
                    context.memory.shrink(counted_bytes)
        end_message = None if ended else self._codec.build_stream_end(parsed)
        if end_message is not None:
            yield end_message

    def _stop_waiting(self, request: _StreamRequest) -> None:
        self._waiting.pop(request, None)
        self._release_next()

    def _release_next(self) -> None:
        for request in self._waiting:
            request.may_respond.set()
            return


def _ends_stream(error: GatewayError, context: RequestContext) -> bool:
    """Return whether all later requests of the stream would also fail with ``error``, because the
    stream's deadline has passed or the client's credentials are no longer valid."""
    if isinstance(error, UnauthenticatedError):
        return True
    if error.kind is not Kind.TIMEOUT or context.stream_deadline is None:
        return False
    return time.monotonic() >= context.stream_deadline - CLOCK_TOLERANCE
