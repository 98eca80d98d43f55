"""Requests and responses between two processes, in both directions, over a socket pair.

*Strategy.* Each message is a pickle with its length in front: both ends are the same program, and
no other process has the sockets. Responses may arrive in any order.
"""

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

from infergate.core.vocabulary import BUG

_log = logging.getLogger(__name__)
_HEAD: Final = struct.Struct("<QQB")
"""The length of the pickle, the request number, and the type of the message:"""
_QUESTION, _ANSWER, _FAILURE = range(3)
_AT_ONCE: Final = 200
"""Descriptors sent in one message; Linux allows 253."""


class Failed(Exception):  # noqa: N818
    """The other process could not fulfill the request; the text says why."""


class Lost(Exception):  # noqa: N818
    """The other process has ended."""


class Channel(asyncio.Protocol):
    """One end of the connection. ``handle`` returns the response to a request; its errors are
    reported to the other end. ``closed`` is done when the connection is closed."""

    def __init__(self, answer: Callable[[Any], Awaitable[Any]]) -> None:
        self._answer: Final = answer
        self._received: Final = bytearray()
        self._numbers: Final = itertools.count()
        self._asked: Final[dict[int, asyncio.Future[Any]]] = {}
        self._answering: Final[set[asyncio.Task[None]]] = set()
        self.lost: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    async def ask(self, question: object) -> Any:
        """Send a request and return the response. Raises RequestFailedError and
        ChannelClosedError."""
        if self.lost.done():
            raise Lost("the other process has ended")
        request_id = next(self._numbers)
        response = self._asked[request_id] = asyncio.get_running_loop().create_future()
        try:
            self._send(request_id, _QUESTION, question)
            return await response
        finally:
            del self._asked[request_id]

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _send(self, number: int, kind: int, value: object) -> None:
        pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._transport.writelines((_HEAD.pack(len(pickled), number, kind), pickled))

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """Handle the messages that are complete."""
        received = self._received
        received += data
        while len(received) >= _HEAD.size:
            length, request_id, kind = _HEAD.unpack_from(received)
            end = _HEAD.size + length
            if len(received) < end:
                return
            value = pickle.loads(received[_HEAD.size : end])  # noqa: S301 - sent by our own process
            del received[:end]
            self._take(request_id, kind, value)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Fail all pending requests."""
        del exc
        self.lost.set_result(None)
        for task in self._answering:
            task.cancel()
        for response in self._asked.values():
            if not response.done():
                response.set_exception(Lost("the other process has ended"))

    def _take(self, number: int, kind: int, value: Any) -> None:
        if kind == _QUESTION:
            task = asyncio.create_task(self._respond(number, value))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        response = self._asked.get(number)
        if response is None or response.done():
            return  # the caller was cancelled
        if kind == _ANSWER:
            response.set_result(value)
        else:
            response.set_exception(Failed(value))

    async def _respond(self, number: int, question: Any) -> None:
        try:
            value = await self._answer(question)
        except Failed as error:
            self._send(number, _FAILURE, str(error))
        except Exception:  # noqa: BLE001 - logged here and reported to the caller
            _log.exception("bug while handling a request of another process", extra=BUG)
            self._send(number, _FAILURE, "internal error, see the log")
        else:
            self._send(number, _ANSWER, value)


def send_descriptors(pipe: socket.socket, descriptors: Sequence[int]) -> None:
    """Send open file descriptors to the other process. Raises OSError."""
    for begin in range(0, len(descriptors), _AT_ONCE):
        socket.send_fds(pipe, [b"x"], list(descriptors[begin : begin + _AT_ONCE]))


def receive_descriptors(pipe: socket.socket, count: int) -> list[int]:
    """Receive ``count`` descriptors that were sent before. Raises OSError."""
    received: list[int] = []
    while len(received) < count:
        _, descriptors, _, _ = socket.recv_fds(pipe, 1, _AT_ONCE)
        if not descriptors:
            raise ConnectionError("no socket descriptors were received")
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # noqa: FBT003 - the function's name explains it
        received += descriptors
    return received
