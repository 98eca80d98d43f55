"""Compares the responses of mirrors with the served responses. Requests never wait for comparisons.

Comparisons wait in a queue, and a helper process runs them in batches. ``MAX_WAITING`` and
``MAX_BYTES`` limit the queue. The tensors in the queue are charged to ``limits.in_flight_bytes`` as
optional work, like the copies of requests. A comparison beyond a limit is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from infergate.comparison.batch import ComparedBatch, PackedPair, compare_batch, pack_pair
from infergate.comparison.outcomes import Comparison
from infergate.comparison.rules import ComparisonRules
from infergate.comparison.settings import Baseline, MirrorComparison
from infergate.comparison.summary import Summary
from infergate.comparison.verdict import CachedJudge, Judge, Verdict
from infergate.core.counters import RouteCounters
from infergate.core.daemon_threads import to_daemon_thread
from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import Exchange, Outcome
from infergate.core.limits import MIB
from infergate.core.log_events import BUG, NOT_COMPARED
from infergate.core.memory import DetachedMemoryAccount, MemoryAccount
from infergate.core.offload import Offload
from infergate.core.records import record
from infergate.routing.table import Rewrite, Route

MAX_WAITING: Final = 512
"""Maximum number of waiting and running comparisons of all routes."""
MAX_BYTES: Final = 256 * MIB
"""Maximum total size of the tensors of waiting and running comparisons, in bytes. If no other
comparison is waiting or running, a comparison may exceed this limit."""
_MAX_BATCH: Final = 128
_MAX_BATCH_BYTES: Final = 4 * MIB
_MAX_BATCH_TENSORS: Final = 256
"""Maximum number of outputs in a batch. The event loop takes about 20 µs to read the result for
each output that differs."""
_BATCH_SECONDS: Final = 0.1
"""Seconds during which comparisons are collected for a batch. A batch costs the event loop less
time than the same number of single comparisons."""
_EXPIRY_SECONDS: Final = 60.0
"""Seconds between two deletions of expired mismatches."""
_MIN_WARNING_SECONDS: Final = 60.0
"""Minimum number of seconds between two log lines about failed comparisons."""
_CLIENT: Final = ("comparison", "")
_log = logging.getLogger(__name__)


@record
class ComparisonJob:
    """A served inference, the outcome of its copy, and the outcome of the noise baseline (None if
    the inference was not sent to the baseline)."""

    exchange: Exchange
    mirrored: Outcome
    baseline: Outcome | None = None

    @property
    def size(self) -> int:
        """The size of all tensors in bytes."""
        baseline = 0 if self.baseline is None else self.baseline.size
        return self.exchange.size + self.mirrored.size + baseline

    @property
    def output_count(self) -> int:
        """The number of outputs in all served responses."""
        return sum([len(response.outputs) for response in self.exchange.outcome.responses])


class MismatchStore(Protocol):
    """Stores inferences whose responses differ. The methods block and never raise."""

    def store(self, exchange: Exchange, mirrored: Outcome, mirror: str) -> str:
        """Store ``exchange`` and ``mirrored``, the outcome of the copy on the backend ``mirror``,
        if the limits allow it. Return the result, which is a label value of a metric."""
        ...

    def remove_expired(self) -> None:
        """Delete the inferences that have reached their maximum age."""
        ...


class ComparedRoute(NamedTuple):
    """The settings of a route's comparison. A change of the settings starts a new summary."""

    label: str
    backend: str
    rewrite: Rewrite
    mirror: str
    mirror_rewrite: Rewrite
    rules: ComparisonRules
    baseline: str | None
    redacted: tuple[str, ...]


class RouteComparer:
    """Compares the responses of one route. ``comparison`` contains the settings."""

    def __init__(
        self,
        compared: ComparedRoute,
        comparison: MirrorComparison,
        queue: MirrorComparer,
        counters: RouteCounters,
        store: MismatchStore | None,
    ) -> None:
        self.compared: Final = compared
        self.baseline: Final[Baseline | None] = comparison.baseline
        self.store: Final = store
        self.summary = Summary()
        self.counters: Final = counters
        self.compare_batch: Final = partial(
            compare_batch, compared.label, compared.rules, compared.redacted
        )
        """The function that the helper process runs. It is pickled only once."""
        self._queue: Final = queue

    def submit(self, job: ComparisonJob, memory: MemoryAccount) -> None:
        """Queue or drop ``job``, like ``MirrorComparer.add``."""
        self._queue.add(self, job, memory)

    def count(self, result: str) -> None:
        """Count a comparison by its result."""
        self.counters.comparisons[result] += 1

    def classify(self, model: str, comparison: Comparison, judge: Judge) -> Verdict:
        """Return the verdict on ``comparison``, which the summary already contains, and count it.
        ``judge`` weighs the differences."""
        verdict = self.summary.classify(self.compared.label, model, comparison, judge)
        self.count(verdict.value)
        if verdict is Verdict.DIFFERENT:
            if comparison.cause:
                self.counters.count_difference("", comparison.cause)
            for output in comparison.outputs:
                if output.cause and not output.is_known:
                    self.counters.count_difference(output.name, output.cause)
        return verdict


class _WaitingJob(NamedTuple):
    route: RouteComparer
    job: ComparisonJob
    packed: PackedPair | bytes
    memory: DetachedMemoryAccount
    size: int


class MirrorComparer:
    """The queue of comparisons of all routes. ``offload`` runs the comparisons, and
    ``close_offload`` closes ``offload``. An unchanged route continues its summary from
    ``predecessor``, the comparer of the previous configuration."""

    def __init__(  # noqa: PLR0913, PLR0917 - dependency injection
        self,
        routes: Iterable[Route],
        offload: Offload,
        close_offload: Callable[[], Awaitable[object]],
        counters_of: Callable[[str], RouteCounters],
        make_store: Callable[[MirrorComparison], MismatchStore | None],
        predecessor: MirrorComparer | None = None,
    ) -> None:
        self._offload: Final = offload
        self._close_offload: Final = close_offload
        self._queue: Final[deque[_WaitingJob]] = deque()
        self._unfinished = self._bytes = 0
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._is_running = False
        self._warned_at = -_MIN_WARNING_SECONDS
        self._routes: Final[dict[int, RouteComparer]] = {}
        for route in routes:
            mirror = route.mirror
            if mirror is None or mirror.comparison is None:
                continue
            baseline, storage = mirror.comparison.baseline, mirror.comparison.storage
            compared = ComparedRoute(
                route.label,
                route.backend,
                route.rewrite,
                mirror.backend,
                mirror.rewrite,
                mirror.comparison.rules,
                None if baseline is None else baseline.backend,
                () if storage is None else storage.redacted,
            )
            store = make_store(mirror.comparison)
            comparer = RouteComparer(
                compared, mirror.comparison, self, counters_of(route.label), store
            )
            for owner in filter(None, (self, predecessor)):
                comparer.summary = owner.summary_of(compared) or comparer.summary
            self._routes[id(route)] = comparer

    def of_route(self, route: Route) -> RouteComparer | None:
        """Return the comparer of ``route``, or None if the mirror's responses are not compared."""
        return self._routes.get(id(route))

    def summary_of(self, compared: ComparedRoute) -> Summary | None:
        """Return the summary of the route with the settings ``compared``, or None."""
        summaries = (each.summary for each in self._routes.values() if each.compared == compared)
        return next(summaries, None)

    def summaries(self) -> Iterator[Summary]:
        """Yield the current summaries. Several summaries may contain the same model and route."""
        unique = {id(each.summary): each.summary for each in self._routes.values()}
        yield from unique.values()

    def reset(self) -> None:
        """Remove all comparisons from the summaries."""
        for comparer in self._routes.values():
            comparer.summary.routes.clear()

    def start(self) -> None:
        """Start the periodic deletion of expired mismatches."""
        stores = [each.store for each in self._routes.values() if each.store is not None]
        if stores:
            self._spawn(self._remove_expired(stores))

    async def _remove_expired(self, stores: list[MismatchStore]) -> None:
        while True:
            for store in stores:
                await to_daemon_thread(store.remove_expired)
            await asyncio.sleep(_EXPIRY_SECONDS)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- the queue

    def add(self, route: RouteComparer, job: ComparisonJob, memory: MemoryAccount) -> None:
        """Queue ``job``, or drop it if a limit is reached. The charge moves to the job from
        ``memory``, which already includes the served exchange."""
        size = job.size
        if not self._has_capacity(size) or not _grow(memory, size - job.exchange.size):
            route.count("dropped")
            return
        self._unfinished += 1
        self._bytes += size
        packed = pack_pair(job.exchange, job.mirrored, job.baseline)
        self._queue.append(_WaitingJob(route, job, packed, memory.detach(size), size))
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    def _has_capacity(self, size: int) -> bool:
        if not self._unfinished:
            return True
        return self._unfinished < MAX_WAITING and self._bytes + size <= MAX_BYTES

    async def _run(self) -> None:
        try:
            while self._queue:
                await asyncio.sleep(_BATCH_SECONDS)
                try:
                    await self._compare(self._next_batch())
                except Exception:  # noqa: BLE001 - a bug must fail only one batch
                    _log.exception("internal error while comparing responses", extra=BUG)
        finally:
            self._is_running = False

    def _next_batch(self) -> list[_WaitingJob]:
        """Take jobs of a single route from the front of the queue."""
        batch, size, tensors = [self._queue.popleft()], 0, 0
        while self._queue and len(batch) < _MAX_BATCH:
            size += batch[-1].size
            tensors += batch[-1].job.output_count
            following = self._queue[0]
            if (
                following.route is not batch[0].route
                or size + following.size > _MAX_BATCH_BYTES
                or tensors + following.job.output_count > _MAX_BATCH_TENSORS
            ):
                break
            batch.append(self._queue.popleft())
        return batch

    async def _compare(self, batch: list[_WaitingJob]) -> None:
        route, size = batch[0].route, sum(each.size for each in batch)
        unrecorded = iter(batch)
        try:
            compared = await self._run_batch(route, batch, size)
            if compared is not None:
                route.summary.merge(compared.summary)
                judge = CachedJudge()
                for position, waiting in enumerate(unrecorded):
                    await self._record(waiting, compared, position, judge)
        finally:
            for waiting in unrecorded:  # a limit is reached, or the gateway closes
                waiting.route.count("dropped")
            for waiting in batch:
                waiting.memory.close()
            self._unfinished -= len(batch)
            self._bytes -= size

    async def _run_batch(
        self, route: RouteComparer, batch: list[_WaitingJob], size: int
    ) -> ComparedBatch | None:
        """Return the helper's result, or None if the memory budget is exhausted or the queue of
        the helper processes is full. If the helper fails, the result is an error for each job."""
        pairs = [each.packed for each in batch]
        try:
            return await self._offload.run(
                None,
                route.compare_batch,
                pairs,
                client=_CLIENT,
                cost=size,
                memory=batch[0].memory,
                size=size,
            )
        except Exception as error:  # noqa: BLE001 - the error is counted and logged
            if isinstance(error, GatewayError) and error.kind is Kind.OVERLOADED:
                return None
            return ComparedBatch(Summary(), {}, dict.fromkeys(range(len(batch)), str(error)))

    async def _record(
        self, waiting: _WaitingJob, compared: ComparedBatch, position: int, judge: Judge
    ) -> None:
        """Count the result at ``position``, and store the inference if the responses differ.
        ``judge`` weighs the differences."""
        route, job = waiting.route, waiting.job
        if position in compared.errors:
            route.count("error")
            self._warn(route.compared.label, compared.errors[position])
            return
        comparison = compared.different.get(position)
        if comparison is None:
            route.count(Verdict.EQUAL.value)
            return
        await asyncio.sleep(0)  # a verdict on many outputs may take a millisecond
        verdict = route.classify(job.exchange.request.model, comparison, judge)
        if verdict is Verdict.DIFFERENT and route.store is not None:
            result = await to_daemon_thread(
                route.store.store, job.exchange, job.mirrored, route.compared.mirror
            )
            route.counters.mismatches[result] += 1

    def _warn(self, label: str, reason: str) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _MIN_WARNING_SECONDS:
            self._warned_at = now
            _log.warning("route %s: the comparison failed: %s", label, reason, extra=NOT_COMPARED)

    async def close(self) -> None:
        """Drop all jobs in the queue, and close the helper process."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for waiting in self._queue:
            waiting.route.count("dropped")
            waiting.memory.close()
        self._queue.clear()
        await self._close_offload()


def _grow(memory: MemoryAccount, size: int) -> bool:
    try:
        memory.grow(size)
    except GatewayError:
        return False
    return True
