"""The endpoints that balancing policies pick, with a seeded random generator."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from infergate.routing.balance import (
    BalancingPolicy,
    CandidateTable,
    ConsistentHash,
    LeastRequest,
    RoundRobin,
)


@dataclass
class Server:
    name: bytes
    weight: float = 1.0
    active: int = 0


def servers(*weights: float) -> list[Server]:
    return [Server(b"%d" % i, weight) for i, weight in enumerate(weights)]


def table(*weights: float) -> CandidateTable[Server]:
    members = servers(*weights)
    return CandidateTable(members, None if len(set(weights)) == 1 else weights)


def request_shares(
    policy: BalancingPolicy[Server], candidates: CandidateTable[Server], times: int = 7000
) -> list[float]:
    """Return each endpoint's share of ``times`` requests that end immediately."""
    chosen = Counter(policy.pick(candidates, "").name for _ in range(times))
    return [chosen[each.name] / times for each in candidates.members]


def rng() -> random.Random:
    return random.Random(7)


POLICIES = [LeastRequest, RoundRobin]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_single_endpoint_is_always_chosen(
    policy: type[LeastRequest[Server] | RoundRobin[Server]],
) -> None:
    assert request_shares(policy(rng().random), table(1)) == [1.0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("weights", [(1, 1), (1, 1, 1, 1, 1), (3, 1), (1, 2, 4), (0.1, 1, 1)])
def test_each_endpoint_gets_its_share(
    policy: type[LeastRequest[Server] | RoundRobin[Server]], weights: tuple[float, ...]
) -> None:
    shares = request_shares(policy(rng().random), table(*weights))
    assert shares == pytest.approx([each / sum(weights) for each in weights], abs=0.02)


def test_round_robin_is_as_even_as_possible() -> None:
    candidates = table(1, 1, 1)
    policy = RoundRobin[Server](rng().random)
    for _ in range(100):
        assert len({policy.pick(candidates, "").name for _ in candidates.members}) == 3
    heavy = table(3, 1)
    chosen = [policy.pick(heavy, "").name for _ in range(400)]
    for i in range(0, 400, 4):
        assert chosen[i : i + 4].count(b"0") == 3


def test_round_robin_starts_at_a_random_endpoint() -> None:
    candidates = table(1, 1, 1, 1)
    first_endpoints = {
        RoundRobin[Server](random.Random(i).random).pick(candidates, "").name for i in range(50)
    }
    assert len(first_endpoints) == 4


def test_the_busier_of_two_endpoints_is_never_picked() -> None:
    candidates = table(1, 1)
    candidates.members[0].active = 1
    assert request_shares(LeastRequest(rng().random), candidates, 100) == [0.0, 1.0]


def test_the_busiest_of_many_endpoints_is_never_picked() -> None:
    candidates = table(*[1] * 10)
    candidates.members[3].active = 5
    shares = request_shares(LeastRequest(rng().random), candidates)
    assert shares.pop(3) == 0.0
    assert min(shares) > 0.08


def test_requests_in_flight_are_divided_by_the_weight() -> None:
    candidates = table(3, 1)
    candidates.members[0].active = 2
    candidates.members[1].active = 1
    shares = request_shares(LeastRequest(rng().random), candidates)
    assert shares[0] > 0.9, "the endpoint of weight 1 is picked only if both draws select it"
    candidates.members[0].active = 4
    assert request_shares(LeastRequest(rng().random), candidates)[1] > 0.4


def test_two_choices_keep_the_longest_queue_short() -> None:
    """10,000 requests start, and none ends. With one random choice instead of two, the longest of
    the 100 queues would have about 125 requests."""
    members = servers(*[1.0] * 100)
    policy = LeastRequest[Server](rng().random)
    candidates = CandidateTable(members)
    for _ in range(10_000):
        policy.pick(candidates).active += 1
    assert max(each.active for each in members) <= 104


def test_a_key_keeps_its_endpoint_and_requests_without_a_key_use_all_endpoints() -> None:
    candidates = table(1, 1, 1)
    policy = ConsistentHash[Server](RoundRobin(rng().random))
    owners = {key: policy.pick(candidates, key).name for key in map(str, range(100))}
    assert set(owners.values()) == {b"0", b"1", b"2"}
    fewer = CandidateTable([each for each in candidates.members if each.name != b"1"])
    for key, owner in owners.items():
        assert policy.pick(candidates, key).name == owner
        if owner != b"1":
            assert policy.pick(fewer, key).name == owner
    assert request_shares(policy, candidates, 3000) == pytest.approx([1 / 3] * 3)
