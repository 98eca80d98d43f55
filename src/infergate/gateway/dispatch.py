"""Which frontend a request on a shared listener belongs to, and what is told of it afterwards."""

from __future__ import annotations

import functools
import itertools
import operator
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from infergate.codecs.base import Codec, Streaming
from infergate.core.call import REQUEST_ID, Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, Rest, RpcRequest, RpcResponse, size
from infergate.gateway.frontend import Frontend
from infergate.gateway.streaming import InTurn, RpcStreaming, Stream
from infergate.transport.base import Conversation, StreamHandler

Req = TypeVar("Req")
Resp = TypeVar("Resp")

Record = Callable[[Call], None]
"""Told of every finished request."""
Service = Callable[[RpcRequest, Call], Awaitable[RpcResponse]]
"""A unary gRPC method of the gateway's own."""
_REFUSALS: Final = {
    5: Kind.NOT_FOUND,
    7: Kind.FORBIDDEN,
    8: Kind.RATE_LIMITED,
    14: Kind.OVERLOADED,
    16: Kind.UNAUTHENTICATED,
}
"""The gRPC codes by which the gateway's own services refuse; any other is a bad request."""
_RESOURCE_EXHAUSTED: Final = 8
_LONGEST_ID: Final = 128
_boot: Final = os.urandom(6).hex()
_numbers: Final = itertools.count(1)


class Dispatch(Generic[Req, Resp]):
    """One listener, several protocols, each claiming a first part of the path.

    ``finish`` adds the backend's returned headers to an answer and says how long its body is.
    """

    def __init__(
        self,
        frontends: Mapping[str, Frontend[Req, Resp]],
        path: Callable[[Req], str],
        finish: Callable[[Resp, Call], int],
        record: Record,
        name: Record,
    ) -> None:
        """``frontends`` by what they claim; the first also answers what none claims. ``name`` is
        told of every request before all else, and gives it its id."""
        self._name: Final = name
        self._frontends: Final = dict(frontends)
        self._otherwise: Final = next(iter(self._frontends.values()))
        self._path: Final = path
        self._finish: Final = finish
        self._record: Final = record

    def _frontend(self, wire: Req) -> Frontend[Req, Resp]:
        claim = self._path(wire)[1:].partition("/")[0]
        return self._frontends.get(claim, self._otherwise)

    def _answering(self, wire: Req, call: Call) -> Awaitable[Resp]:
        """Serve ``wire`` by the frontend that claims its path."""
        return self._frontend(wire).respond(wire, call)

    async def respond(self, wire: Req, call: Call) -> Resp:
        """The answer to ``wire``, recorded."""
        self._name(call)
        call.received = time.monotonic()
        try:
            answer = await self._answering(wire, call)
        except BaseException:  # the client went away: only log and metrics are told
            if call.cut is None:  # else it is refused
                call.outcome = Kind.CANCELLED.value
                self._record(call)
            raise
        call.bytes_out = self._finish(answer, call)
        self._told_of(answer, call)
        return answer

    def _told_of(self, answer: Resp, call: Call) -> None:  # noqa: ARG002 - of some it is not the end
        """``answer`` is all there is to tell."""
        self._record(call)

    def refuse(self, error: GatewayError, wire: Req, call: Call) -> Resp:
        """The transport's refusal in the form of the protocol that was asked."""
        self._name(call)
        answer = self._frontend(wire).refuse(error, wire, call)
        call.bytes_out = self._finish(answer, call)
        self._record(call)
        return answer


class HttpDispatch(Dispatch[HttpRequest, HttpResponse]):
    """Protocols told apart by the first path segment."""

    def __init__(
        self,
        frontends: Mapping[str, Frontend[HttpRequest, HttpResponse]],
        record: Record,
        name: Record | None = None,
    ) -> None:
        super().__init__(
            frontends, operator.attrgetter("path"), _finish_http, record, name or named
        )

    def _told_of(self, answer: HttpResponse, call: Call) -> None:
        if answer.rest is None:
            self._record(call)
        else:
            answer.rest = _Told(answer.rest, self._record, call)


class _Told:
    """``rest``, measured, and recorded when it is closed."""

    def __init__(self, rest: Rest, record: Record, call: Call) -> None:
        self._rest: Final = rest
        self._record: Final = record
        self._call: Final = call

    async def next(self) -> Sequence[Buffer] | None:
        """See Rest."""
        body = await self._rest.next()
        if body is not None:
            self._call.bytes_out += size(body)
        return body

    async def close(self) -> None:
        """See Rest."""
        try:
            await self._rest.close()
        finally:
            self._record(self._call)


class RpcDispatch(Dispatch[RpcRequest, RpcResponse]):
    """Protocols told apart by the service's name.

    ``services`` and ``streams`` are the gateway's own methods by ``/package.Service/Method``.
    """

    def __init__(
        self,
        frontends: Mapping[str, Frontend[RpcRequest, RpcResponse]],
        services: Mapping[str, Service],
        streams: Mapping[str, StreamHandler],
        record: Record,
        name: Record | None = None,
    ) -> None:
        name = name or named
        super().__init__(frontends, operator.attrgetter("method"), _finish_rpc, record, name)
        self._services: Final = services
        self.streams: Mapping[str, StreamHandler] = streams
        self.conversations: Mapping[str, Callable[[Call], Conversation]] = {
            codec.stream: functools.partial(Stream, frontend, codec, name, record)
            for frontend in frontends.values()
            for codec in _streaming(frontend.codec)
        }

    def _answering(self, wire: RpcRequest, call: Call) -> Awaitable[RpcResponse]:
        """Serve ``wire`` by its service."""
        service = self._services.get(wire.method)
        if service is not None:
            return _serve(service, wire, call)
        return self._frontend(wire).respond(wire, call, wire.late)


def _streaming(codec: Codec[RpcRequest, RpcResponse]) -> Iterable[RpcStreaming | InTurn]:
    """``codec`` for each of the methods whose streams carry its inferences."""
    if isinstance(codec, Streaming):
        yield codec
    for method in codec.streams:
        yield InTurn(codec, method)


async def _serve(service: Service, wire: RpcRequest, call: Call) -> RpcResponse:
    call.protocol, call.operation = "grpc", wire.method[1:]
    if wire.late is not None:  # no message of theirs is so long
        call.fail(GatewayError(Kind.TOO_LARGE, "the message is too long"))
        return RpcResponse(code=_RESOURCE_EXHAUSTED, details=call.error)
    answer = await service(wire, call)
    if answer.code:
        call.outcome = _REFUSALS.get(answer.code, Kind.BAD_REQUEST).value
        call.error = answer.details
    return answer


def _finish_http(answer: HttpResponse, call: Call) -> int:
    if call.returned:
        answer.headers = {**call.returned, **answer.headers}
    return size(answer.body)


def _finish_rpc(answer: RpcResponse, call: Call) -> int:
    if call.returned:
        answer.metadata = {**call.returned, **answer.metadata}
    return size(answer.message)


def named(call: Call) -> None:
    """Give ``call`` the client's ``x-request-id``, or one of our own, which then goes upstream."""
    given = call.headers.get(REQUEST_ID, "")
    if given and len(given) <= _LONGEST_ID and given.isascii() and given.isprintable():
        call.request_id = given
    else:
        call.request_id = f"{_boot}-{next(_numbers):x}"
        call.headers = {**call.headers, REQUEST_ID: call.request_id}
