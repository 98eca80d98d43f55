"""Run until told to stop.

*Reload.* SIGHUP, a change of the configuration's files, and POST /reload on the admin listener
where that is on, have them read again (``reload``).

*Drain.* The first SIGTERM or SIGINT fails readiness, waits ``drain.delay`` for load balancers to
notice, stops accepting, and lets requests finish for ``drain.timeout``. A second one ends at once,
and so does the first where nothing is served yet.
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
    """Serve what ``read`` reads (``source``: the file it comes from; None: the embedded demo),
    again whenever that is to be done.

    Returns 0 after a clean stop. Raises ConfigError, and OSError where an address is taken.
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

        async def take(config: Config) -> None:
            await running.reload(config)
            handler.setFormatter(FORMATTERS[config.log.format]())

        reloads = None if source is None else Reloads(read, take, history, files)
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
    """What is run: :class:`infergate.runtime.running.Running`, or what several processes are."""

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
    # One process needs none.
    from infergate.runtime.workers.supervisor import Supervisor  # noqa: PLC0415

    return Supervisor(config, history)


class _Signals:
    """Those that came: ``stops`` in their order; ``hung_up``, however often."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.stops: Final[asyncio.Queue[signal.Signals]] = asyncio.Queue()
        self.hung_up: Final = asyncio.Event()
        for number in _STOP:
            loop.add_signal_handler(number, self.stops.put_nowait, number)
        loop.add_signal_handler(signal.SIGHUP, self.hung_up.set)


async def _starts(running: _Service, stops: asyncio.Queue[signal.Signals]) -> bool:
    """Whether ``running`` serves; False: it was told to stop before, and has ended. Several
    processes may take a while to start. Raises what ``start`` does."""
    starting = asyncio.create_task(running.start())
    stop = asyncio.create_task(stops.get())
    await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        if not stop.cancel():
            stops.put_nowait(stop.result())  # both at once: it is drained
        starting.result()
        return True
    _log.info("%s: ending before anything is served", stop.result().name, extra=DRAIN)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await running.stop(0)
    _log.info("stopped", extra=STOPPED)
    return False


async def _until_stopped(running: _Service, reloads: Reloads | None, signals: _Signals) -> int:
    beside = (
        asyncio.create_task(_hang_ups(signals.hung_up, reloads)),
        asyncio.create_task(_watch(running, reloads)),
    )
    for each in beside:
        each.add_done_callback(_told_if_broken)
    first = await signals.stops.get()
    _log.info("%s: draining", first.name, extra=DRAIN)
    running.drain()
    for each in beside:
        each.cancel()
    draining = asyncio.create_task(_drain(running))
    again = asyncio.create_task(signals.stops.get())
    await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    if draining.done():
        draining.result()  # a failure of the drain is a failure of the process
    else:
        _log.info("a second signal: ending at once", extra=DRAIN)
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        await running.stop(0)
    again.cancel()
    await asyncio.gather(again, *beside, return_exceptions=True)
    _log.info("stopped", extra=STOPPED)
    return 0


def _told_if_broken(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a bug: reloads do not come by themselves any more", exc_info=error, extra=BUG)


async def _hang_ups(hung_up: asyncio.Event, reloads: Reloads | None) -> None:
    """Reload at each SIGHUP; several that come meanwhile are one."""
    while True:
        await hung_up.wait()
        hung_up.clear()
        if reloads is None:
            _log.warning(
                "SIGHUP: the embedded models have no configuration to reload",
                extra=NOTHING_TO_RELOAD,
            )
        else:
            await reloads.again("SIGHUP")


async def _watch(running: _Service, reloads: Reloads | None) -> None:
    """Reload when files have changed, as the configuration that serves wants it."""

    def quiet() -> float | None:
        how = running.config.reload
        return how.quiet if how.watch else None

    if reloads is not None:
        changed = functools.partial(reloads.if_changed, "a file changed")
        await watch(lambda: reloads.files.paths, quiet, changed)


async def _drain(running: _Service) -> None:
    await asyncio.sleep(running.config.drain.delay)
    await running.stop(running.config.drain.timeout)
