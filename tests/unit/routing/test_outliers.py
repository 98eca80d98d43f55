"""For how long an endpoint is let alone."""

from __future__ import annotations

from infergate.routing.outliers import Outlier, OutlierRule

RULE = OutlierRule()


def fail(outlier: Outlier, now: float, times: int = 5) -> bool:
    for _ in range(times):
        outlier.row += 1
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


def test_no_failures_in_a_row_are_enough_where_that_is_off() -> None:
    outlier = Outlier()
    outlier.row = 1000
    assert not outlier.is_due(OutlierRule(consecutive=0), 0.0)
