"""Unary and response-streaming gRPC calls to a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infergate.core.errors import backend_garbage
from infergate.core.tensor import Buffer
from infergate.core.wire import NO_HEADERS, RpcResponse
from infergate.transport.grpc import framing
from infergate.transport.grpc.client_connection import ClientCall
from infergate.transport.grpc.headers import ResponseHeaders


class UnaryClientCall(ClientCall):
    """A call with one response."""

    _reader: framing.SingleMessageReader | None = None

    def _on_response(self, response: ResponseHeaders) -> None:
        self._reader = framing.SingleMessageReader(self._connection.max_message, response.encoding)
        self._initial_metadata = response.metadata

    def _take_data(self, parts: Sequence[Buffer]) -> None:
        reader = self._reader
        assert reader is not None
        known_length = reader.length
        reader.add(parts)
        if known_length is None and reader.length is not None:
            self._set_counted(reader.length)
            if reader.message is None:
                self._connection.engine.expect(self._stream, reader.length)
        message = reader.message
        if (
            message is not None and len(message) > self._counted_bytes
        ):  # compressed: longer than announced
            self._set_counted(len(message))

    async def wait_response(self) -> RpcResponse:
        """Wait for the response. Raises StreamRefused and GatewayError."""
        try:
            try:
                if not self._is_over:
                    await self._wait()
            finally:
                self.close()
            self._raise_error()
            return await self._build_response()
        except BaseException:
            self._set_counted(0)
            raise

    async def _build_response(self) -> RpcResponse:
        ending = self._end_headers
        assert ending is not None
        assert ending.code is not None
        metadata = _merged_metadata(self._initial_metadata, ending.metadata)
        if ending.code:
            return RpcResponse(code=ending.code, details=ending.details, metadata=metadata)
        message = None if self._reader is None else self._reader.message
        if message is None:
            detail = self._detail("status OK")
            raise backend_garbage("the backend's answer holds no message", detail)
        return RpcResponse((await self._inflate(message),), metadata=metadata)


class StreamingClientCall(ClientCall):
    """A call with any number of responses, each read from the connection on request."""

    _reader: framing.MessageReader | None = None
    _has_returned_end = False

    def _on_response(self, response: ResponseHeaders) -> None:
        self._reader = framing.MessageReader(self._connection.max_message, response.encoding)
        self._initial_metadata = response.metadata

    def _take_data(self, parts: Sequence[Buffer]) -> None:
        assert self._reader is not None
        self._reader.add(parts)
        self._wake()

    async def next_response(self) -> RpcResponse | None:
        """Return the next response with the metadata that precedes it. After the last message,
        return the status if it has an error code or metadata, then None. Raises StreamRefused and
        GatewayError."""
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

    def _final_response(self) -> RpcResponse | None:
        self._raise_error()
        ending = self._end_headers
        assert ending is not None
        assert ending.code is not None
        metadata = _merged_metadata(self._initial_metadata, ending.metadata)
        if self._has_returned_end or not (ending.code or metadata):
            return None
        self._has_returned_end = True
        return RpcResponse(code=ending.code, details=ending.details, metadata=metadata)


def _merged_metadata(first: Mapping[str, str], last: Mapping[str, str]) -> Mapping[str, str]:
    return {**first, **last} if first else last
