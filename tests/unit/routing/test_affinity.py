"""The endpoint that owns a sequence."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from infergate.core.sequences import SequenceKey
from infergate.routing.affinity import hash_key, rendezvous_owner

NAMES = [f"10.0.0.{number}:8000" for number in range(1, 6)]


class Server(NamedTuple):
    name: bytes
    weight: float = 1.0


def owner(sequence: SequenceKey, names: list[str] = NAMES, heavy: str = "") -> str:
    """Return the owner of ``sequence``. The endpoint ``heavy`` has three times the weight."""
    servers = [Server(name.encode(), 3.0 if name == heavy else 1.0) for name in names]
    return rendezvous_owner(hash_key(sequence), servers).name.decode()


SEQUENCES = [SequenceKey("m", number) for number in range(1, 2001)]


def test_owners_are_the_same_in_every_process_and_release() -> None:
    """Other gateways may still run the first release, which chose these owners."""
    owners = [owner(each) for each in SEQUENCES[:8]]
    assert [NAMES.index(name) for name in owners] == [0, 3, 4, 1, 4, 2, 3, 4]
    assert owner(SequenceKey("modèle", "séquence")) == NAMES[0]


@given(st.permutations(NAMES), st.sampled_from(SEQUENCES))
def test_the_order_of_the_endpoints_does_not_matter(
    names: list[str], sequence: SequenceKey
) -> None:
    assert owner(sequence, names) == owner(sequence)


def test_sequences_are_spread_evenly() -> None:
    counts = Counter(owner(each) for each in SEQUENCES)
    assert set(counts) == set(NAMES)
    assert min(counts.values()) > len(SEQUENCES) / len(NAMES) * 0.8
    assert max(counts.values()) < len(SEQUENCES) / len(NAMES) * 1.2


def test_removing_an_endpoint_moves_only_its_own_sequences() -> None:
    for each in SEQUENCES:
        if owner(each) != NAMES[0]:
            assert owner(each, NAMES[1:]) == owner(each)


def test_a_number_and_its_text_have_the_same_owner() -> None:
    for each in SEQUENCES:
        assert owner(each) == owner(SequenceKey(each.model, str(each.id)))


def test_owners_depend_on_the_model() -> None:
    assert len({owner(SequenceKey(f"m{number}", 1)) for number in range(50)}) > 1


@given(st.text(st.characters(exclude_categories=[])), st.text(st.characters(exclude_categories=[])))
def test_any_text_has_an_owner(model: str, sequence_id: str) -> None:
    assert owner(SequenceKey(model, sequence_id)) in NAMES


def test_a_higher_weight_takes_its_share_from_other_owners() -> None:
    owners = {each: owner(each, heavy=NAMES[0]) for each in SEQUENCES}
    assert 0.8 < Counter(owners.values())[NAMES[0]] / len(SEQUENCES) / (3 / 7) < 1.2
    for each, weighted_owner in owners.items():
        assert weighted_owner in (owner(each), NAMES[0])
