"""Ends the input of a stream when the server stops, so that the stream ends normally. Otherwise,
the stream could wait hours for the client's next message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from infergate.core.tensor import Buffer

DRAIN_GRACE: Final = 0.5
"""Seconds after the stop during which messages that were in flight are still accepted."""
_READY_TIMEOUT: Final = 0.02  # seconds to wait for a message that has already arrived
_MAX_LATE_MESSAGES: Final = 100  # maximum number of messages accepted after the grace period


async def until_stopped(
    messages: AsyncIterator[Buffer], stopped: asyncio.Event
) -> AsyncGenerator[Buffer, None]:
    """Yield `messages` until shortly after `stopped` is set. The caller must call `aclose`."""
    iterator = aiter(messages)
    loop = asyncio.get_running_loop()
    end = asyncio.create_task(stopped.wait())
    deadline, late_count = 0.0, 0
    next_message: asyncio.Future[Buffer] | None = None
    try:
        while True:
            next_message = asyncio.ensure_future(anext(iterator))
            await asyncio.wait({next_message, end}, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                deadline = deadline or loop.time() + DRAIN_GRACE
                late_count += loop.time() > deadline
                if late_count > _MAX_LATE_MESSAGES:
                    return
                await asyncio.wait(
                    {next_message}, timeout=max(_READY_TIMEOUT, deadline - loop.time())
                )
            if not next_message.done():
                return
            try:
                message = next_message.result()
            except StopAsyncIteration:
                return
            yield message
    finally:
        waiting = [task for task in (next_message, end) if task is not None]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
