"""A bounded queue that is fair between clients and respects priorities. This module has no I/O.

Jobs of the highest priority are taken first. Within a priority, the queue uses weighted fair
queueing on two levels: between clients, in proportion to their weights, and then between the
connections of a client. The next job is the job that would finish first if all clients and
connections were served concurrently. Time is measured in job costs, so small jobs of one client
overtake large jobs of another client.

*Rule 1.* Jobs of one connection keep their order within a priority.
*Rule 2.* No job waits forever because of jobs of the same priority. Each job that is taken advances
the virtual clock by its cost divided by the total weight of the waiting clients, and jobs of new
clients start at the clock. Jobs of higher priorities may delay a job without limit.
*Rule 3.* A full queue sheds jobs of the lowest priority first. Of this priority, it sheds the
latest job of the most loaded connection of the most loaded client. The load is the number or cost
of waiting jobs; the load of a client is divided by the client's weight. If a new job would make its
own client the most loaded, the new job displaces only a job of another connection of this client,
or is rejected.
*Rule 4.* Every operation takes amortized O(log n) time, except ``take`` with ``max_cost``."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from infergate.core.priorities import DEFAULT_PRIORITY, LOWEST_PRIORITY, PRIORITIES

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class QueuedJob(Generic[T]):
    """A job in a ``FairQueue``. ``client`` and ``connection`` identify its origin. ``cost`` is at
    least 1, ``weight`` is the client's weight, and ``priority`` is one of ``PRIORITIES``. The owner
    of the queue chooses the clock of ``deadline``."""

    item: T
    client: str
    connection: str
    cost: int = 1
    weight: float = 1.0
    priority: int = DEFAULT_PRIORITY
    deadline: float = math.inf


_Load = tuple[float, float]
"""The number and the cost of jobs. The number comes first if the queue has too many jobs, and the
cost comes first if the total cost is too high."""

_Rank = tuple[float, ...]
_RankedName = tuple[_Rank, int, str]


class _Ranking:
    """Names by rank, lowest first; names of equal rank are in the order in which they got the rank.
    Outdated heap entries are dropped when they reach the top, or when they are the majority."""

    __slots__ = ("_entries", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[_RankedName] = []
        self._entries: Final[dict[str, _RankedName]] = {}
        self._number = 0

    def set(self, name: str, rank: _Rank) -> None:
        entry = self._entries.get(name)
        if entry is not None and entry[0] == rank:
            return
        self._number += 1
        self._entries[name] = entry = (rank, self._number, name)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + 8:
            self._heap = sorted(self._entries.values())

    def discard(self, name: str) -> None:
        del self._entries[name]
        if not self._entries:
            self._heap.clear()

    def first(self) -> str:
        """Return the first name. At least one name must exist."""
        heap, entries = self._heap, self._entries
        while entries.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][2]


class _Flow:
    """Waiting jobs with a common origin. ``start`` is the virtual time at which the first job
    begins."""

    __slots__ = ("cost", "count", "start", "weight")

    def __init__(self, start: float, weight: float = 1.0) -> None:
        self.start = start
        self.weight = weight
        self.count = 0
        self.cost = 0

    def next_cost(self, max_cost: float = math.inf) -> int:
        """Return the cost of the next job within ``max_cost``, or 0 without such a job."""
        raise NotImplementedError

    def latest(self) -> int:
        """Return the latest job's unique number, or 0 if the flow consists of other flows."""
        return 0

    def load(self, *, costly: bool, added: int = 0) -> _Load:
        """Return the load (Rule 3). If ``added`` is not 0, include a further job with this cost."""
        count = (self.count + (added > 0)) / self.weight
        cost = (self.cost + added) / self.weight
        return (cost, count) if costly else (count, cost)


class _ConnectionFlow(_Flow, Generic[T]):
    """The waiting jobs of a connection, in order."""

    __slots__ = ("jobs",)

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self.jobs: Final[OrderedDict[QueuedJob[T], int]] = OrderedDict()
        """The jobs and their numbers."""

    def next_cost(self, max_cost: float = math.inf) -> int:
        cost = next(iter(self.jobs)).cost
        return cost if cost <= max_cost else 0

    def latest(self) -> int:
        return next(reversed(self.jobs.values()))


F = TypeVar("F", bound=_Flow)


class _SharedFlow(_Flow, Generic[F]):
    """The waiting jobs of several ``flows``, which are served fairly: the connections of a client,
    or the clients of a priority."""

    __slots__ = ("_loads", "_order", "clock", "flows", "total_weight")

    def __init__(self, start: float, weight: float = 1.0, *, has_costs: bool) -> None:
        super().__init__(start, weight)
        self.flows: Final[dict[str, F]] = {}
        self.clock = 0.0
        self.total_weight = 0.0
        self._order: Final = _Ranking()
        self._loads: Final = {False: _Ranking()}
        """The flows ranked by number of jobs and, if ``has_costs``, by cost."""
        if has_costs:
            self._loads[True] = _Ranking()

    def add(self, name: str, flow: F) -> F:
        self.flows[name] = flow
        self.total_weight += flow.weight
        return flow

    def set_weight(self, flow: _Flow, weight: float) -> None:
        self.total_weight += weight - flow.weight
        flow.weight = weight

    def update(self, name: str) -> None:
        """Update the rank of the flow ``name``, or remove the flow if it is empty."""
        flow = self.flows[name]
        if flow.count:
            self._order.set(name, (flow.start + flow.next_cost() / flow.weight,))
            for costly, ranking in self._loads.items():
                first, second = flow.load(costly=costly)
                ranking.set(name, (-first, -second, -flow.latest()))
            return
        del self.flows[name]
        for ranking in (self._order, *self._loads.values()):
            ranking.discard(name)
        # Rounding errors of the sum must not outlive the flows.
        self.total_weight = self.total_weight - flow.weight if self.flows else 0.0

    def heaviest(self, *, costly: bool) -> F:
        return self.flows[self._loads[costly].first()]

    def first(self, max_cost: float = math.inf) -> str | None:
        """Return the name of the flow with the next job within ``max_cost``, or None."""
        if max_cost == math.inf:
            return self._order.first()
        best, best_end = None, math.inf
        for name, flow in self.flows.items():
            cost = flow.next_cost(max_cost)
            end = flow.start + cost / flow.weight
            if cost and end < best_end:
                best, best_end = name, end
        return best

    def next_cost(self, max_cost: float = math.inf) -> int:
        name = self.first(max_cost)
        return 0 if name is None else self.flows[name].next_cost(max_cost)

    def advance(self, name: str, cost: int) -> None:
        """Record that a job of the flow ``name`` was taken."""
        flow = self.flows[name]
        flow.start += cost / flow.weight
        self.clock += cost / self.total_weight


class FairQueue(Generic[T]):
    """Holds at most ``max_waiting`` jobs with a total cost of at most ``max_cost``."""

    def __init__(self, max_waiting: int, max_cost: float = math.inf) -> None:
        self._max_waiting: Final = max_waiting
        self._max_cost: Final = max_cost
        self._has_costs: Final = max_cost < math.inf
        self._levels: Final = {
            priority: _SharedFlow[_SharedFlow[_ConnectionFlow[T]]](0.0, has_costs=self._has_costs)
            for priority in PRIORITIES
        }
        self.waiting = 0
        """The number of jobs in the queue."""
        self._cost = 0
        self._number = 0

    def put(self, job: QueuedJob[T]) -> Sequence[QueuedJob[T]]:
        """Add ``job`` unless it is rejected. Return the shed jobs (Rule 3): the jobs that were
        removed from the queue, and ``job`` if it was rejected."""
        shed: list[QueuedJob[T]] = []
        while (costly := self._cost + job.cost > self._max_cost) or (
            self.waiting >= self._max_waiting
        ):
            victim = None if job.cost > self._max_cost else self._find_victim(job, costly=costly)
            if victim is None:
                shed.append(job)
                return shed
            self.discard(victim)
            shed.append(victim)
        level = self._levels[job.priority]
        client = level.flows.get(job.client)
        if client is None:
            client = level.add(job.client, self._new_client(level.clock, job.weight))
        elif client.weight != job.weight:  # the configuration has changed
            level.set_weight(client, job.weight)
        connection = client.flows.get(job.connection)
        if connection is None:
            connection = client.add(job.connection, _ConnectionFlow(client.clock))
        self._number += 1
        connection.jobs[job] = self._number
        self._count(job, 1)
        return shed

    def _new_client(self, start: float, weight: float) -> _SharedFlow[_ConnectionFlow[T]]:
        return _SharedFlow(start, weight, has_costs=self._has_costs)

    def _count(self, job: QueuedJob[T], change: int) -> None:
        """Count ``job`` after it was added (``change`` is 1) or removed (-1), and update the ranks
        of its flows."""
        level = self._levels[job.priority]
        client = level.flows[job.client]
        cost = change * job.cost
        self.waiting += change
        self._cost += cost
        for flow in (level, client, client.flows[job.connection]):
            flow.count += change
            flow.cost += cost
        client.update(job.connection)
        level.update(job.client)

    def _find_victim(self, job: QueuedJob[T], *, costly: bool) -> QueuedJob[T] | None:
        """Return the job to shed for ``job``, or None if ``job`` must be rejected (Rule 3)."""
        lowest = LOWEST_PRIORITY
        while lowest > job.priority and not self._levels[lowest].count:
            lowest -= 1
        level = self._levels[lowest]
        if not level.count:  # all jobs have higher priorities
            return None
        client = level.heaviest(costly=costly)
        own_connection = None
        if lowest == job.priority:
            own = level.flows.get(job.client) or self._new_client(0.0, job.weight)
            if client.load(costly=costly) <= own.load(costly=costly, added=job.cost):
                if not own.count:
                    return None
                client = own
                own_connection = own.flows.get(job.connection) or _ConnectionFlow[T](0.0)
        connection = client.heaviest(costly=costly)
        if own_connection is not None and connection.load(costly=costly) <= own_connection.load(
            costly=costly, added=job.cost
        ):
            return None
        return next(reversed(connection.jobs))

    def take(self, max_cost: float = math.inf) -> QueuedJob[T] | None:
        """Remove and return the next job. Only jobs that are first in their connection and cost at
        most ``max_cost`` are considered. Return None if there is no such job."""
        if not self.waiting:
            return None
        for level in self._levels.values():
            client_name = level.first(max_cost) if level.count else None
            if client_name is not None:
                client = level.flows[client_name]
                connection_name = client.first(max_cost)
                assert connection_name is not None
                job, _ = client.flows[connection_name].jobs.popitem(last=False)
                client.advance(connection_name, job.cost)
                level.advance(client_name, job.cost)
                self._count(job, -1)
                return job
        return None

    def discard(self, job: QueuedJob[T]) -> None:
        """Remove ``job`` if it is still waiting."""
        client = self._levels[job.priority].flows.get(job.client)
        connection = None if client is None else client.flows.get(job.connection)
        if connection is not None and job in connection.jobs:
            del connection.jobs[job]
            self._count(job, -1)

    def jobs_before(self, job: QueuedJob[T]) -> float:
        """Estimate how many waiting jobs would be taken before ``job`` if ``job`` were added now.
        The estimate assumes that all jobs have the same cost and that no further jobs arrive."""
        higher = sum(level.count for level in list(self._levels.values())[: job.priority - 1])
        level = self._levels[job.priority]
        own = level.flows.get(job.client)
        count = 0 if own is None else own.count
        total_weight = level.total_weight + (job.weight if own is None else 0.0)
        # All clients with enough jobs advance at the same rate until ``job`` is taken.
        return higher + min(level.count, (count + 1) / job.weight * total_weight - 1)
