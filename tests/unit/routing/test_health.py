"""The number of checks that mark an endpoint up or down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.routing.health import EndpointHealth


def record_checks(health: EndpointHealth, checks: str) -> str:
    """Record ``checks`` (``+`` for success); return the state after each (``+`` for up)."""
    states = []
    for each in checks:
        health.record_check(succeeded=each == "+")
        states.append("+" if health.is_up else "-")
    return "".join(states)


@pytest.mark.parametrize(
    ("checks", "states"),
    [
        ("+---+++", "+++--++"),
        ("+--+--+-", "++++++++"),
        ("+---+-+-++", "+++------+"),
        ("-+++", "--++"),
        ("--+-++", "-----+"),
    ],
)
def test_the_state_after_each_check(checks: str, states: str) -> None:
    assert record_checks(EndpointHealth(), checks) == states


def test_an_unchecked_endpoint_is_up() -> None:
    health = EndpointHealth()
    assert health.is_up
    assert not health.was_checked
    assert not health.record_check(succeeded=True)
    assert health.was_checked


def test_a_change_is_reported_once() -> None:
    health = EndpointHealth(rise=1, fall=2)
    health.record_check(succeeded=True)
    assert [health.record_check(succeeded=False) for _ in range(4)] == [False, True, False, False]
    assert [health.record_check(succeeded=True) for _ in range(2)] == [True, False]


@given(st.text("+-", min_size=1), st.integers(1, 5), st.integers(1, 5))
def test_the_state_changes_only_after_consecutive_checks(checks: str, rise: int, fall: int) -> None:
    states = "+" + record_checks(EndpointHealth(rise, fall), checks)
    for i in range(2, len(states)):
        if states[i] != states[i - 1]:
            needed = rise if states[i] == "+" else fall
            assert checks[max(0, i - needed) : i] == states[i] * needed
