"""Runs the gateway until it is stopped.

*Reload.* The configuration is reloaded on SIGHUP and, where enabled, when its files change or on
POST /reload.

*Drain.* The first SIGTERM or SIGINT fails readiness, waits ``drain.delay`` for load balancers to
notice, stops accepting, and lets requests finish for ``drain.timeout``. A second signal stops at
once, as does the first before startup has completed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from infergate.config.files import Files
from infergate.config.schema import Config
from infergate.core.vocabulary import BUG, DRAIN, NOTHING_TO_RELOAD, START_FAILED, STOPPED
from infergate.observe.log_lines import FORMATTERS, begin
from infergate.runtime.assemble import assemble
from infergate.runtime.banner import Addressed, announce
from infergate.runtime.company import Ended
from infergate.runtime.descriptors import Complaints, allow_most
from infergate.runtime.engines import engine
from infergate.runtime.history import History
from infergate.runtime.memory import keep_freed_memory, settle
from infergate.runtime.reload import Read, Reloads
from infergate.runtime.watch import watch

_log = logging.getLogger("infergate")
_STOP: Final = (signal.SIGTERM, signal.SIGINT)


def serve(read: Read, source: Path | None) -> int:
    """Serve the configuration that ``read`` returns, and reload it when required. ``source`` is its
    file; None: the embedded demo.

    Returns 0 after a clean stop. Raises ConfigError, and OSError if an address is taken.
    """
    files = Files()
    config = read(files)
    keep_freed_memory()
    allow_most()
    handler = begin(config.log.format)

    async def serving() -> int:
        asyncio.get_running_loop().set_exception_handler(Complaints())
        signals = _Signals()
        history = History(source, files.sha256 if source else "")
        if source is not None:
            history.read = lambda: read(Files())
        running = _made(config, history)

        async def apply(config: Config) -> None:
            await running.reload(config)
            handler.setFormatter(FORMATTERS[config.log.format]())

        reloads = None if source is None else Reloads(read, apply, history, files)
        if not await _starts(running, signals.stops):
            return 0
        settle()
        announce(config, running.listeners, source, sys.stdout)
        return await _until_stopped(running, reloads, signals)

    with asyncio.Runner(loop_factory=engine(config.engine).new_loop) as runner:
        try:
            return runner.run(serving())
        except Ended as error:
            _log.error("%s", error, extra=START_FAILED)
            return error.code


class _Service(Protocol):
    """A ``RunningGateway``, or the supervisor of several processes."""

    @property
    def config(self) -> Config: ...

    @property
    def listeners(self) -> Mapping[str, Addressed]: ...

    async def start(self) -> None: ...

    async def reload(self, config: Config) -> None: ...

    def drain(self) -> None: ...

    async def stop(self, grace: float) -> None: ...


def _made(config: Config, history: History) -> _Service:
    if config.workers == 1:
        running = assemble(config, history=history)
        running.retired = settle
        return running
    # Imported here, because a single process needs no supervisor.
    from infergate.runtime.workers.supervisor import Supervisor  # noqa: PLC0415

    return Supervisor(config, history)


class _Signals:
    """The signals received: ``stop_signals`` in order, and ``reload_requested`` for any number of
    SIGHUPs."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.stops: Final[asyncio.Queue[signal.Signals]] = asyncio.Queue()
        self.hung_up: Final = asyncio.Event()
        for number in _STOP:
            loop.add_signal_handler(number, self.stops.put_nowait, number)
        loop.add_signal_handler(signal.SIGHUP, self.hung_up.set)


async def _starts(running: _Service, stops: asyncio.Queue[signal.Signals]) -> bool:
    """Start ``running`` and return True; or return False after a stop signal that came before.
    Startup may take a while with several processes. Raises the errors of ``start``."""
    start_task = asyncio.create_task(running.start())
    stop_task = asyncio.create_task(stops.get())
    await asyncio.wait({start_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
    if start_task.done():
        if not stop_task.cancel():
            stops.put_nowait(stop_task.result())  # both at once: drain
        start_task.result()
        return True
    _log.info("%s: stopping before startup has completed", stop_task.result().name, extra=DRAIN)
    start_task.cancel()
    await asyncio.gather(start_task, return_exceptions=True)
    await running.stop(0)
    _log.info("stopped", extra=STOPPED)
    return False


async def _until_stopped(running: _Service, reloads: Reloads | None, signals: _Signals) -> int:
    reload_tasks = (
        asyncio.create_task(_hang_ups(signals.hung_up, reloads)),
        asyncio.create_task(_watch(running, reloads)),
    )
    for task in reload_tasks:
        task.add_done_callback(_told_if_broken)
    first_signal = await signals.stops.get()
    _log.info("%s: draining", first_signal.name, extra=DRAIN)
    running.drain()
    for task in reload_tasks:
        task.cancel()
    drain_task = asyncio.create_task(_drain(running))
    second_signal = asyncio.create_task(signals.stops.get())
    await asyncio.wait({drain_task, second_signal}, return_when=asyncio.FIRST_COMPLETED)
    if drain_task.done():
        drain_task.result()  # a failure of the drain is a failure of the process
    else:
        _log.info("second signal: stopping at once", extra=DRAIN)
        drain_task.cancel()
        await asyncio.gather(drain_task, return_exceptions=True)
        await running.stop(0)
    second_signal.cancel()
    await asyncio.gather(second_signal, *reload_tasks, return_exceptions=True)
    _log.info("stopped", extra=STOPPED)
    return 0


def _told_if_broken(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("bug: automatic reloads have stopped", exc_info=error, extra=BUG)


async def _hang_ups(hung_up: asyncio.Event, reloads: Reloads | None) -> None:
    """Reload at each SIGHUP; those received during a reload count as one."""
    while True:
        await hung_up.wait()
        hung_up.clear()
        if reloads is None:
            _log.warning(
                "SIGHUP ignored: the embedded models have no configuration to reload",
                extra=NOTHING_TO_RELOAD,
            )
        else:
            await reloads.again("SIGHUP")


async def _watch(running: _Service, reloads: Reloads | None) -> None:
    """Reload when files have changed, as the active configuration specifies."""

    def quiet_seconds() -> float | None:
        settings = running.config.reload
        return settings.quiet if settings.watch else None

    if reloads is not None:
        reload_changed = functools.partial(reloads.if_changed, "a file changed")
        await watch(lambda: reloads.files.paths, quiet_seconds, reload_changed)


async def _drain(running: _Service) -> None:
    await asyncio.sleep(running.config.drain.delay)
    await running.stop(running.config.drain.timeout)
