"""The client's half of a stream, which ends when the server wants to.

A stream may wait for its client's next message for hours. When the server stops, that waiting is
over: to the application it looks as if the client had said all it wanted, so that the stream is
ended in good order and does not hold the drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator


async def until(messages: AsyncIterator[bytes], over: asyncio.Event) -> AsyncGenerator[bytes, None]:
    """The ``messages`` that come before ``over`` is set. To be closed by ``aclose``."""
    iterator = aiter(messages)
    end = asyncio.create_task(over.wait())
    following: asyncio.Future[bytes] | None = None
    try:
        while True:
            following = asyncio.ensure_future(anext(iterator))
            await asyncio.wait({following, end}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return
            try:
                message = following.result()
            except StopAsyncIteration:
                return
            yield message
    finally:
        waiting = [task for task in (following, end) if task is not None]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
