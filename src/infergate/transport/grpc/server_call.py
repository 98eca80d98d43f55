"""The base classes of a client's gRPC calls (unary calls and streams) and of their HTTP/2
connection."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import ClassVar, Final

from infergate.core.compilation import mypyc_attr
from infergate.core.errors import GatewayError, Kind, internal_error
from infergate.core.limits import Limits
from infergate.core.log_events import BUG
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcResponse, total_size
from infergate.transport.base import Cancellable, RpcApp
from infergate.transport.grpc import framing, headers
from infergate.transport.grpc.connection import NO_OWNER, Http2Protocol
from infergate.transport.grpc.headers import RequestHeaders
from infergate.transport.grpc.rpc_app import build_refusal
from infergate.transport.http2.events import Reset
from infergate.transport.http2.frames import Code
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.roles import Http2ServerConnection
from infergate.transport.http2.stream import Stream
from infergate.transport.net.timer import CATCH_UP_SECONDS, DeadlineTimer
from infergate.transport.server.admission import (
    IncomingBody,
    RequestAccount,
    UnsentResponse,
    too_slow,
)
from infergate.transport.server.connection_gate import ConnectionRefusal
from infergate.transport.server.incoming_request import IncomingRequest
from infergate.transport.server.listener import SocketListener

log = logging.getLogger(__name__)

CLOSING_SECONDS: Final = 1.0
"""Seconds for a client to acknowledge a shutdown, to end a request after an early response, or to
read the last status or GOAWAY."""
_DEADLINE_GRACE: Final = 0.1
"""Grace period in seconds after a client's deadline, in which the application can report the
expiry."""
_DEADLINE_TEXT: Final = "Deadline Exceeded"
MESSAGE_TIMEOUT_TEXT: Final = "the message did not arrive in time"
TRUNCATED: Final = "the call ended in the middle of a message"


class CallConnection(Http2Protocol[Http2ServerConnection]):
    """A client's HTTP/2 connection with its calls."""

    def __init__(self, listener: SocketListener[RpcApp]) -> None:
        limits = listener.limits
        super().__init__(listener.loop, Http2ServerConnection(limits.headers, limits.streams))
        self.listener: Final = listener
        self.peer = ""
        self.peer_identity: tuple[str, ...] = ()  # the value of `RequestContext.peer_identity`
        self._calls: Final[dict[ServerCall, None]] = {}  # ordered, so that calls end in order
        self.deadline_timer: Final = DeadlineTimer(self.loop, self._calls)

    def end_stream_soon(self, stream: Stream) -> None:
        """Reset the stream soon after the response, unless the client has ended the request. Some
        clients (curl) treat an immediate reset as a failure, contrary to RFC 9113, 8.1."""
        if stream.remote_open:
            self.reset_stream_soon(stream)

    def reset_stream_soon(self, stream: Stream) -> None:
        """Reset `stream` after `CLOSING_SECONDS` if it is still open."""
        self.loop.call_later(CLOSING_SECONDS, self._reset_stream, stream)

    def _reset_stream(self, stream: Stream) -> None:
        self.engine.reset(stream, Code.NO_ERROR)
        self.flush()

    def remove_call(self, call: ServerCall) -> None:
        """Remove `call`, which has ended."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class ServerCall(IncomingRequest):
    """The base class of calls. The connection invokes the methods for events on the stream."""

    __slots__ = (
        "_completion",
        "_connection",
        "_has_ended",
        "_has_headers",
        "_incoming_message",
        "_max_message",
        "_relayed",
        "_request",
        "_stream",
        "_unsent_response",
        "deadline",
        "task",
    )

    def __init__(self, connection: CallConnection, stream: Stream, request: RequestHeaders) -> None:
        timeout = request.timeout
        context = RequestContext(
            connection.peer,
            None if timeout is None else time.monotonic() + timeout,
            headers=request.headers,
            peer_identity=connection.peer_identity,
        )
        self.context = context  # set here, because super() would slow down each request
        self.account = context.memory = RequestAccount(connection.listener.admission)
        self._connection: Final = connection
        self._stream: Final = stream
        stream.owner = self
        self._request: Final = request
        self._max_message: Final = connection.listener.limits.body + framing.MESSAGE_OVERHEAD
        self._has_headers = False  # whether response headers were sent
        self._has_ended = False  # whether the status was sent
        self.task: asyncio.Task[None] | None = None  # the task that serves the call, while it runs
        self._relayed: Cancellable | None = None  # the work on a relayed request
        self._completion: asyncio.Future[None] | None = None
        self.deadline = math.inf  # on the clock of the event loop
        self._unsent_response: UnsentResponse | None = None
        self._incoming_message: IncomingBody | None = None
        if timeout is not None:
            received_at = connection.engine.last_received_at
            self.deadline = deadline = received_at + timeout + _DEADLINE_GRACE
            if deadline < connection.deadline_timer.due:
                connection.deadline_timer.set_at(deadline)

    def add(self, parts: Sequence[Buffer], size: int, end: bool) -> None:  # noqa: FBT001
        """Handle `size` received bytes of the body."""
        raise NotImplementedError

    def end(self, fields: HeaderBlock) -> None:
        """Handle trailers (not sent by gRPC clients), or the end of a request without a body."""
        raise NotImplementedError

    def begin(self) -> None:
        """Pass the message to the application."""
        raise NotImplementedError

    def sent(self) -> None:
        """Handle the event that all queued data has been sent."""

    def on_reset(self, event: Reset) -> None:  # noqa: ARG002
        """Cancel the call, because the client reset the stream."""
        self.cancel()

    def cancel(self) -> None:
        """Cancel the work on the call, and release its resources."""
        relayed, self._relayed = self._relayed, None
        if relayed is not None:
            relayed.cancel()
        task = self.task
        if task is None or task.done():
            self._close()
        else:
            task.add_done_callback(lambda _: self._close())
            task.cancel()

    def completion(self) -> asyncio.Future[None] | None:
        """Return a future that is done when the application has served the call, or None if the
        call has not begun."""
        if self._relayed is not None and self.task is None and self._completion is None:
            self._completion = self._connection.loop.create_future()
        return self._completion or self.task

    def is_overdue(self, now: float, limits: Limits) -> bool:
        """Return whether the client has exceeded a time limit."""
        raise NotImplementedError

    def _report_if_late(self, is_late: bool) -> bool:  # noqa: FBT001
        """Report a late message to the application. Return `is_late`."""
        if is_late:
            self.build_refusal(
                GatewayError(Kind.TIMEOUT, MESSAGE_TIMEOUT_TEXT, limit="idle_body_time")
            )
        return is_late

    def _await_message(self, size: int, missing: int, now: float) -> None:
        """Account for an incoming message of `size` bytes, `missing` of which have not arrived."""
        if size > MIN_ACCOUNTED_BYTES:
            if self._incoming_message is None:
                self._incoming_message = IncomingBody(self._connection.listener.admission)
            self._incoming_message.update(size, missing, now, self)

    def _end_message(self) -> None:
        if self._incoming_message is not None:
            self._incoming_message.finish()

    def reject_slow_body(self) -> None:
        """Refuse the message if it is still slow after the socket buffer has been read."""
        self._connection.loop.call_later(CATCH_UP_SECONDS, self._reject_slow_sender)

    def _reject_slow_sender(self) -> None:
        sender, connection = self._incoming_message, self._connection
        if sender is not None and sender.is_slow(
            connection.loop.time(), connection.listener.limits.idle_body_time
        ):
            sender.finish()
            self._refuse_message(too_slow())

    def _refuse_message(self, error: GatewayError) -> None:
        raise NotImplementedError

    def _count_unsent(self) -> None:
        queue = self._stream.send_queue
        if queue is not None:
            if self._unsent_response is None:
                self._unsent_response = UnsentResponse(self._connection.listener.admission)
            self._unsent_response.start(total_size(queue), self._connection.loop.time(), self)

    def _is_reader_slow(self, now: float, limits: Limits) -> bool:
        """Return whether the response has been unread for too long. If so, reset the stream."""
        queue, unsent = self._stream.send_queue, self._unsent_response
        if queue is None or unsent is None:
            return False
        unsent.set_remaining(total_size(queue), now)
        if now < unsent.deadline(limits):
            return False
        self._reset_slow_reader()
        return True

    def _reset_slow_reader(self) -> None:
        reason = "the client does not read its response, so the stream is reset"
        self._connection.listener.gate.refuse(
            ConnectionRefusal.SLOW_READER, self._connection.peer, reason
        )
        self._connection.engine.reset(self._stream, Code.CANCEL)

    def unread_bytes(self) -> int:
        queue = self._stream.send_queue
        return 0 if queue is None else total_size(queue)

    def disconnect_soon(self) -> None:
        self._connection.loop.call_soon(self._disconnect_slow_reader)

    def _disconnect_slow_reader(self) -> None:
        if self._stream.send_queue is not None:
            self._reset_slow_reader()
            self._connection.flush_soon()
            self.cancel()

    def _close(self) -> None:
        """Release all resources, and break the reference cycle of call, stream and task."""
        if self.account.is_admitted:
            self.account.release()
        if self._unsent_response is not None:
            self._unsent_response.finish()
        if self._incoming_message is not None:
            self._incoming_message.finish()
        if self._completion is not None and not self._completion.done():
            self._completion.set_result(None)
        self._stream.owner = NO_OWNER
        self.task = self._relayed = None
        self._connection.remove_call(self)

    def expire(self) -> None:
        """End the call, because its deadline has passed."""
        self.deadline = math.inf
        self.expire_with(_DEADLINE_TEXT)

    def abort_with(self, error: GatewayError) -> None:
        """End the call with `error`, or only cancel the call if its status was sent."""
        connection, stream = self._connection, self._stream
        if not self._has_ended:
            self.context.abort_error = error
            self._send_refusal(self.build_refusal(error))
            if stream.remote_open and stream.send_queue is None:
                connection.engine.reset(stream, Code.NO_ERROR)
        self.cancel()

    def _send_refusal(self, refusal: RpcResponse) -> None:
        self.finish(refusal)

    def expire_with(self, details: str) -> None:
        """End the call with DEADLINE_EXCEEDED, or reset the stream if the status was sent."""
        if self._has_ended:
            self._connection.engine.reset(self._stream, Code.CANCEL)
            self._connection.flush_soon()
        else:
            self.finish(RpcResponse(code=headers.DEADLINE_EXCEEDED, details=details))
            if self._stream.send_queue is not None:
                # The client might never read the status.
                self._connection.reset_stream_soon(self._stream)
        self.cancel()

    def build_refusal(self, error: GatewayError) -> RpcResponse:
        """Return the application's response to `error`."""
        app = self._connection.listener.app
        return build_refusal(app, error, self._request.method, self.context)

    def invalid_message_response(self, error: framing.MessageError) -> RpcResponse:
        """Return gRPC's own status for an invalid message. The application records the error."""
        self.build_refusal(error)
        return self.invalid_message_status(error)

    @staticmethod
    def invalid_message_status(error: framing.MessageError) -> RpcResponse:
        """Return the status for an invalid message that the application has already recorded."""
        is_too_long = isinstance(error, framing.MessageTooLongError)
        code = headers.RESOURCE_EXHAUSTED if is_too_long else headers.INTERNAL
        return RpcResponse(code=code, details=error.public)

    def finish(self, response: RpcResponse) -> None:
        """Send the end of the response, or a complete unary response."""
        if self._has_ended:
            return
        self._has_ended = True
        engine, stream = self._connection.engine, self._stream
        code, message = response.code, response.message
        length = len(message[0]) if len(message) == 1 else total_size(message)
        if not code and length > self._max_message:
            code = headers.RESOURCE_EXHAUSTED
            sizes = f"{length} vs. {self._max_message}"
            details = f"Sent message larger than max ({sizes}) (limits.body)"
            response = RpcResponse(code=code, details=details)
        ending = headers.OK_TRAILERS
        if code or response.metadata:
            ending = headers.encode_trailers(code, response.details, response.metadata)
        if code and not self._has_headers:
            block = headers.encode_trailers_only(200, code, response.details, response.metadata)
            engine.send_headers(stream, block, end=True)
        elif code or self._is_stream:
            if not self._has_headers:
                engine.send_headers(stream, headers.RESPONSE_HEADERS)
            engine.send_data(stream, (), ending)
        else:
            parts = (framing.PREFIX.pack(0, length), *message)
            engine.send_message(stream, headers.RESPONSE_HEADERS, parts, ending)
        if stream.remote_open:
            self._connection.end_stream_soon(stream)
        self._connection.flush_soon()

    _is_stream: ClassVar = False

    def _unexpected_error_response(self) -> RpcResponse:
        """Log the exception that is being handled, and return the response."""
        log.exception("serving %s failed", self._request.method, extra=BUG)  # noqa: LOG004
        return self.build_refusal(internal_error())
