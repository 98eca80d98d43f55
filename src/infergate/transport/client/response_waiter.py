"""Awaits an exchange that reports its result to callbacks."""

from __future__ import annotations

import asyncio
from typing import Final, Generic, TypeVar

Resp = TypeVar("Resp")


class ResponseWaiter(Generic[Resp]):
    """Callbacks with which a coroutine awaits an exchange."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: Final[asyncio.Future[None]] = loop.create_future()
        self._response: Resp | None = None
        self._error: Exception | None = None

    def on_response(self, response: Resp) -> None:
        """Wake the coroutine with ``response``."""
        self._response = response
        if not self._future.done():
            self._future.set_result(None)

    def on_error(self, error: Exception) -> None:
        """Wake the coroutine with ``error``."""
        self._error = error
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> Resp:
        """Return the response or raise the error. The error is not kept, because its traceback
        refers to this object."""
        await self._future
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        response, self._response = self._response, None
        assert response is not None
        return response
