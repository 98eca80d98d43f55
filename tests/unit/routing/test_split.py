"""The positions of keys, and the target of a traffic split that a key selects."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from infergate.routing.split import hash_position, pick_target

KEYS = [f"user-{number}" for number in range(20_000)]


def test_positions_are_the_same_in_every_process_and_release() -> None:
    assert [round(hash_position(key), 3) for key in ("", "a", "modèle\0séquence", "\ud800")] == [
        89.317,
        25.379,
        60.813,
        25.794,
    ]


def test_each_target_gets_its_share() -> None:
    counts = Counter(pick_target((5, 20.5), key) for key in KEYS)
    assert abs(counts[0] / len(KEYS) - 0.05) < 0.006
    assert abs(counts[1] / len(KEYS) - 0.205) < 0.012
    assert abs(counts[None] / len(KEYS) - 0.745) < 0.012


def test_a_growing_share_only_adds_keys() -> None:
    few, many = ({key for key in KEYS if pick_target((share,), key) == 0} for share in (5, 25))
    assert few < many


@given(st.text(st.characters(exclude_categories=[])))
def test_shares_of_100_percent_take_every_key_and_no_shares_take_none(key: str) -> None:
    assert pick_target((100.0,), key) == 0
    assert pick_target((), key) is None
    assert pick_target((50, 50), key) in (0, 1)
