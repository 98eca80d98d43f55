"""A stop signal while a process starts."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from infergate.runtime import serve


class Service:
    """A server whose start is complete when ``begun`` is set."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.did: list[str] = []

    async def start(self) -> None:
        try:
            await self.begun.wait()
            self.did.append("started")
        except asyncio.CancelledError:
            self.did.append("cancelled")
            raise

    async def stop(self, grace: float) -> None:
        self.did.append(f"stopped {grace:g}")


@pytest.fixture
def stops() -> asyncio.Queue[signal.Signals]:
    return asyncio.Queue()


async def starts(service: Any, stops: asyncio.Queue[signal.Signals]) -> bool:
    async with asyncio.timeout(60):
        return await serve._start_unless_stopped(service, stops)


async def test_a_signal_during_startup_ends_the_process(
    stops: asyncio.Queue[signal.Signals],
) -> None:
    service = Service()
    stops.put_nowait(signal.SIGTERM)
    assert not await starts(service, stops)
    assert service.did == ["cancelled", "stopped 0"]


@pytest.mark.parametrize("before", [True, False])
async def test_a_signal_after_startup_starts_the_drain(
    before: bool, stops: asyncio.Queue[signal.Signals]
) -> None:
    service = Service()
    service.begun.set()
    if before:
        stops.put_nowait(signal.SIGTERM)
    assert await starts(service, stops)
    if not before:
        stops.put_nowait(signal.SIGTERM)
    assert service.did == ["started"]
    assert stops.get_nowait() is signal.SIGTERM
    assert stops.empty()


async def test_startup_errors_are_raised(stops: asyncio.Queue[signal.Signals]) -> None:
    class Taken(Service):
        async def start(self) -> None:
            raise OSError("address already in use")

    with pytest.raises(OSError, match="in use"):
        await starts(Taken(), stops)
