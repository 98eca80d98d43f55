"""Starts the workers, starts them again, and speaks for all of them.

*Strategy.* To whoever runs it, a supervisor is what one process that serves is: it starts, takes
configurations, drains and stops (:class:`infergate.runtime.running.Running`). Its own part is one
of those, with the admin listener alone.

*Rule 1.* Where a worker cannot be started at first, nothing is: its error is the whole's. Later
ones are started again and again, ever more slowly.
*Rule 2.* All workers take a configuration, or none. One that ends meanwhile is started with
whichever serves then.
*Rule 3.* A worker that does not answer is not waited for: it is told of what it last told.
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
"""Seconds that a worker has from its process to its first request."""
_CHANGE: Final = 30.0
"""Seconds that it has to prepare a configuration."""
_ANSWER: Final = 1.0
"""Seconds that it has to say how it is."""
_HEARING: Final = 5.0
"""Seconds that a scrape waits for what workers tell, piece after piece: half of what Prometheus
waits for all of it."""
_READY: Final = ANSWER_TIME + _ANSWER
"""Seconds that it has to say whether it can serve, for which it may ask its backends."""
_TRY: Final = 75.0
"""Seconds that it has to carry out what the console asks for, which ends in less by itself."""
_LAST: Final = 5.0
"""Seconds that it has to end, besides those that requests may take."""
_STOPPING: Final = "the gateway is stopping"
_COMBINE: Final = {"strict": all, "lenient": any}


@dataclass(slots=True)
class _Place:
    """Where one worker after another serves. ``told`` are the last metrics of the one that does."""

    number: int
    worker: Worker | None = None
    serves: bool = False
    told: list[Metric] = field(default_factory=list)
    backoff: Backoff = field(default_factory=Backoff)


class Supervisor:
    """Of ``config.workers`` workers; see the module. ``history`` is what the admin listener tells
    of configurations."""

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
        self._named: Config | None = None  # whose names all have of what is past
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
        """The configuration that serves what is asked now."""
        return self._config

    @property
    def workers(self) -> Workers:
        """See View."""
        return Workers(len(self._places), len(self._serving()))

    @property
    def addresses(self) -> Mapping[str, Address]:
        """See View."""
        return {name: each.address for name, each in self.listeners.items()}

    async def carry_out(self, what: str, asked: dict[str, Any]) -> dict[str, Any]:
        """See View: by whichever worker is the first. No other is asked after it: what was sent is
        not sent again, and what has ended one process would end the next."""
        serving = self._serving()
        if not serving:
            raise GatewayError(Kind.OVERLOADED, "no worker serves")
        told = await self._ask(serving[0][1], CarryOut(what, asked), _TRY)
        if isinstance(told, Refused):
            raise GatewayError(told.kind, told.public)
        if told is None:
            raise GatewayError(Kind.OVERLOADED, "the worker has not answered; its log may tell why")
        found: dict[str, Any] = told
        return found

    async def recent(self) -> Sequence[Recalled]:
        """See View."""
        told: list[Recalled] = await self._ask_all(Recall())
        self._forget()
        families = [*self._metrics.at_a_glance(), *self._past.collect()]
        return [*told, Recalled(None, {}, (), (), families)]

    @property
    def listeners(self) -> Mapping[str, Addressed]:
        """By the configuration's names."""
        found: dict[str, Addressed] = {
            name: self._held[_key(name, address)] for name, address in wanted(self._config).items()
        }
        return found | dict(self._own.listeners)

    def _serving(self) -> list[tuple[_Place, Worker]]:
        return [(each, each.worker) for each in self._places if each.serves and each.worker]

    # ---- the beginning

    async def start(self) -> None:
        """Bind every address, start every worker; or nothing. Raises OSError naming the address
        that is taken, Ended where a worker cannot serve."""
        try:
            self._held = await self._bound(self._config, {})
            await self._own.start()
            try:
                async with asyncio.TaskGroup() as starting:
                    for each in self._places:
                        starting.create_task(self._begin(each))
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
        except BaseException:
            await self.stop(0)
            raise
        self._keeping = [asyncio.create_task(self._keep(each)) for each in self._places]

    async def _bound(self, config: Config, there: Mapping[str, Held]) -> dict[str, Held]:
        """The sockets of ``config``: those that are ``there``, and new ones. Raises OSError."""
        found: dict[str, Held] = {}
        shares = engine(config.engine).bind_grpc
        addresses = {_key(*each): each for each in wanted(config).items()}
        left = [each.bound.sockets for key, each in there.items() if key not in addresses]
        beside = partial(bound, beside=[*chain.from_iterable(left)])
        try:
            for key, (name, address) in addresses.items():
                bind = shares if name == "grpc" and shares is not bound else beside
                known = there.get(key)
                found[key] = known or await held(name, address, bind, len(self._places))
        except BaseException:
            self._close(found, there)
            raise
        return found

    @staticmethod
    def _close(these: Mapping[str, Held], kept: Mapping[str, Held]) -> None:
        """``these``, but for those that are also ``kept``."""
        for key, each in these.items():
            if key not in kept:
                each.close()

    async def _begin(self, place: _Place) -> None:
        """Have a worker serve there. Raises Ended, OSError."""
        assert self._files is not None
        worker = place.worker = Worker()
        await worker.begin(place.number, self._config.engine, self._files, self._answer)
        told_of, descriptors = given(self._held.values())
        try:
            worker.hand_over(descriptors)
            async with asyncio.timeout(_START):
                await worker.channel.ask(Serve(self._of_worker(self._config, self._held), told_of))
        except Lost:
            code = await asyncio.shield(worker.ended)
            raise Ended(f"worker {place.number} has ended: {told(code)}", code) from None
        except Failed as error:
            worker.kill()
            raise OSError(str(error)) from None
        except TimeoutError:
            worker.kill()
            raise Ended(f"worker {place.number} did not begin in {_START:g} s", 1) from None
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

    # ---- while it runs

    async def _keep(self, place: _Place) -> None:
        """Start another whenever one has ended."""
        while True:
            worker = place.worker
            assert worker is not None
            code = await asyncio.shield(worker.ended)
            self._bury(place)
            wait = place.backoff.after(time.monotonic() - worker.began)
            _log.error(
                "worker %d (pid %d) has ended: %s; another one starts in %.1f s",
                place.number, worker.pid, told(code), wait, extra=WORKER_ENDED)  # fmt: skip
            await asyncio.sleep(wait)
            self._restarts.inc()
            async with self._changing:
                try:
                    await self._begin(place)
                except (Ended, OSError) as error:
                    _log.error("worker %d: %s", place.number, error, extra=WORKER_FAILED)
                except Exception:  # noqa: BLE001 - a bug costs one start
                    _log.exception("a bug while starting worker %d", place.number, extra=BUG)
                else:
                    assert place.worker is not None
                    _log.info(
                        "worker %d serves, pid %d",
                        place.number,
                        place.worker.pid,
                        extra=WORKER_SERVES,
                    )

    def _bury(self, place: _Place) -> None:
        """What the worker there has counted still counts; it has no connections."""
        place.serves = False
        self._past.add(place.told, past=True)
        self._named = None
        place.told = []
        for each in self._held.values():
            each.loads.leave(place.number)

    async def _answer(self, question: Any) -> Any:
        """What workers ask."""
        match question:
            case Counted():
                answers: list[ModelStatistics] = await self._ask_all(question)
                return together(answers)
        raise Failed(f"nobody knows what {question!r} is")

    async def _ask_all(self, question: object, seconds: float = _ANSWER) -> list[Any]:
        """The answers of those workers that give one in time."""
        asked = (self._ask(worker, question, seconds) for _, worker in self._serving())
        return [each for each in await asyncio.gather(*asked) if each is not None]

    @staticmethod
    async def _ask(worker: Worker, question: object, seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await worker.channel.ask(question)
        except (Failed, Lost, TimeoutError):
            return None

    async def _scrape(self, accept: str) -> Exposition:
        """See Company. Who asks while others do is told what they are; what comes too late for
        them, the next is told."""
        hearing = self._hearing
        if hearing is None:
            hearing = self._hearing = asyncio.create_task(self._hear())
            hearing.add_done_callback(self._heard)
        heard, _ = await asyncio.wait({hearing}, timeout=_HEARING)
        for each in heard:
            each.result()
        return exposition(await self._summed(), accept)

    async def _hear(self) -> None:
        """Have all workers tell their metrics. What one has told before holds until it has told all
        of them, so if it does not."""

        async def ask(place: _Place, worker: Worker) -> None:
            told: list[Metric] = []
            piece = await self._ask(worker, Tell(begin=True), _ANSWER)
            while piece:
                told += piece
                piece = await self._ask(worker, Tell(begin=False), _ANSWER)
            if piece is not None and place.worker is worker and place.serves:
                place.told = told

        await asyncio.gather(*(ask(place, worker) for place, worker in self._serving()))

    def _heard(self, _: asyncio.Task[None]) -> None:
        self._hearing = None

    async def _summed(self) -> Summed:
        """The metrics of all processes, those that are no more too."""
        self._forget()
        families = chain(
            self._metrics.registry.collect(),
            list(self._past.collect()),
            *(place.told for place in self._places),
        )
        summed = Summed()
        for piece in in_pieces(families):
            summed.add(piece)
            await asyncio.sleep(0)  # whoever else waits has a turn
        return summed

    def _forget(self) -> None:
        """What was told of routes and backends that there are no more."""
        config = self._config
        if self._named is not config:
            routes = (route.label for route in compiled.routing_table(config).routes)
            self._past.keep(Names({NOBODY, *routes}, {NOBODY, *config.backends}))
            self._named = config

    async def _ready(self) -> bool:
        if self._own.gateway.readiness.draining:
            return False
        said = await self._ask_all(IsReady(), _READY)
        missing = [False] * (len(self._places) - len(said))
        return _COMBINE[self._config.readiness]([*said, *missing])

    # ---- another configuration

    async def reload(self, config: Config) -> None:
        """Have ``config`` served from now on. Raises NotTaken, and nothing has changed."""
        async with self._changing:
            if self._is_stopping:
                raise NotTaken(_STOPPING)
            before = self._held  # the end may come at any moment, and closes them
            own = await self._own.prepare(of_supervisor(config))
            try:
                try:
                    sockets = await self._bound(config, before)
                except OSError as error:
                    raise NotTaken(str(error)) from error
                try:
                    await self._prepare(config, sockets, before)
                except BaseException:
                    self._close(sockets, before)
                    raise
            except BaseException:
                await own.drop()
                raise
            self._held = sockets
            self._config = config
            own.take()
            await self._ask_all(Take())
            self._close(before, sockets)

    async def _prepare(
        self, config: Config, sockets: Mapping[str, Held], before: Mapping[str, Held]
    ) -> None:
        """Have every worker prepare ``config``, or none. Raises NotTaken."""
        told_of, descriptors = given(each for k, each in sockets.items() if k not in before)
        question = Prepare(self._of_worker(config, sockets), told_of)

        async def prepare(place: _Place, worker: Worker) -> str:
            """What is wrong; empty: nothing."""
            try:
                worker.hand_over(descriptors)
                async with asyncio.timeout(_CHANGE):
                    await worker.channel.ask(question)
            except Lost:
                return ""  # its successor is started with what serves then
            except TimeoutError:
                worker.kill()
                return f"worker {place.number} took longer than {_CHANGE:g} s, and was ended"
            except (Failed, OSError) as error:
                return str(error)
            return ""

        said = await asyncio.gather(*(prepare(*each) for each in self._serving()))
        wrong = next(filter(None, said), "")
        if wrong or self._is_stopping:
            await self._ask_all(Drop())
            raise NotTaken(wrong or _STOPPING)

    # ---- the end

    def drain(self) -> None:
        """Fail readiness, for every protocol; whoever watches it is told at once."""
        self._own.drain()
        self._tell(Drain())

    def _tell(self, order: object) -> None:
        """Have it carried out by every worker; nobody waits for that."""
        for _, worker in self._serving():
            task = asyncio.create_task(self._ask(worker, order, _ANSWER))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self, grace: float) -> None:
        """Stop accepting, let requests finish for ``grace`` seconds, end everything."""
        self._is_stopping = True
        self._own.drain()
        await self._cancel(self._keeping)
        self._close(self._held, {})
        self._held = {}
        self._tell(Stop(grace))
        there = [each for each in self._places if each.worker and each.worker.is_there]
        for each in there:
            if not each.serves:
                self._kill(each)
        await self._wait(there, grace + _LAST)
        for each in there:
            self._kill(each)
        await self._wait(there, None)
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
        """Until there is no worker, for so many seconds at most."""
        ended = [each.worker.ended for each in places if each.worker is not None]
        if ended:
            await asyncio.wait(ended, timeout=seconds)

    @staticmethod
    async def _cancel(tasks: Sequence[asyncio.Task[None]] | set[asyncio.Task[None]]) -> None:
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key(name: str, address: Address) -> str:
    """What tells sockets apart: those of any free port belong to their listener."""
    return str(address) if address.port or address.unix else f"{name} {address}"
