"""A stream whose messages are requests, each with answers of its own.

*Strategy.* One task reads the requests, one more hands on the answers to each, and the stream takes
them in, a message at a time.

*Rule 1.* A message waits for each request at most, and one in the stream: an answer is pulled when
the one before has gone there. So a slow reader stops the pulling, and that stops the backend.
*Rule 2.* No more requests are read than are served at once.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from infergate.core.errors import GatewayError
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcResponse
from infergate.transport.base import Conversation
from infergate.transport.guard import Admission, Share


async def held(
    conversation: Conversation, messages: AsyncIterator[Buffer], admission: Admission
) -> AsyncGenerator[RpcResponse, None]:
    """The answers to all ``messages``. To be closed by ``aclose``, which gives up the rest. Raises
    GatewayError where there is to be no stream."""
    await conversation.begin()
    outlet = _Outlet()
    reading = asyncio.create_task(_read(conversation, messages, admission, outlet))
    reading.add_done_callback(lambda _: outlet.close())
    try:
        async with aclosing(outlet.messages()) as answers:
            async for answer in answers:
                yield answer
        await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


class _Outlet:
    """Has room for one message."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(1)
        self._waiting: asyncio.Queue[RpcResponse | None] = asyncio.Queue()

    async def put(self, message: RpcResponse) -> None:
        """Wait for room for ``message``."""
        await self._room.acquire()
        self._waiting.put_nowait(message)

    def close(self) -> None:
        """No message comes after those that are there."""
        self._waiting.put_nowait(None)

    async def messages(self) -> AsyncGenerator[RpcResponse, None]:
        """All messages; each has gone when the next is asked for."""
        while (message := await self._waiting.get()) is not None:
            yield message
            self._room.release()


async def _read(
    conversation: Conversation,
    messages: AsyncIterator[Buffer],
    admission: Admission,
    outlet: _Outlet,
) -> None:
    room = asyncio.Semaphore(conversation.at_once)
    iterator = aiter(messages)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await room.acquire()
            message = await anext(iterator, None)
            if message is None:
                return
            share, refused = Share(admission), None
            try:
                share.take(len(message))
            except GatewayError as error:
                refused = error
            try:
                answers = await conversation.ask(message, refused, share)
            except BaseException:
                share.release()
                raise
            task = tasks.create_task(_hand_on(answers, outlet))
            # Also where it is cancelled before it has begun.
            task.add_done_callback(functools.partial(_over, share, room))
            del message, answers  # the next may be hours away


def _over(share: Share, room: asyncio.Semaphore, _: object) -> None:
    share.release()
    room.release()


async def _hand_on(answers: AsyncGenerator[RpcResponse, None], outlet: _Outlet) -> None:
    async with aclosing(answers):
        async for answer in answers:
            await outlet.put(answer)
