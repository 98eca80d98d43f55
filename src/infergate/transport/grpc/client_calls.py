"""Unary and server-streaming gRPC calls to a backend."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from infergate.core.errors import backend_garbage
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.tensor import Buffer
from infergate.core.wire import NO_HEADERS, RpcResponse
from infergate.transport.base import ExchangeCallbacks
from infergate.transport.grpc import framing
from infergate.transport.grpc.client_connection import ClientCall, StreamRefused
from infergate.transport.net.deferred_inflation import DeferredInflation


class UnaryClientCall(ClientCall):
    """A call with one response, which is reported to `callbacks`. The creator of the call sets
    `callbacks`. If `retry` is set and the server refuses the stream, the response of `retry` is
    reported."""

    callbacks: ExchangeCallbacks[RpcResponse] | None = None
    retry: Callable[[], Awaitable[RpcResponse]] | None = None
    _message: Any = None  # a Buffer or DeferredInflation; mypyc requires Any (decision 50)
    _reader: framing.SingleMessageReader | None = None  # None if the message arrives in one piece
    _task: asyncio.Task[None] | None = None  # inflates the response, or retries

    def add(self, parts: Sequence[Buffer], size: int, end: bool) -> None:  # noqa: FBT001
        if self._message is None and self._reader is None and size <= MIN_ACCOUNTED_BYTES:
            message = framing.read_whole(parts, self._connection.max_message)
            if message is not None and not end and not self._is_over:
                self._message = message
                return
        super().add(parts, size, end)

    def _take_data(self, parts: Sequence[Buffer]) -> None:
        reader = self._reader
        if reader is None:
            reader = framing.SingleMessageReader(self._connection.max_message, self._encoding)
            reader.message = self._message
            self._reader = reader
        previous_length = reader.length
        reader.add(parts)
        if previous_length is None and reader.length is not None:
            if reader.length > MIN_ACCOUNTED_BYTES:
                self._set_counted(reader.length)
            if reader.message is None:
                self._connection.engine.expect(self._stream, reader.length)
        message = self._message = reader.message
        # A decompressed message may be longer than announced.
        if message is not None and len(message) > max(self._counted_bytes, MIN_ACCOUNTED_BYTES):
            self._set_counted(len(message))

    def cancel(self) -> None:
        """End the call without reporting to `callbacks`, and release its memory."""
        self.callbacks = None
        if self._task is not None:
            self._task.cancel()
        self.close()
        self._set_counted(0)

    def _on_over(self) -> None:
        callbacks, error = self.callbacks, self._error
        self._error = None  # the error's traceback may refer to this call
        if callbacks is None:
            return
        if error is not None:
            self._set_counted(0)
            if self.retry is not None and type(error) is StreamRefused:
                self._start_task(self.retry)
                return
            self.callbacks = None
            callbacks.on_error(error)
            return
        message, ending = self._message, self._end_headers
        assert ending is not None
        assert ending.code is not None
        metadata = ending.metadata
        if self._initial_metadata:
            metadata = {**self._initial_metadata, **metadata}
        if isinstance(message, DeferredInflation):
            if not ending.code:
                self._start_task(functools.partial(self._inflated, message, metadata))
                return
            message = None
        self.callbacks = None
        if ending.code:
            callbacks.on_response(RpcResponse((), ending.code, ending.details, metadata))
        elif message is None:
            self._set_counted(0)
            detail = self._detail("status OK")
            callbacks.on_error(backend_garbage("the backend's response has no message", detail))
        else:
            callbacks.on_response(RpcResponse((message,), 0, "", metadata))

    async def _inflated(
        self, message: DeferredInflation, metadata: Mapping[str, str]
    ) -> RpcResponse:
        try:
            return RpcResponse((await self._inflate(message),), metadata=metadata)
        except BaseException:
            self._set_counted(0)
            raise

    def _start_task(self, respond: Callable[[], Awaitable[RpcResponse]]) -> None:
        self._task = self._connection.loop.create_task(self._report(respond))

    async def _report(self, respond: Callable[[], Awaitable[RpcResponse]]) -> None:
        try:
            response = await respond()
        except Exception as error:  # noqa: BLE001 - the callbacks handle it
            if (callbacks := self._take_callbacks()) is not None:
                callbacks.on_error(error)
        else:
            if (callbacks := self._take_callbacks()) is not None:
                callbacks.on_response(response)

    def _take_callbacks(self) -> ExchangeCallbacks[RpcResponse] | None:
        callbacks, self.callbacks, self._task = self.callbacks, None, None
        return callbacks


class StreamingClientCall(ClientCall):
    """A call with any number of responses, each read from the connection on demand."""

    _reader: framing.MessageReader | None = None
    _has_returned_end = False
    _waiter: asyncio.Future[None] | None = None

    def _take_data(self, parts: Sequence[Buffer]) -> None:
        if self._reader is None:
            self._reader = framing.MessageReader(self._connection.max_message, self._encoding)
        self._reader.add(parts)
        self._wake()

    async def next_response(self) -> RpcResponse | None:
        """Return the next response with the metadata that precedes it. After the last message,
        return the status if it is an error or has metadata, and then None. Raises StreamRefused
        and GatewayError."""
        connection = self._connection
        self._set_counted(0)  # the previous message has been used
        while True:
            messages = self._reader
            try:
                item = None if messages is None else messages.next_message()
                if item is None and self._is_over and messages and not messages.is_empty:
                    raise framing.InvalidMessageError("truncated message")
            except framing.MessageError as error:
                if self._error is None or isinstance(error, framing.MessageTooLongError):
                    raise self._message_error(error) from None
                item = None
            if item is not None:
                message, length = item
                self._set_counted(len(message))
                connection.engine.release(self._stream, length)
                connection.flush_soon()
                first, self._initial_metadata = self._initial_metadata, NO_HEADERS
                return RpcResponse((await self._inflate(message),), metadata=first)
            if self._is_over:
                return self._final_response()
            if messages is not None and (missing := messages.missing_bytes) > 0:
                self._set_counted(messages.held_bytes + missing)
                connection.engine.expect(self._stream, missing)
                connection.flush_soon()
            await self._wait()

    def close(self) -> None:
        """End the call and release its memory."""
        self._set_counted(0)
        super().close()

    def _on_over(self) -> None:
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        waiter = self._waiter = self._connection.loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _final_response(self) -> RpcResponse | None:
        error, self._error = self._error, None  # the error's traceback will refer to this call
        if error is not None:
            try:
                raise error
            finally:
                del error
        ending = self._end_headers
        assert ending is not None
        assert ending.code is not None
        metadata = ending.metadata
        if self._initial_metadata:
            metadata = {**self._initial_metadata, **metadata}
        if self._has_returned_end or not (ending.code or metadata):
            return None
        self._has_returned_end = True
        return RpcResponse(code=ending.code, details=ending.details, metadata=metadata)
