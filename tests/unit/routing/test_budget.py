"""The retry budget: how many concurrent retries are allowed."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from infergate.routing.budget import DEFAULT_MIN_RETRIES, RetryBudget


def acquire_all(budget: RetryBudget) -> int:
    count = 0
    while budget.try_acquire():
        count += 1
    return count


def test_at_least_three_retries_are_allowed() -> None:
    assert acquire_all(RetryBudget()) == DEFAULT_MIN_RETRIES == 3


def test_retries_up_to_a_fifth_of_the_active_requests_are_allowed() -> None:
    budget = RetryBudget()
    budget.active_requests = 100
    assert acquire_all(budget) == 20
    budget.release()
    assert acquire_all(budget) == 1


def test_a_zero_budget_allows_no_retry() -> None:
    budget = RetryBudget(share=0.0, min_retries=0)
    budget.active_requests = 1000
    assert not budget.try_acquire()


@given(st.integers(0, 100), st.integers(0, 10), st.integers(0, 500))
def test_the_number_of_retries_is_rounded_up(percent: int, minimum: int, requests: int) -> None:
    budget = RetryBudget(percent / 100, minimum)
    budget.active_requests = requests
    maximum = max(minimum, percent / 100 * requests)
    assert maximum <= acquire_all(budget) < maximum + 1


def test_an_outage_adds_little_load() -> None:
    """In this simulation, a backend gets 200 requests a second for ten seconds. Each attempt fails
    after half a second, and each request may be retried three times. Without a budget, the backend
    would get four times as many requests."""
    rng = random.Random(7)
    budget = RetryBudget()
    events = [(rng.uniform(0, 10), 0) for _ in range(2000)]
    events.sort()
    in_flight: list[tuple[float, int]] = []  # the end of an attempt, and its number
    sent = 0
    while events or in_flight:
        now, attempts = min(events[:1] + in_flight)
        if events and (now, attempts) == events[0]:
            events.pop(0)
            budget.active_requests += 1
            sent += 1
            in_flight.append((now + 0.5, 1))
            continue
        in_flight.remove((now, attempts))
        if attempts > 1:
            budget.release()
        if attempts <= 3 and budget.try_acquire():
            sent += 1
            in_flight.append((now + 0.5, attempts + 1))
        else:
            budget.active_requests -= 1
    assert 2000 < sent < 2000 * 1.35
    assert (budget.active_requests, budget.active_retries) == (0, 0)
