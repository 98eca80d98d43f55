"""Runs the gateway until it is stopped.

*Reload.* The configuration is reloaded on SIGHUP and, if enabled, when its files change or on
POST /reload.

*Drain.* At the first SIGTERM or SIGINT, readiness fails. After ``drain.delay``, which gives load
balancers time to notice, the gateway stops accepting connections, and lets requests finish for up
to ``drain.timeout``. A second signal, or a signal during startup, stops the gateway immediately."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from infergate import __version__
from infergate.assembly.engines import load_engine
from infergate.config.schema import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.core.log_events import (
    BUG,
    CONFIG_WARNING,
    DRAIN,
    NOTHING_TO_RELOAD,
    SERVING,
    START_FAILED,
    STOPPED,
    with_fields,
)
from infergate.observe.log_lines import FORMATTERS, start_logging
from infergate.runtime.banner import print_banner
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.descriptors import LoopExceptionHandler, raise_limit
from infergate.runtime.file_watch import watch_files
from infergate.runtime.memory import freeze_objects, keep_freed_memory
from infergate.runtime.reload import ConfigReloader, ReadConfig
from infergate.runtime.worker_group import ProcessEndedError
from infergate.transport.base import Address

_log = logging.getLogger("infergate")
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve(read: ReadConfig, source: Path | None, make_gateway: MakeGateway) -> int:
    """Serve the configuration that ``read`` returns, reload it when required, and return the exit
    code. ``source`` is the configuration file, or None for the embedded models. ``make_gateway``
    returns the gateway of a single process; several processes have a supervisor.

    Raises ConfigError, PluginError, and OSError if an address or a file cannot be used."""
    files = TrackedFiles()
    config = read(files)
    keep_freed_memory()
    raise_limit()
    handler = start_logging(config.log.format)
    _log_warnings(config)

    async def serving() -> int:
        asyncio.get_running_loop().set_exception_handler(LoopExceptionHandler())
        signals = _Signals()
        history = ConfigHistory(source, files.sha256 if source else "")
        if source is not None:
            history.read_config = lambda: read(TrackedFiles())
        running = _make_service(config, history, make_gateway)

        async def apply(config: Config) -> None:
            await running.reload(config)
            handler.setFormatter(FORMATTERS[config.log.format]())
            _log_warnings(config)

        reloader = None
        if source is not None:
            reloader = ConfigReloader(
                read,
                apply,
                history,
                files,
                config,
                is_creating_plugins=lambda: running.is_creating_plugins,
            )
        if not await _start_unless_stopped(running, signals.stop_signals):
            return 0
        freeze_objects()
        if config.log.format == "json":  # the banner is not JSON
            listeners = {name: str(address) for name, address in running.addresses.items()}
            message = "infergate %s is serving"
            _log.info(message, __version__, extra=with_fields(SERVING, listeners=listeners))
        else:
            print_banner(config, running.addresses, source, sys.stdout)
        return await _run_until_stopped(running, reloader, signals, history)

    with asyncio.Runner(loop_factory=load_engine(config.engine).make_loop) as runner:
        try:
            return runner.run(serving())
        except ProcessEndedError as error:
            _log.error("%s", error, extra=START_FAILED)
            return error.exit_code


def _log_warnings(config: Config) -> None:
    for warning in config.warnings:
        _log.warning("%s", warning, extra=CONFIG_WARNING)


class GatewayService(Protocol):
    """A gateway of one process, or the supervisor of several processes."""

    @property
    def config(self) -> Config: ...

    @property
    def addresses(self) -> Mapping[str, Address]: ...

    @property
    def is_creating_plugins(self) -> bool:
        """Whether ``reload`` waits for plug-ins. The reload may be cancelled in this state."""
        ...

    async def start(self) -> None: ...

    async def reload(self, config: Config) -> None: ...

    def drain(self) -> None: ...

    async def stop(self, grace: float) -> None: ...


MakeGateway = Callable[[Config, ConfigHistory], GatewayService]
"""Returns a gateway that runs in this process, without starting it."""


def _make_service(
    config: Config, history: ConfigHistory, make_gateway: MakeGateway
) -> GatewayService:
    if config.workers == 1:
        return make_gateway(config, history)
    from infergate.runtime.workers.supervisor import Supervisor  # noqa: PLC0415

    return Supervisor(config, history)


class _Signals:
    """Holds the received ``stop_signals`` in order, and the event that a SIGHUP sets to request a
    reload."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.stop_signals: Final[asyncio.Queue[signal.Signals]] = asyncio.Queue()
        self.reload_requested: Final = asyncio.Event()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self.stop_signals.put_nowait, number)
        loop.add_signal_handler(signal.SIGHUP, self.reload_requested.set)


async def _start_unless_stopped(
    running: GatewayService, stop_signals: asyncio.Queue[signal.Signals]
) -> bool:
    """Start ``running``. Return False if a stop signal arrives before startup has completed. Raises
    the errors of ``running.start``."""
    start_task = asyncio.create_task(running.start())
    stop_task = asyncio.create_task(stop_signals.get())
    await asyncio.wait({start_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
    if start_task.done():
        if not stop_task.cancel():
            # A signal arrived while the startup ended: drain now.
            stop_signals.put_nowait(stop_task.result())
        start_task.result()
        return True
    _log.info("%s: stopping before startup has completed", stop_task.result().name, extra=DRAIN)
    start_task.cancel()
    await asyncio.gather(start_task, return_exceptions=True)
    await running.stop(0)
    _log.info("stopped", extra=STOPPED)
    return False


async def _run_until_stopped(
    running: GatewayService,
    reloader: ConfigReloader | None,
    signals: _Signals,
    history: ConfigHistory,
) -> int:
    reload_tasks = (
        asyncio.create_task(_reload_on_sighup(signals.reload_requested, reloader)),
        asyncio.create_task(_reload_on_change(running, reloader)),
    )
    for task in reload_tasks:
        task.add_done_callback(_log_failure)
    first_signal = await signals.stop_signals.get()
    _log.info("%s: draining", first_signal.name, extra=DRAIN)
    history.events.add("drain", f"infergate is draining and will then stop ({first_signal.name})")
    running.drain()
    for task in reload_tasks:
        task.cancel()
    drain_task = asyncio.create_task(_drain(running))
    second_signal = asyncio.create_task(signals.stop_signals.get())
    await asyncio.wait({drain_task, second_signal}, return_when=asyncio.FIRST_COMPLETED)
    if drain_task.done():
        drain_task.result()  # the process fails if the drain has failed
    else:
        _log.info("second signal: stopping immediately", extra=DRAIN)
        drain_task.cancel()
        await asyncio.gather(drain_task, return_exceptions=True)
        await running.stop(0)
    second_signal.cancel()
    await asyncio.gather(second_signal, *reload_tasks, return_exceptions=True)
    _log.info("stopped", extra=STOPPED)
    return 0


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("bug: reloads on SIGHUP or file changes have stopped", exc_info=error, extra=BUG)


async def _reload_on_sighup(
    reload_requested: asyncio.Event, reloader: ConfigReloader | None
) -> None:
    """Reload at each SIGHUP. The reloader merges the signals that arrive during a reload."""
    while True:
        await reload_requested.wait()
        reload_requested.clear()
        if reloader is None:
            _log.warning(
                "SIGHUP ignored: the embedded models have no configuration to reload",
                extra=NOTHING_TO_RELOAD,
            )
        else:
            reloader.request("SIGHUP")


async def _reload_on_change(running: GatewayService, reloader: ConfigReloader | None) -> None:
    """Reload when files have changed, as the active configuration specifies."""

    def quiet_seconds() -> float | None:
        settings = running.config.reload
        return settings.quiet if settings.watch else None

    if reloader is not None:
        reload_changed = functools.partial(reloader.reload_if_changed, "a file changed")
        await watch_files(lambda: reloader.files.paths, quiet_seconds, reload_changed)


async def _drain(running: GatewayService) -> None:
    await asyncio.sleep(running.config.drain.delay)
    await running.stop(running.config.drain.timeout)
