from __future__ import annotations

import pytest

from infergate.migration.replay.pace import Pace


@pytest.mark.parametrize(
    ("pace", "expected"),
    [
        (Pace(), [0.0, 1.0, 3.0, 0.0]),
        (Pace(speed=2), [0.0, 0.5, 1.5, 0.0]),
        (Pace(rate=10), [0.0, 0.1, 0.2, 0.3]),
        (Pace(speed=2, rate=10), [0.0, 0.1, 0.2, 0.3]),
        (Pace(speed=None), [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_inferences_follow_the_recorded_pace_or_a_rate(pace: Pace, expected: list[float]) -> None:
    times = [1000.0, 1001.0, 1003.0, 999.0]  # the clock was set back
    assert [pace.due(index, time) for index, time in enumerate(times)] == pytest.approx(expected)
