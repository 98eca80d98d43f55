"""The interface between the transports and the rest of the gateway. All engines implement it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.memory import MemoryAccount
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse
from infergate.transport.worker_loads import WorkerLoads

Req_contra = TypeVar("Req_contra", contravariant=True)
Resp_co = TypeVar("Resp_co", covariant=True)
Resp_contra = TypeVar("Resp_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Address:
    """A listener's address: ``host`` and ``port``, or the socket file ``unix`` with the
    permissions ``mode``. Port 0 means any free port."""

    host: str = ""
    port: int = 0
    unix: str = ""
    mode: int = 0o660

    def __str__(self) -> str:
        if self.unix:
            return f"unix:{self.unix}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Endpoint(NamedTuple):
    """An upstream server at ``host`` and ``port``, or at the socket file ``unix``. ``path`` ("" or
    "/base") is prefixed to HTTP paths; ``framed`` selects size-prefixed frames instead of HTTP.
    ``address``, if not empty, is the resolved address of ``host``; the Host header and the
    certificate check still use ``host``. The class is a named tuple, because a named tuple is
    hashed faster than a dataclass."""

    host: str = ""
    port: int = 0
    tls: bool = False
    path: str = ""
    unix: str = ""
    framed: bool = False
    address: str = ""

    @property
    def connect_host(self) -> str:
        """The host to connect to: the resolved address, or the name to look up."""
        return self.address or self.host

    @property
    def authority(self) -> str:
        """The value of the Host header: ``host:port``, with IPv6 addresses in brackets, or
        ``localhost`` for a socket file."""
        return "localhost" if self.unix else str(Address(self.host, self.port))

    def __str__(self) -> str:
        return str(Address(self.connect_host, self.port, self.unix))


@dataclass(frozen=True, slots=True)
class BoundSockets:
    """The listening sockets of one address, or of each address to which a host name resolves.
    ``close`` closes the sockets, then calls ``release``. ``worker_loads`` is set if other
    processes accept from the same sockets. grpcio (engine ``compat``) cannot use existing sockets,
    so its socket only reserves a port."""

    sockets: tuple[socket.socket, ...]
    release: Callable[[], None] = lambda: None
    worker_loads: WorkerLoads | None = None

    @property
    def port(self) -> int:
        """The TCP port, or 0 for a socket file."""
        first = self.sockets[0]
        return 0 if first.family is socket.AF_UNIX else int(first.getsockname()[1])

    def close(self) -> None:
        """Close the sockets. The caller must have stopped accepting from them."""
        for sock in self.sockets:
            sock.close()
        self.release()


BindFunction = Callable[[Address], Awaitable[BoundSockets]]
"""Returns the bound sockets of an address. Raises OSError."""


class Cancellable(Protocol):
    """Work in progress whose result is reported by a callback."""

    def cancel(self) -> None:
        """Stop the work. No callback is called after that."""
        ...


class RelayCallbacks(Protocol[Resp_contra]):
    """The transport's side of a relayed request. Exactly one method is called, unless the transport
    cancels the request."""

    def on_response(self, response: Resp_contra) -> None: ...

    def continue_in_task(self, respond: Callable[[], Awaitable[Resp_contra]]) -> None:
        """Await the response in a task, because the rest of the work needs a task. Until
        ``respond`` is called, ``cancel`` still cancels the request. Afterwards, the transport must
        cancel the task instead."""
        ...


@runtime_checkable
class RelayApp(Protocol[Req_contra, Resp_co]):
    """An application that serves most requests without a task (docs/decisions/0048)."""

    def relay(
        self, wire: Req_contra, context: RequestContext, callbacks: RelayCallbacks[Resp_co], /
    ) -> Cancellable | None:
        """Begin to serve ``wire``. If this needs a task, change nothing and return None; the
        transport then calls ``respond`` in a task. A callback may be called before this method
        returns. Never raises."""
        ...


class HttpApp(Protocol):
    """The application behind an HTTP listener."""

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        """Return the response to a complete request. The task is cancelled when the client
        disconnects. The caller always closes the response's body stream."""
        ...

    def refuse(
        self, error: GatewayError, wire: HttpRequest, context: RequestContext
    ) -> HttpResponse:
        """Return the response to a request that the transport rejects. ``wire`` has no body."""
        ...


class RpcApp(Protocol):
    """The application behind a gRPC listener."""

    async def respond(self, wire: RpcRequest, context: RequestContext) -> RpcResponse:
        """Return the response to a unary call."""
        ...

    def refuse(self, error: GatewayError, wire: RpcRequest, context: RequestContext) -> RpcResponse:
        """Return the response to a call that the transport rejects. ``wire`` has no message."""
        ...

    @property
    def streams(self) -> Mapping[str, StreamHandler]:
        """Handlers of streaming methods, keyed by ``/package.Service/Method``."""
        ...

    @property
    def request_streams(self) -> Mapping[str, Callable[[RequestContext], RequestStream]]:
        """Factories of ``RequestStream``, keyed by method."""
        ...


StreamHandler = Callable[[AsyncIterator[Buffer], RequestContext], AsyncIterator[RpcResponse]]
"""Receives request messages and yields responses. An RpcResponse with a code other than 0 ends the
stream."""


class RequestStream(Protocol):
    """A stream of requests, each with any number of responses."""

    @property
    def max_concurrent(self) -> int:
        """The maximum number of requests that are handled concurrently."""
        ...

    async def open(self) -> None:
        """Authorize the stream before its first request. Raises GatewayError."""
        ...

    async def handle(
        self, message: Buffer, error: GatewayError | None, memory: MemoryAccount
    ) -> AsyncGenerator[RpcResponse, None]:
        """Return the responses to ``message``. The transport passes messages in order of arrival.
        If ``error`` is set, the transport rejected the request, and the response reports the error.
        A response with a code other than 0 ends the stream. The caller always closes the
        generator."""
        ...


class Server(Protocol):
    """A listener."""

    @property
    def address(self) -> Address:
        """The address that was actually bound."""
        ...

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The open listening sockets, or none if the server does not expose them."""
        ...

    async def bind(
        self, bind: BindFunction | None = None, closing: Sequence[socket.socket] = ()
    ) -> None:
        """Open the listening sockets, with ``bind`` if it is given, but do not accept yet. Without
        ``bind``, the address may overlap with the sockets ``closing``, which will be closed soon.
        Raises OSError if the address is in use."""
        ...

    async def start(self) -> None:
        """Accept connections. If ``bind`` has not been called, call it first. Raises OSError."""
        ...

    def set_app(self, app: Any, limits: Limits) -> None:
        """Send new requests to ``app``, which must be of the same kind as the previous application.
        Requests in progress finish with the previous application. ``limits`` applies to new
        requests, except limits that were fixed when the listener or the connection was opened."""
        ...

    def active_requests(self) -> Iterable[asyncio.Future[None]]:
        """Return a future or task for each request and stream in progress. The future is done when
        the request has been served."""
        ...

    def stop_accepting(self) -> None:
        """Stop accepting connections. Open connections stay open. If a server cannot stop accepting
        without closing connections, ``stop`` does both."""
        ...

    async def stop(self, grace: float) -> None:
        """Stop accepting connections, let requests finish for up to ``grace`` seconds, then cancel
        the remaining requests. A second call shortens this time."""
        ...


class Upstream(Protocol[Req_contra, Resp_co]):
    """A pooled client for one kind of transport."""

    async def exchange(self, wire: Req_contra, endpoint: Endpoint, timeout: float) -> Resp_co:
        """Send a request and return the complete response within ``timeout`` seconds. Raises
        CONNECT (nothing was sent), TIMEOUT, BACKEND_GARBAGE (the response is incomplete or violates
        the protocol), TOO_LARGE, OVERLOADED (memory), and BAD_REQUEST or UNSUPPORTED if the request
        cannot be sent. Cancelling the call cancels the upstream request."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class ExchangeCallbacks(Protocol[Resp_contra]):
    """Receives the result of an exchange. Exactly one method is called, unless the exchange is
    cancelled."""

    def on_response(self, response: Resp_contra) -> None:
        """Receive the response. Never raises."""
        ...

    def on_error(self, error: Exception) -> None:
        """Receive the error that ``exchange`` would raise. Never raises."""
        ...


@runtime_checkable
class CallbackUpstream(Protocol[Req_contra, Resp_co]):
    """An upstream that can also exchange messages without a task."""

    def begin(
        self,
        wire: Req_contra,
        endpoint: Endpoint,
        timeout: float,
        callbacks: ExchangeCallbacks[Resp_co],
    ) -> Cancellable | None:
        """Begin an exchange if a connection is free. Otherwise return None; the caller must then
        use ``exchange``. No callback is called before this method returns. Never raises."""
        ...


@runtime_checkable
class StreamingUpstream(Protocol[Req_contra, Resp_co]):
    """An upstream that can also receive several responses to one request."""

    def stream(
        self, wire: Req_contra, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[Resp_co, None]:
        """Send a request and yield the responses. Headers may accompany any response, or arrive
        alone. A response is read from the connection only when it is pulled, except for bytes that
        flow control has already admitted. ``timeout``, in seconds, limits the wait for a connection
        and, over gRPC, the duration of the stream. The caller must limit the wait for each
        response. Raises the errors of ``exchange``. Closing the generator, or cancelling a pull,
        cancels the upstream request."""
        ...


@runtime_checkable
class SupportsDisconnect(Protocol):
    """An upstream that can close the connections to a single endpoint."""

    async def disconnect(self, endpoint: Endpoint) -> None:
        """Close all connections to ``endpoint``, which must have no exchange in progress."""
        ...


class HttpStreamingUpstream(
    Upstream[HttpRequest, HttpResponse],
    StreamingUpstream[HttpRequest, HttpResponse],
    SupportsDisconnect,
    Protocol,
):
    """An HTTP upstream with streams. Each server-sent event is one response."""


HttpUpstream = Upstream[HttpRequest, HttpResponse]
RpcUpstream = Upstream[RpcRequest, RpcResponse]
