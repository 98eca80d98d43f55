"""Names and addresses, and what is known of endpoints."""

from __future__ import annotations

import random

from infergate.backends.endpoints import Balance, Endpoints, Lease, Outcome, Site
from infergate.core.figures import EndpointFigures
from infergate.core.sequences import SequenceName
from infergate.routing.cluster import ClusterRule
from infergate.transport.base import Endpoint

PODS = Endpoint("pods", 8000, path="/base")
FIXED = Endpoint("10.0.0.9", 8000)
SITES = [
    Site(PODS, "http://pods:8000/base", 2.0, resolves=True),
    Site(FIXED, "http://10.0.0.9:8000"),
]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def endpoints(sites: list[Site] = SITES, **balance: object) -> tuple[Endpoints, Clock]:
    clock = Clock()
    made = Endpoints(
        "b",
        sites,
        Balance(**balance),
        clock=clock,
        chance=random.Random(1).random,  # type: ignore[arg-type]
    )
    return made, clock


def places(among: Endpoints) -> list[str]:
    return [str(lease.endpoint) for lease in among.all()]


def fail(lease: Lease, times: int = 5) -> None:
    for _ in range(times):
        lease.take().finished(Outcome.FAILED)


def test_until_a_name_is_known_it_is_an_endpoint_itself() -> None:
    among, _ = endpoints()
    assert places(among) == ["pods:8000", "10.0.0.9:8000"]
    among.resolved(0, ["10.0.0.2", "10.0.0.1", "10.0.0.2"])
    assert places(among) == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.9:8000"]
    first = among.all()[0].endpoint
    assert (first.host, first.authority, first.path) == ("pods", "pods:8000", "/base")
    assert among.left() == [PODS]
    assert among.left() == []


def test_each_address_has_the_weight_of_its_name() -> None:
    among, _ = endpoints()
    among.resolved(0, ["10.0.0.1", "10.0.0.2"])
    assert [lease.weight for lease in among.all()] == [2.0, 2.0, 1.0]


def test_a_name_without_addresses_keeps_what_it_had() -> None:
    among, _ = endpoints()
    among.resolved(0, ["10.0.0.1"])
    before = among.all()
    among.resolved(0, [])
    assert among.all() == before
    assert among.figures()[0].lookups_failed == 1


def test_what_stays_is_what_it_was() -> None:
    among, _ = endpoints()
    among.resolved(0, ["10.0.0.1", "10.0.0.2"])
    first, second, _ = among.all()
    fail(first)
    among.resolved(0, ["10.0.0.3", "10.0.0.1"])
    assert among.all()[0] is first
    assert first.outlier.ejections == 1
    assert second not in among.all()
    assert all(among.choose() is not second for _ in range(50))


def test_what_has_left_is_told_when_it_has_finished() -> None:
    among, _ = endpoints()
    among.resolved(0, ["10.0.0.1", "10.0.0.2"])
    among.left()
    first = among.all()[0].take()
    among.resolved(0, ["10.0.0.2"])
    assert among.left() == []
    first.finished(Outcome.OK)
    assert among.left() == [first.endpoint]


def test_what_comes_back_while_it_has_something_to_do_never_left() -> None:
    among, _ = endpoints()
    among.resolved(0, ["10.0.0.1", "10.0.0.2"])
    among.left()
    first = among.all()[0].take()
    among.resolved(0, ["10.0.0.2"])
    among.resolved(0, ["10.0.0.1", "10.0.0.2"])
    assert among.all()[0] is first
    first.finished(Outcome.OK)
    assert among.left() == []


def test_an_address_that_another_line_of_the_configuration_still_has_is_not_let_go() -> None:
    among, _ = endpoints([SITES[0], SITES[0]])
    for site in (0, 1):
        among.resolved(site, ["10.0.0.1"])
    assert among.left() == [PODS]
    among.resolved(0, ["10.0.0.2"])
    assert among.left() == []
    among.resolved(1, ["10.0.0.2"])
    assert [str(each) for each in among.left()] == ["10.0.0.1:8000"]


def test_new_addresses_start_slowly_but_not_the_first() -> None:
    among, clock = endpoints([SITES[0]], rule=ClusterRule(window=10.0))
    among.resolved(0, ["10.0.0.1", "10.0.0.2"])
    clock.now = 200.0
    among.resolved(0, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    chosen = [str(among.choose().take().endpoint) for _ in range(300)]
    for each in among.all():
        each.active = 0
    assert 0 < chosen.count("10.0.0.3:8000") < 60
    assert chosen.count("10.0.0.1:8000") > 90
    assert chosen.count("10.0.0.2:8000") > 90


def test_a_lone_address_is_no_choice() -> None:
    among, _ = endpoints([SITES[0]])
    assert not among.spreads
    among.resolved(0, ["10.0.0.1"])
    assert not among.spreads
    among.resolved(0, ["10.0.0.1", "10.0.0.2"])
    assert among.spreads


def test_a_sequence_goes_by_the_address_and_not_by_the_order() -> None:
    one, _ = endpoints([SITES[0]])
    other, _ = endpoints([SITES[0]])
    one.resolved(0, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    other.resolved(0, ["10.0.0.3", "10.0.0.1"])
    other.resolved(0, ["10.0.0.2", "10.0.0.3", "10.0.0.1"])
    for number in range(1, 30):
        mine = SequenceName("m", number)
        assert one.keeper(mine).endpoint == other.keeper(mine).endpoint


def test_clients_are_told_a_place_and_no_address() -> None:
    among, _ = endpoints()
    among.resolved(0, ["10.0.0.1", "10.0.0.2"])
    told = [among.place(lease) for lease in among.all()]
    assert told == ["endpoint 1 of 2", "endpoint 1 of 2", "endpoint 2 of 2"]


def test_figures_are_of_the_configurations_lines() -> None:
    among, clock = endpoints()
    among.resolved(0, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    one, two, three, fixed = among.all()
    one.take().finished(Outcome.OK)
    fail(two)
    three.checked(well=False)
    fixed.take()
    fixed.checked(well=True)
    assert among.figures() == [
        EndpointFigures(
            "b", "http://pods:8000/base", 1, 1, 1, ok=1, failed=5, ejections=1, checks_failed=1
        ),
        EndpointFigures("b", "http://10.0.0.9:8000", 1, active=1, checks_ok=1),
    ]
    among.resolved(0, ["10.0.0.4"])
    among.left()
    clock.now += 1000
    told = among.figures()[0]
    assert (told.available, told.ok, told.failed, told.ejections) == (1, 1, 5, 1)


def test_readiness_is_known_when_all_were_asked_or_one_is_well() -> None:
    among, _ = endpoints()
    among.resolved(0, ["10.0.0.1"])
    one, fixed = among.all()
    assert among.ready is None
    one.checked(well=False)
    assert among.ready is None
    fixed.checked(well=False)
    assert among.ready is False
    for _ in range(2):
        one.checked(well=True)
    assert among.ready is True


# ---- failures that a request may have caused


def break_off(lease: Lease, times: int = 5) -> None:
    for _ in range(times):
        lease.take().finished(Outcome.BROKEN)


def suspecting() -> tuple[Endpoints, list[Lease]]:
    among, _ = endpoints()
    suspects: list[Lease] = []
    among.suspect = suspects.append
    return among, suspects


def test_who_breaks_off_is_checked_before_it_is_ejected() -> None:
    among, suspects = suspecting()
    lease = among.all()[0]
    break_off(lease, 4)
    assert not suspects
    break_off(lease, 20)
    assert suspects == [lease], "once, until it is judged"
    among.judged(lease, well=True)
    assert lease.outlier.ejections == 0
    break_off(lease, 4)
    assert suspects == [lease]
    break_off(lease, 1)
    among.judged(lease, well=False)
    assert lease.outlier.ejections == 1


def test_its_own_failures_need_no_check() -> None:
    among, suspects = suspecting()
    lease = among.all()[0]
    break_off(lease, 3)
    fail(lease, 4)
    assert (suspects, lease.outlier.ejections) == ([lease], 0)
    fail(lease, 1)
    assert lease.outlier.ejections == 1
    among.judged(lease, well=False)
    assert lease.outlier.ejections == 1


def test_an_answer_makes_up_for_all_of_them() -> None:
    among, suspects = suspecting()
    lease = among.all()[0]
    break_off(lease, 4)
    lease.take().finished(Outcome.OK)
    fail(lease, 4)
    assert not suspects
    fail(lease, 1)
    assert lease.outlier.ejections == 1


def test_the_last_one_is_not_suspected() -> None:
    among, suspects = suspecting()
    fail(among.all()[0])
    break_off(among.all()[1], 50)
    assert not suspects


def test_who_is_ejected_by_a_check_is_back_by_checks() -> None:
    """Even if more of what was under way breaks off afterwards."""
    among, suspects = suspecting()
    lease = among.all()[0]
    break_off(lease)
    assert suspects == [lease]
    among.judged(lease, well=False)
    break_off(lease, 3)
    assert among.figures()[0].ejected == 1
    lease.checked(well=True)
    assert among.figures()[0].ejected == 1
    lease.checked(well=True)
    assert among.figures()[0].ejected == 0
