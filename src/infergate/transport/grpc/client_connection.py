"""The gRPC client's end of an HTTP/2 connection to a backend, and the base class of its calls."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Final

from infergate import __version__
from infergate.core.bounded_cache import BoundedCache
from infergate.core.compilation import mypyc_attr
from infergate.core.errors import GatewayError, Kind, backend_failure, backend_garbage
from infergate.core.hops import HOPS_HEADER
from infergate.core.limits import KIB, Limits
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.tensor import Buffer
from infergate.core.wire import NO_HEADERS, RpcRequest
from infergate.transport.base import Endpoint
from infergate.transport.grpc import framing
from infergate.transport.grpc import headers as grpc_headers
from infergate.transport.grpc.connection import NO_OWNER, Http2Protocol
from infergate.transport.grpc.headers import ResponseHeaders
from infergate.transport.http2.events import Failed, Reset
from infergate.transport.http2.frames import Code
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.roles import Http2ClientConnection
from infergate.transport.http2.stream import Stream
from infergate.transport.net.deferred_inflation import DeferredInflation
from infergate.transport.net.timer import DeadlineTimer

_MAX_HEADER_BYTES: Final = 64 * KIB  # limit on the headers of a backend's response
_AGENT: Final = f"infergate/{__version__}"
_CACHED_METHODS: Final = 256  # number of cached request header blocks, one per method
_MAX_SILENCE = 310.0
"""Seconds without received bytes until the server is pinged, if calls without a deadline are open.
gRPC servers treat intervals of less than 300 s as abuse."""
_PING_TIMEOUT = 20.0
"""Seconds to wait for the PING acknowledgement (grpc's keepalive_timeout: 20 s)."""
_CLOCK_TOLERANCE: Final = 0.005
"""Seconds by which a server's clock may be ahead of the event loop's clock."""


class StreamRefused(Exception):  # noqa: N818
    """The server refused the stream without processing the call."""


@mypyc_attr(native_class=False)
class Http2NotNegotiatedError(ssl.SSLError):
    """The server did not select HTTP/2 in the TLS handshake."""


class GrpcClientConnection(Http2Protocol[Http2ClientConnection]):
    """One connection to `endpoint`. `on_ready` is called when the connection may be used.
    `on_capacity_change` is called with None when a stream is free for one of `waiters`, and with
    the connection when it accepts no more calls."""

    def __init__(  # noqa: PLR0913, PLR0917 - its collaborators
        self,
        loop: asyncio.AbstractEventLoop,
        endpoint: Endpoint,
        limits: Limits,
        on_ready: Callable[[GrpcClientConnection], None],
        on_capacity_change: Callable[[GrpcClientConnection | None], None],
        waiters: Sized,
    ) -> None:
        super().__init__(loop, Http2ClientConnection(_MAX_HEADER_BYTES))
        self.endpoint: Final = endpoint
        self.max_message: Final = limits.body + framing.MESSAGE_OVERHEAD
        self._ready_callback: Final = on_ready
        self._capacity_callback = on_capacity_change
        self._waiters: Final = waiters
        self._ready_future: asyncio.Future[None] = loop.create_future()
        self._ready_future.add_done_callback(_mark_retrieved)  # not awaited if connecting failed
        self.closed_future: asyncio.Future[None] = loop.create_future()
        self._is_lost = False
        self._calls: Final[dict[ClientCall, None]] = {}  # ordered, so that calls fail in order
        self._deadline_timer: Final = DeadlineTimer(loop, self._calls)
        self.request_prefixes: Final = BoundedCache[str, bytes](_CACHED_METHODS)
        self.forwarded_prefixes: Final = BoundedCache[str, bytes](_CACHED_METHODS)
        self._calls_without_deadline: set[ClientCall] = set()
        self._silence_timer: asyncio.TimerHandle | None = None

    async def wait_ready(self, protocol: str) -> None:
        """Wait for the server's SETTINGS. If `protocol` is not empty, check that ALPN selected it.
        Raises OSError."""
        if protocol:
            tls_object = self._transport.get_extra_info("ssl_object")
            if tls_object is None or tls_object.selected_alpn_protocol() != protocol:
                raise Http2NotNegotiatedError("the server does not speak HTTP/2")
        await self._ready_future

    def abort(self) -> None:
        self._transport.abort()

    def encode_prefix(self, method: str, prefixes: BoundedCache[str, bytes]) -> bytes:
        """Return the start of the header block, which is the same for all calls of `method`, and
        cache it in `prefixes`. Calls from another gateway, which have a hop header in their
        metadata, use `forwarded_prefixes`. All other calls use `request_prefixes`."""
        scheme = "https" if self.endpoint.tls else "http"
        block = grpc_headers.request_prefix(method, self.endpoint.authority, scheme, _AGENT)
        if prefixes is self.request_prefixes:
            block += grpc_headers.FIRST_HOP_FIELD
        prefixes[method] = block
        return block

    def retire_if_silent(self, since: float) -> None:
        """Send no more calls on this connection if the server has sent no bytes since `since` (loop
        time), or does not read. Calls in progress may finish."""
        if self.engine.last_received_at < since or self._transport.get_write_buffer_size():
            self.engine.is_retired = True
            self._capacity_callback(self)

    def _close(self) -> None:
        """Close the connection. If output is pending, abort the connection, because the server
        might never read the output."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def register(self, call: ClientCall) -> None:
        """Register `call`, whose request has been queued."""
        self._calls[call] = None
        if call.deadline < self._deadline_timer.due:
            self._deadline_timer.set_at(call.deadline)
        self.flush_soon()
        if call.deadline == math.inf:
            self._calls_without_deadline.add(call)
            if self._silence_timer is None:
                self._silence_timer = self.loop.call_later(_MAX_SILENCE, self._check_silence, None)

    def _check_silence(self, pinged_at: float | None) -> None:
        """Ping a silent server while calls without a deadline are open, and abort the connection if
        the server does not respond. `pinged_at` is the time of an unacknowledged PING."""
        self._silence_timer = None
        received_at = self.engine.last_received_at
        if not self._calls_without_deadline or self._is_lost:
            return
        if pinged_at is not None and received_at < pinged_at:
            self.abort()
            return
        now = self.loop.time()
        silent = now - received_at
        if silent < _MAX_SILENCE:
            self._silence_timer = self.loop.call_later(
                _MAX_SILENCE - silent, self._check_silence, None
            )
            return
        self.engine.ping()
        self.flush()
        self._silence_timer = self.loop.call_later(_PING_TIMEOUT, self._check_silence, now)

    def unregister(self, call: ClientCall) -> None:
        """Remove `call`, which has ended."""
        self._calls.pop(call, None)
        if self._calls_without_deadline:
            self._calls_without_deadline.discard(call)
        if self.engine.is_retired:
            if not self._calls:
                self._close()
        elif self._waiters and self.engine.can_open_stream:
            self._capacity_callback(None)

    # ---- asyncio callbacks and engine events

    def connection_lost(self, exc: BaseException | None) -> None:
        self._is_lost = True
        self.engine.is_retired = True
        self._deadline_timer.close()
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        self._wake()
        reason = OSError(f"{self.endpoint}: the connection closed before SETTINGS arrived: {exc!r}")
        if not self._ready_future.done():
            self._ready_future.set_exception(reason)
        self._capacity_callback(self)
        for call in tuple(self._calls):
            call.on_connection_lost(exc)
        self.closed_future.set_result(None)

    def _on_ready(self) -> None:
        if self._ready_future.done():
            self._capacity_callback(None)
        else:
            self._ready_callback(self)
            self._ready_future.set_result(None)

    def _on_goaway(self) -> None:
        self._capacity_callback(self)
        if not self._calls:
            self._close()

    def _on_failed(self, event: Failed) -> None:
        if not self._ready_future.done():
            self._ready_future.set_exception(OSError(f"{self.endpoint}: {event.reason}"))
        self.flush()
        self._close()
        for call in tuple(self._calls):
            call.fail(
                backend_garbage("the backend's response is not HTTP/2", f"{self.endpoint}: {event}")
            )


def _mark_retrieved(ready: asyncio.Future[None]) -> None:
    """Retrieve the exception, so that asyncio does not report it as never retrieved."""
    if not ready.cancelled():
        ready.exception()


class ClientCall:
    """The base class of calls. The connection calls the methods for events on the stream."""

    _encoding = ""
    _initial_metadata: Mapping[str, str] = NO_HEADERS

    def __init__(
        self, connection: GrpcClientConnection, wire: RpcRequest, size: int, deadline: float | None
    ) -> None:
        """Send the request, whose message has `size` bytes. `deadline` is on the clock of the event
        loop."""
        loop = connection.loop
        self._started_at: Final = loop.time()
        self._memory: Final = wire.memory
        self._counted_bytes = 0  # bytes of the response that are charged to `_memory`
        remaining = None if deadline is None else deadline - self._started_at
        metadata = wire.metadata
        prefixes = connection.request_prefixes
        if HOPS_HEADER in metadata:
            prefixes = connection.forwarded_prefixes
        prefix = prefixes.get(wire.method)
        if prefix is None:
            prefix = connection.encode_prefix(wire.method, prefixes)
        block = prefix + grpc_headers.request_suffix(remaining, metadata)
        self._connection: Final = connection
        self.deadline: Final = math.inf if deadline is None else deadline
        self._error: Exception | None = None
        self._is_over = False
        self._has_response = False
        self._end_headers: ResponseHeaders | None = None
        self._stream: Final[Stream] = connection.engine.open_stream(
            block, (framing.PREFIX.pack(0, size), *wire.message)
        )
        self._stream.owner = self
        connection.register(self)

    # ---- to be implemented by subclasses

    def _take_data(self, parts: Sequence[Buffer]) -> None:
        """Handle received bytes of the messages. Raises GatewayError."""
        raise NotImplementedError

    # ---- stream events

    def headers(self, fields: HeaderBlock, end: bool) -> None:  # noqa: FBT001
        """Process the response headers. `end` means that the response ends with them."""
        self._has_response = True
        response: ResponseHeaders | None = fields.interpretation
        if response is None:
            response = fields.interpretation = ResponseHeaders(fields)
        if end:
            self._end_with(response)
        elif response.is_grpc:
            self._encoding, self._initial_metadata = response.encoding, response.metadata
        elif response.status != 200:
            self._connection.engine.reset(self._stream, Code.CANCEL)
            self._end_with(response)
        else:
            public = "the backend's response is not gRPC"
            self.fail(backend_garbage(public, self._detail("content-type")))

    def add(self, parts: Sequence[Buffer], size: int, end: bool) -> None:  # noqa: FBT001, ARG002
        """Handle `size` received bytes of the response."""
        if self._is_over:
            return
        try:
            self._take_data(parts)
        except framing.MessageError as error:
            self.fail(self._message_error(error))
        except GatewayError as refusal:
            self.fail(refusal)
        else:
            if end:
                public = "the backend's response is incomplete"
                self.fail(backend_garbage(public, self._detail("no grpc-status")))

    def end(self, fields: HeaderBlock) -> None:
        """Handle the response trailers."""
        response: ResponseHeaders | None = fields.interpretation
        if response is None:
            response = fields.interpretation = ResponseHeaders(fields)
        if response.code == grpc_headers.OK and not self._is_over:
            self._end_headers = response
            self._finish()
        else:
            self._end_with(response)

    def sent(self) -> None:
        """Do nothing: the call waits for the response."""

    def on_reset(self, event: Reset) -> None:
        """Fail the call. `Reset` lists the possible causes."""
        detail = f"reset: {event.code}"
        if event.is_unprocessed:
            self.fail(StreamRefused(self._detail(detail)))
        elif self._is_late:
            self.expire()
        else:
            self.fail(backend_garbage("the backend's response is incomplete", self._detail(detail)))

    @property
    def _is_late(self) -> bool:
        return self._connection.loop.time() >= self.deadline - _CLOCK_TOLERANCE

    def on_connection_lost(self, error: BaseException | None) -> None:
        public = "the backend closed the connection before it responded"
        if self._has_response:
            public = "the backend's response is incomplete"
        self.fail(backend_garbage(public, self._detail(repr(error))))

    def fail(self, error: Exception) -> None:
        """End the call with `error`."""
        if not self._is_over:
            self._error = error
            self._finish()

    def _end_with(self, response: ResponseHeaders) -> None:
        if self._is_over:
            return
        code, details = response.code, response.details
        is_abandoned = response.is_abandoned
        if (is_abandoned or code == grpc_headers.DEADLINE_EXCEEDED) and self._is_late:
            self.expire()
            return
        self._end_headers = response
        if code is None or is_abandoned:
            reason = "no grpc-status" if code is None else f"grpc-status {code}: {details}"
            self._error = backend_garbage(
                "the backend's response is incomplete", self._detail(reason)
            )
        self._finish()

    def _finish(self) -> None:
        self._is_over = True
        connection, stream = self._connection, self._stream
        stream.owner = NO_OWNER  # a cycle would keep the messages until garbage collection
        if stream.local_open or stream.remote_open:
            connection.engine.reset(stream, Code.CANCEL)
            connection.flush_soon()
        connection.unregister(self)
        self._on_over()

    def _on_over(self) -> None:
        """Report `_error`, if set, or the response. The call has ended."""
        raise NotImplementedError

    def expire(self) -> None:
        """Fail the call, because the deadline has passed."""
        self._connection.retire_if_silent(self._started_at)
        endpoint = str(self._connection.endpoint)
        self.fail(backend_failure(Kind.TIMEOUT, "the backend did not respond in time", endpoint))

    def _set_counted(self, size: int) -> None:
        """Charge `_memory` for the `size` response bytes that are held. Raises OVERLOADED."""
        growth = size - self._counted_bytes
        if growth < 0:
            self._memory.shrink(-growth)
        elif size <= MIN_ACCOUNTED_BYTES:
            return
        else:
            self._memory.grow(growth)
        self._counted_bytes = size

    async def _inflate(self, message: Buffer | DeferredInflation) -> Buffer:
        if not isinstance(message, DeferredInflation):
            return message
        try:
            inflated = await message.inflate(self._memory)
        except framing.MessageError as error:
            raise self._message_error(error) from None
        self._counted_bytes += len(inflated)
        return inflated

    def _message_error(self, error: framing.MessageError) -> GatewayError:
        detail = self._detail(error)
        if isinstance(error, framing.InvalidMessageError):
            return backend_garbage("the backend sent an invalid gRPC message", detail)
        return backend_failure(Kind.TOO_LARGE, "the backend's response is too large", detail)

    def _detail(self, reason: object) -> str:
        return f"{self._connection.endpoint}: {reason}"

    def close(self) -> None:
        """End the call. The caller no longer waits."""
        if not self._is_over:
            self._finish()
