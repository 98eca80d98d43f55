"""A replacement for the helper processes that runs jobs in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from infergate.core.memory import UNLIMITED, MemoryAccount
from infergate.runtime.offload.ipc_message import pack, unpack


class Job(NamedTuple):
    """A submitted job and its options."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    deadline: float | None
    client: tuple[str, str]
    cost: int
    size: int

    @property
    def name(self) -> str:
        """Return the name of the function."""
        return str(getattr(self.function, "func", self.function).__name__)


class InlineOffload:
    """Runs jobs in this process on pickled copies, as a helper process would, and records them.
    Jobs wait while ``may_run`` is clear. If ``error`` is set, every job raises it. Without
    ``charges_memory``, jobs take no memory from the account of their request."""

    def __init__(self, *, charges_memory: bool = True) -> None:
        self._charges_memory = charges_memory
        self.may_run = asyncio.Event()
        self.may_run.set()
        self.error: Exception | None = None
        self.jobs: list[Job] = []
        self.is_closed = False

    async def run(
        self,
        deadline: float | None,
        function: Callable[..., Any],
        *arguments: Any,
        client: tuple[str, str] = ("", ""),
        cost: int = 0,
        memory: MemoryAccount = UNLIMITED,
        size: int = 0,
    ) -> Any:
        charge = size if self._charges_memory else 0
        memory.grow(charge)
        try:
            self.jobs.append(Job(function, arguments, deadline, client, cost, size))
            await self.may_run.wait()
            if self.error is not None:
                raise self.error
            copied_function, copied_arguments = _copy((function, arguments))
            return _copy(copied_function(*copied_arguments))
        finally:
            memory.shrink(charge)

    async def close(self) -> None:
        self.is_closed = True


def _copy(value: Any) -> Any:
    pickled, buffers = pack(value)
    return unpack(pickled, memoryview(b"".join(buffers)))
