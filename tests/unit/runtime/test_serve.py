"""The start of a process: stop signals and errors."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from infergate.runtime import serve


class Service:
    """A server that has started when ``ready`` is set."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.events: list[str] = []

    async def start(self) -> None:
        try:
            await self.ready.wait()
            self.events.append("started")
        except asyncio.CancelledError:
            self.events.append("cancelled")
            raise

    async def stop(self, grace: float) -> None:
        self.events.append(f"stopped {grace:g}")


@pytest.fixture
def signals() -> asyncio.Queue[signal.Signals]:
    return asyncio.Queue()


async def start_service(service: Any, signals: asyncio.Queue[signal.Signals]) -> bool:
    async with asyncio.timeout(60):
        return await serve._start_unless_stopped(service, signals)


async def test_a_signal_cancels_the_start(signals: asyncio.Queue[signal.Signals]) -> None:
    service = Service()
    signals.put_nowait(signal.SIGTERM)
    assert not await start_service(service, signals)
    assert service.events == ["cancelled", "stopped 0"]


@pytest.mark.parametrize("before_start", [True, False])
async def test_a_signal_after_the_start_is_left_for_the_drain(
    before_start: bool, signals: asyncio.Queue[signal.Signals]
) -> None:
    service = Service()
    service.ready.set()
    if before_start:
        signals.put_nowait(signal.SIGTERM)
    assert await start_service(service, signals)
    if not before_start:
        signals.put_nowait(signal.SIGTERM)
    assert service.events == ["started"]
    assert signals.get_nowait() is signal.SIGTERM
    assert signals.empty()


async def test_errors_of_the_start_are_raised(signals: asyncio.Queue[signal.Signals]) -> None:
    class FailingService(Service):
        async def start(self) -> None:
            raise OSError("address already in use")

    with pytest.raises(OSError, match="in use"):
        await start_service(FailingService(), signals)
