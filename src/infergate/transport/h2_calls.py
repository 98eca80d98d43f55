"""The two kinds of gRPC calls on a client's HTTP/2 connection: unary calls and streams.

- A unary call's message is admitted when its length is announced; only then is its window raised to
  hold it.
- In a stream, the next message is admitted, and its window raised, when the application asks for
  it. Before that, at most the stream's initial window arrives.
- A response that ends before the request does also ends the request, a moment later (RFC 9113,
  8.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final

from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, size
from infergate.transport.base import RpcApp, StreamHandler
from infergate.transport.grpc_stream import QUIET
from infergate.transport.guard import Share
from infergate.transport.h2 import calls
from infergate.transport.h2.calls import Asked
from infergate.transport.h2.fields import Fields
from infergate.transport.h2.messages import PREFIX, Messages, NoMessage, OneMessage, TooLong, prefix
from infergate.transport.h2.stream import Stream
from infergate.transport.h2_served import CallConnection, Served
from infergate.transport.inflating import Late
from infergate.transport.timer import body_due

_CUT: Final = "the call ended in the middle of a message"


class UnaryCall(Served):
    """A call with one request message and one response."""

    __slots__ = (
        "_admitted",
        "_counted",
        "_last",
        "_reader",
        "_received",
        "_share",
        "_since",
    )

    def __init__(self, link: CallConnection, stream: Stream, asked: Asked) -> None:
        super().__init__(link, stream, asked)
        self._reader: Final = OneMessage(self._most, asked.encoding)
        self._share: Final = Share(link.host.admission)
        self.call.memory = self._share
        self._since = self._last = link.loop.time()
        self._received = 0
        self._admitted = False
        self._counted = 0

    def add(self, parts: Sequence[Buffer], size: int, end: bool) -> None:  # noqa: FBT001
        """Take part of the message."""
        if self._task is not None or self._has_ended:
            return
        reader = self._reader
        try:
            reader.add(parts)
            if reader.length is not None:
                self._admit(reader.length, size)
        except (TooLong, NoMessage) as error:
            self._turn_away(self.wrong(error))
        except GatewayError as error:
            self._refuse_message(error)
        else:
            if end:
                self._start()
            else:
                self._received += size
                now = self._last = self._link.loop.time()
                counted = self._counted
                self._await_message(counted, max(0, counted + PREFIX.size - self._received), now)

    def end(self, fields: Fields) -> None:  # noqa: ARG002
        """Handle the end of the message."""
        if self._task is None and not self._has_ended:
            self._start()

    def _admit(self, length: int, here: int) -> None:
        """Admit the message when its length is announced. `arrived`: bytes of the body that have
        just arrived."""
        message = self._reader.message
        if not self._admitted:
            self._share.take(length)
            self._admitted, self._counted = True, length
            if message is None:
                self._link.core.invite(self._stream, length + PREFIX.size - here)
        if message is not None and len(message) > self._counted:  # it was compressed
            self._share.grow(len(message) - self._counted)
            self._counted = len(message)

    def _turn_away(self, response: RpcResponse) -> None:
        self.finish(response)
        self._close()

    def _refuse_message(self, error: GatewayError) -> None:
        self._turn_away(self.refused(error))

    def _start(self) -> None:
        self._end_message()
        message = self._reader.message
        if message is None:
            self._turn_away(self.wrong(NoMessage(_CUT)))
            return
        self.call.bytes_in = len(message)
        wire = RpcRequest(self._asked.method, (), self._asked.headers)
        if isinstance(message, Late):
            wire.late = message
        else:
            wire.message = (message,)
        link = self._link
        self._task = link.loop.create_task(self._answer(wire, link.host.app))

    async def _answer(self, wire: RpcRequest, app: RpcApp) -> None:
        try:
            response = await app.respond(wire, self.call)
        except GatewayError as error:
            response = self.refused(error)
        except Exception:  # noqa: BLE001 - a bug costs one call
            response = self._bug()
        message = self._reader.message
        if isinstance(message, Late) and isinstance(message.error, TooLong | NoMessage):
            response = self.described(message.error)  # already recorded by the application
        del wire, message
        self._reader.message = None
        self._share.release()
        self.finish(response)
        if self._stream.queue is None:
            self._close()
        else:
            self._hold()

    def sent(self) -> None:
        """Close the call: all of the response was sent."""
        self._close()

    def _close(self) -> None:
        self._share.release()
        super()._close()

    def overdue(self, now: float, limits: Limits) -> bool:
        """Check the time limits of the message while it arrives, and of the response while it is
        sent: on pauses and on the total time."""
        if self._stream.remote_open and self._task is None:
            return self._is_late(now >= body_due(limits, self._since, self._received, self._last))
        return self._is_unread(now, limits)


class StreamCall(Served):
    """A call with any number of request messages and responses."""

    __slots__ = (
        "_body",
        "_count",
        "_ended",
        "_held",
        "_is_deaf",
        "_last",
        "_room",
        "_seen",
        "_share",
        "_since",
        "_waiter",
    )

    _is_stream = True

    def __init__(self, link: CallConnection, stream: Stream, asked: Asked) -> None:
        super().__init__(link, stream, asked)
        self._body = Messages(self._most, asked.encoding)
        self._share: Final = Share(link.host.admission)
        self._count = 0  # messages taken so far
        self._seen = -1  # `_count` when an incomplete message was last checked
        self._since = self._last = 0.0
        self._held = 0
        self._ended = not stream.remote_open
        self._is_deaf = False
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    def start(self, handler: StreamHandler) -> None:
        """Start the task that serves the stream."""
        self._task = self._link.loop.create_task(self._serve(handler))

    def add(self, parts: Sequence[Buffer], size: int, end: bool) -> None:  # noqa: FBT001, ARG002
        """Take part of the messages."""
        if self._is_deaf:
            self._body.add_last(parts)
        else:
            self._body.add(parts)
        if end:
            self._ended = True
        self._wake()

    def end(self, fields: Fields) -> None:  # noqa: ARG002
        """Handle the end of the messages."""
        self._ended = True
        self._wake()

    def wind_up(self) -> None:
        """Accept messages for a moment longer, because the server stops. Afterwards the application
        sees the end of the messages, so that the stream ends normally and does not delay the
        drain."""
        self._link.loop.call_later(QUIET, self._go_deaf)

    def _go_deaf(self) -> None:
        if not self._is_deaf:
            self._is_deaf = True
            self._body.close()
            self._wake()

    def sent(self) -> None:
        """Wake the writer: the client's windows have room for more responses."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def overdue(self, now: float, limits: Limits) -> bool:
        """Check the time limits of the stream. A stream may be idle for hours, but not in the
        middle of a message that the application waits for; that message is limited like a unary
        call's, from the first check that finds it incomplete. A response must not stay unread
        either, even if the client answers PINGs."""
        if self._is_unread(now, limits):
            return True
        if self._waiter is None or self._waiter.done() or self._body.is_empty:
            return False
        held = self._body.held
        if self._seen != self._count:
            self._seen, self._since = self._count, now
            self._held = -1
        if self._held != held:
            self._held, self._last = held, now
        return self._is_late(now >= body_due(limits, self._since, held, self._last))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _messages(self) -> AsyncGenerator[Buffer, None]:
        link = self._link
        while True:
            try:
                item = self._body.take()
                if item is None and self._ended and not self._body.is_empty:
                    raise NoMessage(_CUT)  # noqa: TRY301
            except (TooLong, NoMessage) as error:
                status = self.wrong(error)
                self._fail(status.code, status.details)
                item = None
            if item is not None:
                message, length = item
                self._count += 1
                self._end_message()
                if isinstance(message, Late):
                    inflated = await self._inflated(message)
                    if inflated is None:
                        return
                    message = inflated
                self._share.release()  # the consumer admits the message on its own account
                link.core.release(self._stream, length)
                link.flush_soon()
                yield message
                del message, item  # the next message may be hours away
                continue
            if self._ended or (self._is_deaf and self._body.is_empty):
                return
            if (lacking := self._body.lacking) > 0:
                if not self._admit(lacking):
                    return
                held = self._body.held
                self._await_message(held + lacking, lacking, link.loop.time())
                link.core.invite(self._stream, lacking)
                link.flush_soon()
            self._waiter = link.loop.create_future()
            await self._waiter

    async def _inflated(self, message: Late) -> Buffer | None:
        try:
            if not self._share.is_taken:
                self._share.take(len(message))
            return await message.whole(self._share)
        except (TooLong, NoMessage) as error:
            status = self.wrong(error)
            self._fail(status.code, status.details)
        except GatewayError as error:
            self._refuse_message(error)
        return None

    def _refuse_message(self, error: GatewayError) -> None:
        refusal = self.refused(error)
        self._fail(refusal.code or calls.code_of(error), refusal.details or error.public)

    def _admit(self, lacking: int) -> bool:
        """Admit a message of which `missing` bytes are still to come; return False if it is
        refused."""
        try:
            if not self._share.is_taken:
                self._share.take(self._body.held + lacking)
        except GatewayError as error:
            self._refuse_message(error)
            return False
        return True

    def _close(self) -> None:
        self._share.release()
        super()._close()

    def _fail(self, code: int, details: str) -> None:
        self._ended = True
        self.finish(RpcResponse(code=code, details=details))
        self.cancel()

    async def _serve(self, handler: StreamHandler) -> None:
        admission = self._link.host.admission
        try:
            admission.admit_stream()
        except GatewayError as error:
            self._refuse(self.refused(error))
            self._close()
            return
        messages = self._messages()
        responses: AsyncIterator[RpcResponse] | None = None
        try:
            responses = handler(messages, self.call)
            async for response in responses:
                if response.code:
                    response.metadata = {**self.call.returned, **response.metadata}
                    self.finish(response)
                    return
                await self._write(response)
            self.finish(RpcResponse(metadata=self.call.returned))
        except GatewayError as error:
            self._refuse(self.refused(error))
        except Exception:  # noqa: BLE001 - a bug costs one stream
            self.finish(self._bug())
        finally:
            admission.release_stream()
            if isinstance(responses, AsyncGenerator):
                await responses.aclose()
            await messages.aclose()
            self._close()

    def _refuse(self, refusal: RpcResponse) -> None:
        if not refusal.code:  # the protocol sends errors as messages
            core, stream, message = self._link.core, self._stream, refusal.message
            if not self._has_headers:
                self._has_headers = True
                core.send_headers(stream, calls.HEADERS)
            core.send_data(stream, (prefix(size(message)), *message))
            refusal = RpcResponse()
        self.finish(refusal)

    async def _write(self, response: RpcResponse) -> None:
        """Send one response, and wait until another may be sent."""
        core, stream, link = self._link.core, self._stream, self._link
        if not self._has_headers:
            self._has_headers = True
            core.send_headers(stream, calls.HEADERS)
        parts: tuple[Any, ...] = (prefix(size(response.message)), *response.message)
        if not core.send_data(stream, parts):
            self._room = link.loop.create_future()
            link.flush_soon()
            self._hold()
            await self._room
            if self._unsent is not None:
                self._unsent.end()
        link.flush()
        await link.writable()
