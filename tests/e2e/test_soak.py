"""A minute of ``make soak``: all protocols, about three in a hundred clients broken, servers that
are killed, cut off and hang, and reloads; nothing fails without a reason, and nothing is left."""

from __future__ import annotations

import pytest
from bench.soak import main

from e2e.running import ENGINE

PACED = (
    *("--seconds", "60", "--rate", "10", "--callers", "4"),
    *("--faults", "3", "--outage", "6", "--reload", "8"),
)
"""A minute of the clock, but little of the processors, which other tests have at the same time.
Nothing is judged by how fast it is."""


@pytest.mark.timeout(900)
def test_a_minute_of_everything() -> None:
    assert main([*PACED, "--engine", ENGINE]) == 0
