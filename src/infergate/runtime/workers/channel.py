"""Requests and responses between two processes, in both directions, over a socket pair.

Each message is a header followed by a pickle. Pickles are safe on this connection, because both
ends are the same program and no other process can use the sockets. Responses may arrive in any
order."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

from infergate.core.log_events import BUG

_log = logging.getLogger(__name__)
_HEADER: Final = struct.Struct("<QQB")
"""The length of the pickle, the request number, and the type of the message."""
_REQUEST, _RESPONSE, _FAILURE = range(3)
_MAX_DESCRIPTORS: Final = 200
"""Maximum number of descriptors in one call of ``sendmsg``. Linux allows 253."""


class RequestFailedError(Exception):
    """The other process could not fulfill the request. The message is the reason."""


class ChannelClosedError(Exception):
    """The other process has ended."""


class WorkerChannel(asyncio.Protocol):
    """One end of the connection. ``handle`` returns the response to a request; its errors are
    reported to the other end. ``closed`` is done when the connection is closed."""

    def __init__(self, handle: Callable[[Any], Awaitable[Any]]) -> None:
        self._handle: Final = handle
        self._received: Final = bytearray()
        self._request_ids: Final = itertools.count()
        self._pending: Final[dict[int, asyncio.Future[Any]]] = {}
        self._handling: Final[set[asyncio.Task[None]]] = set()
        self.closed: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    async def request(self, message: object) -> Any:
        """Send a request and return the response. Raises RequestFailedError and
        ChannelClosedError."""
        if self.closed.done():
            raise ChannelClosedError("the other process has ended")
        request_id = next(self._request_ids)
        response = self._pending[request_id] = asyncio.get_running_loop().create_future()
        try:
            self._send(request_id, _REQUEST, message)
            return await response
        finally:
            del self._pending[request_id]

    def close(self) -> None:
        self._transport.close()

    def _send(self, request_id: int, kind: int, value: object) -> None:
        pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._transport.writelines((_HEADER.pack(len(pickled), request_id, kind), pickled))

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop has its own class

    def data_received(self, data: bytes) -> None:
        """Handle all complete messages."""
        received = self._received
        received += data
        while len(received) >= _HEADER.size:
            length, request_id, kind = _HEADER.unpack_from(received)
            end = _HEADER.size + length
            if len(received) < end:
                return
            value = pickle.loads(received[_HEADER.size : end])  # noqa: S301 - sent by our own process
            del received[:end]
            self._dispatch(request_id, kind, value)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Fail all pending requests, and cancel the handling of received requests."""
        del exc
        self.closed.set_result(None)
        for task in self._handling:
            task.cancel()
        for response in self._pending.values():
            if not response.done():
                response.set_exception(ChannelClosedError("the other process has ended"))

    def _dispatch(self, request_id: int, kind: int, value: Any) -> None:
        if kind == _REQUEST:
            task = asyncio.create_task(self._respond(request_id, value))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)
            return
        response = self._pending.get(request_id)
        if response is None or response.done():
            return  # the caller was cancelled
        if kind == _RESPONSE:
            response.set_result(value)
        else:
            response.set_exception(RequestFailedError(value))

    async def _respond(self, request_id: int, message: Any) -> None:
        try:
            value = await self._handle(message)
        except RequestFailedError as error:
            self._send(request_id, _FAILURE, str(error))
        except Exception:  # noqa: BLE001 - logged here and reported to the caller
            _log.exception("bug while handling a request of another process", extra=BUG)
            self._send(request_id, _FAILURE, "internal error, see the log")
        else:
            self._send(request_id, _RESPONSE, value)


def send_descriptors(pipe: socket.socket, descriptors: Sequence[int]) -> None:
    """Send open file descriptors to the other process. Raises OSError."""
    for begin in range(0, len(descriptors), _MAX_DESCRIPTORS):
        socket.send_fds(pipe, [b"x"], list(descriptors[begin : begin + _MAX_DESCRIPTORS]))


def receive_descriptors(pipe: socket.socket, count: int) -> list[int]:
    """Receive ``count`` descriptors. Raises OSError."""
    received: list[int] = []
    while len(received) < count:
        _, descriptors, _, _ = socket.recv_fds(pipe, 1, _MAX_DESCRIPTORS)
        if not descriptors:
            raise ConnectionError("no file descriptors were received")
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # noqa: FBT003 - the function's name explains it
        received += descriptors
    return received
