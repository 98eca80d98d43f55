"""For how long an endpoint is let alone."""

from __future__ import annotations

from infergate.routing.outliers import Outlier, OutlierRule

RULE = OutlierRule()


def fail(outlier: Outlier, now: float, times: int = 5) -> bool:
    for _ in range(times):
        outlier.failed(unreached=False)
    due = outlier.is_due(RULE, now)
    if due:
        outlier.eject(RULE, now)
    return due


def test_five_failures_in_a_row_are_enough() -> None:
    outlier = Outlier()
    assert not fail(outlier, 0.0, 4)
    assert fail(outlier, 0.0, 1)
    assert outlier.until == 30.0


def test_what_is_let_alone_is_not_ejected_again_until_it_is_back() -> None:
    outlier = Outlier()
    assert fail(outlier, 0.0)
    assert not fail(outlier, 29.9, 10)
    assert fail(outlier, 30.0, 0)


def test_each_time_is_longer_up_to_five_minutes() -> None:
    outlier, now, lengths = Outlier(), 0.0, []
    for _ in range(12):
        assert fail(outlier, now)
        lengths.append(outlier.until - now)
        now = outlier.until
    assert lengths == [*range(30, 301, 30), 300, 300]
    assert outlier.ejections == 12


def test_time_spent_well_makes_the_next_shorter() -> None:
    outlier, now = Outlier(), 0.0
    for _ in range(4):
        fail(outlier, now)
        now = outlier.until
    fail(outlier, now + 60.0)
    assert outlier.until - (now + 60.0) == 90.0
    now = outlier.until + 3600.0
    fail(outlier, now)
    assert outlier.until - now == 30.0


def test_who_is_forgiven_is_back() -> None:
    outlier = Outlier()
    fail(outlier, 0.0)
    outlier.row = 3
    outlier.forgive(10.0)
    assert (outlier.until, outlier.row) == (10.0, 0)
    outlier.forgive(20.0)
    assert outlier.until == 10.0


def unreached(outlier: Outlier, now: float) -> None:
    for _ in range(5):
        outlier.failed(unreached=True)
    outlier.eject(RULE, now)


def test_who_was_not_reached_is_back_when_it_answers_checks() -> None:
    outlier = Outlier()
    unreached(outlier, 0.0)
    told = [outlier.is_back(now, 2, well=well) for now, well in [(1, True), (2, False), (3, True)]]
    assert told == [False, False, False]
    assert outlier.is_back(4, 2, well=True)


def test_who_failed_otherwise_is_not() -> None:
    outlier = Outlier()
    fail(outlier, 0.0)
    assert not any(outlier.is_back(now, 2, well=True) for now in range(29))


def test_checks_before_the_failure_do_not_count() -> None:
    outlier = Outlier()
    for now in range(10):
        assert not outlier.is_back(now, 2, well=True)
    unreached(outlier, 10.0)
    assert not outlier.is_back(11, 2, well=True)
    assert outlier.is_back(12, 2, well=True)
    outlier.forgive(12.0)
    assert not outlier.is_back(13, 2, well=True)


def test_no_failures_in_a_row_are_enough_where_that_is_off() -> None:
    outlier = Outlier()
    outlier.row = 1000
    assert not outlier.is_due(OutlierRule(consecutive=0), 0.0)
