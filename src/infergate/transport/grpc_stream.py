"""The client's half of a stream, which ends when the server wants to.

A stream may wait for its client's next message for hours. When the server stops, that waiting is
over: to the application it looks as if the client had said all it wanted, so that the stream is
ended in good order and does not hold the drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from infergate.core.tensor import Buffer

QUIET: Final = 0.5
"""Seconds in which what a client sent before it could know is taken."""
_READY: Final = 0.02
"""Seconds in which a message is had that has come already."""
_MOST: Final = 100
"""How many such messages are taken after that."""


async def until(
    messages: AsyncIterator[Buffer], over: asyncio.Event
) -> AsyncGenerator[Buffer, None]:
    """The ``messages`` that have come a moment after ``over`` was set. To be closed by
    ``aclose``."""
    iterator = aiter(messages)
    loop = asyncio.get_running_loop()
    end = asyncio.create_task(over.wait())
    deaf, late = 0.0, 0
    following: asyncio.Future[Buffer] | None = None
    try:
        while True:
            following = asyncio.ensure_future(anext(iterator))
            await asyncio.wait({following, end}, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                deaf = deaf or loop.time() + QUIET
                late += loop.time() > deaf
                if late > _MOST:
                    return
                await asyncio.wait({following}, timeout=max(_READY, deaf - loop.time()))
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
