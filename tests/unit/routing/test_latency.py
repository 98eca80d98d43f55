"""Percentiles of recent response times."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.routing.latency import GENERATION_SIZE, MIN_SAMPLES, UPDATE_INTERVAL, LatencyQuantile


def latencies_of(share: float, *seconds: float) -> LatencyQuantile:
    latencies = LatencyQuantile(share)
    for each in seconds:
        latencies.add(each)
    return latencies


def test_too_few_samples_give_no_percentile() -> None:
    latencies = latencies_of(0.95, *[0.1] * (MIN_SAMPLES - 1))
    assert latencies.percentile() is None
    latencies.add(0.1)
    assert latencies.percentile() is not None


@given(
    st.lists(st.floats(2e-4, 600), min_size=MIN_SAMPLES, max_size=GENERATION_SIZE),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_the_estimate_is_within_ten_percent(seconds: list[float], share: float) -> None:
    seconds = seconds[
        : len(seconds) // UPDATE_INTERVAL * UPDATE_INTERVAL
    ]  # the estimate then includes all samples
    estimate = latencies_of(share, *seconds).percentile()
    assert estimate is not None
    lower_or_equal = sum(1 for each in seconds if each <= estimate * 1.000001)
    assert lower_or_equal >= share * len(seconds)
    lower = sum(1 for each in seconds if each < estimate / 1.11)
    assert lower < share * len(seconds) or estimate / 1.11 <= min(seconds)


def test_old_samples_are_dropped() -> None:
    latencies = latencies_of(0.9, *[5.0] * 10 * GENERATION_SIZE)
    assert latencies.percentile() == pytest.approx(5.0, rel=0.11)
    for _ in range(2 * GENERATION_SIZE):
        latencies.add(0.01)
    assert latencies.percentile() == pytest.approx(0.01, rel=0.11)


def test_a_percentile_excludes_the_slow_tail() -> None:
    rng = random.Random(11)
    seconds = [0.01 if rng.random() < 0.97 else 1.0 for _ in range(GENERATION_SIZE)]
    estimate = latencies_of(0.95, *seconds).percentile()
    assert estimate == pytest.approx(0.01, rel=0.11)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-9, 1e9])
def test_any_response_time_falls_into_a_bucket(seconds: float) -> None:
    assert latencies_of(0.5, *[seconds] * MIN_SAMPLES).percentile() is not None
