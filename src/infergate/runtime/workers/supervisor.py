"""Starts the workers, restarts them, and represents all of them as one gateway.

*Strategy.* A supervisor has the interface of :class:`infergate.runtime.running.RunningGateway`: it
starts, reloads, drains and stops. It contains a RunningGateway with just the admin listener.

*Rule 1.* If a worker cannot start at first, the gateway fails with its error. A worker that ends
later is restarted again and again, with growing delays.
*Rule 2.* All workers accept a configuration, or none. A worker that ends meanwhile is restarted
with the configuration that is active then.
*Rule 3.* Nothing waits for a worker that does not respond: its last reported metrics are used.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

from prometheus_client import Counter, Gauge
from prometheus_client.core import Metric

from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelStatistics
from infergate.core.vocabulary import BUG, WORKER_ENDED, WORKER_FAILED, WORKER_SERVES
from infergate.gateway.catalogue import ANSWER_TIME
from infergate.gateway.statistics import together
from infergate.observe.exposition import Exposition, exposition
from infergate.observe.family import in_pieces
from infergate.observe.metrics import Metrics
from infergate.observe.names import NOBODY, Names
from infergate.observe.recent import Recalled
from infergate.observe.summed import Summed
from infergate.runtime.assemble import assemble
from infergate.runtime.banner import Addressed
from infergate.runtime.company import Company, Ended
from infergate.runtime.console.view import Workers
from infergate.runtime.engines import engine
from infergate.runtime.history import History
from infergate.runtime.memory import settle
from infergate.runtime.running import NotTaken
from infergate.runtime.workers.backoff import Backoff
from infergate.runtime.workers.channel import Failed, Lost
from infergate.runtime.workers.files import Files
from infergate.runtime.workers.messages import (
    CarryOut,
    Counted,
    Drain,
    Drop,
    IsReady,
    Prepare,
    Recall,
    Refused,
    Serve,
    Stop,
    Take,
    Tell,
)
from infergate.runtime.workers.sockets import (
    Held,
    given,
    held,
    of_supervisor,
    of_worker,
    wanted,
)
from infergate.runtime.workers.spawn import Worker, told
from infergate.transport.base import Address
from infergate.transport.binding import bound

_log = logging.getLogger("infergate")
_START: Final = 60.0
"""Seconds from a worker's process start until it accepts connections."""
_CHANGE: Final = 30.0
"""Seconds for preparing a configuration."""
_ANSWER: Final = 1.0
"""Seconds for a status request."""
_HEARING: Final = 5.0
"""Seconds that a scrape waits for the workers' metrics, all batches together: half of Prometheus'
default timeout."""
_READY: Final = ANSWER_TIME + _ANSWER
"""Seconds for a readiness check, which may contact backends."""
_TRY: Final = 75.0
"""Seconds for an action of the console, which has a shorter limit of its own."""
_LAST: Final = 5.0
"""Seconds that a worker has to end, besides the grace period of requests."""
_STOPPING: Final = "the gateway is stopping"
_COMBINE: Final = {"strict": all, "lenient": any}


@dataclass(slots=True)
class _Place:
    """A slot for one worker at a time. ``last_metrics`` are those of its current worker."""

    number: int
    worker: Worker | None = None
    serves: bool = False
    told: list[Metric] = field(default_factory=list)
    backoff: Backoff = field(default_factory=Backoff)


class Supervisor:
    """Runs ``config.workers`` workers. ``history`` is the configuration history that the admin
    listener reports."""

    def __init__(self, config: Config, history: History) -> None:
        metrics = self._metrics = Metrics()
        self._config = config
        company = Company(metrics=metrics, scrape=self._scrape, ready=self._ready, view=self)
        self._own: Final = assemble(of_supervisor(config), history=history, company=company)
        self._own.retired = settle
        self._places: Final = [_Place(number) for number in range(config.workers)]
        self._held: dict[str, Held] = {}
        self._files: Files | None = Files.made()
        self._past: Final = Summed()
        self._hearing: asyncio.Task[None] | None = None
        self._named: Config | None = None  # the configuration whose names past metrics were cut to
        self._changing: Final = asyncio.Lock()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._keeping: list[asyncio.Task[None]] = []
        self._is_stopping = False
        serving = Gauge(
            "infergate_workers", "Worker processes that serve.", registry=metrics.registry
        )
        serving.set_function(lambda: len(self._serving()))
        self._restarts: Final = Counter(
            "infergate_worker_restarts",
            "Worker processes that were started because one had ended.",
            registry=metrics.registry,
        )

    @property
    def config(self) -> Config:
        """The active configuration."""
        return self._config

    @property
    def workers(self) -> Workers:
        """The number of workers, and how many of them serve."""
        return Workers(len(self._places), len(self._serving()))

    @property
    def addresses(self) -> Mapping[str, Address]:
        """The addresses of all listeners, by configuration name."""
        return {name: listener.address for name, listener in self.listeners.items()}

    async def carry_out(self, what: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Let the first serving worker perform an action of the console. It is not repeated by
        another worker: requests are not sent twice, and an action that has ended one process would
        end the next."""
        serving = self._serving()
        if not serving:
            raise GatewayError(Kind.OVERLOADED, "no worker is serving")
        response = await self._ask(serving[0][1], CarryOut(what, asked), _TRY)
        if isinstance(response, Refused):
            raise GatewayError(response.kind, response.public)
        if response is None:
            raise GatewayError(Kind.OVERLOADED, "the worker did not respond; its log may tell why")
        data: dict[str, Any] = response
        return data

    async def recent(self) -> Sequence[Recalled]:
        """Return the recent requests and counters of all workers, and the supervisor's own
        metrics."""
        snapshots: list[Recalled] = await self._ask_all(Recall())
        self._forget()
        families = [*self._metrics.at_a_glance(), *self._past.collect()]
        return [*snapshots, Recalled(None, {}, (), (), families)]

    @property
    def listeners(self) -> Mapping[str, Addressed]:
        """The sockets of all listeners, by configuration name."""
        listeners: dict[str, Addressed] = {
            name: self._held[_key(name, address)] for name, address in wanted(self._config).items()
        }
        return listeners | dict(self._own.listeners)

    def _serving(self) -> list[tuple[_Place, Worker]]:
        return [(slot, slot.worker) for slot in self._places if slot.serves and slot.worker]

    # ---- startup

    async def start(self) -> None:
        """Bind every address and start every worker; if either fails, stop everything. Raises
        OSError naming an address that cannot be bound, ProcessEndedError if a worker cannot
        serve."""
        try:
            self._held = await self._bound(self._config, {})
            await self._own.start()
            try:
                async with asyncio.TaskGroup() as tasks:
                    for slot in self._places:
                        tasks.create_task(self._begin(slot))
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
        except BaseException:
            await self.stop(0)
            raise
        self._keeping = [asyncio.create_task(self._keep(slot)) for slot in self._places]

    async def _bound(self, config: Config, there: Mapping[str, Held]) -> dict[str, Held]:
        """Return the sockets of ``config``: those in ``existing``, and newly bound ones. Raises
        OSError."""
        sockets: dict[str, Held] = {}
        bind_grpc = engine(config.engine).bind_grpc
        addresses = {_key(*item): item for item in wanted(config).items()}
        released = [item.bound.sockets for key, item in there.items() if key not in addresses]
        beside = partial(bound, beside=[*chain.from_iterable(released)])
        try:
            for key, (name, address) in addresses.items():
                bind = bind_grpc if name == "grpc" and bind_grpc is not bound else beside
                current = there.get(key)
                sockets[key] = current or await held(name, address, bind, len(self._places))
        except BaseException:
            self._close(sockets, there)
            raise
        return sockets

    @staticmethod
    def _close(these: Mapping[str, Held], kept: Mapping[str, Held]) -> None:
        """Close the sockets in ``these`` that are not in ``kept``."""
        for key, sockets in these.items():
            if key not in kept:
                sockets.close()

    async def _begin(self, place: _Place) -> None:
        """Start a worker in ``slot``. Raises ProcessEndedError, OSError."""
        assert self._files is not None
        worker = place.worker = Worker()
        await worker.begin(place.number, self._config.engine, self._files, self._answer)
        layout, descriptors = given(self._held.values())
        try:
            worker.hand_over(descriptors)
            async with asyncio.timeout(_START):
                await worker.channel.ask(Serve(self._of_worker(self._config, self._held), layout))
        except Lost:
            code = await asyncio.shield(worker.ended)
            raise Ended(f"worker {place.number} ended: {told(code)}", code) from None
        except Failed as error:
            worker.kill()
            raise OSError(str(error)) from None
        except TimeoutError:
            worker.kill()
            raise Ended(f"worker {place.number} did not start within {_START:g} s", 1) from None
        except BaseException:
            worker.kill()
            raise
        place.serves = True

    @staticmethod
    def _of_worker(config: Config, sockets: Mapping[str, Held]) -> Config:
        addresses = {
            name: sockets[_key(name, address)].address for name, address in wanted(config).items()
        }
        return of_worker(config, addresses)

    # ---- running

    async def _keep(self, place: _Place) -> None:
        """Restart the slot's worker whenever it ends."""
        while True:
            worker = place.worker
            assert worker is not None
            code = await asyncio.shield(worker.ended)
            self._bury(place)
            wait = place.backoff.after(time.monotonic() - worker.began)
            _log.error(
                "worker %d (pid %d) ended: %s; restarting it in %.1f s",
                place.number, worker.pid, told(code), wait, extra=WORKER_ENDED)  # fmt: skip
            await asyncio.sleep(wait)
            self._restarts.inc()
            async with self._changing:
                try:
                    await self._begin(place)
                except (Ended, OSError) as error:
                    _log.error("worker %d: %s", place.number, error, extra=WORKER_FAILED)
                except Exception:  # noqa: BLE001 - a bug must not end the restarts
                    _log.exception("bug while starting worker %d", place.number, extra=BUG)
                else:
                    assert place.worker is not None
                    _log.info(
                        "worker %d is serving, pid %d",
                        place.number,
                        place.worker.pid,
                        extra=WORKER_SERVES,
                    )

    def _bury(self, place: _Place) -> None:
        """Add the ended worker's metrics to the totals, and clear its load."""
        place.serves = False
        self._past.add(place.told, past=True)
        self._named = None
        place.told = []
        for sockets in self._held.values():
            sockets.loads.leave(place.number)

    async def _answer(self, question: Any) -> Any:
        """Handle a worker's request."""
        match question:
            case Counted():
                answers: list[ModelStatistics] = await self._ask_all(question)
                return together(answers)
        raise Failed(f"unknown request {question!r}")

    async def _ask_all(self, question: object, seconds: float = _ANSWER) -> list[Any]:
        """Return the responses of all workers that respond in time."""
        requests = (self._ask(worker, question, seconds) for _, worker in self._serving())
        return [response for response in await asyncio.gather(*requests) if response is not None]

    @staticmethod
    async def _ask(worker: Worker, question: object, seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await worker.channel.ask(question)
        except (Failed, Lost, TimeoutError):
            return None

    async def _scrape(self, accept: str) -> Exposition:
        """Return the metrics of all workers. Concurrent scrapes share one collection; batches that
        arrive after its time limit are used by the next scrape."""
        collection = self._hearing
        if collection is None:
            collection = self._hearing = asyncio.create_task(self._hear())
            collection.add_done_callback(self._heard)
        finished, _ = await asyncio.wait({collection}, timeout=_HEARING)
        for task in finished:
            task.result()
        return exposition(await self._summed(), accept)

    async def _hear(self) -> None:
        """Collect the metrics of all workers. A worker's previous snapshot is kept until a complete
        one has arrived."""

        async def collect(place: _Place, worker: Worker) -> None:
            metrics: list[Metric] = []
            batch = await self._ask(worker, Tell(begin=True), _ANSWER)
            while batch:
                metrics += batch
                batch = await self._ask(worker, Tell(begin=False), _ANSWER)
            if batch is not None and place.worker is worker and place.serves:
                place.told = metrics

        await asyncio.gather(*(collect(place, worker) for place, worker in self._serving()))

    def _heard(self, _: asyncio.Task[None]) -> None:
        self._hearing = None

    async def _summed(self) -> Summed:
        """Return the sum of all processes' metrics, including ended workers."""
        self._forget()
        families = chain(
            self._metrics.registry.collect(),
            list(self._past.collect()),
            *(place.told for place in self._places),
        )
        summed = Summed()
        for batch in in_pieces(families):
            summed.add(batch)
            await asyncio.sleep(0)  # let other tasks run
        return summed

    def _forget(self) -> None:
        """Drop past metrics of routes and backends that are no longer configured."""
        config = self._config
        if self._named is not config:
            routes = (route.label for route in compiled.routing_table(config).routes)
            self._past.keep(Names({NOBODY, *routes}, {NOBODY, *config.backends}))
            self._named = config

    async def _ready(self) -> bool:
        if self._own.gateway.readiness.draining:
            return False
        responses = await self._ask_all(IsReady(), _READY)
        missing = [False] * (len(self._places) - len(responses))
        return _COMBINE[self._config.readiness]([*responses, *missing])

    # ---- reload

    async def reload(self, config: Config) -> None:
        """Make ``config`` active. Raises ConfigRejectedError, in which case nothing has changed."""
        async with self._changing:
            if self._is_stopping:
                raise NotTaken(_STOPPING)
            old_sockets = self._held  # kept, because a concurrent stop clears the attribute
            own_change = await self._own.prepare(of_supervisor(config))
            try:
                try:
                    sockets = await self._bound(config, old_sockets)
                except OSError as error:
                    raise NotTaken(str(error)) from error
                try:
                    await self._prepare(config, sockets, old_sockets)
                except BaseException:
                    self._close(sockets, old_sockets)
                    raise
            except BaseException:
                await own_change.drop()
                raise
            self._held = sockets
            self._config = config
            own_change.take()
            await self._ask_all(Take())
            self._close(old_sockets, sockets)

    async def _prepare(
        self, config: Config, sockets: Mapping[str, Held], before: Mapping[str, Held]
    ) -> None:
        """Let every worker prepare ``config``, or none. Raises ConfigRejectedError."""
        layout, descriptors = given(each for k, each in sockets.items() if k not in before)
        question = Prepare(self._of_worker(config, sockets), layout)

        async def prepare(slot: _Place, worker: Worker) -> str:
            """Return the problem, or an empty string."""
            try:
                worker.hand_over(descriptors)
                async with asyncio.timeout(_CHANGE):
                    await worker.channel.ask(question)
            except Lost:
                return ""  # its successor starts with the configuration active then
            except TimeoutError:
                worker.kill()
                return f"worker {slot.number} took longer than {_CHANGE:g} s and was killed"
            except (Failed, OSError) as error:
                return str(error)
            return ""

        problems = await asyncio.gather(*(prepare(*each) for each in self._serving()))
        problem = next(filter(None, problems), "")
        if problem or self._is_stopping:
            await self._ask_all(Drop())
            raise NotTaken(problem or _STOPPING)

    # ---- shutdown

    def drain(self) -> None:
        """Fail readiness for every protocol; watching clients are notified at once."""
        self._own.drain()
        self._tell(Drain())

    def _tell(self, order: object) -> None:
        """Send ``order`` to every worker without waiting for the responses."""
        for _, worker in self._serving():
            task = asyncio.create_task(self._ask(worker, order, _ANSWER))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self, grace: float) -> None:
        """Stop accepting, let requests finish for ``grace`` seconds, then end everything."""
        self._is_stopping = True
        self._own.drain()
        await self._cancel(self._keeping)
        self._close(self._held, {})
        self._held = {}
        self._tell(Stop(grace))
        running = [slot for slot in self._places if slot.worker and slot.worker.is_there]
        for slot in running:
            if not slot.serves:
                self._kill(slot)
        await self._wait(running, grace + _LAST)
        for slot in running:
            self._kill(slot)
        await self._wait(running, None)
        await self._own.stop(0)
        await self._cancel(self._tasks if self._hearing is None else {*self._tasks, self._hearing})
        files, self._files = self._files, None
        if files is not None:
            files.close()

    @staticmethod
    def _kill(place: _Place) -> None:
        if place.worker is not None:
            place.worker.kill()

    @staticmethod
    async def _wait(places: Sequence[_Place], seconds: float | None) -> None:
        """Wait until the slots' workers have ended, for ``seconds`` at most."""
        ended = [slot.worker.ended for slot in places if slot.worker is not None]
        if ended:
            await asyncio.wait(ended, timeout=seconds)

    @staticmethod
    async def _cancel(tasks: Sequence[asyncio.Task[None]] | set[asyncio.Task[None]]) -> None:
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key(name: str, address: Address) -> str:
    """Return the key that identifies a listener's sockets. An address with any free port belongs to
    its listener."""
    return str(address) if address.port or address.unix else f"{name} {address}"
