"""Runs blocking functions in daemon threads, so that a hanging function cannot keep the process
from exiting."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def to_daemon_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run ``function`` in a daemon thread, and return its result. Unlike with
    ``asyncio.to_thread``, the process can exit before the function returns. Raises RuntimeError if
    the system cannot start a thread, or if the function raises SystemExit or StopIteration."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def finish(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def run() -> None:
        nonlocal function, arguments
        try:
            setter, value = future.set_result, context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001 - the caller receives it
            # A future rejects StopIteration, and SystemExit would end the event loop.
            is_fit = isinstance(error, Exception) and not isinstance(error, StopIteration)
            setter = future.set_exception  # type: ignore[assignment]
            value = error if is_fit else RuntimeError(repr(error))  # type: ignore[assignment]
        del function, arguments  # so that the caller can free them before this thread ends
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, setter, value)

    threading.Thread(target=run, name="infergate", daemon=True).start()
    return await future
