"""Rate limits of requests and bytes, on a simulated clock."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.access.rate_limits import (
    BucketCharge,
    LocalBuckets,
    Rate,
    RateLimit,
    RateLimits,
)
from infergate.access.rejection import AccessRejected, RejectionReason
from infergate.access.rules import RulePermit


def rates(*limits: RateLimit) -> RateLimits:
    return RateLimits(limits, LocalBuckets())


def take(
    limiter: RateLimits,
    now: float,
    identity: str = "key:a",
    *,
    model: str = "m",
    route: str = "r",
    size: int = 0,
) -> tuple[RejectionReason, float] | None:
    try:
        asyncio.run(limiter.charge(RulePermit(identity, ()), model, route, size, now))
    except AccessRejected as rejection:
        return rejection.reason, rejection.error.retry_after or 0.0
    return None


TEN_PER_SECOND = Rate(10, 1.0, 10)


def test_a_burst_passes_and_then_the_rate_applies() -> None:
    limiter = rates(RateLimit(("*",), requests=TEN_PER_SECOND))
    assert [take(limiter, 0.0) for _ in range(10)] == [None] * 10
    reason, wait = take(limiter, 0.0) or (None, 0.0)
    assert reason is RejectionReason.REQUESTS
    assert wait == pytest.approx(0.1)
    assert take(limiter, 0.09) is not None
    assert take(limiter, 0.1) is None
    assert take(limiter, 0.1) is not None
    assert [take(limiter, 10.0) is None for _ in range(11)] == [True] * 10 + [False]


def test_a_burst_may_be_larger_or_smaller_than_the_rate() -> None:
    for burst in (1, 3, 25):
        limiter = rates(RateLimit(("*",), requests=Rate(10, 1.0, burst)))
        passed = [take(limiter, 0.0) is None for _ in range(30)]
        assert passed == [True] * burst + [False] * (30 - burst)


def test_bytes_are_counted_and_an_oversized_request_passes_alone() -> None:
    limiter = rates(RateLimit(("*",), bytes=Rate(100, 1.0, 100)))
    assert take(limiter, 0.0, size=60) is None
    assert take(limiter, 0.0, size=60) == (RejectionReason.BYTES, pytest.approx(0.2))
    assert take(limiter, 0.0, size=40) is None
    assert take(limiter, 0.5, size=1000) == (RejectionReason.BYTES, pytest.approx(0.5))
    assert take(limiter, 1.0, size=1000) is None  # the bucket has drained by then
    assert take(limiter, 10.0, size=1) is not None  # 1000 bytes take ten seconds
    assert take(limiter, 10.02, size=1) is None


def test_a_rejected_request_is_counted_by_no_bucket() -> None:
    limiter = rates(RateLimit(("*",), requests=Rate(2, 1.0, 2), bytes=Rate(10, 1.0, 10)))
    assert take(limiter, 0.0, size=10) is None
    for _ in range(5):
        assert take(limiter, 0.0, size=1) == (RejectionReason.BYTES, pytest.approx(0.1))
    assert take(limiter, 0.0, size=0) is None  # one request is left
    assert take(limiter, 0.0, size=0) == (RejectionReason.REQUESTS, pytest.approx(0.5))


def test_the_longest_wait_of_several_limits_is_reported() -> None:
    limiter = rates(
        RateLimit(("*",), requests=Rate(1, 1.0, 1)), RateLimit(("*",), requests=Rate(1, 60.0, 1))
    )
    assert take(limiter, 0.0) is None
    assert take(limiter, 0.0) == (RejectionReason.REQUESTS, pytest.approx(60.0))


@pytest.mark.parametrize("each_identity", [True, False])
@pytest.mark.parametrize("each_route", [True, False])
def test_buckets_may_be_per_identity_and_route(each_identity: bool, each_route: bool) -> None:
    limit = RateLimit(("*",), ("*",), each_identity, each_route, requests=Rate(1, 1.0, 1))
    limiter = rates(limit)
    assert take(limiter, 0.0) is None
    assert take(limiter, 0.0, model="n") is not None  # another model of the route
    assert (take(limiter, 0.0, identity="key:b") is None) is each_identity
    assert (take(limiter, 0.0, route="s") is None) is each_route


@pytest.mark.parametrize(
    ("identities", "models", "identity", "model", "is_limited"),
    [
        ("key:*", "bert-*", "key:a", "bert-1", True),
        ("key:*", "bert-*", "key:a", "gpt", False),
        ("key:*", "bert-*", "anonymous", "bert-1", False),
        ("*", "team-*", "key:a", "team-a", True),
        ("*", "team-*", "key:a", "team-a/bert", False),
        ("*", "*", "anonymous", "m", True),
    ],
)
def test_limits_apply_to_their_identities_and_models(
    identities: str, models: str, identity: str, model: str, is_limited: bool
) -> None:
    limiter = rates(RateLimit((identities,), (models,), requests=Rate(1, 1.0, 1)))
    assert take(limiter, 0.0, identity, model=model) is None
    assert (take(limiter, 0.0, identity, model=model) is not None) is is_limited


def test_client_names_cannot_select_another_bucket() -> None:
    limiter = rates(RateLimit(("*",), requests=Rate(1, 1.0, 1)))
    assert take(limiter, 0.0, "jwt:i:a|b", route="c") is None
    assert take(limiter, 0.0, "jwt:i:a", route="b|c") is None


@given(
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 30)), max_size=60),
    st.integers(1, 20),
    st.integers(1, 40),
)
def test_the_rate_is_never_exceeded(
    steps: list[tuple[float, int]], amount: int, burst: int
) -> None:
    """The only exception is a single request larger than the burst."""
    buckets, now = LocalBuckets(), 0.0
    passed: list[tuple[float, int]] = []
    for step, cost in steps:
        now += step
        charges = [BucketCharge("b", cost / amount, burst / amount)]
        exceeded = buckets.fill(charges, now)
        if exceeded is None:
            passed.append((now, cost))
        else:
            assert 0 < exceeded.wait_seconds < math.inf
            after = LocalBuckets()
            after._empty_at.update(buckets._empty_at)
            assert after.fill(charges, now + exceeded.wait_seconds) is None
    for i, (begin, first) in enumerate(passed):
        total = 0
        for end, cost in passed[i:]:
            total += cost
            allowed = max(burst, first) + (end - begin) * amount
            assert total <= allowed + max(0, cost - burst) + 1e-3


def test_buckets_are_bounded_and_empty_ones_are_dropped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maximum = 100
    monkeypatch.setattr("infergate.access.rate_limits.MAX_BUCKETS", maximum)
    buckets = LocalBuckets()
    for number in range(maximum):
        buckets.fill([BucketCharge(f"old{number}", 1.0, 10.0)], 0.0)
    assert len(buckets) == maximum
    buckets.fill([BucketCharge("new", 1.0, 10.0)], 2.0)
    assert len(buckets) == 1
    for number in range(3 * maximum):
        buckets.fill([BucketCharge(f"busy{number}", 1e6, 1e7)], 2.0)
        assert len(buckets) <= maximum
    assert buckets.fill([BucketCharge(f"busy{3 * maximum - 1}", 1e7, 1e7)], 2.0) is not None


def test_the_cache_of_names_is_bounded() -> None:
    limiter = rates(RateLimit(("*",), requests=TEN_PER_SECOND))
    for model in (*map("m{}".format, range(10_000)), "x" * 10_000):
        limiter._plan("key:a", model, "r")
        assert len(limiter._plans) <= 4096
    assert max(len(model) for _, model, _ in limiter._plans) <= 256
