"""A queue of jobs for helper processes that is fair between clients.

It uses weighted fair queueing on two levels: between clients (distinguished by identity, or else by
address), and between the connections of a client. The next job is the job that would finish first
if all clients and connections were served concurrently. Time is measured in estimated job costs, so
small jobs of one client overtake large jobs of another.

*Rule 1.* Jobs of one connection keep their order. *Rule 2.* A client's jobs never occupy more of
the queue than is left free, so a client alone can fill only half of the queue. The same applies to
the connections of a client, because they may be several clients behind one address. A job that does
not fit replaces the last jobs of the client's heaviest connection, unless the job's connection
would then be as heavy. *Rule 3.* No job waits forever. Each job that is taken advances the virtual
clock by the job's cost divided by the number of flows that share the helpers, and jobs of new flows
start at the clock."""

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
"""Limits of the waiting jobs: their number, and the bytes that they process. A single client gets
half of each limit, and a single connection gets a third."""


@dataclass(slots=True)
class _Flow(Generic[T]):
    """The waiting jobs of one connection, or the connections of a client (``flows``). ``start`` is
    the virtual time at which the first job begins."""

    start: float
    jobs: deque[tuple[int, T]] = field(default_factory=deque)
    flows: dict[str, _Flow[T]] = field(default_factory=dict)
    clock: float = 0.0
    count: int = 0
    cost: int = 0

    def earliest(self, max_cost: float) -> tuple[float, str, int]:
        """Return the next flow: the virtual finish time of its first job, its name, and the job's
        cost. Flows whose first job costs more than ``max_cost`` are skipped. If no flow is left,
        the time is infinite."""
        best = (math.inf, "", 0)
        for name, flow in self.flows.items():
            cost = flow.jobs[0][0] if flow.jobs else flow.earliest(max_cost)[2]
            end = flow.start + cost
            if cost and cost <= max_cost and end < best[0]:
                best = (end, name, cost)
        return best

    def add(self, name: str) -> _Flow[T]:
        """Return the flow ``name``. A new flow starts at the clock."""
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = _Flow(self.clock)
        return flow

    def advance(self, name: str, end: float, cost: int) -> None:
        """Record that a job of the flow ``name``, which finishes at ``end``, was taken."""
        flow = self.flows[name]
        flow.start = end
        self.clock += cost / len(self.flows)
        if not flow.count:
            del self.flows[name]

    def grow(self, cost: int) -> None:
        self.count += 1
        self.cost += cost

    def shrink(self, cost: int) -> None:
        self.count -= 1
        self.cost -= cost


class FairQueue(Generic[T]):
    """Holds at most ``max_waiting`` jobs with a total cost of at most ``max_cost``. Jobs are
    distinct objects."""

    def __init__(self, max_waiting: int, max_cost: int) -> None:
        self._max_waiting: Final = max_waiting
        self._max_cost: Final = max_cost
        self._root: Final = _Flow[T](0.0)

    def __len__(self) -> int:
        return self._root.count

    def put(self, client: str, connection: str, cost: int, job: T) -> Sequence[T]:
        """Add ``job`` if it fits. Return the rejected jobs: an empty list, ``job`` itself, or the
        last jobs of another connection of the client, which are removed from the queue."""
        cost = max(cost, 1)
        root, rejected = self._root, list[T]()
        group = root.flows.get(client) or _Flow[T](0.0)
        flow = group.flows.get(connection) or _Flow[T](0.0)
        # The client may use the free part of the queue. Its connection may use the free part of the
        # client's share.
        exceeds_cost = group.cost + flow.cost + cost > self._max_cost - root.cost
        if exceeds_cost or group.count + flow.count >= self._max_waiting - root.count:
            rejected = self._displace_jobs(group, flow, cost, costly=exceeds_cost)
            if not rejected:
                return (job,)
        group = root.add(client)
        flow = group.add(connection)
        flow.jobs.append((cost, job))
        for level in (root, group, flow):
            level.grow(cost)
        return rejected

    def _displace_jobs(
        self, group: _Flow[T], flow: _Flow[T], cost: int, *, costly: bool
    ) -> list[T]:
        """Remove the last jobs of the heaviest flow of ``group`` to free capacity for a job of
        ``cost``. Remove nothing if ``flow`` would be as heavy with the job. The weight of a flow is
        its cost if ``costly``, else its number of jobs."""

        def weight(cost: int, count: int) -> tuple[int, int]:
            return (cost, count) if costly else (count, cost)

        flows, removed = group.flows, list[T]()
        name = max(flows, key=lambda item: weight(flows[item].cost, flows[item].count), default="")
        heaviest = flows.get(name, flow)
        if weight(heaviest.cost, heaviest.count) <= weight(flow.cost + cost, flow.count + 1):
            return removed
        missing = cost if costly else 1
        while missing > 0:
            weight_freed, last = heaviest.jobs.pop()
            removed.append(last)
            missing -= weight_freed
            for item in (self._root, group, heaviest):
                item.shrink(weight_freed)
        if not heaviest.count:
            del flows[name]
        return removed

    def take(self, max_cost: float = math.inf) -> T | None:
        """Remove and return the next job. Only jobs that are first in their connection and cost at
        most ``max_cost`` are considered. Return None if there is no such job."""
        root = self._root
        end, client, cost = root.earliest(max_cost)
        if not cost:
            return None
        group = root.flows[client]
        connection_end, connection, _ = group.earliest(max_cost)
        flow = group.flows[connection]
        _, job = flow.jobs.popleft()
        for level in (root, group, flow):
            level.shrink(cost)
        group.advance(connection, connection_end, cost)
        root.advance(client, end, cost)
        return job

    def discard(self, client: str, connection: str, job: T) -> None:
        """Remove ``job`` if it is still waiting."""
        group = self._root.flows.get(client)
        flow = None if group is None else group.flows.get(connection)
        if group is None or flow is None:
            return
        for position, (cost, waiting) in enumerate(flow.jobs):
            if waiting is job:
                del flow.jobs[position]
                for level in (self._root, group, flow):
                    level.shrink(cost)
                if not flow.count:
                    del group.flows[connection]
                if not group.count:
                    del self._root.flows[client]
                return
