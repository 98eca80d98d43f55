"""The queue of jobs that wait for a helper process, shared fairly between clients.

*Strategy.* Weighted fair queueing on two levels: a helper goes to the client (an identity, else an
address) whose first job would end first if all clients were served at once, and within it to the
connection for which that holds. Time is measured in the estimated costs of jobs, so small jobs of
one client pass large ones of another.

*Rule 1.* The jobs of one connection keep their order.
*Rule 2.* A client may occupy at most as much of the queue as is free, so one that fills the queue
leaves half of it to the others. The same holds for the connections of one client, which may be
several clients behind one address: a job without room replaces the last jobs of the client's
connection that has most waiting, unless its own would then have as much.
*Rule 3.* No job waits for ever: the clock rises with each job that is taken, by its cost over the
number of those who share, and later jobs of others start at the clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from infergate.core.limits import MIB

T = TypeVar("T")

MAX_WAITING: Final = 1024
MAX_COST: Final = 1024 * MIB
"""Jobs that wait at once, and the bytes that they go through. One client alone has half of both,
one connection alone a third."""


@dataclass(slots=True)
class _Flow(Generic[T]):
    """The waiting jobs of one connection, or of all connections of a client (``flows``). ``start``
    is the virtual time at which the first of them begins."""

    start: float
    jobs: deque[tuple[int, T]] = field(default_factory=deque)
    flows: dict[str, _Flow[T]] = field(default_factory=dict)
    clock: float = 0.0
    count: int = 0
    cost: int = 0

    def next(self, max_cost: float) -> tuple[float, str, int]:
        """The flow that comes next among those whose first job costs at most ``max_cost``: when
        that job ends in virtual time, its name, and the cost. Infinity where there is none."""
        best = (math.inf, "", 0)
        for name, flow in self.flows.items():
            cost = flow.jobs[0][0] if flow.jobs else flow.next(max_cost)[2]
            end = flow.start + cost
            if cost and cost <= max_cost and end < best[0]:
                best = (end, name, cost)
        return best

    def add(self, name: str) -> _Flow[T]:
        """The flow ``name``, which starts now where it has nothing waiting."""
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = _Flow(self.clock)
        return flow

    def advance(self, name: str, end: float, cost: int) -> None:
        """A job of the flow ``name`` was taken, which ends at ``end``."""
        flow = self.flows[name]
        flow.start = end
        self.clock += cost / len(self.flows)
        if not flow.count:
            del self.flows[name]

    def grow(self, cost: int) -> None:
        """One job more (of a positive ``cost``)."""
        self.count += 1
        self.cost += cost

    def shrink(self, cost: int) -> None:
        """One job less."""
        self.count -= 1
        self.cost -= cost


class FairQueue(Generic[T]):
    """At most ``max_waiting`` jobs that cost at most ``max_cost`` together. Pure decisions; each
    job is another object."""

    def __init__(self, max_waiting: int, max_cost: int) -> None:
        self._max_waiting: Final = max_waiting
        self._max_cost: Final = max_cost
        self._root: Final = _Flow[T](0.0)

    def __len__(self) -> int:
        return self._root.count

    def put(self, client: str, connection: str, cost: int, job: T) -> Sequence[T]:
        """Add ``job``, where it has room. Returns the jobs that are refused and do not wait: none;
        ``job``; or the last ones of another connection of this client, which waited until now."""
        cost = max(cost, 1)
        root, refused = self._root, list[T]()
        group = root.flows.get(client) or _Flow[T](0.0)
        flow = group.flows.get(connection) or _Flow[T](0.0)
        # What the client may have is what is free, and a connection what is left of that.
        costly = group.cost + flow.cost + cost > self._max_cost - root.cost
        if costly or group.count + flow.count >= self._max_waiting - root.count:
            refused = self._replace(group, flow, cost, costly=costly)
            if not refused:
                return (job,)
        group = root.add(client)
        flow = group.add(connection)
        flow.jobs.append((cost, job))
        for each in (root, group, flow):
            each.grow(cost)
        return refused

    def _replace(self, group: _Flow[T], flow: _Flow[T], cost: int, *, costly: bool) -> list[T]:
        """Remove the last jobs of the heaviest flow of ``group``, so many that a job of ``cost``
        replaces them; none where ``flow`` would be as heavy with it. Weight is what lacks room:
        the cost, if ``costly``, else the number of jobs."""

        def weight(cost: int, count: int) -> tuple[int, int]:
            return (cost, count) if costly else (count, cost)

        flows, removed = group.flows, list[T]()
        name = max(flows, key=lambda each: weight(flows[each].cost, flows[each].count), default="")
        heaviest = flows.get(name, flow)
        if weight(heaviest.cost, heaviest.count) <= weight(flow.cost + cost, flow.count + 1):
            return removed
        lacking = cost if costly else 1
        while lacking > 0:
            freed, last = heaviest.jobs.pop()
            removed.append(last)
            lacking -= freed
            for each in (self._root, group, heaviest):
                each.shrink(freed)
        if not heaviest.count:
            del flows[name]
        return removed

    def take(self, max_cost: float = math.inf) -> T | None:
        """Remove and return the job whose turn it is, among those that are their connection's first
        and cost at most ``max_cost``; None where there is none."""
        root = self._root
        end, client, cost = root.next(max_cost)
        if not cost:
            return None
        group = root.flows[client]
        end_here, connection, _ = group.next(max_cost)
        flow = group.flows[connection]
        _, job = flow.jobs.popleft()
        for each in (root, group, flow):
            each.shrink(cost)
        group.advance(connection, end_here, cost)
        root.advance(client, end, cost)
        return job

    def discard(self, client: str, connection: str, job: T) -> None:
        """``job`` waits no longer, if it did."""
        group = self._root.flows.get(client)
        flow = None if group is None else group.flows.get(connection)
        if group is None or flow is None:
            return
        for place, (cost, each) in enumerate(flow.jobs):
            if each is job:
                del flow.jobs[place]
                for level in (self._root, group, flow):
                    level.shrink(cost)
                if not flow.count:
                    del group.flows[connection]
                if not group.count:
                    del self._root.flows[client]
                return
