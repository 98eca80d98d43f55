"""Multiplexes a stream whose messages are requests with separate responses (`RequestStream`).

One task reads the requests, as fast as `max_concurrent` allows, and one task per request forwards
its responses. One response waits in the queue, and each task holds at most one more, so a slow
reader slows down the backend.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from infergate.core.errors import GatewayError
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcResponse
from infergate.transport.base import RequestStream
from infergate.transport.server.admission import Admission, RequestAccount


async def multiplex(
    request_stream: RequestStream, messages: AsyncIterator[Buffer], admission: Admission
) -> AsyncGenerator[RpcResponse, None]:
    """Yield the responses to all `messages`. `aclose` cancels the requests in progress. Raises
    GatewayError if the stream is refused."""
    await request_stream.open()
    queue = _ResponseQueue()
    reading = asyncio.create_task(_read_requests(request_stream, messages, admission, queue))
    reading.add_done_callback(lambda _: queue.close())
    try:
        async with aclosing(queue.messages()) as responses:
            async for response in responses:
                yield response
        await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


class _ResponseQueue:
    """A queue with capacity for one message."""

    def __init__(self) -> None:
        self._capacity = asyncio.Semaphore(1)
        self._queue: asyncio.Queue[RpcResponse | None] = asyncio.Queue()

    async def put(self, message: RpcResponse) -> None:
        """Wait until the queue has capacity, then add `message`."""
        await self._capacity.acquire()
        self._queue.put_nowait(message)

    def close(self) -> None:
        """End the queue after its current messages."""
        self._queue.put_nowait(None)

    async def messages(self) -> AsyncGenerator[RpcResponse, None]:
        """Yield all messages. A message occupies the queue until the next message is pulled."""
        while (message := await self._queue.get()) is not None:
            yield message
            self._capacity.release()


async def _read_requests(
    request_stream: RequestStream,
    messages: AsyncIterator[Buffer],
    admission: Admission,
    queue: _ResponseQueue,
) -> None:
    slots = asyncio.Semaphore(request_stream.max_concurrent)
    iterator = aiter(messages)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await slots.acquire()
            message = await anext(iterator, None)
            if message is None:
                return
            account, refusal = RequestAccount(admission), None
            try:
                account.admit(len(message))
            except GatewayError as error:
                refusal = error
            try:
                responses = await request_stream.handle(message, refusal, account)
            except BaseException:
                account.release()
                raise
            task = tasks.create_task(_forward(responses, queue))
            # A callback releases the account and the slot, because the task may be cancelled
            # before it starts.
            task.add_done_callback(functools.partial(_release, account, slots))
            del message, responses  # free them; the next message may arrive hours later


def _release(account: RequestAccount, slots: asyncio.Semaphore, _: object) -> None:
    account.release()
    slots.release()


async def _forward(responses: AsyncGenerator[RpcResponse, None], queue: _ResponseQueue) -> None:
    async with aclosing(responses):
        async for response in responses:
            await queue.put(response)
