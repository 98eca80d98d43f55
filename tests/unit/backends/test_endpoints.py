"""Endpoints of a backend: addresses, states, statistics and suspected failures."""

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
    group = Endpoints(
        "b",
        configured,
        BalanceSettings(**balance),
        clock=clock,
        random_float=random.Random(1).random,  # type: ignore[arg-type]
    )
    return group, clock


def addresses(group: Endpoints) -> list[str]:
    return [str(endpoint.endpoint) for endpoint in group.all_handles()]


def fail(endpoint: EndpointHandle, times: int = 5) -> None:
    for _ in range(times):
        endpoint.begin_attempt().finish_attempt(AttemptOutcome.FAILED)


def test_an_unresolved_name_is_an_endpoint() -> None:
    group, _ = endpoints()
    assert addresses(group) == ["pods:8000", "10.0.0.9:8000"]
    group.set_addresses(0, ["10.0.0.2", "10.0.0.1", "10.0.0.2"])
    assert addresses(group) == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.9:8000"]
    first = group.all_handles()[0].endpoint
    assert (first.host, first.authority, first.path) == ("pods", "pods:8000", "/base")
    assert group.pop_drained() == [PODS]
    assert group.pop_drained() == []


def test_each_address_has_the_weight_of_its_name() -> None:
    group, _ = endpoints()
    group.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    assert [endpoint.weight for endpoint in group.all_handles()] == [2.0, 2.0, 1.0]


def test_a_failed_lookup_keeps_the_previous_addresses() -> None:
    group, _ = endpoints()
    group.set_addresses(0, ["10.0.0.1"])
    before = group.all_handles()
    group.set_addresses(0, [])
    assert group.all_handles() == before
    assert group.stats()[0].lookups_failed == 1


def test_a_watched_name_has_the_ports_of_its_pods() -> None:
    group, _ = endpoints()
    group.set_watched_addresses(0, [("10.0.0.1", 9000), ("fd00::1", 9001)])
    assert addresses(group) == ["10.0.0.1:9000", "[fd00::1]:9001", "10.0.0.9:8000"]
    assert [handle.endpoint.host for handle in group.all_handles()[:2]] == ["pods", "pods"]


def test_a_watched_name_without_addresses_is_unresolved_again() -> None:
    group, _ = endpoints()
    group.set_watched_addresses(0, [("10.0.0.1", 9000)])
    group.set_watched_addresses(0, [])
    assert addresses(group) == ["pods:8000", "10.0.0.9:8000"]
    assert group.stats()[0].lookups_failed == 0


def test_the_state_of_a_watch_is_counted() -> None:
    group, _ = endpoints()
    assert group.stats()[0].watch_failures is None
    for is_current in (False, False, True):
        group.record_watch(0, is_current=is_current)
    stats = group.stats()[0]
    assert (stats.watches_current, stats.watches_failing, stats.watch_failures) == (1, 0, 2)
    assert group.stats()[1].watch_failures is None


def test_unchanged_addresses_keep_their_state() -> None:
    group, _ = endpoints()
    group.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    first, second, _ = group.all_handles()
    fail(first)
    group.set_addresses(0, ["10.0.0.3", "10.0.0.1"])
    assert group.all_handles()[0] is first
    assert first.outlier.ejection_count == 1
    assert second not in group.all_handles()
    assert all(group.choose() is not second for _ in range(50))


def test_a_removed_address_is_drained_after_its_last_attempt() -> None:
    group, _ = endpoints()
    group.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    group.pop_drained()
    first = group.all_handles()[0].begin_attempt()
    group.set_addresses(0, ["10.0.0.2"])
    assert group.pop_drained() == []
    first.finish_attempt(AttemptOutcome.OK)
    assert group.pop_drained() == [first.endpoint]


def test_an_address_readded_while_in_use_keeps_its_state() -> None:
    group, _ = endpoints()
    group.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    group.pop_drained()
    first = group.all_handles()[0].begin_attempt()
    group.set_addresses(0, ["10.0.0.2"])
    group.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    assert group.all_handles()[0] is first
    first.finish_attempt(AttemptOutcome.OK)
    assert group.pop_drained() == []


def test_an_address_that_another_endpoint_uses_is_not_drained() -> None:
    group, _ = endpoints([CONFIGURED[0], CONFIGURED[0]])
    for index in (0, 1):
        group.set_addresses(index, ["10.0.0.1"])
    assert group.pop_drained() == [PODS]
    group.set_addresses(0, ["10.0.0.2"])
    assert group.pop_drained() == []
    group.set_addresses(1, ["10.0.0.2"])
    assert [str(each) for each in group.pop_drained()] == ["10.0.0.1:8000"]


def test_only_addresses_added_later_start_slowly() -> None:
    group, clock = endpoints([CONFIGURED[0]], cluster_rule=ClusterRule(slow_start_seconds=10.0))
    group.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    clock.time = 200.0
    group.set_addresses(0, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    chosen = [str(group.choose().begin_attempt().endpoint) for _ in range(300)]
    for each in group.all_handles():
        each.active = 0
    assert 0 < chosen.count("10.0.0.3:8000") < 60
    assert chosen.count("10.0.0.1:8000") > 90
    assert chosen.count("10.0.0.2:8000") > 90


def test_a_single_address_needs_no_choice() -> None:
    group, _ = endpoints([CONFIGURED[0]])
    assert not group.has_several
    group.set_addresses(0, ["10.0.0.1"])
    assert not group.has_several
    group.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    assert group.has_several


def test_sequences_are_hashed_by_address() -> None:
    first, _ = endpoints([CONFIGURED[0]])
    other, _ = endpoints([CONFIGURED[0]])
    first.set_addresses(0, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    other.set_addresses(0, ["10.0.0.3", "10.0.0.1"])
    other.set_addresses(0, ["10.0.0.2", "10.0.0.3", "10.0.0.1"])
    for number in range(1, 30):
        sequence = SequenceKey("m", number)
        assert first.sequence_owner(sequence).endpoint == other.sequence_owner(sequence).endpoint


def test_positions_are_described_without_addresses() -> None:
    group, _ = endpoints()
    group.set_addresses(0, ["10.0.0.1", "10.0.0.2"])
    descriptions = [group.describe_position(endpoint) for endpoint in group.all_handles()]
    assert descriptions == ["endpoint 1 of 2", "endpoint 1 of 2", "endpoint 2 of 2"]


def test_statistics_are_per_configured_endpoint() -> None:
    group, clock = endpoints()
    group.set_addresses(0, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    first, second, third, fixed = group.all_handles()
    first.begin_attempt().finish_attempt(AttemptOutcome.OK)
    fail(second)
    third.record_check(is_healthy=False)
    fixed.begin_attempt()
    fixed.record_check(is_healthy=True)
    assert group.stats() == [
        EndpointStats(
            "b", "http://pods:8000/base", 1, 1, 1, ok=1, failed=5, ejections=1, checks_failed=1
        ),
        EndpointStats("b", "http://10.0.0.9:8000", 1, active=1, checks_ok=1),
    ]
    group.set_addresses(0, ["10.0.0.4"])
    group.pop_drained()
    clock.time += 1000
    stats = group.stats()[0]
    assert (stats.available, stats.ok, stats.failed, stats.ejections) == (1, 1, 5, 1)


def test_readiness_needs_all_checks_or_one_success() -> None:
    group, _ = endpoints()
    group.set_addresses(0, ["10.0.0.1"])
    first, fixed = group.all_handles()
    assert group.is_ready is None
    first.record_check(is_healthy=False)
    assert group.is_ready is None
    fixed.record_check(is_healthy=False)
    assert group.is_ready is False
    for _ in range(2):
        first.record_check(is_healthy=True)
    assert group.is_ready is True


# ---- failures that a request may have caused


def break_connections(endpoint: EndpointHandle, times: int = 5) -> None:
    for _ in range(times):
        endpoint.begin_attempt().finish_attempt(AttemptOutcome.BROKEN)


def endpoints_with_suspects() -> tuple[Endpoints, list[EndpointHandle]]:
    group, _ = endpoints()
    suspects: list[EndpointHandle] = []
    group.on_suspected = suspects.append
    return group, suspects


def test_a_broken_connection_causes_a_check_before_ejection() -> None:
    group, suspects = endpoints_with_suspects()
    endpoint = group.all_handles()[0]
    break_connections(endpoint, 4)
    assert not suspects
    break_connections(endpoint, 20)
    assert suspects == [endpoint], "suspected only once until its check ends"
    group.finish_suspect_check(endpoint, is_healthy=True)
    assert endpoint.outlier.ejection_count == 0
    break_connections(endpoint, 4)
    assert suspects == [endpoint]
    break_connections(endpoint, 1)
    group.finish_suspect_check(endpoint, is_healthy=False)
    assert endpoint.outlier.ejection_count == 1


def test_failures_after_a_suspicion_eject_without_a_check() -> None:
    group, suspects = endpoints_with_suspects()
    endpoint = group.all_handles()[0]
    break_connections(endpoint, 3)
    fail(endpoint, 4)
    assert (suspects, endpoint.outlier.ejection_count) == ([endpoint], 0)
    fail(endpoint, 1)
    assert endpoint.outlier.ejection_count == 1
    group.finish_suspect_check(endpoint, is_healthy=False)
    assert endpoint.outlier.ejection_count == 1


def test_a_response_clears_suspected_failures() -> None:
    group, suspects = endpoints_with_suspects()
    endpoint = group.all_handles()[0]
    break_connections(endpoint, 4)
    endpoint.begin_attempt().finish_attempt(AttemptOutcome.OK)
    fail(endpoint, 4)
    assert not suspects
    fail(endpoint, 1)
    assert endpoint.outlier.ejection_count == 1


def test_the_last_endpoint_is_not_suspected() -> None:
    group, suspects = endpoints_with_suspects()
    fail(group.all_handles()[0])
    break_connections(group.all_handles()[1], 50)
    assert not suspects


def test_checks_end_an_ejection_caused_by_a_check() -> None:
    """The ejection ends even if further requests fail after the check that caused it."""
    group, suspects = endpoints_with_suspects()
    endpoint = group.all_handles()[0]
    break_connections(endpoint)
    assert suspects == [endpoint]
    group.finish_suspect_check(endpoint, is_healthy=False)
    break_connections(endpoint, 3)
    assert group.stats()[0].ejected == 1
    endpoint.record_check(is_healthy=True)
    assert group.stats()[0].ejected == 1
    endpoint.record_check(is_healthy=True)
    assert group.stats()[0].ejected == 0
