"""The choice among endpoints, on a simulated clock."""

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

HALF = ClusterRule(OutlierRule(max_share=0.5))


def members(count: int, first: int = 0) -> list[ClusterMember]:
    return [ClusterMember(b"%d" % i, 1.0, EndpointHealth()) for i in range(first, first + count)]


def cluster(count: int, rule: ClusterRule = HALF) -> Cluster[ClusterMember]:
    chance = random.Random(5).random
    policy = ConsistentHash[ClusterMember](LeastRequest(chance))
    return Cluster(members(count), policy, chance, rule)


def choose_and_record(
    create_cluster: Cluster[ClusterMember],
    now: float,
    outcome: AttemptOutcome = AttemptOutcome.OK,
    tried: Sequence[ClusterMember] = (),
    key: str = "",
) -> ClusterMember:
    chosen = create_cluster.choose(now, tried, key)
    create_cluster.record_outcome(chosen, outcome, now)
    return chosen


def shares(create_cluster: Cluster[ClusterMember], now: float, times: int = 2000) -> list[float]:
    chosen = Counter(id(choose_and_record(create_cluster, now)) for _ in range(times))
    return [chosen[id(each)] / times for each in create_cluster.members]


def fail(
    create_cluster: Cluster[ClusterMember], member: ClusterMember, now: float, times: int = 5
) -> bool:
    """Record ``times`` failures; return whether the last one ejected ``member``."""
    ejected = False
    for _ in range(times):
        member.active += 1
        ejected = create_cluster.record_outcome(member, AttemptOutcome.FAILED, now)
    return ejected


def check(
    create_cluster: Cluster[ClusterMember], member: ClusterMember, now: float, checks: str
) -> None:
    for each in checks:
        create_cluster.record_check(member, now, succeeded=each == "+")


def test_a_down_endpoint_gets_no_requests_until_it_is_up() -> None:
    create_cluster = cluster(3)
    check(create_cluster, create_cluster.members[1], 0.0, "-")
    assert shares(create_cluster, 1.0) == pytest.approx([0.5, 0.0, 0.5], abs=0.05)
    check(create_cluster, create_cluster.members[1], 2.0, "++")
    assert min(shares(create_cluster, 2.0)) > 0.2


def test_an_ejected_endpoint_gets_no_requests_until_its_ejection_ends() -> None:
    create_cluster = cluster(3)
    assert fail(create_cluster, create_cluster.members[0], 0.0)
    assert shares(create_cluster, 29.9)[0] == 0.0
    assert shares(create_cluster, 30.0)[0] > 0.2


def test_non_consecutive_failures_eject_nothing() -> None:
    create_cluster = cluster(3)
    for now in range(100):
        assert not fail(create_cluster, create_cluster.members[0], now, 4)
        create_cluster.members[0].active += 1
        create_cluster.record_outcome(create_cluster.members[0], AttemptOutcome.OK, now)
    assert min(shares(create_cluster, 100.0)) > 0.2


def test_unknown_outcomes_do_not_change_the_failure_count() -> None:
    create_cluster = cluster(3)
    one = create_cluster.members[0]
    fail(create_cluster, one, 0.0, 4)
    for _ in range(10):
        one.active += 1
        create_cluster.record_outcome(one, AttemptOutcome.UNKNOWN, 0.0)
    assert one.outlier.ejected_until < 0.0
    assert fail(create_cluster, one, 0.0, 1)


@pytest.mark.parametrize(("share", "count", "out"), [(0.1, 3, 1), (0.1, 40, 4), (0.5, 10, 5)])
def test_the_ejected_share_is_limited_to_at_least_one(share: float, count: int, out: int) -> None:
    create_cluster = cluster(count, ClusterRule(OutlierRule(max_share=share)))
    result = [fail(create_cluster, each, 0.0) for each in create_cluster.members]
    assert result == [True] * out + [False] * (count - out)
    assert len(create_cluster.available(0.0)) == count - out


def test_the_last_endpoint_is_never_ejected() -> None:
    create_cluster = cluster(3, ClusterRule(OutlierRule(max_share=1.0)))
    check(create_cluster, create_cluster.members[0], 0.0, "-")
    assert fail(create_cluster, create_cluster.members[1], 0.0)
    assert not fail(create_cluster, create_cluster.members[2], 0.0, 100)
    assert shares(create_cluster, 1.0) == [0.0, 0.0, 1.0]


def test_with_all_endpoints_down_all_are_used() -> None:
    create_cluster = cluster(4)
    for each in create_cluster.members:
        check(create_cluster, each, 0.0, "-")
    assert min(shares(create_cluster, 1.0)) > 0.15
    check(create_cluster, create_cluster.members[2], 2.0, "++")
    assert shares(create_cluster, 2.0) == [0.0, 0.0, 1.0, 0.0]


def test_below_the_panic_threshold_all_endpoints_are_used() -> None:
    create_cluster = cluster(4, replace(HALF, panic_threshold=0.5))
    for each in create_cluster.members[:2]:
        check(create_cluster, each, 0.0, "-")
    assert shares(create_cluster, 1.0)[0] == 0.0
    check(create_cluster, create_cluster.members[2], 0.0, "-")
    assert min(shares(create_cluster, 1.0)) > 0.15


def test_a_lone_endpoint_is_always_used() -> None:
    create_cluster = cluster(1)
    one = create_cluster.members[0]
    check(create_cluster, one, 0.0, "---")
    assert not fail(create_cluster, one, 0.0, 50)
    assert choose_and_record(create_cluster, 0.0, tried=[one]) is one


def test_a_retry_uses_another_endpoint() -> None:
    create_cluster = cluster(3)
    for _ in range(100):
        first = choose_and_record(create_cluster, 0.0)
        second = choose_and_record(create_cluster, 0.0, tried=[first])
        third = choose_and_record(create_cluster, 0.0, tried=[first, second])
        assert len({id(each) for each in (first, second, third)}) == 3
        assert (
            choose_and_record(create_cluster, 0.0, tried=create_cluster.members)
            in create_cluster.members
        )


def test_a_retry_prefers_another_endpoint_even_if_it_is_down() -> None:
    create_cluster = cluster(2)
    check(create_cluster, create_cluster.members[0], 0.0, "-")
    first = choose_and_record(create_cluster, 0.0)
    assert first is create_cluster.members[1]
    assert choose_and_record(create_cluster, 0.0, tried=[first]) is create_cluster.members[0]


def test_a_key_moves_only_while_its_endpoint_is_unavailable() -> None:
    create_cluster = cluster(5)
    owners = {key: choose_and_record(create_cluster, 0.0, key=key) for key in map(str, range(50))}
    down = create_cluster.members[0]
    check(create_cluster, down, 1.0, "-")
    for key, position in owners.items():
        assert (choose_and_record(create_cluster, 1.0, key=key) is position) is (
            position is not down
        )
    check(create_cluster, down, 2.0, "++")
    assert all(
        choose_and_record(create_cluster, 2.0, key=key) is position
        for key, position in owners.items()
    )


def test_a_second_attempt_of_a_key_is_the_same_for_all() -> None:
    create_cluster = cluster(5)
    first = choose_and_record(create_cluster, 0.0, key="k")
    second = {id(choose_and_record(create_cluster, 0.0, tried=[first], key="k")) for _ in range(20)}
    assert len(second) == 1
    assert id(first) not in second


def test_a_sequence_keeps_an_unhealthy_owner() -> None:
    create_cluster = cluster(3)
    mine = SequenceKey("m", 7)
    kept = create_cluster.choose_owner(mine)
    check(create_cluster, kept, 0.0, "-")
    fail(create_cluster, kept, 0.0)
    assert create_cluster.choose_owner(mine) is kept
    assert kept.active == 2


@pytest.mark.parametrize("window", [0.0, 10.0])
def test_panic_mode_uses_ejected_endpoints(window: float) -> None:
    create_cluster = cluster(3, replace(HALF, slow_start_seconds=window))
    assert fail(create_cluster, create_cluster.members[0], 0.0)
    for each in create_cluster.members[1:]:
        check(create_cluster, each, 0.0, "-")
    assert not create_cluster.available(1.0)
    assert min(shares(create_cluster, 1.0)) > 0.0


# ---- slow start


SLOW = replace(HALF, slow_start_seconds=10.0)


def test_slow_start_begins_at_a_tenth() -> None:
    create_cluster = cluster(2, SLOW)
    assert shares(create_cluster, 0.0) == pytest.approx([0.5, 0.5], abs=0.05), (
        "at the start all are alike"
    )
    fail(create_cluster, create_cluster.members[0], 0.0)
    for now, share in [(30.0, 0.1), (35.0, 0.5), (37.5, 0.75), (40.0, 1.0), (1000.0, 1.0)]:
        assert shares(create_cluster, now)[0] == pytest.approx(share / (1 + share), abs=0.04), now


def test_slow_start_of_recovered_and_new_endpoints() -> None:
    create_cluster = cluster(2, SLOW)
    check(create_cluster, create_cluster.members[0], 0.0, "-++")
    assert shares(create_cluster, 0.0)[0] == pytest.approx(0.1 / 1.1, abs=0.04)
    create_cluster.replace_members([*create_cluster.members, *members(1, first=2)], 100.0)
    assert shares(create_cluster, 100.0) == pytest.approx([1 / 2.1, 1 / 2.1, 0.1 / 2.1], abs=0.04)
    assert shares(create_cluster, 110.0) == pytest.approx([1 / 3] * 3, abs=0.04)


def test_no_slow_start_after_the_first_resolution() -> None:
    create_cluster = cluster(1, SLOW)
    create_cluster.replace_members(
        [*create_cluster.members, *members(1, first=1)], 100.0, slow_start=False
    )
    assert shares(create_cluster, 100.0) == pytest.approx([0.5, 0.5], abs=0.05)


def test_a_successful_check_ends_an_ejection() -> None:
    create_cluster = cluster(2)
    one = create_cluster.members[0]
    fail(create_cluster, one, 0.0)
    check(create_cluster, one, 1.0, "---")
    check(create_cluster, one, 5.0, "++")
    assert one in create_cluster.available(5.0)
    assert shares(create_cluster, 5.0)[0] > 0.4


def test_successful_checks_end_a_connect_failure_ejection() -> None:
    create_cluster = cluster(2)
    one = create_cluster.members[0]
    for _ in range(5):
        one.active += 1
        create_cluster.record_outcome(one, AttemptOutcome.NOT_CONNECTED, 0.0)
    check(create_cluster, one, 1.0, "-+")
    assert one not in create_cluster.available(1.0)
    check(create_cluster, one, 2.0, "+")
    assert one in create_cluster.available(2.0)


def test_requests_in_flight_are_counted_once() -> None:
    create_cluster = cluster(3)
    held = [create_cluster.choose(0.0) for _ in range(30)]
    assert sum(each.active for each in create_cluster.members) == 30
    for each in held:
        create_cluster.record_outcome(each, random.Random(3).choice(list(AttemptOutcome)), 0.0)
    assert [each.active for each in create_cluster.members] == [0, 0, 0]
