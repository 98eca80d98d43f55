"""Questions and answers between two processes, both ways, over a pair of sockets.

*Strategy.* Each message is a pickle after its length: both ends are the same program, and nobody
else has the sockets. Answers come in any order.
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
"""The length of what follows, the number of the question, and which of these it is:"""
_QUESTION, _ANSWER, _FAILURE = range(3)
_AT_ONCE: Final = 200
"""Descriptors in one message; the system takes 253."""


class Failed(Exception):  # noqa: N818 - of a question
    """The other end could not do it; the text says why."""


class Lost(Exception):  # noqa: N818 - of a process
    """The other end is no more."""


class Channel(asyncio.Protocol):
    """One end. ``answer`` is what the other is answered; what it raises is told as a failure.
    ``lost`` is done when the other end is closed."""

    def __init__(self, answer: Callable[[Any], Awaitable[Any]]) -> None:
        self._answer: Final = answer
        self._received: Final = bytearray()
        self._numbers: Final = itertools.count()
        self._asked: Final[dict[int, asyncio.Future[Any]]] = {}
        self._answering: Final[set[asyncio.Task[None]]] = set()
        self.lost: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    async def ask(self, question: object) -> Any:
        """The answer. Raises Failed, Lost."""
        if self.lost.done():
            raise Lost("the other process has ended")
        number = next(self._numbers)
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, _QUESTION, question)
            return await answered
        finally:
            del self._asked[number]

    def close(self) -> None:
        """Ask and answer nothing more."""
        self._transport.close()

    def _send(self, number: int, kind: int, value: object) -> None:
        pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._transport.writelines((_HEAD.pack(len(pickled), number, kind), pickled))

    # ---- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        """Some of a message, or several."""
        received = self._received
        received += data
        while len(received) >= _HEAD.size:
            length, number, kind = _HEAD.unpack_from(received)
            end = _HEAD.size + length
            if len(received) < end:
                return
            value = pickle.loads(received[_HEAD.size : end])  # noqa: S301 - our own program's
            del received[:end]
            self._take(number, kind, value)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The other process has ended, or this end was closed."""
        del exc
        self.lost.set_result(None)
        for task in self._answering:
            task.cancel()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(Lost("the other process has ended"))

    def _take(self, number: int, kind: int, value: Any) -> None:
        if kind == _QUESTION:
            task = asyncio.create_task(self._respond(number, value))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        asked = self._asked.get(number)
        if asked is None or asked.done():
            return  # who asked has gone away
        if kind == _ANSWER:
            asked.set_result(value)
        else:
            asked.set_exception(Failed(value))

    async def _respond(self, number: int, question: Any) -> None:
        try:
            value = await self._answer(question)
        except Failed as error:
            self._send(number, _FAILURE, str(error))
        except Exception:  # noqa: BLE001 - told to both: this log, and who asked
            _log.exception("a bug while answering another process", extra=BUG)
            self._send(number, _FAILURE, "internal error, see the log")
        else:
            self._send(number, _ANSWER, value)


def send_descriptors(pipe: socket.socket, descriptors: Sequence[int]) -> None:
    """Hand them over. Raises OSError where the other end does not take them."""
    for begin in range(0, len(descriptors), _AT_ONCE):
        socket.send_fds(pipe, [b"x"], list(descriptors[begin : begin + _AT_ONCE]))


def receive_descriptors(pipe: socket.socket, count: int) -> list[int]:
    """``count`` that were sent before. Raises OSError."""
    found: list[int] = []
    while len(found) < count:
        _, descriptors, _, _ = socket.recv_fds(pipe, 1, _AT_ONCE)
        if not descriptors:
            raise ConnectionError("the descriptors of sockets did not come")
        for each in descriptors:
            os.set_inheritable(each, False)  # noqa: FBT003 - its name says it
        found += descriptors
    return found
