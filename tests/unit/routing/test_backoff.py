"""The delay before a retry."""

from __future__ import annotations

import itertools
import random

import pytest

from infergate.routing.backoff import BASE_SECONDS, MAX_SECONDS, backoff


def maximum_random() -> float:
    return 1.0


@pytest.mark.parametrize(
    ("attempt", "maximum"),
    [(1, 0.025), (2, 0.075), (3, 0.175), (4, 0.25), (5, 0.25), (10**9, 0.25)],
)
def test_delays_grow_up_to_the_maximum(attempt: int, maximum: float) -> None:
    assert backoff(attempt, maximum_random) == pytest.approx(maximum)
    assert backoff(attempt, lambda: 0.0) == 0.0


def test_retries_of_requests_that_failed_together_are_spread() -> None:
    rng = random.Random(3).random
    waits = sorted(backoff(1, rng) for _ in range(1000))
    gaps = [later - earlier for earlier, later in itertools.pairwise(waits)]
    assert waits[0] < BASE_SECONDS * 0.02
    assert waits[-1] > BASE_SECONDS * 0.98
    assert max(gaps) < BASE_SECONDS * 0.02


def test_equal_random_numbers_give_equal_delays() -> None:
    first, second = random.Random(5).random, random.Random(5).random
    assert [backoff(n, first) for n in range(1, 9)] == [backoff(n, second) for n in range(1, 9)]
    assert all(0 <= backoff(n) <= MAX_SECONDS for n in range(1, 9))
