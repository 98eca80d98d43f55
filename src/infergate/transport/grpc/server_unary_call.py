"""A unary gRPC call on a client's HTTP/2 connection.

The message is admitted when its length is announced, and the stream's window is raised only then.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence

from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.transport.grpc import framing
from infergate.transport.grpc.headers import RequestHeaders
from infergate.transport.grpc.server_call import TRUNCATED, CallConnection, ServerCall
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.stream import Stream
from infergate.transport.net.deferred_inflation import DeferredInflation
from infergate.transport.net.timer import body_deadline


class UnaryCall(ServerCall):
    """A call with one request message and one response. The application relays the call with
    callbacks (`RelayCallbacks`), or serves the call in a task."""

    __slots__ = (
        "_counted_bytes",
        "_last_progress",
        "_message",
        "_reader",
        "_received_bytes",
        "_started_at",
    )

    def __init__(self, connection: CallConnection, stream: Stream, request: RequestHeaders) -> None:
        ServerCall.__init__(self, connection, stream, request)  # faster than super()
        self._message: Buffer | DeferredInflation | None = None  # None until it is complete
        self._reader: framing.SingleMessageReader | None = None  # for a message in several pieces
        self._started_at = self._last_progress = connection.engine.last_received_at
        self._received_bytes = 0
        self._counted_bytes = 0

    def add(self, parts: Sequence[Buffer], size: int, end: bool) -> None:  # noqa: FBT001
        if self.task is not None or self._has_ended:
            return
        message = None
        if end and self._reader is None:
            message = framing.read_whole(parts, self._max_message)
        try:
            if message is None:
                self._read(parts, size)
            else:
                self.account.admit(len(message))
        except framing.MessageError as error:
            self._finish_with(self.invalid_message_response(error))
        except GatewayError as refusal:
            self._refuse_message(refusal)
        else:
            if message is not None:
                self._message = message
                self.context.record.bytes_in = len(message)
                self._connection.complete_calls.append(self)
            elif end:
                self._start()
            else:
                self._received_bytes += size
                now = self._last_progress = self._connection.loop.time()
                counted = self._counted_bytes
                missing = max(0, counted + framing.PREFIX.size - self._received_bytes)
                self._await_message(counted, missing, now)

    def end(self, fields: HeaderBlock) -> None:  # noqa: ARG002
        """Handle the end of the message."""
        if self.task is None and not self._has_ended:
            self._start()

    def _read(self, parts: Sequence[Buffer], size: int) -> None:
        """Read `size` bytes of a message that does not arrive in one piece. Raises MessageError
        and OVERLOADED."""
        reader = self._reader
        if reader is None:
            reader = framing.SingleMessageReader(self._max_message, self._request.encoding)
            self._reader = reader
        reader.add(parts)
        if reader.length is not None:
            self._admit(reader.length, reader.message, size)

    def _admit(self, length: int, message: Buffer | DeferredInflation | None, arrived: int) -> None:
        """Admit the message of `length` bytes. `message` is None until the message is complete.
        `arrived` is the number of body bytes that were just received."""
        if not self.account.is_admitted:
            self.account.admit(length)
            self._counted_bytes = length
            if message is None:
                self._connection.engine.expect(self._stream, length + framing.PREFIX.size - arrived)
        # A decompressed message may be longer than announced.
        if message is not None and len(message) > self._counted_bytes:
            self.account.grow(len(message) - self._counted_bytes)
            self._counted_bytes = len(message)

    def _finish_with(self, response: RpcResponse) -> None:
        self.finish(response)
        self._close()

    def _refuse_message(self, error: GatewayError) -> None:
        self._finish_with(self.build_refusal(error))

    def _start(self) -> None:
        self._end_message()
        message = None if self._reader is None else self._reader.message
        if message is None:
            error = framing.InvalidMessageError(TRUNCATED)
            self._finish_with(self.invalid_message_response(error))
            return
        self._message, self._reader = message, None
        self.context.record.bytes_in = len(message)
        self._connection.complete_calls.append(self)

    def begin(self) -> None:
        """Pass the complete message to the application, unless the call has ended."""
        message = self._message
        if self._stream.owner is not self or message is None:
            return
        wire = RpcRequest(self._request.method, (), self._request.headers)
        if isinstance(message, DeferredInflation):
            wire.deferred = message
        else:
            wire.message = (message,)
        listener = self._connection.listener
        if listener.relay is not None and wire.deferred is None:
            relayed = listener.relay(wire, self.context, self)
            if relayed is not None:
                if not self._has_ended:
                    self._relayed = relayed
                return
        self.continue_in_task(functools.partial(listener.app.respond, wire, self.context))

    def continue_in_task(self, respond: Callable[[], Awaitable[RpcResponse]]) -> None:
        self.task = self._connection.loop.create_task(self._serve(respond))

    async def _serve(self, respond: Callable[[], Awaitable[RpcResponse]]) -> None:
        try:
            response = await respond()
        except GatewayError as error:
            response = self.build_refusal(error)
        except Exception:  # noqa: BLE001 - a bug must affect only one call
            response = self._unexpected_error_response()
        message = self._message
        if isinstance(message, DeferredInflation) and isinstance(
            message.error, framing.MessageError
        ):
            # The application has already recorded the error.
            response = self.invalid_message_status(message.error)
        del message
        self.on_response(response)

    def on_response(self, response: RpcResponse) -> None:
        """Send the response, and release the message."""
        self._message = self._relayed = None
        if self._completion is not None:
            self._completion.set_result(None)
        self.account.release()
        self.finish(response)
        if self._stream.send_queue is None:
            self._close()
        else:
            self._count_unsent()

    def sent(self) -> None:
        self._close()

    def is_overdue(self, now: float, limits: Limits) -> bool:
        """Return whether the client is too slow to send the message or to read the response."""
        if self._stream.remote_open and self.task is None:
            received, last_progress = self._received_bytes, self._last_progress
            due = body_deadline(limits, self._started_at, received, last_progress)
            return self._report_if_late(now >= due)
        return self._is_reader_slow(now, limits)
