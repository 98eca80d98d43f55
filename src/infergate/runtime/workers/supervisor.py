"""Starts the workers, restarts them, and represents all of them as one gateway.

A supervisor implements :class:`infergate.runtime.serve.GatewayService`, and contains a
``RunningGateway`` for the admin listener.

*Rule 1.* If a worker cannot start when the gateway starts, the gateway fails with the worker's
error. A worker that ends later is restarted after a growing delay.
*Rule 2.* Either all workers accept a configuration or it is rejected. A worker that ends during a
reload is restarted with the active configuration.
*Rule 3.* Requests to workers have a timeout. If a worker does not respond, the supervisor uses the
last metrics that the worker has reported."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain
from typing import Any, Final, cast

from prometheus_client import Counter, Gauge
from prometheus_client.core import Metric

from infergate.assembly.engines import load_engine
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.core.errors import GatewayError, Kind
from infergate.core.log_events import BUG, WORKER_ENDED, WORKER_FAILED, WORKER_SERVES
from infergate.core.messages import ModelStatistics
from infergate.gateway.model_catalogue import QUERY_TIMEOUT_SECONDS
from infergate.gateway.statistics import merge_statistics
from infergate.observe.aggregation import AggregatedMetrics
from infergate.observe.exposition import Exposition, exposition
from infergate.observe.family import in_batches
from infergate.observe.label_names import NO_NAME, MetricNames
from infergate.observe.metrics import Metrics
from infergate.observe.recent_requests import ProcessSnapshot
from infergate.runtime.assemble import READINESS_RULES, assemble
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.console.sources import WorkerCounts
from infergate.runtime.memory import freeze_objects
from infergate.runtime.plugins import plugin_seconds
from infergate.runtime.recording_actions import RecordingAction
from infergate.runtime.running import ConfigRejectedError
from infergate.runtime.worker_group import ProcessEndedError, WorkerGroup
from infergate.runtime.workers import messages
from infergate.runtime.workers.channel import ChannelClosedError, RequestFailedError
from infergate.runtime.workers.shared_files import SharedFiles
from infergate.runtime.workers.sockets import (
    ListenerSockets,
    bind_listener,
    bound_addresses,
    socket_key,
    socket_layout,
    supervisor_config,
    worker_addresses,
    worker_config,
)
from infergate.runtime.workers.worker import Worker, describe_exit
from infergate.runtime.workers.worker_slot import WorkerSlot, prepare_all, wait_for_exit
from infergate.transport.base import Address
from infergate.transport.net.bind import bind_sockets

_log = logging.getLogger("infergate")
_START_TIMEOUT_SECONDS: Final = 60.0
"""Seconds from a worker's start until it must accept connections. The time for creating plug-ins is
added."""
_STATUS_TIMEOUT_SECONDS: Final = 1.0
"""Timeout of a status request in seconds."""
_COLLECT_TIMEOUT_SECONDS: Final = 5.0
"""Seconds that a scrape waits for all batches of the workers' metrics, half of Prometheus' default
timeout."""
_READY_TIMEOUT_SECONDS: Final = QUERY_TIMEOUT_SECONDS + _STATUS_TIMEOUT_SECONDS
"""Timeout of a readiness check, which may send requests to backends."""
_CONSOLE_TIMEOUT_SECONDS: Final = 75.0
"""Timeout of a console action. The action's own limit is shorter."""
_RECORDING_TIMEOUT_SECONDS: Final = 30.0
"""Seconds within which a worker must complete its recording file."""
_EXIT_TIMEOUT_SECONDS: Final = 5.0
"""Seconds within which a worker must exit after the grace period of requests."""
_STOPPING: Final = "the gateway is stopping"
_ALL_ENDED: Final = "all workers ended while preparing the configuration (log event worker_ended)"


class Supervisor:
    """Runs ``config.workers`` workers. The admin listener reports ``history``."""

    def __init__(self, config: Config, history: ConfigHistory) -> None:
        metrics = self._metrics = Metrics()
        self._config = config
        self._events: Final = history.events
        group = WorkerGroup(
            metrics=metrics,
            scrape=self._scrape,
            check_ready=self._check_ready,
            console_source=self,
            control_recording=self._control_recording,
        )
        self._admin_gateway: Final = assemble(
            supervisor_config(config), history=history, group=group
        )
        self._admin_gateway.on_retired = freeze_objects
        self._slots: Final = [WorkerSlot(number) for number in range(config.workers)]
        self._sockets: dict[str, ListenerSockets] = {}
        self._files: SharedFiles | None = SharedFiles.create()
        self._past_metrics: Final = AggregatedMetrics()
        self._collection: asyncio.Task[None] | None = None
        self._past_names_config: Config | None = None
        """The configuration whose names ``_past_metrics`` was last restricted to."""
        self._reload_lock: Final = asyncio.Lock()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._restart_tasks: list[asyncio.Task[None]] = []
        self._recording_action: RecordingAction | None = None
        """The last action that started or stopped recording. It also applies to new workers."""
        self._is_stopping = False
        self.is_creating_plugins = False
        serving = Gauge(
            "infergate_workers", "Worker processes that serve.", registry=metrics.registry
        )
        serving.set_function(lambda: len(self._serving()))
        self._restarts: Final = Counter(
            "infergate_worker_restarts",
            "Worker processes that replaced a worker that had ended.",
            registry=metrics.registry,
        )

    @property
    def config(self) -> Config:
        return self._config

    @property
    def workers(self) -> WorkerCounts:
        """The number of workers, and how many of them serve."""
        return WorkerCounts(len(self._slots), len(self._serving()))

    @property
    def addresses(self) -> Mapping[str, Address]:
        admin = self._admin_gateway.listeners
        own_addresses = {name: listener.address for name, listener in admin.items()}
        return bound_addresses(self._config, self._sockets) | own_addresses

    async def run_action(self, action: str, request: dict[str, Any]) -> dict[str, Any]:
        """Perform a console action in the first serving worker. The action is not repeated in
        another worker, because requests must not be sent twice, and because an action that crashed
        one worker would crash the next."""
        serving = self._serving()
        if not serving:
            raise GatewayError(Kind.OVERLOADED, "no worker is serving")
        response = await self._request(
            serving[0][1], messages.PerformConsoleAction(action, request), _CONSOLE_TIMEOUT_SECONDS
        )
        if isinstance(response, messages.ErrorResponse):
            raise GatewayError(response.kind, response.public)
        if response is None:
            text = "the worker did not respond; see its log for the reason"
            raise GatewayError(Kind.OVERLOADED, text)
        return cast("dict[str, Any]", response)

    async def recent(self) -> Sequence[ProcessSnapshot]:
        """Return the recent requests and counters of all workers, and the supervisor's metrics."""
        serving = self._serving()
        message = messages.WorkerCommand.GET_RECENT
        responses = await asyncio.gather(*(self._request(each, message) for _, each in serving))
        snapshots: list[ProcessSnapshot] = [
            ProcessSnapshot(slot.number, {}, (), (), ()) if response is None else response
            for (slot, _), response in zip(serving, responses, strict=True)
        ]
        self._drop_removed_names()
        families = [*self._metrics.console_families(), *self._past_metrics.collect()]
        return [*snapshots, ProcessSnapshot(None, {}, (), (), families)]

    async def comparisons(self) -> Sequence[bytes]:
        """Return the comparisons of all workers. The comparisons of a worker that has ended are
        lost."""
        responses = await self._request_all(
            messages.WorkerCommand.GET_COMPARISONS, _COLLECT_TIMEOUT_SECONDS
        )
        return list(chain.from_iterable(responses))

    async def reset_comparisons(self) -> None:
        await self._request_all(messages.WorkerCommand.RESET_COMPARISONS)

    def _serving(self) -> list[tuple[WorkerSlot, Worker]]:
        return [(slot, slot.worker) for slot in self._slots if slot.is_serving and slot.worker]

    # ---- startup

    async def start(self) -> None:
        """Bind every address and start every worker. If a step fails, stop everything. Raises
        OSError with the address or the worker's error, or ProcessEndedError if a worker ends or
        does not start in time."""
        try:
            self._sockets = await self._bind_all(self._config, {})
            await self._admin_gateway.start()
            try:
                # A reload waits for the lock, because it would end workers that are starting.
                async with self._reload_lock, asyncio.TaskGroup() as tasks:
                    for slot in self._slots:
                        tasks.create_task(self._start_worker(slot))
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
        except BaseException:
            await self.stop(0)
            raise
        self._restart_tasks = [
            asyncio.create_task(self._restart_loop(slot)) for slot in self._slots
        ]

    async def _bind_all(
        self, config: Config, existing: Mapping[str, ListenerSockets]
    ) -> dict[str, ListenerSockets]:
        """Return the sockets of ``config``. Sockets in ``existing`` are used again, and the others
        are bound. Raises OSError."""
        sockets: dict[str, ListenerSockets] = {}
        bind_grpc = load_engine(config.engine).bind_grpc
        addresses = {socket_key(*item): item for item in worker_addresses(config).items()}
        released = [
            item.bound_sockets.sockets for key, item in existing.items() if key not in addresses
        ]
        rebind = partial(bind_sockets, closing=[*chain.from_iterable(released)])
        try:
            for key, (name, address) in addresses.items():
                bind = bind_grpc if name == "grpc" and bind_grpc is not bind_sockets else rebind
                current = existing.get(key)
                sockets[key] = current or await bind_listener(name, address, bind, len(self._slots))
        except BaseException:
            self._close(sockets, existing)
            raise
        return sockets

    @staticmethod
    def _close(sockets: Mapping[str, ListenerSockets], kept: Mapping[str, ListenerSockets]) -> None:
        for key in sockets.keys() - kept.keys():
            sockets[key].close()

    async def _start_worker(self, slot: WorkerSlot) -> None:
        """Start a worker in ``slot``. Raises ProcessEndedError and OSError."""
        assert self._files is not None
        worker = slot.worker = Worker()
        await worker.start(slot.number, self._config.engine, self._files, self._handle)
        layout, descriptors = socket_layout(self._sockets.values())
        try:
            worker.hand_over_sockets(descriptors)
            seconds = _START_TIMEOUT_SECONDS + plugin_seconds(self._config)
            config = worker_config(self._config, bound_addresses(self._config, self._sockets))
            serve = messages.ServeConfig(config, layout, self._recording_action)
            async with asyncio.timeout(seconds):
                await worker.channel.request(serve)
        except ChannelClosedError:
            code = await asyncio.shield(worker.exited)
            text = f"worker {slot.number} ended: {describe_exit(code)}"
            raise ProcessEndedError(text, code) from None
        except RequestFailedError as error:
            worker.kill()
            raise OSError(str(error)) from None
        except TimeoutError:
            worker.kill()
            raise ProcessEndedError(
                f"worker {slot.number} did not start within {seconds:g} s", 1
            ) from None
        except BaseException:
            worker.kill()
            raise
        slot.is_serving = True

    # ---- running

    async def _restart_loop(self, slot: WorkerSlot) -> None:
        """Restart the slot's worker whenever it ends."""
        while True:
            worker = slot.worker
            assert worker is not None
            code = await asyncio.shield(worker.exited)
            self._clear_slot(slot)
            wait = slot.backoff.next_delay(time.monotonic() - worker.started_at)
            if not worker.is_outdated:
                reason = describe_exit(code)
                _log.error(
                    "worker %d (pid %d) ended: %s; restarting it in %.1f s",
                    *(slot.number, worker.pid, reason, wait),
                    extra=WORKER_ENDED,
                )
                self._events.add("worker_ended", f"worker {slot.number} ended: {reason}")
            await asyncio.sleep(wait)
            self._restarts.inc()
            try:
                await self._start_worker(slot)
            except (ProcessEndedError, OSError) as error:
                if slot.worker is None or not slot.worker.is_outdated:
                    _log.error("worker %d: %s", slot.number, error, extra=WORKER_FAILED)
            except Exception:  # noqa: BLE001 - a bug must not end the restarts
                _log.exception("bug while starting worker %d", slot.number, extra=BUG)
            else:
                assert slot.worker is not None
                pid = slot.worker.pid
                _log.info("worker %d is serving, pid %d", slot.number, pid, extra=WORKER_SERVES)
                self._events.add("worker_started", f"worker {slot.number} serves again")

    def _clear_slot(self, slot: WorkerSlot) -> None:
        """Add the ended worker's metrics to the totals, and clear its load."""
        slot.is_serving = False
        self._past_metrics.add(slot.last_metrics, has_exited=True)
        self._past_names_config = None
        slot.last_metrics = []
        for sockets in self._sockets.values():
            sockets.loads.mark_absent(slot.number)

    async def _control_recording(self, action: RecordingAction) -> list[dict[str, Any]]:
        if action is not RecordingAction.GET_STATUS:
            self._recording_action = action
        responses = await self._request_all(action, _RECORDING_TIMEOUT_SECONDS)
        return [*chain.from_iterable(responses)]

    async def _handle(self, message: Any) -> Any:
        match message:
            case messages.GetModelStatistics():
                statistics: list[ModelStatistics] = await self._request_all(message)
                return merge_statistics(statistics)
        raise RequestFailedError(f"unknown request {message!r}")

    async def _request_all(
        self, message: object, seconds: float = _STATUS_TIMEOUT_SECONDS
    ) -> list[Any]:
        """Return the responses of all workers that respond in time."""
        requests = (self._request(worker, message, seconds) for _, worker in self._serving())
        return [response for response in await asyncio.gather(*requests) if response is not None]

    @staticmethod
    async def _request(
        worker: Worker, message: object, seconds: float = _STATUS_TIMEOUT_SECONDS
    ) -> Any:
        """Return the response, or None if the worker fails or does not respond in time."""
        try:
            async with asyncio.timeout(seconds):
                return await worker.channel.request(message)
        except (RequestFailedError, ChannelClosedError, TimeoutError):
            return None

    async def _scrape(self, accept: str) -> Exposition:
        """Return the metrics of all processes. Concurrent scrapes share one collection. Batches
        that arrive late are used by the next scrape."""
        collection = self._collection
        if collection is None or collection.done():
            collection = self._collection = asyncio.create_task(self._collect_metrics())
        finished, _ = await asyncio.wait({collection}, timeout=_COLLECT_TIMEOUT_SECONDS)
        for task in finished:
            task.result()
        return exposition(await self._sum_metrics(), accept)

    async def _collect_metrics(self) -> None:
        """Collect the metrics of all workers. A worker's previous snapshot is kept until a complete
        snapshot has arrived."""

        async def collect(slot: WorkerSlot, worker: Worker) -> None:
            metrics: list[Metric] = []
            batch = await self._request(worker, messages.CollectMetrics(restart=True))
            while batch:
                metrics += batch
                batch = await self._request(worker, messages.CollectMetrics(restart=False))
            if batch is not None and slot.worker is worker and slot.is_serving:
                slot.last_metrics = metrics

        await asyncio.gather(*(collect(slot, worker) for slot, worker in self._serving()))

    async def _sum_metrics(self) -> AggregatedMetrics:
        self._drop_removed_names()
        families = chain(
            self._metrics.registry.collect(),
            list(self._past_metrics.collect()),
            *(slot.last_metrics for slot in self._slots),
        )
        total = AggregatedMetrics()
        for batch in in_batches(families):
            total.add(batch)
            await asyncio.sleep(0)
        return total

    def _drop_removed_names(self) -> None:
        config = self._config
        if self._past_names_config is not config:
            routes = (route.label for route in compiled.routing_table(config).routes)
            self._past_metrics.keep(MetricNames({NO_NAME, *routes}, {NO_NAME, *config.backends}))
            self._past_names_config = config

    async def _check_ready(self) -> bool:
        if self._admin_gateway.gateway.readiness.is_draining:
            return False
        responses = await self._request_all(
            messages.WorkerCommand.CHECK_READY, _READY_TIMEOUT_SECONDS
        )
        missing = [False] * (len(self._slots) - len(responses))
        return READINESS_RULES[self._config.readiness]([*responses, *missing])

    # ---- reload

    async def reload(self, config: Config) -> None:
        async with self._reload_lock:
            if self._is_stopping:
                raise ConfigRejectedError(_STOPPING)
            old_sockets = self._sockets  # a concurrent stop clears the attribute
            own_change = await self._admin_gateway.prepare(supervisor_config(config))
            async with AsyncExitStack() as undo:
                undo.push_async_callback(own_change.discard)
                try:
                    sockets = await self._bind_all(config, old_sockets)
                except OSError as error:
                    raise ConfigRejectedError(str(error)) from error
                undo.callback(self._close, sockets, old_sockets)
                undo.push_async_callback(self._request_all, messages.WorkerCommand.DISCARD_PREPARED)
                await self._prepare(config, sockets, old_sockets)
                undo.pop_all()
            self._sockets = sockets
            if config.recording != self._config.recording:
                self._recording_action = None
            self._config = config
            for slot in self._slots:
                slot.kill_if_starting()
            own_change.apply()
            await self._request_all(messages.WorkerCommand.APPLY_PREPARED)
            self._close(old_sockets, sockets)

    async def _prepare(
        self,
        config: Config,
        sockets: Mapping[str, ListenerSockets],
        old_sockets: Mapping[str, ListenerSockets],
    ) -> None:
        """Make every worker prepare ``config``, including workers that are restarted in the
        meantime. Raises ConfigRejectedError if a worker fails or all workers end."""
        new = (item for key, item in sockets.items() if key not in old_sockets)
        layout, descriptors = socket_layout(new)
        addresses = bound_addresses(config, sockets)
        message = messages.PrepareConfig(worker_config(config, addresses), layout)
        prepared: set[Worker] = set()
        is_accepted = False
        while slots := [slot for slot, worker in self._serving() if worker not in prepared]:
            prepared.update(slot.worker for slot in slots if slot.worker)
            self.is_creating_plugins = plugin_seconds(config) > 0
            try:
                problem = await prepare_all(slots, message, descriptors)
            finally:
                self.is_creating_plugins = False
            if problem:
                raise ConfigRejectedError(problem)
            is_accepted = is_accepted or problem is not None
        if self._is_stopping:
            raise ConfigRejectedError(_STOPPING)
        if prepared and not is_accepted:
            raise ConfigRejectedError(_ALL_ENDED)

    # ---- shutdown

    def drain(self) -> None:
        self._admin_gateway.drain()
        self._send_all(messages.WorkerCommand.DRAIN)

    def _send_all(self, message: object) -> None:
        """Send ``message`` to every serving worker without waiting for the responses."""
        for _, worker in self._serving():
            task = asyncio.create_task(self._request(worker, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self, grace: float) -> None:
        """Stop accepting connections, let requests finish for up to ``grace`` seconds, then stop
        all processes."""
        self._is_stopping = True
        self._admin_gateway.drain()
        await self._cancel(self._restart_tasks)
        self._close(self._sockets, {})
        self._sockets = {}
        self._send_all(messages.Stop(grace))
        running = [slot for slot in self._slots if slot.worker and slot.worker.is_running]
        for slot in running:
            if not slot.is_serving:
                slot.kill()
        await wait_for_exit(running, grace + _EXIT_TIMEOUT_SECONDS)
        for slot in running:
            slot.kill()
        await wait_for_exit(running, None)
        await self._admin_gateway.stop(0)
        await self._cancel({*self._tasks, *filter(None, [self._collection])})
        files, self._files = self._files, None
        if files is not None:
            files.close()

    @staticmethod
    async def _cancel(tasks: Sequence[asyncio.Task[None]] | set[asyncio.Task[None]]) -> None:
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
