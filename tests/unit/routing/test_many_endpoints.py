"""A simulation of 100 endpoints, some dead, slow or restarting, and of three independent gateways.

Time is a number here, and the random generator has a seed.
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
class World:
    """``is_up`` returns whether an endpoint is up at a time, and ``seconds`` its latency. With
    ``checked``, gateways check endpoints every 5 s; otherwise, only requests reveal failures."""

    is_up: Callable[[int, float], bool]
    seconds: Callable[[int], float] = lambda _: 0.02
    checked: bool = True
    gateways: int = 3
    rule: ClusterRule = field(default_factory=lambda: ClusterRule(slow_start_seconds=10.0))

    def __post_init__(self) -> None:
        self.chance = random.Random(11)
        self.clusters = [self._cluster(random.Random(i).random) for i in range(self.gateways)]
        self.requests: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        """Attempts on a dead endpoint, by full second."""
        self.lost: Counter[int] = Counter()
        """Requests whose attempts all failed."""
        self.request_count = 0

    def _cluster(self, chance: Callable[[], float]) -> Cluster[ClusterMember]:
        members = [ClusterMember(b"%d" % i, 1.0, EndpointHealth()) for i in range(COUNT)]
        return Cluster(members, LeastRequest[ClusterMember](chance), chance, self.rule)

    def run(self, until: float) -> None:
        order = itertools.count()
        events: list[tuple[float, int, Callable[[float], object]]] = []

        def at(time: float, what: Callable[[float], object]) -> None:
            if time < until:
                heapq.heappush(events, (time, next(order), what))

        def request(among: Cluster[ClusterMember]) -> Callable[[float], None]:
            def arrive(now: float) -> None:
                self.request_count += 1
                tried: list[ClusterMember] = []
                while len(tried) < ATTEMPTS:
                    chosen = among.choose(now, tried)
                    number = int(chosen.name)
                    self.requests[number] += 1
                    if self.is_up(number, now):
                        end = now + self.seconds(number)
                        at(end, functools.partial(among.record_outcome, chosen, AttemptOutcome.OK))
                        break
                    self.refused[int(now)] += 1
                    among.record_outcome(chosen, AttemptOutcome.NOT_CONNECTED, now)
                    tried.append(chosen)
                else:
                    self.lost[int(now)] += 1
                at(now + self.chance.expovariate(RATE), arrive)

            return arrive

        def check(among: Cluster[ClusterMember], member: ClusterMember) -> Callable[[float], None]:
            def run_check(now: float) -> None:
                among.record_check(member, now, succeeded=self.is_up(int(member.name), now))
                at(now + 5.0 * self.chance.uniform(0.9, 1.1), run_check)

            return run_check

        for among in self.clusters:
            at(0.0, request(among))
            for member in among.members if self.checked else ():
                at(5.0 * self.chance.random(), check(among, member))
        while events:
            now, _, what = heapq.heappop(events)
            what(now)


def share(counted: Counter[int], of: range) -> int:
    return sum(counted[each] for each in of)


def test_healthy_endpoints_share_the_load_evenly() -> None:
    world = World(lambda number, now: True)
    world.run(40.0)
    assert not world.refused
    mean = world.request_count / COUNT
    assert 0.7 * mean < min(world.requests.values())
    assert max(world.requests.values()) < 1.3 * mean


def test_dead_endpoints_get_no_requests_after_three_checks() -> None:
    world = World(lambda number, now: number >= 10 or now < 5.0)
    world.run(40.0)
    assert share(world.refused, range(5)) == 0
    assert share(world.refused, range(25, 40)) == 0
    assert share(world.lost, range(5, 40)) < 0.01 * world.request_count
    assert all(len(each.available(40.0)) == 90 for each in world.clusters)


def test_without_checks_failures_eject_dead_endpoints() -> None:
    world = World(lambda number, now: number >= 10 or now < 5.0, checked=False)
    world.run(30.0)
    before = share(world.refused, range(5, 10))
    after = share(world.refused, range(20, 30))
    assert before > 0
    assert after == 0, "ten endpoints are ejected, the maximum"


def test_slow_endpoints_get_fewer_requests() -> None:
    """Ten slow endpoints (150 times the latency) get as many requests as they can serve. Their
    equal share would be a tenth of all requests."""
    world = World(lambda number, now: True, lambda number: 3.0 if number < 10 else 0.02)
    world.run(20.0)
    assert share(world.requests, range(10)) < 0.04 * world.request_count


def test_flapping_endpoints_lose_little_and_rejoin() -> None:
    """Thirty endpoints restart, each with its own period of about ten seconds."""

    def is_up(number: int, now: float) -> bool:
        if number >= 30 or now > 60.0:
            return True
        return int(now / (4.0 + number / 5.0) + number / 7.0) % 2 == 0

    world = World(is_up)
    world.run(120.0)
    flapping = share(world.lost, range(60))
    assert flapping < 0.02 * world.request_count / 2
    assert share(world.lost, range(60, 120)) == 0
    for among in world.clusters:
        assert len(among.available(120.0)) >= 90
        ejections = sum(each.outlier.ejection_count for each in among.members)
        assert 0 < ejections < 30 * 12
        assert sum(each.outlier.ejection_count for each in among.members[30:]) == 0


def test_all_endpoints_rejoin_after_a_total_outage() -> None:
    world = World(lambda number, now: not 5.0 < now < 40.0)
    world.run(80.0)
    assert share(world.lost, range(6, 39)) > 0
    assert share(world.lost, range(41, 80)) == 0
    assert share(world.refused, range(60, 80)) == 0
    assert all(len(each.available(80.0)) == COUNT for each in world.clusters)


def test_a_recovered_endpoint_is_not_overloaded() -> None:
    """A recovered endpoint gets much less than its share in its first second."""
    world = World(lambda number, now: number > 0 or now > 30.0)
    world.run(30.0)
    for among in world.clusters:
        back = among.members[0]
        among.record_check(back, 100.0, succeeded=True)
        among.record_check(back, 100.0, succeeded=True)
        counts = Counter(among.choose(100.5).name for _ in range(10_000))
        assert 0 < counts[back.name] < 40
