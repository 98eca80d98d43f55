"""Multiplexes a stream whose messages are requests, each with responses of its own
(`RequestStream`).

One task reads the requests, and one task per request passes on its responses, which the stream
takes one at a time.

- Each request holds at most one response, and the stream one more: a response is pulled only when
  the previous one has been taken. A slow reader therefore stops the pulling, which stops the
  backend.
- Requests are read only as fast as `max_concurrent` allows.
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
    """Yield the responses to all `messages`. Must be closed with `aclose`, which cancels the rest.
    Raises GatewayError if the stream is refused."""
    await conversation.begin()
    outlet = _Outlet()
    reading = asyncio.create_task(_read(conversation, messages, admission, outlet))
    reading.add_done_callback(lambda _: outlet.close())
    try:
        async with aclosing(outlet.messages()) as responses:
            async for response in responses:
                yield response
        await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


class _Outlet:
    """A queue with capacity for one message."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(1)
        self._waiting: asyncio.Queue[RpcResponse | None] = asyncio.Queue()

    async def put(self, message: RpcResponse) -> None:
        """Wait until the queue is empty, then add `message`."""
        await self._room.acquire()
        self._waiting.put_nowait(message)

    def close(self) -> None:
        """End the queue after the messages that are in it."""
        self._waiting.put_nowait(None)

    async def messages(self) -> AsyncGenerator[RpcResponse, None]:
        """Yield all messages. A message makes room for the next when the consumer asks for that."""
        while (message := await self._waiting.get()) is not None:
            yield message
            self._room.release()


async def _read(
    conversation: Conversation,
    messages: AsyncIterator[Buffer],
    admission: Admission,
    outlet: _Outlet,
) -> None:
    slots = asyncio.Semaphore(conversation.at_once)
    iterator = aiter(messages)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await slots.acquire()
            message = await anext(iterator, None)
            if message is None:
                return
            share, refusal = Share(admission), None
            try:
                share.take(len(message))
            except GatewayError as error:
                refusal = error
            try:
                responses = await conversation.ask(message, refusal, share)
            except BaseException:
                share.release()
                raise
            task = tasks.create_task(_hand_on(responses, outlet))
            # A callback, because the task may be cancelled before it starts.
            task.add_done_callback(functools.partial(_over, share, slots))
            del message, responses  # the next message may be hours away


def _over(share: Share, room: asyncio.Semaphore, _: object) -> None:
    share.release()
    room.release()


async def _hand_on(answers: AsyncGenerator[RpcResponse, None], outlet: _Outlet) -> None:
    async with aclosing(answers):
        async for response in answers:
            await outlet.put(response)
