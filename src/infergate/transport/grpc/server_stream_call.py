"""A gRPC stream on a client's HTTP/2 connection.

The next message is admitted when the application pulls it, and the stream's window is raised only
then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.memory import UNLIMITED
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcResponse, total_size
from infergate.transport.base import StreamHandler
from infergate.transport.grpc import framing, headers
from infergate.transport.grpc.drain import DRAIN_GRACE
from infergate.transport.grpc.headers import RequestHeaders
from infergate.transport.grpc.server_call import TRUNCATED, CallConnection, ServerCall
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.stream import Stream
from infergate.transport.net.deferred_inflation import DeferredInflation
from infergate.transport.net.timer import body_deadline


class StreamCall(ServerCall):
    """A call with any number of request messages and responses."""

    _is_stream = True

    def __init__(self, connection: CallConnection, stream: Stream, request: RequestHeaders) -> None:
        super().__init__(connection, stream, request)
        self._reader = framing.MessageReader(self._max_message, request.encoding)
        self.context.memory = UNLIMITED  # in a stream, each message has its own account
        self._message_count = 0  # messages read so far
        self._checked_count = -1  # `_message_count` when an incomplete message was last checked
        self._started_at = self._last_progress = 0.0
        self._held_bytes = 0
        self._is_request_complete = not stream.remote_open
        self._is_draining = False
        self._read_waiter: asyncio.Future[None] | None = None
        self._write_waiter: asyncio.Future[None] | None = None

    def start(self, handler: StreamHandler) -> None:
        """Start the task that serves the stream."""
        self.task = self._connection.loop.create_task(self._serve(handler))

    def add(self, parts: Sequence[Buffer], size: int, end: bool) -> None:  # noqa: FBT001, ARG002
        if self._is_draining:
            self._reader.add_last(parts)
        else:
            self._reader.add(parts)
        if end:
            self._is_request_complete = True
        self._wake()

    def end(self, fields: HeaderBlock) -> None:  # noqa: ARG002
        """Handle the end of the messages."""
        self._is_request_complete = True
        self._wake()

    def start_drain(self) -> None:
        """Accept messages for another `DRAIN_GRACE` seconds, then end the stream's input."""
        self._connection.loop.call_later(DRAIN_GRACE, self._end_requests)

    def _end_requests(self) -> None:
        if not self._is_draining:
            self._is_draining = True
            self._reader.stop_after_current()
            self._wake()

    def sent(self) -> None:
        """Wake the writer, because the queued responses have been sent."""
        if self._write_waiter is not None and not self._write_waiter.done():
            self._write_waiter.set_result(None)

    def is_overdue(self, now: float, limits: Limits) -> bool:
        """Return whether the client exceeds a time limit. The stream may be idle for hours between
        messages. If the application waits for a message, the limits of a unary call apply from the
        first check that finds the message incomplete. The client must also read responses, even if
        it acknowledges PINGs."""
        if self._is_reader_slow(now, limits):
            return True
        if self._read_waiter is None or self._read_waiter.done() or self._reader.is_empty:
            return False
        held = self._reader.held_bytes
        if self._checked_count != self._message_count:
            self._checked_count, self._started_at = self._message_count, now
            self._held_bytes = -1
        if self._held_bytes != held:
            self._held_bytes, self._last_progress = held, now
        due = body_deadline(limits, self._started_at, held, self._last_progress)
        return self._report_if_late(now >= due)

    def _wake(self) -> None:
        if self._read_waiter is not None and not self._read_waiter.done():
            self._read_waiter.set_result(None)

    async def _read_messages(self) -> AsyncGenerator[Buffer, None]:
        connection = self._connection
        while True:
            try:
                item = self._reader.next_message()
                if item is None and self._is_request_complete and not self._reader.is_empty:
                    raise framing.InvalidMessageError(TRUNCATED)
            except framing.MessageError as error:
                self._fail(self.invalid_message_response(error))
                item = None
            if item is not None:
                message, length = item
                self._message_count += 1
                self._end_message()
                if isinstance(message, DeferredInflation):
                    inflated = await self._inflate(message)
                    if inflated is None:
                        return
                    message = inflated
                self.account.release()  # the consumer charges the message to another account
                connection.engine.release(self._stream, length)
                connection.flush_soon()
                yield message
                del message, item  # the next message may arrive hours later
                continue
            if self._is_request_complete or (self._is_draining and self._reader.is_empty):
                return
            if (missing := self._reader.missing_bytes) > 0:
                if not self._admit(missing):
                    return
                held = self._reader.held_bytes
                self._await_message(held + missing, missing, connection.loop.time())
                connection.engine.expect(self._stream, missing)
                connection.flush_soon()
            self._read_waiter = connection.loop.create_future()
            await self._read_waiter

    async def _inflate(self, message: DeferredInflation) -> Buffer | None:
        try:
            if not self.account.is_admitted:
                self.account.admit(len(message))
            return await message.inflate(self.account)
        except framing.MessageError as error:
            self._fail(self.invalid_message_response(error))
        except GatewayError as error:
            self._refuse_message(error)
        return None

    def _refuse_message(self, error: GatewayError) -> None:
        refusal = self.build_refusal(error)
        code = refusal.code or headers.overload_code(error)
        self._fail(RpcResponse(code=code, details=refusal.details or error.public))

    def _admit(self, missing: int) -> bool:
        """Admit a message that lacks `missing` bytes. Return False if the message is refused."""
        try:
            if not self.account.is_admitted:
                self.account.admit(self._reader.held_bytes + missing)
        except GatewayError as error:
            self._refuse_message(error)
            return False
        return True

    def _fail(self, status: RpcResponse) -> None:
        self._is_request_complete = True
        self.finish(status)
        self.cancel()

    async def _serve(self, handler: StreamHandler) -> None:
        admission = self._connection.listener.admission
        try:
            admission.admit_stream()
        except GatewayError as error:
            self._send_refusal(self.build_refusal(error))
            self._close()
            return
        messages = self._read_messages()
        responses: AsyncIterator[RpcResponse] | None = None
        try:
            responses = handler(messages, self.context)
            async for response in responses:
                if response.code:
                    response.metadata = {**self.context.response_headers, **response.metadata}
                    self.finish(response)
                    return
                await self._write(response)
            self.finish(RpcResponse(metadata=self.context.response_headers))
        except GatewayError as error:
            self._send_refusal(self.build_refusal(error))
        except Exception:  # noqa: BLE001 - a bug must affect only one stream
            self.finish(self._unexpected_error_response())
        finally:
            admission.release_stream()
            if isinstance(responses, AsyncGenerator):
                await responses.aclose()
            await messages.aclose()
            self._close()

    def _send_refusal(self, refusal: RpcResponse) -> None:
        if not refusal.code:  # the protocol sends errors as messages
            self._send_message(refusal.message)
            refusal = RpcResponse()
        self.finish(refusal)

    def _send_message(self, message: Sequence[Buffer]) -> bool:
        """Send one message. Return False if data waits for flow-control windows."""
        engine, stream = self._connection.engine, self._stream
        if not self._has_headers:
            self._has_headers = True
            engine.send_headers(stream, headers.RESPONSE_HEADERS)
        return engine.send_data(stream, (framing.PREFIX.pack(0, total_size(message)), *message))

    async def _write(self, response: RpcResponse) -> None:
        """Send one response, and wait until another response may be sent."""
        connection = self._connection
        if not self._send_message(response.message):
            self._write_waiter = connection.loop.create_future()
            connection.flush_soon()
            self._count_unsent()
            await self._write_waiter
            if self._unsent_response is not None:
                self._unsent_response.finish()
        connection.flush()
        await connection.wait_writable()
