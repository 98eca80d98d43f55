"""The interface to helper processes, which do work that would block the event loop for too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from infergate.core.memory import UNLIMITED, MemoryAccount

T = TypeVar("T")


class Offload(Protocol):
    """Runs functions in helper processes."""

    async def run(  # noqa: PLR0913 - the properties of a job
        self,
        deadline: float | None,
        function: Callable[..., T],
        *arguments: Any,
        client: tuple[str, str],
        cost: int,
        memory: MemoryAccount = UNLIMITED,
        size: int = 0,
    ) -> T:
        """Run ``function(*arguments)`` in a helper process and return its result.

        The function, its arguments and its result are pickled. The pickle of the function is
        cached, so the function must not hold data of a single request. ``deadline`` is on the clock
        of ``time.monotonic``. ``client`` is the result of ``client_key``. Helpers are shared fairly
        between clients by the ``cost`` of their jobs, which is the number of bytes that a job
        processes. ``size`` bytes are charged to ``memory`` while the job runs.

        Raises the GatewayError of the function, or TIMEOUT, OVERLOADED or INTERNAL."""
        ...
