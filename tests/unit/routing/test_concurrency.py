"""The concurrency limit of a backend: active, waiting, shed and expired requests, on a simulated
clock."""

from __future__ import annotations

import functools
import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from infergate.core.fair_queue import QueuedJob
from infergate.routing.concurrency import ConcurrencyLimit
from searching import examples

Request = QueuedJob[str]


def _request(name: str, deadline: float = math.inf) -> Request:
    return QueuedJob(name, "client", "1", deadline=deadline)


def test_active_and_waiting_requests_are_limited() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(2, 1)
    assert [limit.try_acquire() for _ in range(3)] == [True, True, False]
    assert not limit.enqueue(_request("a"))
    rejected = _request("b")
    assert list(limit.enqueue(rejected)) == [rejected]
    assert (limit.active, limit.waiting) == (2, 1)


def test_the_requests_of_a_connection_are_served_in_order() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(1, 9)
    assert limit.try_acquire()
    for name in "abc":
        assert not limit.enqueue(_request(name))
    assert [limit.release(0.0) for _ in range(4)] == ["a", "b", "c", None]
    assert limit.active == 0


def test_new_requests_do_not_overtake_waiting_ones() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(2, 9)
    limit.try_acquire()
    limit.try_acquire()
    limit.enqueue(_request("a"))
    limit.release(0.0)
    assert not limit.try_acquire()


def test_expired_requests_get_no_slot() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(1, 9)
    limit.try_acquire()
    limit.enqueue(_request("late", 1.0))
    limit.enqueue(_request("good", 3.0))
    assert limit.release(now=1.0) == "good"
    assert limit.waiting == 0


def test_a_cancelled_request_frees_its_queue_entry() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(1, 1)
    limit.try_acquire()
    request = _request("a")
    limit.enqueue(request)
    limit.remove(request)
    limit.remove(request)
    assert not limit.enqueue(_request("b"))
    assert limit.release(0.0) == "b"


def test_a_queue_of_length_zero_rejects_immediately() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(1, 0)
    assert limit.try_acquire()
    request = _request("a")
    assert list(limit.enqueue(request)) == [request]


# ---- the estimated wait --------------------------------------------------------------------------


def test_the_wait_is_estimated_from_the_rate_of_released_slots() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(1, 100)
    limit.try_acquire()
    assert limit.wait_seconds(_request("x"), 0.0) == 1.0, "there is no estimate yet"
    for number in range(30):
        limit.enqueue(_request(str(number)))
    for number in range(11):
        limit.release(number * 0.5)
    assert limit.wait_seconds(_request("x"), 5.0) == 20 * 0.5
    assert limit.wait_seconds(QueuedJob("x", "new", "1"), 5.0) == 2 * 0.5
    assert limit.wait_seconds(_request("x"), 1000.0) == 60.0, "the maximum estimate"
    # The backend has hung for a minute.
    assert 4.0 < limit.wait_seconds(QueuedJob("x", "new", "1"), 65.5) / (2 * 0.5) < 10.0


def test_idle_times_do_not_count_for_the_estimate() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(1, 100)
    for start in (0.0, 1000.0):
        assert limit.try_acquire()
        for number in range(3):
            limit.enqueue(_request(str(number)))
        for number in range(4):
            limit.release(start + number)
    assert limit.active == 0
    assert limit.wait_seconds(_request("x"), 2000.0) == 1.0


# ---- simulations ---------------------------------------------------------------------------------


@dataclass
class Simulation:
    """Requests arrive, wait, and are then served, shed or cancelled, or expire. ``outcomes`` counts
    how often each request ended. A slot is never free while a request waits."""

    max_active: int
    max_waiting: int
    service_seconds: Callable[[], float]
    now: float = 0.0
    served: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[int] = field(default_factory=Counter)
    waits: list[tuple[str, float, float]] = field(default_factory=list)
    """For each served request, the client, the estimated wait and the real wait."""
    on_served: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.limit = ConcurrencyLimit[int](self.max_active, self.max_waiting)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.waiting: dict[int, tuple[QueuedJob[int], float, float]] = {}
        self.clients: dict[int, str] = {}
        self.count = 0

    def schedule(self, time: float, event: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, event))

    def arrive(
        self, client: str, weight: float = 1.0, priority: int = 5, patience: float = math.inf
    ) -> None:
        self.count += 1
        number, limit = self.count, self.limit
        self.clients[number] = client
        if limit.try_acquire():
            assert not self.waiting
            self.waits.append((client, 0.0, 0.0))
            self.serve(number)
            return
        assert limit.active == self.max_active
        deadline = self.now + patience
        job = QueuedJob(number, client, "1", 1, weight, priority, deadline)
        estimate = limit.wait_seconds(job, self.now)
        self.waiting[number] = job, estimate, self.now
        for shed in limit.enqueue(job):
            del self.waiting[shed.item]
            self.outcomes[shed.item] += 1
        if number in self.waiting and patience < math.inf:
            self.schedule(deadline, lambda: self.give_up(number))

    def give_up(self, number: int) -> None:
        """Cancel a request, or end it at its deadline."""
        waiting = self.waiting.pop(number, None)
        if waiting is not None:
            self.limit.remove(waiting[0])
            self.outcomes[number] += 1

    def cancel_latest(self) -> None:
        if self.waiting:
            self.give_up(max(self.waiting))

    def serve(self, number: int) -> None:
        self.served[self.clients[number]] += 1
        self.schedule(self.now + self.service_seconds(), lambda: self._finish(number))
        self.on_served(self.clients[number])

    def _finish(self, number: int) -> None:
        self.outcomes[number] += 1
        following = self.limit.release(self.now)
        if following is not None:
            _, estimate, began = self.waiting.pop(following)
            self.waits.append((self.clients[following], estimate, self.now - began))
            self.serve(following)

    def run(self, until: float = math.inf) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, event = heapq.heappop(self.events)
            event()
            assert self.limit.active <= self.max_active
            assert self.limit.waiting <= self.max_waiting
            assert self.limit.active == self.max_active or not self.limit.waiting


@settings(max_examples=examples(12))
@given(st.integers(1, 20), st.integers(0, 50), st.integers(0, 2**32))
def test_every_request_ends_once_in_any_overload(
    max_active: int, max_waiting: int, seed: int
) -> None:
    """Five hundred requests of 20 clients arrive within ten seconds. Half of them have a deadline,
    and a third of them are cancelled."""
    rng = random.Random(seed)
    simulation = Simulation(max_active, max_waiting, rng.random)
    for _ in range(500):
        time, client = rng.uniform(0, 10), str(rng.randrange(20))
        weight, priority = rng.choice([1.0, 3.0]), rng.choice([3, 5])
        patience = rng.choice([math.inf, 2.0])
        arrive = functools.partial(simulation.arrive, client, weight, priority, patience)
        simulation.schedule(time, arrive)
        if rng.random() < 1 / 3:
            simulation.schedule(time + rng.random(), simulation.cancel_latest)
    simulation.run()
    assert set(simulation.outcomes.values()) == {1}
    assert len(simulation.outcomes) == 500
    assert not simulation.waiting
    assert (simulation.limit.active, simulation.limit.waiting) == (0, 0)


def test_a_thousand_clients_share_a_backend_in_proportion_to_their_weights() -> None:
    """Each client has two requests waiting, and the client ``flood`` has 500."""
    rng = random.Random(7)
    weights = {f"c{number}": (1.0, 2.0, 4.0)[number % 3] for number in range(999)} | {"flood": 1.0}
    simulation = Simulation(16, 5000, lambda: rng.expovariate(100.0))
    simulation.clients[0] = "started"
    for _ in range(16):
        assert simulation.limit.try_acquire()
        simulation.serve(0)
    for client, weight in weights.items():
        for _ in range(500 if client == "flood" else 2):
            simulation.arrive(client, weight)
    simulation.on_served = lambda client: simulation.arrive(client, weights[client])
    simulation.run(until=4.0)
    del simulation.served["started"]
    served, total = sum(simulation.served.values()), sum(weights.values())
    assert served > 5000
    for client, weight in weights.items():
        assert abs(simulation.served[client] - served * weight / total) <= 2, client


def _p99_response_time(has_flood: bool) -> float:
    """Return the p99 of the response times of 999 clients that use half of a backend, while another
    client may send five times as many requests as the backend can serve."""
    rng = random.Random(11)
    simulation = Simulation(8, 100, lambda: 0.01)
    for _ in range(1200):
        client = f"c{rng.randrange(999)}"
        simulation.schedule(rng.uniform(0, 3), functools.partial(simulation.arrive, client))
    for _ in range(24_000 // 2 if has_flood else 0):
        simulation.schedule(rng.uniform(0, 3), functools.partial(simulation.arrive, "flood"))
    simulation.run()
    times = sorted(0.01 + wait for client, _, wait in simulation.waits if client != "flood")
    assert len(times) == 1200, "no request of the other clients is shed"
    assert not has_flood or simulation.served["flood"] > 1000, "the flooding client gets the rest"
    return times[len(times) * 99 // 100]


def test_a_flood_does_not_double_the_p99_of_other_clients() -> None:
    assert _p99_response_time(has_flood=True) <= 2 * _p99_response_time(has_flood=False)


def test_estimated_waits_are_close_to_the_real_ones() -> None:
    rng = random.Random(3)
    simulation = Simulation(4, 200, lambda: rng.expovariate(20.0))
    for number in range(4000):
        arrive = functools.partial(simulation.arrive, f"c{number % 7}")
        simulation.schedule(rng.uniform(0, 30), arrive)
    simulation.run()
    measured = [(estimate, wait) for _, estimate, wait in simulation.waits[100:] if wait > 0.2]
    assert len(measured) > 1000
    ratios = sorted(estimate / wait for estimate, wait in measured)
    assert ratios[len(ratios) // 10] > 0.5
    assert ratios[9 * len(ratios) // 10] < 2.0
