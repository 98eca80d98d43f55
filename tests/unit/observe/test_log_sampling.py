"""Sampling of request lines at high rates, and of repeated lines."""

from __future__ import annotations

import io
import json
import logging

from hypothesis import given
from hypothesis import strategies as st

from infergate.core.request_context import RequestContext
from infergate.core.request_record import RequestRecord
from infergate.observe.access_log import FORMATS, AccessLog
from infergate.observe.log_rate_limit import LogRateLimit
from infergate.observe.log_sampler import LogSampler


def test_the_first_lines_of_a_second_and_every_nth_after_are_logged() -> None:
    sampler = LogSampler(2, 3)
    left_out = [sampler.count_left_out("r", "ok", 7.0 + i / 100) for i in range(10)]
    assert left_out == [0, 0, None, None, 2, None, None, 2, None, None]
    assert sampler.count_left_out("r", "ok", 8.0) == 2, "the lines of the previous second"
    assert sampler.count_left_out("r", "ok", 8.1) == 0


def test_each_route_and_outcome_is_sampled_separately() -> None:
    sampler = LogSampler(1, 0)
    assert [sampler.count_left_out("r", "ok", 1.0) for _ in range(3)] == [0, None, None]
    assert sampler.count_left_out("r", "timeout", 1.0) == 0
    assert sampler.count_left_out("other", "ok", 1.0) == 0


@given(
    st.integers(1, 5), st.integers(0, 5),
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 0.5)), max_size=200),
)  # fmt: skip
def test_every_request_is_logged_or_counted_by_the_next_line(
    first: int, every: int, requests: list[tuple[str, float]]
) -> None:
    sampler, now = LogSampler(first, every), 0.0
    uncounted = {"a": 0, "b": 0}
    for route, interval in requests:
        now += interval
        left_out = sampler.count_left_out(route, "ok", now)
        uncounted[route] += 1 if left_out is None else -left_out
    for route, count in uncounted.items():
        assert sampler.count_left_out(route, "ok", now + 2) == count


def test_a_line_has_the_number_of_requests_left_out_before_it() -> None:
    out = io.BytesIO()
    log = AccessLog(FORMATS["json"], lambda: None, out, sampler=LogSampler(1, 0))
    for now in (5.0, 5.1, 5.2, 6.0):
        log.record(RequestContext("p", record=RequestRecord(route="r")), 0.1, now)
    log.close()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line.get("left_out") for line in lines] == [None, 2]


def record(message: str, created: float, logger: str = "infergate") -> logging.LogRecord:
    entry = logging.LogRecord(logger, logging.WARNING, "f", 1, message, (created,), None)
    entry.created = created
    return entry


def test_repeated_lines_within_a_second_are_sampled() -> None:
    rate_limit = LogRateLimit(2)
    logged = [rate_limit.filter(record("failed: %s", 1.0)) for _ in range(5)]
    assert logged == [True] * 2 + [False] * 3
    assert rate_limit.filter(record("something else: %s", 1.5))
    for created, suffix in ((2.0, " (3 similar lines were dropped before this line)"), (3.0, "")):
        entry = record("failed: %s", created)
        assert rate_limit.filter(entry)
        assert entry.getMessage() == f"failed: {created}{suffix}"


def test_audit_lines_are_never_left_out() -> None:
    rate_limit = LogRateLimit(1)
    assert all(rate_limit.filter(record("%s", 1.0, "infergate.audit")) for _ in range(5))


def test_the_number_of_counted_messages_is_bounded() -> None:
    rate_limit = LogRateLimit(1)
    for number in range(5000):
        rate_limit.filter(record(f"{number} %s", 1.0))
    assert len(rate_limit._sampler._kinds) <= 1024
