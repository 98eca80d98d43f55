"""A simulation of 100 endpoints, some dead, slow or restarting, and of three independent gateways.

The clock is simulated, and the random generator has a seed.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from infergate.core.attempt_outcome import AttemptOutcome
from infergate.routing.balance import LeastRequest
from infergate.routing.cluster import Cluster, ClusterMember, ClusterRule
from infergate.routing.health import EndpointHealth

pytestmark = pytest.mark.no_cover
COUNT = 100
RATE = 150.0
"""Requests per second of each gateway."""
ATTEMPTS = 2


@dataclass
class Simulation:
    """``is_up`` returns whether an endpoint is up at a given time, and ``seconds`` its latency. If
    ``checked``, gateways check endpoints every 5 s; otherwise, only requests reveal failures."""

    is_up: Callable[[int, float], bool]
    seconds: Callable[[int], float] = lambda _: 0.02
    checked: bool = True
    gateways: int = 3
    rule: ClusterRule = field(default_factory=lambda: ClusterRule(slow_start_seconds=10.0))

    def __post_init__(self) -> None:
        self.rng = random.Random(11)
        self.clusters = [self._cluster(random.Random(i).random) for i in range(self.gateways)]
        self.requests: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        """Attempts on dead endpoints, by second."""
        self.lost: Counter[int] = Counter()
        """Requests whose attempts all failed."""
        self.request_count = 0

    def _cluster(self, rng: Callable[[], float]) -> Cluster[ClusterMember]:
        members = [ClusterMember(b"%d" % i, 1.0, EndpointHealth()) for i in range(COUNT)]
        return Cluster(members, LeastRequest[ClusterMember](rng), rng, self.rule)

    def run(self, until: float) -> None:
        order = itertools.count()
        events: list[tuple[float, int, Callable[[float], object]]] = []

        def schedule(time: float, event: Callable[[float], object]) -> None:
            if time < until:
                heapq.heappush(events, (time, next(order), event))

        def request(group: Cluster[ClusterMember]) -> Callable[[float], None]:
            def arrive(now: float) -> None:
                self.request_count += 1
                tried: list[ClusterMember] = []
                while len(tried) < ATTEMPTS:
                    chosen = group.choose(now, tried)
                    number = int(chosen.name)
                    self.requests[number] += 1
                    if self.is_up(number, now):
                        end = now + self.seconds(number)
                        outcome = functools.partial(group.record_outcome, chosen, AttemptOutcome.OK)
                        schedule(end, outcome)
                        break
                    self.refused[int(now)] += 1
                    group.record_outcome(chosen, AttemptOutcome.NOT_CONNECTED, now)
                    tried.append(chosen)
                else:
                    self.lost[int(now)] += 1
                schedule(now + self.rng.expovariate(RATE), arrive)

            return arrive

        def check(group: Cluster[ClusterMember], member: ClusterMember) -> Callable[[float], None]:
            def run_check(now: float) -> None:
                group.record_check(member, now, succeeded=self.is_up(int(member.name), now))
                schedule(now + 5.0 * self.rng.uniform(0.9, 1.1), run_check)

            return run_check

        for group in self.clusters:
            schedule(0.0, request(group))
            for member in group.members if self.checked else ():
                schedule(5.0 * self.rng.random(), check(group, member))
        while events:
            now, _, event = heapq.heappop(events)
            event(now)


def total(counts: Counter[int], keys: range) -> int:
    return sum(counts[each] for each in keys)


def test_healthy_endpoints_share_the_load_evenly() -> None:
    simulation = Simulation(lambda number, now: True)
    simulation.run(40.0)
    assert not simulation.refused
    mean = simulation.request_count / COUNT
    assert 0.7 * mean < min(simulation.requests.values())
    assert max(simulation.requests.values()) < 1.3 * mean


def test_dead_endpoints_get_no_requests_after_three_checks() -> None:
    simulation = Simulation(lambda number, now: number >= 10 or now < 5.0)
    simulation.run(40.0)
    assert total(simulation.refused, range(5)) == 0
    assert total(simulation.refused, range(25, 40)) == 0
    assert total(simulation.lost, range(5, 40)) < 0.01 * simulation.request_count
    assert all(len(each.available(40.0)) == 90 for each in simulation.clusters)


def test_without_checks_failures_eject_dead_endpoints() -> None:
    simulation = Simulation(lambda number, now: number >= 10 or now < 5.0, checked=False)
    simulation.run(30.0)
    before = total(simulation.refused, range(5, 10))
    after = total(simulation.refused, range(20, 30))
    assert before > 0
    assert after == 0, "all ten dead endpoints are ejected"


def test_slow_endpoints_get_fewer_requests() -> None:
    """Ten of the 100 endpoints have 150 times the latency. Their equal share would be a tenth of
    all requests."""
    simulation = Simulation(lambda number, now: True, lambda number: 3.0 if number < 10 else 0.02)
    simulation.run(20.0)
    assert total(simulation.requests, range(10)) < 0.04 * simulation.request_count


def test_flapping_endpoints_lose_few_requests_and_rejoin() -> None:
    """Thirty endpoints restart, each with its own period of 8 to 20 seconds."""

    def is_up(number: int, now: float) -> bool:
        if number >= 30 or now > 60.0:
            return True
        return int(now / (4.0 + number / 5.0) + number / 7.0) % 2 == 0

    simulation = Simulation(is_up)
    simulation.run(120.0)
    lost = total(simulation.lost, range(60))
    assert lost < 0.02 * simulation.request_count / 2
    assert total(simulation.lost, range(60, 120)) == 0
    for group in simulation.clusters:
        assert len(group.available(120.0)) >= 90
        ejections = sum(each.outlier.ejection_count for each in group.members)
        assert 0 < ejections < 30 * 12
        assert sum(each.outlier.ejection_count for each in group.members[30:]) == 0


def test_all_endpoints_rejoin_after_a_total_outage() -> None:
    simulation = Simulation(lambda number, now: not 5.0 < now < 40.0)
    simulation.run(80.0)
    assert total(simulation.lost, range(6, 39)) > 0
    assert total(simulation.lost, range(41, 80)) == 0
    assert total(simulation.refused, range(60, 80)) == 0
    assert all(len(each.available(80.0)) == COUNT for each in simulation.clusters)


def test_a_recovered_endpoint_is_not_overloaded() -> None:
    """In its first second, a recovered endpoint gets less than 40 % of its share."""
    simulation = Simulation(lambda number, now: number > 0 or now > 30.0)
    simulation.run(30.0)
    for group in simulation.clusters:
        recovered = group.members[0]
        group.record_check(recovered, 100.0, succeeded=True)
        group.record_check(recovered, 100.0, succeeded=True)
        counts = Counter(group.choose(100.5).name for _ in range(10_000))
        assert 0 < counts[recovered.name] < 40
