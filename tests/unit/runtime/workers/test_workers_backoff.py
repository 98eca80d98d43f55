from __future__ import annotations

import pytest

from infergate.runtime.workers.restart_backoff import RestartBackoff


def test_delays_double_up_to_half_a_minute() -> None:
    backoff = RestartBackoff(random_float=lambda: 1.0)
    delays = [backoff.next_delay(lifetime=0.5) for _ in range(12)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert delays[-2:] == [30.0, 30.0]


def test_a_long_lifetime_resets_the_delay() -> None:
    backoff = RestartBackoff(random_float=lambda: 1.0)
    for _ in range(9):
        backoff.next_delay(lifetime=59)
    assert backoff.next_delay(lifetime=60) == 0.1
    assert backoff.next_delay(lifetime=0) == 0.2


def test_jitter_shortens_the_delay_by_up_to_a_half() -> None:
    assert RestartBackoff(random_float=lambda: 0.0).next_delay(lifetime=0) == 0.05
    assert RestartBackoff(random_float=lambda: 0.5).next_delay(lifetime=0) == pytest.approx(0.075)
