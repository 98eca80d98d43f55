"""When endpoints are ejected, and when their ejections end."""

from __future__ import annotations

from infergate.routing.outliers import OutlierRule, OutlierState

RULE = OutlierRule()


def fail(outlier: OutlierState, now: float, times: int = 5) -> bool:
    for _ in range(times):
        outlier.record_failure(is_unreachable=False)
    is_due = outlier.is_ejection_due(RULE, now)
    if is_due:
        outlier.eject(RULE, now)
    return is_due


def test_five_consecutive_failures_eject_an_endpoint() -> None:
    outlier = OutlierState()
    assert not fail(outlier, 0.0, 4)
    assert fail(outlier, 0.0, 1)
    assert outlier.ejected_until == 30.0


def test_an_ejected_endpoint_is_not_ejected_again() -> None:
    outlier = OutlierState()
    assert fail(outlier, 0.0)
    assert not fail(outlier, 29.9, 10)
    assert fail(outlier, 30.0, 0)


def test_each_ejection_is_longer_up_to_five_minutes() -> None:
    outlier, now, lengths = OutlierState(), 0.0, []
    for _ in range(12):
        assert fail(outlier, now)
        lengths.append(outlier.ejected_until - now)
        now = outlier.ejected_until
    assert lengths == [*range(30, 301, 30), 300, 300]
    assert outlier.ejection_count == 12


def test_healthy_time_shortens_the_next_ejection() -> None:
    outlier, now = OutlierState(), 0.0
    for _ in range(4):
        fail(outlier, now)
        now = outlier.ejected_until
    fail(outlier, now + 60.0)
    assert outlier.ejected_until - (now + 60.0) == 90.0
    now = outlier.ejected_until + 3600.0
    fail(outlier, now)
    assert outlier.ejected_until - now == 30.0


def test_clearing_an_ejection_restores_the_endpoint() -> None:
    outlier = OutlierState()
    fail(outlier, 0.0)
    outlier.consecutive_failures = 3
    outlier.readmit(10.0)
    assert (outlier.ejected_until, outlier.consecutive_failures) == (10.0, 0)
    outlier.readmit(20.0)
    assert outlier.ejected_until == 10.0


def fail_to_connect(outlier: OutlierState, now: float) -> None:
    for _ in range(5):
        outlier.record_failure(is_unreachable=True)
    outlier.eject(RULE, now)


def test_successful_checks_end_a_connect_failure_ejection() -> None:
    outlier = OutlierState()
    fail_to_connect(outlier, 0.0)
    restored = [
        outlier.record_check(now, 2, succeeded=is_healthy)
        for now, is_healthy in [(1, True), (2, False), (3, True)]
    ]
    assert restored == [False, False, False]
    assert outlier.record_check(4, 2, succeeded=True)


def test_checks_do_not_end_other_ejections() -> None:
    outlier = OutlierState()
    fail(outlier, 0.0)
    assert not any(outlier.record_check(now, 2, succeeded=True) for now in range(29))


def test_checks_before_the_failure_do_not_count() -> None:
    outlier = OutlierState()
    for now in range(10):
        assert not outlier.record_check(now, 2, succeeded=True)
    fail_to_connect(outlier, 10.0)
    assert not outlier.record_check(11, 2, succeeded=True)
    assert outlier.record_check(12, 2, succeeded=True)
    outlier.readmit(12.0)
    assert not outlier.record_check(13, 2, succeeded=True)


def test_zero_disables_outlier_detection() -> None:
    outlier = OutlierState()
    outlier.consecutive_failures = 1000
    assert not outlier.is_ejection_due(OutlierRule(consecutive=0), 0.0)
