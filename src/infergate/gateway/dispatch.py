"""Chooses the frontend for each request on a listener, and records each finished request."""

from __future__ import annotations

import functools
import itertools
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from infergate.codecs.base import Codec, SupportsStreaming
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import REQUEST_ID_HEADER, RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import (
    BodyStream,
    HttpRequest,
    HttpResponse,
    RpcRequest,
    RpcResponse,
    total_size,
)
from infergate.gateway.frontend import Frontend
from infergate.gateway.relay import Relay
from infergate.gateway.services import UnaryHandler
from infergate.gateway.streaming import (
    InferenceStream,
    RequestObserver,
    RpcStreaming,
    UnaryStreamCodec,
)
from infergate.transport.base import Cancellable, RelayCallbacks, RequestStream, StreamHandler

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_KIND_OF_CODE: Final = {
    5: Kind.NOT_FOUND,
    7: Kind.FORBIDDEN,
    8: Kind.RATE_LIMITED,
    14: Kind.OVERLOADED,
    16: Kind.UNAUTHENTICATED,
}
"""The error kinds of the gRPC codes with which the gateway's own services reject requests. Any
other code counts as a bad request."""
_RESOURCE_EXHAUSTED: Final = 8
_MAX_ID_CHARS: Final = 128
_ID_FORMAT: Final = "%s-%x"
_id_prefix: Final = os.urandom(6).hex()
_id_numbers: Final = itertools.count(1)


class Dispatch(ABC, Generic[Req, Resp]):
    """Dispatches the requests of one listener to the frontends of several protocols. Each protocol
    claims complete paths, first path segments or service names."""

    def __init__(
        self,
        frontends: Mapping[str, Frontend[Req, Resp]],
        record: RequestObserver,
        assign_id: RequestObserver | None = None,
        *,
        relays: bool = True,
    ) -> None:
        """``frontends`` are keyed by path, path segment or service. The first frontend also handles
        requests for other paths and services. ``assign_id`` is called first for every request, and
        sets the request's id. Without ``relays``, every request is served in a task."""
        self._assign_id: Final[RequestObserver] = assign_id or assign_request_id
        self._frontends: Final = dict(frontends)
        self._default_segment: Final = next(iter(self._frontends))
        self._default_frontend: Final = self._frontends[self._default_segment]
        self._record: Final = record
        self._has_relays: Final = relays
        self._relays: Final[dict[str, Relay[Req, Resp] | None]] = {}

    def _make_relay(self, segment: str) -> Relay[Req, Resp] | None:
        """Create, keep and return the relay of a frontend, or None if the frontend needs tasks."""
        frontend = self._frontends[segment]
        relay = None
        if self._has_relays and frontend.can_relay:
            relay = Relay(frontend, self._finish, self._record_cancelled)
        self._relays[segment] = relay
        return relay

    @abstractmethod
    def _frontend_of(self, wire: Req) -> Frontend[Req, Resp]:
        """Return the frontend that serves ``wire``."""

    def _serve(self, wire: Req, context: RequestContext) -> Awaitable[Resp]:
        return self._frontend_of(wire).respond(wire, context)

    @abstractmethod
    def _finish(self, response: Resp, context: RequestContext) -> None:
        """Add the response headers of ``context`` to ``response``, record the size of ``response``,
        and record the request when the response's body is complete."""

    async def respond(self, wire: Req, context: RequestContext) -> Resp:
        """Respond to ``wire`` and record the request."""
        self._assign_id(context)
        record = context.record
        record.received_at, record.message = time.monotonic(), wire
        try:
            response = await self._serve(wire, context)
        except BaseException:
            self._record_cancelled(context)
            raise
        self._finish(response, context)
        return response

    def _record_cancelled(self, context: RequestContext) -> None:
        """Record a request whose client disconnected. For a request that the gateway aborts, the
        transport calls ``refuse``, which records the request."""
        if context.abort_error is None:
            context.record.outcome = Kind.CANCELLED.value
            self._record(context)
        context.record.message = None

    def refuse(self, error: GatewayError, wire: Req, context: RequestContext) -> Resp:
        """Return ``error`` as a response in the request's protocol, and record the request. The
        transport refuses the request with this response."""
        self._assign_id(context)
        response = self._frontend_of(wire).refuse(error, wire, context)
        self._finish(response, context)
        return response


class HttpDispatch(Dispatch[HttpRequest, HttpResponse]):
    """Chooses the protocol by the complete path or, if no protocol claims it, by the first path
    segment."""

    def relay(
        self, wire: HttpRequest, context: RequestContext, callbacks: RelayCallbacks[HttpResponse]
    ) -> Cancellable | None:
        """Start to serve ``wire`` without a task, or return None if ``respond`` is needed."""
        claim = self._claim_of(wire)
        relays = self._relays
        relay = relays[claim] if claim in relays else self._make_relay(claim)
        if relay is None:
            return None
        self._assign_id(context)
        record = context.record
        record.received_at, record.message = time.monotonic(), wire
        return relay.start(wire, context, callbacks)

    def _claim_of(self, wire: HttpRequest) -> str:
        """Return the key of the frontend that serves ``wire``."""
        if wire.path in self._frontends:  # only keys that are complete paths start with "/"
            return wire.path
        segment = wire.path[1:].partition("/")[0]
        return segment if segment in self._frontends else self._default_segment

    def _frontend_of(self, wire: HttpRequest) -> Frontend[HttpRequest, HttpResponse]:
        return self._frontends[self._claim_of(wire)]

    def _finish(self, response: HttpResponse, context: RequestContext) -> None:
        if context.response_headers:
            response.headers = {**context.response_headers, **response.headers}
        body, record = response.body, context.record
        record.bytes_out = len(body[0]) if len(body) == 1 else total_size(body)
        if response.body_stream is None:
            self._record(context)
            record.message = None
        else:
            record.message = None  # the message is freed now, because sending may take long
            response.body_stream = _RecordedBody(response.body_stream, self._record, context)


class _RecordedBody:
    """Counts the bytes of ``rest``, the remainder of a body, and records the request when the body
    is closed."""

    def __init__(self, rest: BodyStream, record: RequestObserver, context: RequestContext) -> None:
        self._rest: Final = rest
        self._record: Final = record
        self._context: Final = context

    async def next(self) -> Sequence[Buffer] | None:
        body = await self._rest.next()
        if body is not None:
            self._context.record.bytes_out += total_size(body)
        return body

    async def close(self) -> None:
        try:
            await self._rest.close()
        finally:
            self._record(self._context)


class RpcDispatch(Dispatch[RpcRequest, RpcResponse]):
    """Chooses the protocol by the name of the gRPC service.

    ``services`` and ``streams`` are the methods of the gateway's own services, keyed by
    ``/package.Service/Method``."""

    def __init__(  # noqa: PLR0913 - dependency injection
        self,
        frontends: Mapping[str, Frontend[RpcRequest, RpcResponse]],
        services: Mapping[str, UnaryHandler],
        streams: Mapping[str, StreamHandler],
        record: RequestObserver,
        assign_id: RequestObserver | None = None,
        *,
        relays: bool = True,
    ) -> None:
        super().__init__(frontends, record, assign_id, relays=relays)
        self._services: Final = services
        self.streams: Mapping[str, StreamHandler] = streams
        self.request_streams: Mapping[str, Callable[[RequestContext], RequestStream]] = {
            codec.streaming_method: functools.partial(
                InferenceStream, frontend, codec, self._assign_id, record
            )
            for frontend in frontends.values()
            for codec in _stream_codecs(frontend.codec)
        }

    def relay(
        self, wire: RpcRequest, context: RequestContext, callbacks: RelayCallbacks[RpcResponse]
    ) -> Cancellable | None:
        """Start to serve ``wire`` without a task, or return None if ``respond`` is needed."""
        service = wire.method[1:].partition("/")[0]
        if service not in self._frontends or wire.method in self._services:
            return None
        relays = self._relays
        relay = relays[service] if service in relays else self._make_relay(service)
        if relay is None:
            return None
        self._assign_id(context)
        record = context.record
        record.received_at, record.message = time.monotonic(), wire
        return relay.start(wire, context, callbacks)

    def _frontend_of(self, wire: RpcRequest) -> Frontend[RpcRequest, RpcResponse]:
        return self._frontends.get(wire.method[1:].partition("/")[0], self._default_frontend)

    def _serve(self, wire: RpcRequest, context: RequestContext) -> Awaitable[RpcResponse]:
        service = self._services.get(wire.method)
        if service is not None:
            return _call_service(service, wire, context)
        return self._frontend_of(wire).respond(wire, context, wire.deferred)

    def _finish(self, response: RpcResponse, context: RequestContext) -> None:
        if context.response_headers:
            response.metadata = {**context.response_headers, **response.metadata}
        message, record = response.message, context.record
        record.bytes_out = len(message[0]) if len(message) == 1 else total_size(message)
        self._record(context)
        record.message = None


def _stream_codecs(
    codec: Codec[RpcRequest, RpcResponse],
) -> Iterable[RpcStreaming | UnaryStreamCodec]:
    if isinstance(codec, SupportsStreaming):
        yield codec
    for method in codec.streaming_methods:
        yield UnaryStreamCodec(codec, method)


async def _call_service(
    service: UnaryHandler, wire: RpcRequest, context: RequestContext
) -> RpcResponse:
    record = context.record
    record.protocol, record.operation = "grpc", wire.method[1:]
    if wire.deferred is not None:  # the message is too long for these services
        record.record_error(
            GatewayError(Kind.TOO_LARGE, "the message is too long for this service")
        )
        return RpcResponse(code=_RESOURCE_EXHAUSTED, details=record.error)
    response = await service(wire, context)
    if response.code:
        record.outcome = _KIND_OF_CODE.get(response.code, Kind.BAD_REQUEST).value
        record.error = response.details
    return response


def assign_request_id(context: RequestContext) -> None:
    """Set the id of ``context`` to the client's ``x-request-id`` if it is valid, and otherwise to a
    generated id, which is also sent to the backend."""
    client_id = context.headers.get(REQUEST_ID_HEADER, "")
    if (
        client_id
        and len(client_id) <= _MAX_ID_CHARS
        and client_id.isascii()
        and client_id.isprintable()
    ):
        context.request_id = client_id
    else:
        context.request_id = _ID_FORMAT % (_id_prefix, next(_id_numbers))
        context.headers = {**context.headers, REQUEST_ID_HEADER: context.request_id}
