"""Names, addresses and states of endpoints."""

from __future__ import annotations

import random

from fake_clock import Clock
from infergate.backends.endpoints import (
    AttemptOutcome,
    BalanceSettings,
    ConfiguredEndpoint,
    EndpointHandle,
    Endpoints,
)
from infergate.core.sequences import SequenceKey
from infergate.core.stats import EndpointStats
from infergate.routing.cluster import ClusterRule
from infergate.transport.base import Endpoint

PODS = Endpoint("pods", 8000, path="/base")
FIXED = Endpoint("10.0.0.9", 8000)
CONFIGURED = [
    ConfiguredEndpoint(PODS, "http://pods:8000/base", 2.0, uses_dns=True),
    ConfiguredEndpoint(FIXED, "http://10.0.0.9:8000"),
]


def endpoints(
    configured: list[ConfiguredEndpoint] = CONFIGURED, **balance: object
) -> tuple[Endpoints, Clock]:
    clock = Clock()
    created = Endpoints(
        "b",
        configured,
        BalanceSettings(**balance),
        clock=clock,
        random_float=random.Random(1).random,  # type: ignore[arg-type]
    )
    return created, clock


def positions(among: Endpoints) -> list[str]:
    return [str(endpoint.endpoint) for endpoint in among.all_handles()]


def fail(endpoint: EndpointHandle, times: int = 5) -> None:
    for _ in range(times):
        endpoint.begin_attempt().finish_attempt(AttemptOutcome.FAILED)


def test_an_unresolved_name_is_an_endpoint() -> None:
    among, _ = endpoints()
    assert positions(among) == ["pods:8000", "10.0.0.9:8000"]
    among.set_addresses(0, ["10.0.0.2", "10.0.0.1", "10.0.0.2"])
    assert positions(among) == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.9:8000"]
    first = among.all_handles()[0].endpoint
    assert (first.host, first.authority, first.path) == ("pods", "pods:8000", "/base")
    assert among.pop_drained() == [PODS]
    assert among.pop_drained() == []


def test_each_address_has_the_weight_of_its_name() -> None:
    among, _ = endpoints()
    among.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    assert [endpoint.weight for endpoint in among.all_handles()] == [2.0, 2.0, 1.0]


def test_a_name_without_addresses_keeps_the_previous_ones() -> None:
    among, _ = endpoints()
    among.set_addresses(0, ["10.0.0.1"])
    before = among.all_handles()
    among.set_addresses(0, [])
    assert among.all_handles() == before
    assert among.stats()[0].lookups_failed == 1


def test_a_watched_name_has_the_ports_of_its_pods() -> None:
    among, _ = endpoints()
    among.set_watched_addresses(0, [("10.0.0.1", 9000), ("fd00::1", 9001)])
    assert positions(among) == ["10.0.0.1:9000", "[fd00::1]:9001", "10.0.0.9:8000"]
    assert [handle.endpoint.host for handle in among.all_handles()[:2]] == ["pods", "pods"]


def test_a_watched_name_without_addresses_is_unresolved_again() -> None:
    among, _ = endpoints()
    among.set_watched_addresses(0, [("10.0.0.1", 9000)])
    among.set_watched_addresses(0, [])
    assert positions(among) == ["pods:8000", "10.0.0.9:8000"]
    assert among.stats()[0].lookups_failed == 0


def test_the_state_of_a_watch_is_counted() -> None:
    among, _ = endpoints()
    assert among.stats()[0].watch_failures is None
    for is_current in (False, False, True):
        among.record_watch(0, is_current=is_current)
    found = among.stats()[0]
    assert (found.watches_current, found.watches_failing, found.watch_failures) == (1, 0, 2)
    assert among.stats()[1].watch_failures is None


def test_unchanged_addresses_keep_their_state() -> None:
    among, _ = endpoints()
    among.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    first, second, _ = among.all_handles()
    fail(first)
    among.set_addresses(0, ["10.0.0.3", "10.0.0.1"])
    assert among.all_handles()[0] is first
    assert first.outlier.ejection_count == 1
    assert second not in among.all_handles()
    assert all(among.choose() is not second for _ in range(50))


def test_a_removed_address_is_drained_after_its_last_attempt() -> None:
    among, _ = endpoints()
    among.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    among.pop_drained()
    first = among.all_handles()[0].begin_attempt()
    among.set_addresses(0, ["10.0.0.2"])
    assert among.pop_drained() == []
    first.finish_attempt(AttemptOutcome.OK)
    assert among.pop_drained() == [first.endpoint]


def test_an_address_readded_while_in_use_keeps_its_state() -> None:
    among, _ = endpoints()
    among.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    among.pop_drained()
    first = among.all_handles()[0].begin_attempt()
    among.set_addresses(0, ["10.0.0.2"])
    among.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    assert among.all_handles()[0] is first
    first.finish_attempt(AttemptOutcome.OK)
    assert among.pop_drained() == []


def test_an_address_of_another_endpoint_is_not_released() -> None:
    among, _ = endpoints([CONFIGURED[0], CONFIGURED[0]])
    for index in (0, 1):
        among.set_addresses(index, ["10.0.0.1"])
    assert among.pop_drained() == [PODS]
    among.set_addresses(0, ["10.0.0.2"])
    assert among.pop_drained() == []
    among.set_addresses(1, ["10.0.0.2"])
    assert [str(each) for each in among.pop_drained()] == ["10.0.0.1:8000"]


def test_new_addresses_start_slowly_but_not_the_first() -> None:
    among, clock = endpoints([CONFIGURED[0]], cluster_rule=ClusterRule(slow_start_seconds=10.0))
    among.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    clock.time = 200.0
    among.set_addresses(0, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    chosen = [str(among.choose().begin_attempt().endpoint) for _ in range(300)]
    for each in among.all_handles():
        each.active = 0
    assert 0 < chosen.count("10.0.0.3:8000") < 60
    assert chosen.count("10.0.0.1:8000") > 90
    assert chosen.count("10.0.0.2:8000") > 90


def test_a_single_address_needs_no_choice() -> None:
    among, _ = endpoints([CONFIGURED[0]])
    assert not among.has_several
    among.set_addresses(0, ["10.0.0.1"])
    assert not among.has_several
    among.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    assert among.has_several


def test_sequences_are_hashed_by_address() -> None:
    one, _ = endpoints([CONFIGURED[0]])
    other, _ = endpoints([CONFIGURED[0]])
    one.set_addresses(0, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    other.set_addresses(0, ["10.0.0.3", "10.0.0.1"])
    other.set_addresses(0, ["10.0.0.2", "10.0.0.3", "10.0.0.1"])
    for number in range(1, 30):
        mine = SequenceKey("m", number)
        assert one.sequence_owner(mine).endpoint == other.sequence_owner(mine).endpoint


def test_errors_name_a_position_and_no_address() -> None:
    among, _ = endpoints()
    among.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    response = [among.describe_position(endpoint) for endpoint in among.all_handles()]
    assert response == ["endpoint 1 of 2", "endpoint 1 of 2", "endpoint 2 of 2"]


def test_statistics_are_per_configured_endpoint() -> None:
    among, clock = endpoints()
    among.set_addresses(0, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    one, two, three, fixed = among.all_handles()
    one.begin_attempt().finish_attempt(AttemptOutcome.OK)
    fail(two)
    three.record_check(is_healthy=False)
    fixed.begin_attempt()
    fixed.record_check(is_healthy=True)
    assert among.stats() == [
        EndpointStats(
            "b", "http://pods:8000/base", 1, 1, 1, ok=1, failed=5, ejections=1, checks_failed=1
        ),
        EndpointStats("b", "http://10.0.0.9:8000", 1, active=1, checks_ok=1),
    ]
    among.set_addresses(0, ["10.0.0.4"])
    among.pop_drained()
    clock.time += 1000
    response = among.stats()[0]
    assert (response.available, response.ok, response.failed, response.ejections) == (1, 1, 5, 1)


def test_readiness_needs_all_checks_or_one_success() -> None:
    among, _ = endpoints()
    among.set_addresses(0, ["10.0.0.1"])
    one, fixed = among.all_handles()
    assert among.is_ready is None
    one.record_check(is_healthy=False)
    assert among.is_ready is None
    fixed.record_check(is_healthy=False)
    assert among.is_ready is False
    for _ in range(2):
        one.record_check(is_healthy=True)
    assert among.is_ready is True


# ---- failures that a request may have caused


def break_off(endpoint: EndpointHandle, times: int = 5) -> None:
    for _ in range(times):
        endpoint.begin_attempt().finish_attempt(AttemptOutcome.BROKEN)


def with_suspicion() -> tuple[Endpoints, list[EndpointHandle]]:
    among, _ = endpoints()
    suspects: list[EndpointHandle] = []
    among.on_suspected = suspects.append
    return among, suspects


def test_a_broken_connection_causes_a_check_before_ejection() -> None:
    among, suspects = with_suspicion()
    endpoint = among.all_handles()[0]
    break_off(endpoint, 4)
    assert not suspects
    break_off(endpoint, 20)
    assert suspects == [endpoint], "suspected once until its check has ended"
    among.finish_suspect_check(endpoint, is_healthy=True)
    assert endpoint.outlier.ejection_count == 0
    break_off(endpoint, 4)
    assert suspects == [endpoint]
    break_off(endpoint, 1)
    among.finish_suspect_check(endpoint, is_healthy=False)
    assert endpoint.outlier.ejection_count == 1


def test_declined_requests_need_no_check() -> None:
    among, suspects = with_suspicion()
    endpoint = among.all_handles()[0]
    break_off(endpoint, 3)
    fail(endpoint, 4)
    assert (suspects, endpoint.outlier.ejection_count) == ([endpoint], 0)
    fail(endpoint, 1)
    assert endpoint.outlier.ejection_count == 1
    among.finish_suspect_check(endpoint, is_healthy=False)
    assert endpoint.outlier.ejection_count == 1


def test_a_response_clears_suspected_failures() -> None:
    among, suspects = with_suspicion()
    endpoint = among.all_handles()[0]
    break_off(endpoint, 4)
    endpoint.begin_attempt().finish_attempt(AttemptOutcome.OK)
    fail(endpoint, 4)
    assert not suspects
    fail(endpoint, 1)
    assert endpoint.outlier.ejection_count == 1


def test_the_last_endpoint_is_not_suspected() -> None:
    among, suspects = with_suspicion()
    fail(among.all_handles()[0])
    break_off(among.all_handles()[1], 50)
    assert not suspects


def test_checks_end_an_ejection_caused_by_a_check() -> None:
    """The ejection ends even if more requests in flight fail afterwards."""
    among, suspects = with_suspicion()
    endpoint = among.all_handles()[0]
    break_off(endpoint)
    assert suspects == [endpoint]
    among.finish_suspect_check(endpoint, is_healthy=False)
    break_off(endpoint, 3)
    assert among.stats()[0].ejected == 1
    endpoint.record_check(is_healthy=True)
    assert among.stats()[0].ejected == 1
    endpoint.record_check(is_healthy=True)
    assert among.stats()[0].ejected == 0
