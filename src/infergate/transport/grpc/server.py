"""A gRPC server on the built-in HTTP/2 engine. Messages of all methods are passed on as bytes.

Methods in `app.streams` and `app.request_streams` are bidirectional streams. (Server streaming
looks the same on the wire.) All other methods are unary. While a client does not read responses,
the server does not read its requests, because their responses would add to the unread output. (Two
peers that both behave in this way could deadlock, but gRPC clients always read.)"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.request_context import RequestContext
from infergate.transport.base import RpcApp
from infergate.transport.grpc import headers, server_call
from infergate.transport.grpc.connection import NO_OWNER
from infergate.transport.grpc.headers import RequestHeaders
from infergate.transport.grpc.rpc_app import build_refusal, stream_handler
from infergate.transport.grpc.server_stream_call import StreamCall
from infergate.transport.grpc.server_unary_call import UnaryCall
from infergate.transport.http2.events import Failed, Headers
from infergate.transport.http2.frames import Code
from infergate.transport.http2.stream import Stream
from infergate.transport.net.timer import CATCH_UP_SECONDS, LATE_SECONDS
from infergate.transport.server.admission import UnsentResponse
from infergate.transport.server.connection_gate import (
    ConnectionRefusal,
    is_client_hello,
    peer_address,
)
from infergate.transport.server.listener import SocketListener

log = logging.getLogger(__name__)

_CHECKS_PER_LIMIT: Final = 4  # number of checks within the shortest time limit


class H2Server(SocketListener[RpcApp]):
    """A :class:`~infergate.transport.base.Server` for gRPC."""

    def _create_connection(self) -> GrpcServerConnection:
        return GrpcServerConnection(self)


class GrpcServerConnection(server_call.CallConnection):
    """The server side of a gRPC connection."""

    def __init__(self, listener: SocketListener[RpcApp]) -> None:
        super().__init__(listener)
        self._max_streams: Final = listener.limits.streams
        self._early_header_bytes = 0  # header bytes of the calls beyond `_max_streams`
        self._is_lost = False
        self._is_ready = False
        self._active_at = 0.0  # the client's silence is measured from this time (`_check_silence`)
        self._pinged_at = 0.0
        self._seen_progress = 0
        self._progress_at = 0.0
        self._unsent_output: Final = UnsentResponse(listener.admission)  # while writing is paused
        self._buffered_bytes = 0
        self._buffered_since = 0.0
        self._check_timer: asyncio.TimerHandle | None = None
        self._is_check_postponed = False

    # ---- asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = peer_address(transport)
        self.peer_identity = transport.get_extra_info("peer_identity", ())
        if not self.listener.register(self, self.peer):
            self.abort()
            return
        self._active_at = self._progress_at = self.loop.time()
        self._check_timer = self.loop.call_later(self._check_interval, self._check_limits)

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        super().pause_writing()
        self._unsent_output.start(self._transport.get_write_buffer_size(), self.loop.time(), self)
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading from the client, which has read the output."""
        self._unsent_output.finish()
        super().resume_writing()
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        self._is_lost = True
        self._unsent_output.finish()
        self._release_early()
        if self._check_timer is not None:
            self._check_timer.cancel()
        self.deadline_timer.close()
        self._wake()
        for call in tuple(self._calls):
            call.cancel()
        self._unregister_if_done()

    # ---- engine events

    def _on_ready(self) -> None:
        self._is_ready = True

    def _on_stream_opened(self, event: Headers) -> None:
        stream, fields = event.stream, event.fields
        request: RequestHeaders = fields.interpretation or headers.interpret_request(
            fields, self.listener.limits
        )
        if request.refusal is not None:
            code, details = request.refusal
            kind = Kind.TOO_LARGE if request.limit else Kind.BAD_REQUEST
            self._refuse_call(
                stream, request, code, GatewayError(kind, details, limit=request.limit)
            )
            return
        # The client may not know the limit yet (`limits.EARLY_STREAMS`).
        if len(self._calls) >= self._max_streams:
            try:
                self.listener.admission.grow(fields.size)
            except GatewayError as error:
                self._refuse_call(stream, request, headers.overload_code(error), error)
                return
            self._early_header_bytes += fields.size
        app, method = self.listener.app, request.method
        if method in app.request_streams or method in app.streams:
            handler = stream_handler(app, method, self.listener.admission)
            assert handler is not None
            stream_call = StreamCall(self, stream, request)
            self._calls[stream_call] = None
            stream_call.start(handler)
            return
        unary_call = UnaryCall(self, stream, request)
        self._calls[unary_call] = None
        if event.end:
            unary_call.end(fields)

    def _refuse_call(
        self, stream: Stream, request: RequestHeaders, code: int, error: GatewayError
    ) -> None:
        """Refuse a call that cannot be started. The application records the call like any other
        call."""
        context = RequestContext(
            self.peer, headers=request.headers, peer_identity=self.peer_identity
        )
        build_refusal(self.listener.app, error, request.method, context)
        block = headers.encode_trailers_only(request.status, code, error.public, {})
        self.engine.send_headers(stream, block, end=True)
        stream.owner = NO_OWNER
        self.end_stream_soon(stream)

    def _on_failed(self, event: Failed) -> None:
        gate = self.listener.gate
        if is_client_hello(self.engine.first_bytes):
            gate.refuse_tls(self.peer)
        else:
            is_flood = event.code == Code.ENHANCE_YOUR_CALM
            refusal = ConnectionRefusal.FLOOD if is_flood else ConnectionRefusal.PROTOCOL
            gate.refuse(refusal, self.peer, event.reason)
        for call in tuple(self._calls):
            call.cancel()
        self.flush()
        # If the connection were closed immediately, it could be reset, and the client would not
        # receive the GOAWAY with the reason.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.loop.call_later(server_call.CLOSING_SECONDS, self.abort)

    def remove_call(self, call: server_call.ServerCall) -> None:
        self._calls.pop(call, None)
        if self._early_header_bytes and len(self._calls) <= self._max_streams:
            self._release_early()
        if self._is_lost:
            self._unregister_if_done()
        elif self.listener.is_stopping:
            self.flush_soon()

    def _release_early(self) -> None:
        self.listener.admission.bytes -= self._early_header_bytes
        self._early_header_bytes = 0

    def _unregister_if_done(self) -> None:
        if not self._calls:
            self.listener.unregister(self)

    def _on_output_held(self, size: int) -> None:
        self._unsent_output.grow(size)

    def _close_if_drained(self) -> None:
        if not self._calls and self.engine.is_drained:
            self._transport.close()

    # ---- time limits and shutdown

    @property
    def _check_interval(self) -> float:
        limits = self.listener.limits
        shortest = min(limits.header_time, limits.idle_body_time, limits.keepalive_time)
        return shortest / _CHECKS_PER_LIMIT

    def _check_limits(self) -> None:
        now, limits = self.loop.time(), self.listener.limits
        assert self._check_timer is not None
        # `net.timer` explains this condition.
        if now >= self._check_timer.when() + LATE_SECONDS and not self._is_check_postponed:
            self._is_check_postponed = True
            self._check_timer = self.loop.call_later(CATCH_UP_SECONDS, self._check_limits)
            return
        self._is_check_postponed = False
        self._check_timer = self.loop.call_later(self._check_interval, self._check_limits)
        if self._is_receiving_stalled(now, limits):
            self._transport.abort()
            return
        if self._is_output_unread(now, limits):
            self._disconnect_slow_reader()
            return
        for call in tuple(self._calls):
            if call.is_overdue(now, limits):
                call.expire_with(server_call.MESSAGE_TIMEOUT_TEXT)
        if self.is_write_paused:  # the client may be silent because this server has stopped reading
            self._active_at = now
        self._check_silence(now, limits)

    def _check_silence(self, now: float, limits: Limits) -> None:
        """Ping a silent client, and close the connection if the client does not respond. Idle
        clients stay connected."""
        active_at = max(self._active_at, self.engine.last_received_at)
        silent = now - active_at
        if silent >= limits.keepalive_time and self._pinged_at <= active_at:
            self._pinged_at = now
            self.engine.ping()
            self.flush()
        elif silent >= limits.keepalive_time + limits.header_time:
            self.listener.gate.closed_idle += 1
            self.abort()

    def _is_receiving_stalled(self, now: float, limits: Limits) -> bool:
        """Return whether the connection preface, a header block or a frame other than DATA has been
        incomplete for too long."""
        engine = self.engine
        if engine.is_closed:
            return False
        if self._is_ready and not (
            engine.is_frame_pending and engine.progress_count == self._seen_progress
        ):
            self._seen_progress, self._progress_at = engine.progress_count, now
        if now >= self._progress_at + limits.header_time:
            self.listener.gate.on_limit_reached("header_time")
            return True
        return False

    def _is_output_unread(self, now: float, limits: Limits) -> bool:
        """Return whether the client has stopped reading, or reads below the minimum rate."""
        if self.engine.is_closed:
            return False
        unwritten = self._transport.get_write_buffer_size()
        if not unwritten or unwritten != self._buffered_bytes:
            self._buffered_bytes, self._buffered_since = unwritten, now
        if self.is_write_paused:
            self._unsent_output.set_remaining(unwritten, now)
            if now >= self._unsent_output.deadline(limits):
                return True
        return now >= self._buffered_since + limits.idle_body_time

    def _disconnect_slow_reader(self) -> None:
        if not self._transport.get_write_buffer_size():  # the client has read the output
            return
        reason = "the client does not read its responses"
        self.listener.gate.refuse(ConnectionRefusal.SLOW_READER, self.peer, reason)
        self._transport.abort()

    def unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def disconnect_soon(self) -> None:
        self.loop.call_soon(self._disconnect_slow_reader)

    def close_when_idle(self) -> None:
        """Announce the shutdown. Close when all calls are done, including calls that the client
        sent before it received the announcement."""
        for call in tuple(self._calls):
            if isinstance(call, StreamCall):
                call.start_drain()
        if not self.engine.is_draining:
            self.engine.drain()
            self.flush()
            self.loop.call_later(server_call.CLOSING_SECONDS, self._announce_last_stream)

    def _announce_last_stream(self) -> None:
        if not self._is_lost and not self.engine.is_closed:
            self.engine.announce_last_stream()
            self.flush()

    def cancel_with(self, error: GatewayError) -> None:
        for call in tuple(self._calls):
            call.abort_with(error)
        self.engine.announce_last_stream()
        self.flush()

    def active_requests(self) -> Iterator[asyncio.Future[None]]:
        completions = (call.completion() for call in self._calls)
        return (completion for completion in completions if completion is not None)

    def abort(self) -> None:
        self._transport.abort()
