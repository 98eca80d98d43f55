"""The endpoints that a cluster chooses and ejects, on a simulated clock."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from infergate.core.attempt_outcome import AttemptOutcome
from infergate.core.sequences import SequenceKey
from infergate.routing.balance import ConsistentHash, LeastRequest
from infergate.routing.cluster import Cluster, ClusterMember, ClusterRule
from infergate.routing.health import EndpointHealth
from infergate.routing.outliers import OutlierRule

MAX_HALF_EJECTED = ClusterRule(OutlierRule(max_share=0.5))


def members(count: int, first: int = 0) -> list[ClusterMember]:
    return [ClusterMember(b"%d" % i, 1.0, EndpointHealth()) for i in range(first, first + count)]


def make_cluster(count: int, rule: ClusterRule = MAX_HALF_EJECTED) -> Cluster[ClusterMember]:
    rng = random.Random(5).random
    policy = ConsistentHash[ClusterMember](LeastRequest(rng))
    return Cluster(members(count), policy, rng, rule)


def choose_and_record(
    cluster: Cluster[ClusterMember],
    now: float,
    outcome: AttemptOutcome = AttemptOutcome.OK,
    tried: Sequence[ClusterMember] = (),
    key: str = "",
) -> ClusterMember:
    chosen = cluster.choose(now, tried, key)
    cluster.record_outcome(chosen, outcome, now)
    return chosen


def shares(cluster: Cluster[ClusterMember], now: float, times: int = 2000) -> list[float]:
    chosen = Counter(id(choose_and_record(cluster, now)) for _ in range(times))
    return [chosen[id(each)] / times for each in cluster.members]


def fail(
    cluster: Cluster[ClusterMember], member: ClusterMember, now: float, times: int = 5
) -> bool:
    """Record ``times`` failures; return whether the last one ejected ``member``."""
    ejected = False
    for _ in range(times):
        member.active += 1
        ejected = cluster.record_outcome(member, AttemptOutcome.FAILED, now)
    return ejected


def check(cluster: Cluster[ClusterMember], member: ClusterMember, now: float, checks: str) -> None:
    for each in checks:
        cluster.record_check(member, now, succeeded=each == "+")


def test_a_down_endpoint_gets_no_requests_until_it_is_up() -> None:
    cluster = make_cluster(3)
    check(cluster, cluster.members[1], 0.0, "-")
    assert shares(cluster, 1.0) == pytest.approx([0.5, 0.0, 0.5], abs=0.05)
    check(cluster, cluster.members[1], 2.0, "++")
    assert min(shares(cluster, 2.0)) > 0.2


def test_an_ejected_endpoint_gets_no_requests_until_its_ejection_ends() -> None:
    cluster = make_cluster(3)
    assert fail(cluster, cluster.members[0], 0.0)
    assert shares(cluster, 29.9)[0] == 0.0
    assert shares(cluster, 30.0)[0] > 0.2


def test_non_consecutive_failures_eject_nothing() -> None:
    cluster = make_cluster(3)
    for now in range(100):
        assert not fail(cluster, cluster.members[0], now, 4)
        cluster.members[0].active += 1
        cluster.record_outcome(cluster.members[0], AttemptOutcome.OK, now)
    assert min(shares(cluster, 100.0)) > 0.2


def test_unknown_outcomes_do_not_change_the_failure_count() -> None:
    cluster = make_cluster(3)
    member = cluster.members[0]
    fail(cluster, member, 0.0, 4)
    for _ in range(10):
        member.active += 1
        cluster.record_outcome(member, AttemptOutcome.UNKNOWN, 0.0)
    assert member.outlier.ejected_until < 0.0
    assert fail(cluster, member, 0.0, 1)


@pytest.mark.parametrize(
    ("share", "count", "max_ejected"), [(0.1, 3, 1), (0.1, 40, 4), (0.5, 10, 5)]
)
def test_max_share_always_permits_one_ejection(share: float, count: int, max_ejected: int) -> None:
    cluster = make_cluster(count, ClusterRule(OutlierRule(max_share=share)))
    ejections = [fail(cluster, each, 0.0) for each in cluster.members]
    assert ejections == [True] * max_ejected + [False] * (count - max_ejected)
    assert len(cluster.available(0.0)) == count - max_ejected


def test_the_last_endpoint_is_never_ejected() -> None:
    cluster = make_cluster(3, ClusterRule(OutlierRule(max_share=1.0)))
    check(cluster, cluster.members[0], 0.0, "-")
    assert fail(cluster, cluster.members[1], 0.0)
    assert not fail(cluster, cluster.members[2], 0.0, 100)
    assert shares(cluster, 1.0) == [0.0, 0.0, 1.0]


def test_if_all_endpoints_are_down_all_are_used() -> None:
    cluster = make_cluster(4)
    for each in cluster.members:
        check(cluster, each, 0.0, "-")
    assert min(shares(cluster, 1.0)) > 0.15
    check(cluster, cluster.members[2], 2.0, "++")
    assert shares(cluster, 2.0) == [0.0, 0.0, 1.0, 0.0]


def test_below_the_panic_threshold_all_endpoints_are_used() -> None:
    cluster = make_cluster(4, replace(MAX_HALF_EJECTED, panic_threshold=0.5))
    for each in cluster.members[:2]:
        check(cluster, each, 0.0, "-")
    assert shares(cluster, 1.0)[0] == 0.0
    check(cluster, cluster.members[2], 0.0, "-")
    assert min(shares(cluster, 1.0)) > 0.15


def test_a_lone_endpoint_is_always_used() -> None:
    cluster = make_cluster(1)
    member = cluster.members[0]
    check(cluster, member, 0.0, "---")
    assert not fail(cluster, member, 0.0, 50)
    assert choose_and_record(cluster, 0.0, tried=[member]) is member


def test_a_retry_uses_another_endpoint() -> None:
    cluster = make_cluster(3)
    for _ in range(100):
        first = choose_and_record(cluster, 0.0)
        second = choose_and_record(cluster, 0.0, tried=[first])
        third = choose_and_record(cluster, 0.0, tried=[first, second])
        assert len({id(each) for each in (first, second, third)}) == 3
        assert choose_and_record(cluster, 0.0, tried=cluster.members) in cluster.members


def test_a_retry_prefers_another_endpoint_even_if_it_is_down() -> None:
    cluster = make_cluster(2)
    check(cluster, cluster.members[0], 0.0, "-")
    first = choose_and_record(cluster, 0.0)
    assert first is cluster.members[1]
    assert choose_and_record(cluster, 0.0, tried=[first]) is cluster.members[0]


def test_a_key_moves_only_while_its_endpoint_is_unavailable() -> None:
    cluster = make_cluster(5)
    owners = {key: choose_and_record(cluster, 0.0, key=key) for key in map(str, range(50))}
    down = cluster.members[0]
    check(cluster, down, 1.0, "-")
    for key, owner in owners.items():
        assert (choose_and_record(cluster, 1.0, key=key) is owner) is (owner is not down)
    check(cluster, down, 2.0, "++")
    assert all(choose_and_record(cluster, 2.0, key=key) is owner for key, owner in owners.items())


def test_retries_with_the_same_key_use_the_same_second_endpoint() -> None:
    cluster = make_cluster(5)
    first = choose_and_record(cluster, 0.0, key="k")
    second_ids = {id(choose_and_record(cluster, 0.0, tried=[first], key="k")) for _ in range(20)}
    assert len(second_ids) == 1
    assert id(first) not in second_ids


def test_a_sequence_keeps_an_unhealthy_owner() -> None:
    cluster = make_cluster(3)
    sequence = SequenceKey("m", 7)
    owner = cluster.choose_owner(sequence)
    check(cluster, owner, 0.0, "-")
    fail(cluster, owner, 0.0)
    assert cluster.choose_owner(sequence) is owner
    assert owner.active == 2


@pytest.mark.parametrize("slow_start", [0.0, 10.0])
def test_panic_mode_uses_ejected_endpoints(slow_start: float) -> None:
    cluster = make_cluster(3, replace(MAX_HALF_EJECTED, slow_start_seconds=slow_start))
    assert fail(cluster, cluster.members[0], 0.0)
    for each in cluster.members[1:]:
        check(cluster, each, 0.0, "-")
    assert not cluster.available(1.0)
    assert min(shares(cluster, 1.0)) > 0.0


SLOW_START = replace(MAX_HALF_EJECTED, slow_start_seconds=10.0)


def test_slow_start_begins_at_a_tenth() -> None:
    cluster = make_cluster(2, SLOW_START)
    assert shares(cluster, 0.0) == pytest.approx([0.5, 0.5], abs=0.05), (
        "at the start, all shares are equal"
    )
    fail(cluster, cluster.members[0], 0.0)
    for now, share in [(30.0, 0.1), (35.0, 0.5), (37.5, 0.75), (40.0, 1.0), (1000.0, 1.0)]:
        assert shares(cluster, now)[0] == pytest.approx(share / (1 + share), abs=0.04), (
            f"at {now} s"
        )


def test_slow_start_of_recovered_and_new_endpoints() -> None:
    cluster = make_cluster(2, SLOW_START)
    check(cluster, cluster.members[0], 0.0, "-++")
    assert shares(cluster, 0.0)[0] == pytest.approx(0.1 / 1.1, abs=0.04)
    cluster.replace_members([*cluster.members, *members(1, first=2)], 100.0)
    assert shares(cluster, 100.0) == pytest.approx([1 / 2.1, 1 / 2.1, 0.1 / 2.1], abs=0.04)
    assert shares(cluster, 110.0) == pytest.approx([1 / 3] * 3, abs=0.04)


def test_no_slow_start_after_the_first_resolution() -> None:
    cluster = make_cluster(1, SLOW_START)
    cluster.replace_members([*cluster.members, *members(1, first=1)], 100.0, slow_start=False)
    assert shares(cluster, 100.0) == pytest.approx([0.5, 0.5], abs=0.05)


def test_an_endpoint_that_checks_mark_up_is_no_longer_ejected() -> None:
    cluster = make_cluster(2)
    member = cluster.members[0]
    fail(cluster, member, 0.0)
    check(cluster, member, 1.0, "---")
    check(cluster, member, 5.0, "++")
    assert member in cluster.available(5.0)
    assert shares(cluster, 5.0)[0] > 0.4


def test_successful_checks_end_a_connect_failure_ejection() -> None:
    cluster = make_cluster(2)
    member = cluster.members[0]
    for _ in range(5):
        member.active += 1
        cluster.record_outcome(member, AttemptOutcome.NOT_CONNECTED, 0.0)
    check(cluster, member, 1.0, "-+")
    assert member not in cluster.available(1.0)
    check(cluster, member, 2.0, "+")
    assert member in cluster.available(2.0)


def test_requests_in_flight_are_counted_once() -> None:
    cluster = make_cluster(3)
    chosen = [cluster.choose(0.0) for _ in range(30)]
    assert sum(each.active for each in cluster.members) == 30
    for each in chosen:
        cluster.record_outcome(each, random.Random(3).choice(list(AttemptOutcome)), 0.0)
    assert [each.active for each in cluster.members] == [0, 0, 0]
