"""gRPC calls on a connection to a backend: with one response, and with a stream of responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infergate.core.errors import garbage
from infergate.core.tensor import Buffer
from infergate.core.wire import NO_HEADERS, RpcRequest, RpcResponse
from infergate.transport.h2.calls import Answered
from infergate.transport.h2.messages import Messages, NoMessage, OneMessage, TooLong
from infergate.transport.h2_asking import Asked, ClientLink


class AskedOnce(Asked):
    """A call with one response."""

    def __init__(self, link: ClientLink, wire: RpcRequest, deadline: float) -> None:
        self._reader: OneMessage | None = None
        self._first: Mapping[str, str] = NO_HEADERS
        super().__init__(link, wire, deadline)

    def _expect(self, answered: Answered) -> None:
        self._reader = OneMessage(self._link.most, answered.encoding)
        self._first = answered.metadata

    def _take(self, parts: Sequence[Buffer]) -> None:
        reader = self._reader
        assert reader is not None
        known_length = reader.length
        reader.add(parts)
        if known_length is None and reader.length is not None:
            self._count(reader.length)
            if reader.message is None:
                self._link.core.invite(self._stream, reader.length)
        if reader.message is not None and len(reader.message) > self._counted:  # it was compressed
            self._count(len(reader.message))

    async def answer(self) -> RpcResponse:
        """Wait for the response. Raises StreamRefused and GatewayError."""
        try:
            try:
                if not self._is_over:
                    await self._wait()
            finally:
                self.close()
            self._raise()
            return await self._response()
        except BaseException:
            self._count(0)
            raise

    async def _response(self) -> RpcResponse:
        ending = self._ending
        assert ending is not None
        assert ending.code is not None
        metadata = _together(self._first, ending.metadata)
        if ending.code:
            return RpcResponse(code=ending.code, details=ending.details, metadata=metadata)
        message = None if self._reader is None else self._reader.message
        if message is None:
            detail = self._said("status OK")
            raise garbage("the backend's answer holds no message", detail)
        return RpcResponse((await self._whole(message),), metadata=metadata)


class AskedStream(Asked):
    """A call with any number of responses, which are taken from the connection as they are asked
    for."""

    def __init__(self, link: ClientLink, wire: RpcRequest, deadline: float | None) -> None:
        self._messages: Messages | None = None
        self._first: Mapping[str, str] = NO_HEADERS
        self._has_ended = False
        super().__init__(link, wire, deadline)

    def _expect(self, answered: Answered) -> None:
        self._messages = Messages(self._link.most, answered.encoding)
        self._first = answered.metadata

    def _take(self, parts: Sequence[Buffer]) -> None:
        assert self._messages is not None
        self._messages.add(parts)
        self._wake()

    async def next(self) -> RpcResponse | None:
        """Return the next response, with the metadata that preceded it; then the end, if it has a
        code or metadata; then None. Raises StreamRefused and GatewayError."""
        link = self._link
        self._count(0)  # the previous message has been used
        while True:
            messages = self._messages
            try:
                item = None if messages is None else messages.take()
                if item is None and self._is_over and messages and not messages.is_empty:
                    raise NoMessage("truncated message")  # noqa: TRY301
            except (TooLong, NoMessage) as error:
                if self._error is None or isinstance(error, TooLong):
                    raise self._wrong(error) from None
                item = None
            if item is not None:
                message, length = item
                self._count(len(message))
                link.core.release(self._stream, length)
                link.flush_soon()
                first, self._first = self._first, NO_HEADERS
                return RpcResponse((await self._whole(message),), metadata=first)
            if self._is_over:
                return self._end()
            if messages is not None and (lacking := messages.lacking) > 0:
                self._count(messages.held + lacking)
                link.core.invite(self._stream, lacking)
                link.flush_soon()
            await self._wait()

    def close(self) -> None:
        """End the call and release its memory."""
        self._count(0)
        super().close()

    def _end(self) -> RpcResponse | None:
        self._raise()
        ending = self._ending
        assert ending is not None
        assert ending.code is not None
        metadata = _together(self._first, ending.metadata)
        if self._has_ended or not (ending.code or metadata):
            return None
        self._has_ended = True
        return RpcResponse(code=ending.code, details=ending.details, metadata=metadata)


def _together(first: Mapping[str, str], last: Mapping[str, str]) -> Mapping[str, str]:
    """Merge the metadata before and after the response; the latter takes precedence."""
    return {**first, **last} if first else last
