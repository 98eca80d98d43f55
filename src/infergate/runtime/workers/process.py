"""A worker process, which serves the supervisor's configurations on the supervisor's sockets.

*Rule 1.* A worker ignores SIGINT, SIGTERM and SIGHUP, because the supervisor controls the workers.
*Rule 2.* A worker does not outlive its supervisor, because its sockets would keep the addresses in
use.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import Metric

from infergate.access.shared_rates import SharedBuckets
from infergate.assembly.engines import load_engine
from infergate.caching.shared_store import SharedStore
from infergate.config.schema import Config
from infergate.core.errors import GatewayError
from infergate.core.log_events import SUPERVISOR_LOST
from infergate.core.messages import ModelStatistics
from infergate.observe.family import in_batches
from infergate.observe.log_lines import FORMATTERS, start_logging
from infergate.observe.recent_requests import take_snapshot
from infergate.plugin_host.loading import PluginError
from infergate.runtime.assemble import assemble
from infergate.runtime.comparisons import encode_summaries
from infergate.runtime.descriptors import LoopExceptionHandler
from infergate.runtime.memory import freeze_objects, keep_freed_memory
from infergate.runtime.recording_actions import RecordingAction, control_recorder
from infergate.runtime.running import ConfigRejectedError, PreparedConfig, RunningGateway
from infergate.runtime.worker_group import WorkerGroup
from infergate.runtime.workers import messages
from infergate.runtime.workers.channel import (
    ChannelClosedError,
    RequestFailedError,
    WorkerChannel,
    receive_descriptors,
)
from infergate.runtime.workers.log_lock import LogLock
from infergate.runtime.workers.shared_files import SharedFiles
from infergate.transport.base import Address, BoundSockets
from infergate.transport.worker_loads import WorkerLoads

_log = logging.getLogger("infergate")
_PR_SET_PDEATHSIG: Final = 1  # prctl(2), Linux
_IGNORED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(number: str, engine_name: str, *descriptors: str) -> None:
    """Run worker ``number``, counted from 0. ``descriptors`` are the socket of the channel, the
    socket for passing descriptors, and the shared files."""
    control, passing, *shared = map(int, descriptors)
    for signal_number in _IGNORED_SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    if sys.platform == "linux":  # on other systems, the worker ends when the channel closes
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    keep_freed_memory()
    with asyncio.Runner(loop_factory=load_engine(engine_name).make_loop) as runner:
        pipe = socket.socket(fileno=passing)
        runner.run(_WorkerProcess(int(number), pipe, SharedFiles(*shared)).run(control))


class _WorkerProcess:
    """The handlers of the supervisor's requests."""

    def __init__(self, number: int, descriptor_socket: socket.socket, files: SharedFiles) -> None:
        self._number: Final = number
        self._descriptor_socket: Final = descriptor_socket
        self._group: Final = WorkerGroup(
            number=number,
            aggregate_statistics=self._aggregate_statistics,
            rate_buckets=functools.partial(SharedBuckets, files.rate_buckets),
            response_store=functools.cache(lambda: SharedStore(files.response_cache)),
            log_lock=LogLock(files.log_lock),
        )
        self._handler: logging.Handler
        self._sockets: Final[dict[str, BoundSockets]] = {}
        self._gateway: RunningGateway
        self._preparing: asyncio.Task[PreparedConfig] | None = None
        self._prepared: PreparedConfig | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stopped: Final = asyncio.Event()
        self._channel: WorkerChannel
        self._metric_batches: Iterator[list[Metric]] = iter(())

    async def run(self, control: int) -> None:
        """Serve until a ``Stop`` request arrives or the supervisor exits."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopExceptionHandler())
        _, self._channel = await loop.create_unix_connection(
            lambda: WorkerChannel(self._handle), sock=socket.socket(fileno=control)
        )
        self._channel.closed.add_done_callback(lambda _: self._stopped.set())
        await self._stopped.wait()
        if self._channel.closed.done():
            _log.error(
                "worker %d stops because the supervisor has ended",
                self._number,
                extra=SUPERVISOR_LOST,
            )
            os._exit(1)
        self._channel.close()

    async def _handle(self, message: Any) -> Any:  # noqa: C901, PLR0912 - one case per message
        match message:
            case messages.ServeConfig():
                await self._serve(message)
            case messages.PrepareConfig(config, layout):
                await self._prepare(config, layout)
            case messages.WorkerCommand.APPLY_PREPARED:
                self._apply_prepared()
            case messages.WorkerCommand.DISCARD_PREPARED:
                await self._discard_prepared()
            case messages.CollectMetrics(restart):
                if restart:
                    self._metric_batches = in_batches(self._group.metrics.registry.collect())
                return next(self._metric_batches, [])
            case messages.WorkerCommand.GET_RECENT:
                group = self._group
                return take_snapshot(group.recent_requests, group.metrics, self._number)
            case messages.PerformConsoleAction(action, arguments):
                return await self._perform_console_action(action, arguments)
            case messages.WorkerCommand.GET_COMPARISONS:
                return await encode_summaries(self._gateway.gateway.comparisons())
            case messages.WorkerCommand.RESET_COMPARISONS:
                self._gateway.gateway.reset_comparisons()
            case RecordingAction() as action:
                return await control_recorder(self._gateway.recorder, action, self._number)
            case messages.WorkerCommand.CHECK_READY:
                return await self._gateway.gateway.readiness.is_ready()
            case messages.GetModelStatistics(model, version):
                return self._gateway.gateway.own_statistics.statistics_of(model, version)
            case messages.WorkerCommand.DRAIN:
                self._gateway.drain()
            case messages.Stop(grace):
                previous = self._stopping
                self._stopping = asyncio.create_task(self._stop(grace, previous))
        return None

    async def _perform_console_action(self, action: str, arguments: dict[str, Any]) -> object:
        from infergate.runtime.console.try_request import run_action  # noqa: PLC0415 - rarely needed

        running = self._gateway
        try:
            return await run_action(running.config, running.gateway, action, arguments)
        except GatewayError as error:
            return messages.ErrorResponse(error.kind, error.public)

    # ---- configurations

    async def _serve(self, message: messages.ServeConfig) -> None:
        config = message.config
        self._handler = start_logging(config.log.format)
        self._receive_sockets(message.sockets)
        try:
            self._gateway = assemble(config, group=self._group)
            self._gateway.on_retired = freeze_objects
            if message.recording is not None:
                await control_recorder(self._gateway.recorder, message.recording, self._number)
            await self._gateway.start(self._bind)
        except (OSError, PluginError) as error:
            raise RequestFailedError(str(error)) from error
        finally:
            self._close_unused_sockets()
        freeze_objects()

    async def _prepare(self, config: Config, layout: messages.SocketLayout) -> None:
        self._receive_sockets(layout)
        preparing = self._preparing = asyncio.create_task(self._gateway.prepare(config))
        try:
            await asyncio.wait({preparing})
            if preparing.cancelled():
                raise RequestFailedError("the configuration was discarded")
            self._prepared = preparing.result()
        except ConfigRejectedError as error:
            raise RequestFailedError(str(error)) from error
        finally:
            self._preparing = None
            self._close_unused_sockets()

    def _apply_prepared(self) -> None:
        change, self._prepared = self._prepared, None
        if change is not None:
            change.apply()
            self._handler.setFormatter(FORMATTERS[self._gateway.config.log.format]())

    async def _discard_prepared(self) -> None:
        preparing = self._preparing
        if preparing is not None:  # for example, it waits for a plug-in
            preparing.cancel()
            await asyncio.wait({preparing})
        change, self._prepared = self._prepared, None
        if change is not None:
            await change.discard()

    async def _stop(self, grace: float, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            previous.cancel()
            await asyncio.wait({previous})
        await self._gateway.stop(grace)
        self._stopped.set()

    # ---- sockets

    def _receive_sockets(self, layout: messages.SocketLayout) -> None:
        descriptors = receive_descriptors(
            self._descriptor_socket, sum(count for _, count in layout)
        )
        for address, count in layout:
            loads, *sockets = descriptors[:count]
            del descriptors[:count]
            self._sockets[str(address)] = BoundSockets(
                tuple(map(_make_socket, sockets)), worker_loads=WorkerLoads(loads, self._number)
            )
            os.close(loads)  # the memory stays mapped

    async def _bind(self, address: Address) -> BoundSockets:
        """Return the received sockets of ``address``. Implements ``BindFunction``."""
        return self._sockets.pop(str(address))

    def _close_unused_sockets(self) -> None:
        """Close received sockets that no listener uses because an earlier step failed."""
        while self._sockets:
            self._sockets.popitem()[1].close()

    # ---- statistics of all workers

    async def _aggregate_statistics(self, model: str, version: str) -> ModelStatistics:
        try:
            statistics: ModelStatistics = await self._channel.request(
                messages.GetModelStatistics(model, version)
            )
        except (RequestFailedError, ChannelClosedError):
            return self._gateway.gateway.own_statistics.statistics_of(model, version)
        return statistics


def _make_socket(descriptor: int) -> socket.socket:
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)  # noqa: FBT003 - the method's name explains it
    return sock
