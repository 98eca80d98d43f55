"""The server side of a connection that serves an ``HttpApp``, for every framing of requests.

The callbacks of the asyncio protocol drive a state machine. Subclasses (``http1``, ``framed``,
``compat``) parse the bytes and collect a request. The connection's only task starts when the
request is complete, unless the application relays the request. An incomplete request is rejected
directly from the callback. A single timer serves all time limits.

- Rule 1. The task is cancelled when the client disconnects. End of file counts as a disconnect,
  because TCP does not distinguish a half-close from a close.
- Rule 2. Every request is released when its response is complete, or after the connection is lost.
- Rule 3. If a request is rejected before its body is read, the connection sends the response,
  discards the rest of the body for a while, and closes. If it closed immediately, the system would
  reset the connection, and the client might not receive the response.
- Rule 4. The next part of a streamed response is pulled only when the write buffer is nearly empty.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, cast

from infergate.core.compilation import mypyc_attr
from infergate.core.errors import GatewayError
from infergate.core.log_events import BUG
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import BodyStream, HttpRequest, HttpResponse, total_size
from infergate.transport.base import Cancellable, HttpApp
from infergate.transport.http1 import error_responses, message_head
from infergate.transport.net.timer import CATCH_UP_SECONDS, Timer, body_deadline
from infergate.transport.server.admission import IncomingBody, UnsentResponse, too_slow
from infergate.transport.server.connection_gate import ConnectionRefusal, peer_address
from infergate.transport.server.incoming_request import IncomingHttpRequest
from infergate.transport.server.listener import HttpAppListener

log = logging.getLogger(__name__)

_LINGER_SECONDS: Final = 5.0
"""Seconds for which bytes are still read after an early rejection (nginx lingering_timeout: 5
s)."""


class ConnectionState(enum.Enum):
    """The state of a connection, which depends on its current request."""

    HEAD = "waiting for a request, or reading its head"
    BODY = "reading the body"
    BUSY = "the application is handling the request"
    FLUSH = "the response is written, but the client is slow to read it"
    LINGER = "rejected early; discarding the rest of the request"
    LAST = "the last response is written; closing once the client has read it"
    CLOSED = "closed"


@mypyc_attr(allow_interpreted_subclasses=True)
class HttpServerConnection(asyncio.BaseProtocol):
    """The state machine of one connection that ``listener`` accepted."""

    def __init__(self, listener: HttpAppListener) -> None:
        self._listener = listener
        self._timer = Timer(listener.loop, self._on_timeout)
        self._state = ConnectionState.HEAD
        self._peer = ""
        self._identity: tuple[str, ...] = ()  # names in the client certificate
        self._request: IncomingHttpRequest | None = None  # from its head to its response
        self._task: asyncio.Task[None] | None = None
        self._relayed: Cancellable | None = None  # the application's work on a relayed request
        self._has_early_response = False  # whether ``relay`` responded before it returned
        self._completion: asyncio.Future[None] | None = None  # the result of ``active_requests``
        self._transport: asyncio.Transport
        self._is_paused = False
        self._drained: asyncio.Event | None = None  # set when the write buffer has drained
        self._unsent_response: Final = UnsentResponse(listener.admission)
        self._incoming_body: IncomingBody | None = None  # created for the first long body

    def _placeholder_request(self) -> HttpRequest:
        """Return the request that represents an incomplete head."""
        return HttpRequest("", "")

    # ---- implemented by subclasses

    @property
    def _has_partial_head(self) -> bool:
        """Whether a part of a head has arrived. The value is meaningful only in the state HEAD."""
        raise NotImplementedError

    def _write_response(self, response: HttpResponse) -> bool:
        """Write ``response`` without its body stream. Return whether another response may
        follow."""
        raise NotImplementedError

    def _write_part(self, body: Sequence[Buffer] | None) -> None:
        """Write another part of the response. None ends the response."""
        raise NotImplementedError

    def _continue(self, *, receiving: bool) -> None:
        """Continue with the next request. ``receiving`` means that the caller processes received
        bytes."""
        raise NotImplementedError

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the listener, or abort if the gate refuses the connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own class
        self._peer = peer_address(transport)
        self._identity = transport.get_extra_info("peer_identity", ())
        if not self._listener.register(self, self._peer):
            self._transport.abort()
            return
        self._timer.set(self._listener.limits.header_time)

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        self._state = ConnectionState.CLOSED
        self._timer.close()
        relayed, self._relayed = self._relayed, None
        if relayed is not None:
            relayed.cancel()
        if self._task is None:
            self._cleanup(None)
        else:
            # A ``finally`` in the task would not run if the task is cancelled before its first
            # step.
            self._task.add_done_callback(self._cleanup)
            self._task.cancel()

    def _cleanup(self, _: asyncio.Task[None] | None) -> None:
        self._unsent_response.finish()
        self._stop_awaiting_body()
        if self._request is not None:
            self._request.release()
        # The error of a cancelled task refers to frames, which would keep their data alive until
        # garbage collection.
        self._task = None
        self._complete()
        self._listener.unregister(self)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        """Continue in the next event loop iteration. If asyncio's transport were closed inside this
        callback, it would call ``connection_lost`` twice."""
        self._is_paused = False
        self._unsent_response.finish()
        if self._state is ConnectionState.FLUSH:
            self._listener.loop.call_soon(self._on_flushed)
        elif self._drained is not None:
            self._timer.stop()
            self._drained.set()

    def _on_flushed(self) -> None:
        if self._state is ConnectionState.FLUSH and not self._is_paused:
            self._next_request()

    # ---- receiving

    def _await_body(self, received: int, missing: int) -> None:
        """Wait for more of the body. ``missing`` bytes will follow. If ``missing`` is 0, the number
        is unknown."""
        request, listener = self._request, self._listener
        assert request is not None
        now = listener.loop.time()
        since = request.body_started_at = request.body_started_at or now
        self._timer.set_at(body_deadline(listener.limits, since, received, now))
        if received + missing > MIN_ACCOUNTED_BYTES:
            if self._incoming_body is None:
                self._incoming_body = IncomingBody(listener.admission)
            self._incoming_body.update(received + missing, missing, now, self)

    def _stop_awaiting_body(self) -> None:
        if self._incoming_body is not None:
            self._incoming_body.finish()

    def reject_slow_body(self) -> None:
        """Read the bytes that the socket has, then reject the body if it is still slow."""
        self._listener.loop.call_later(CATCH_UP_SECONDS, self._reject_if_slow)

    def _reject_if_slow(self) -> None:
        sender, listener = self._incoming_body, self._listener
        if sender is not None and sender.is_slow(
            listener.loop.time(), listener.limits.idle_body_time
        ):
            self._reject(too_slow())

    # ---- responding

    def _start(self, request: IncomingHttpRequest) -> None:
        if self._incoming_body is not None:
            self._incoming_body.finish()
        self._timer.stop()
        self._state = ConnectionState.BUSY
        listener = self._listener
        if listener.relay is not None:
            self._has_early_response = False
            relayed = listener.relay(request.wire, request.context, self)
            if relayed is not None:
                if not self._has_early_response:
                    self._relayed = relayed
                return
        self.continue_in_task(
            functools.partial(listener.app.respond, request.wire, request.context)
        )

    def on_response(self, response: HttpResponse) -> None:
        """Send the response to a relayed request. If ``relay`` has not returned yet, the caller is
        still processing received bytes, so the response has to wait."""
        if self._relayed is None:
            self._has_early_response = True
            self._listener.loop.call_soon(self._finish_relayed, response)
        else:
            self._finish_relayed(response)

    def _finish_relayed(self, response: HttpResponse) -> None:
        request, self._relayed = self._request, None
        if self._completion is not None:
            self._complete()
        if request is not None and self._state is ConnectionState.BUSY:
            request.release()
            self._respond(response)

    def continue_in_task(self, respond: Callable[[], Awaitable[HttpResponse]]) -> None:
        """Serve the request in a task."""
        assert self._request is not None
        serving = self._serve(self._request, self._listener.app, respond)
        self._task = self._listener.loop.create_task(serving)

    async def _serve(
        self,
        request: IncomingHttpRequest,
        app: HttpApp,
        respond: Callable[[], Awaitable[HttpResponse]],
    ) -> None:
        try:
            response = await respond()
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001
            abort_error = request.context.abort_error
            if abort_error is not None and isinstance(failure, asyncio.CancelledError):
                failure = abort_error
            response = error_responses.response_to_failure(
                failure, app, request.wire, request.context
            )
        if response.body_stream is not None:
            await self._stream_response(response, response.body_stream, request)
        elif self._state is not ConnectionState.CLOSED:
            self._task = self._relayed = None
            self._complete()
            request.release()
            self._respond(response)

    async def _stream_response(
        self, response: HttpResponse, stream: BodyStream, request: IncomingHttpRequest
    ) -> None:
        """Write a streamed response (Rule 4)."""
        try:
            keep = self._write_response(response)
            while True:
                await self._wait_until_drained()
                part = await stream.next()
                self._write_part(part)
                if part is None:
                    break
        except Exception:
            log.exception("a streamed response was aborted", extra=BUG)
            self._transport.abort()
            return
        finally:
            await stream.close()
        self._task = self._relayed = None
        self._complete()
        request.release()
        if self._transport.is_closing():
            self._wait_for_last_read()
        else:
            self._finish_response((), keep=keep)

    async def _wait_until_drained(self) -> None:
        """Wait until the client has read most of the written bytes."""
        if self._is_paused:
            self._drained = asyncio.Event()
            self._wait_for_client(ConnectionState.BUSY)
            await self._drained.wait()
            self._drained = None

    def _reject(self, error: GatewayError) -> None:
        """Reject the current request, in any state."""
        self._stop_awaiting_body()
        request = self._request
        if request is None:  # the head is incomplete
            wire = self._placeholder_request()
            context = RequestContext(self._peer, peer_identity=self._identity)
        else:
            wire, context = request.wire, request.context
            request.release()
        self._respond(error_responses.rejection(self._listener.app, error, wire, context))

    def _respond(self, response: HttpResponse) -> None:
        if self._transport.is_closing():
            self._wait_for_last_read()
            return
        keep = self._write_response(response)
        if self._request is None or not self._request.is_complete:
            self._linger()
        else:
            self._finish_response(response.body, keep=keep)

    def _finish_response(self, body: Sequence[Buffer], *, keep: bool) -> None:
        """Finish a response that has been written completely. ``body`` is its last part."""
        if not keep:
            self._close(body)
        elif self._is_paused:
            self._wait_for_client(ConnectionState.FLUSH, body)
        else:
            self._next_request()

    def _next_request(self) -> None:
        if self._is_last():
            self._close()
            return
        state = self._state
        self._request = None
        self._state = ConnectionState.HEAD
        self._timer.set(self._listener.limits.keepalive_time)
        self._continue(receiving=state is ConnectionState.HEAD or state is ConnectionState.BODY)

    def _wait_for_client(self, state: ConnectionState, body: Sequence[Buffer] = ()) -> None:
        """Wait until the client has read the written bytes, which end with ``body``."""
        self._state = state
        unsent = self._transport.get_write_buffer_size()
        if unsent:  # the last part stays in memory until it is sent completely
            unsent = max(unsent, total_size(body))
        self._unsent_response.start(unsent, self._listener.loop.time(), self)
        self._timer.set_at(self._unsent_response.deadline(self._listener.limits))

    def _close(self, body: Sequence[Buffer] = ()) -> None:
        self._wait_for_client(ConnectionState.LAST, body)
        self._transport.close()

    def _wait_for_last_read(self) -> None:
        """Wait until the client, which has closed its half of the connection, has read earlier
        responses."""
        if self._state is not ConnectionState.CLOSED:
            self._wait_for_client(ConnectionState.LAST)

    def _linger(self) -> None:
        self._state = ConnectionState.LINGER
        self._timer.set(_LINGER_SECONDS)
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:  # the client has reset the connection
                self._transport.abort()

    # ---- timeouts and shutdown

    def _on_timeout(self) -> None:
        if self._state is ConnectionState.BODY:
            self._reject(message_head.timed_out("idle_body_time"))
            return
        if self._state is ConnectionState.HEAD and self._has_partial_head:
            self._reject(message_head.timed_out("header_time"))
            return
        is_flushing = self._state in {ConnectionState.FLUSH, ConnectionState.LAST}
        if is_flushing or self._drained is not None:
            listener, now = self._listener, self._listener.loop.time()
            self._unsent_response.set_remaining(self._transport.get_write_buffer_size(), now)
            due = self._unsent_response.deadline(listener.limits)
            if now < due:
                self._timer.set_at(due)
                return
            self._disconnect_if_unread()
            return
        if self._state is ConnectionState.HEAD:
            self._listener.gate.closed_idle += 1
        self._transport.abort()

    def _disconnect_if_unread(self) -> None:
        if not self._unsent_response.size:  # the client has just read everything
            return
        reason = "the client does not read its response"
        self._listener.gate.refuse(ConnectionRefusal.SLOW_READER, self._peer, reason)
        self._transport.abort()

    def unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def disconnect_soon(self) -> None:
        """Disconnect the client soon unless it reads its response."""
        self._listener.loop.call_soon(self._disconnect_if_unread)

    def close_when_idle(self) -> None:
        if (
            self._state is ConnectionState.HEAD and not self._has_partial_head
        ) or self._state is ConnectionState.LINGER:
            self._transport.close()

    def cancel_with(self, error: GatewayError) -> None:
        request, relayed = self._request, self._relayed
        if request is not None and (self._task is not None or relayed is not None):
            request.context.abort_error = error
            if relayed is not None:
                relayed.cancel()
            if self._task is not None:
                self._task.cancel()
                return
            app = self._listener.app
            self._finish_relayed(
                error_responses.response_to_failure(error, app, request.wire, request.context)
            )
        elif self._state is ConnectionState.BODY or (
            self._state is ConnectionState.HEAD and self._has_partial_head
        ):
            self._reject(error)
        elif self._state is not ConnectionState.BUSY:  # a busy connection sends a response next
            self._transport.abort()

    def _is_last(self) -> bool:
        """Return whether the connection is closed after this response, even if the client wants to
        keep the connection open."""
        return self._listener.is_stopping

    def active_requests(self) -> Iterator[asyncio.Future[None]]:
        """Yield the task that serves the request, or a future if the request is relayed. Yield
        nothing if no request is being served."""
        if self._relayed is not None and self._task is None and self._completion is None:
            self._completion = self._listener.loop.create_future()
        future = self._completion or self._task
        if future is not None:
            yield future

    def _complete(self) -> None:
        completion, self._completion = self._completion, None
        if completion is not None and not completion.done():
            completion.set_result(None)

    def abort(self) -> None:
        self._transport.abort()
