from __future__ import annotations

import pytest

from infergate.runtime.workers.restart_backoff import RestartBackoff


def test_waits_double_up_to_half_a_minute() -> None:
    backoff = RestartBackoff(random_float=lambda: 1.0)
    waits = [backoff.next_delay(lifetime=0.5) for _ in range(12)]
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert waits[-2:] == [30.0, 30.0]


def test_a_long_lived_worker_resets_the_backoff() -> None:
    backoff = RestartBackoff(random_float=lambda: 1.0)
    for _ in range(9):
        backoff.next_delay(lifetime=59)
    assert backoff.next_delay(lifetime=60) == 0.1
    assert backoff.next_delay(lifetime=0) == 0.2


def test_jitter_subtracts_up_to_half() -> None:
    assert RestartBackoff(random_float=lambda: 0.0).next_delay(lifetime=0) == 0.05
    assert RestartBackoff(random_float=lambda: 0.5).next_delay(lifetime=0) == pytest.approx(0.075)
