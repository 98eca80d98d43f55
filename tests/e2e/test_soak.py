"""A minute of ``make soak``: all protocols, about three in a hundred clients broken, servers that
are killed, cut off and hang, and reloads; nothing fails without a reason, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.running import ENGINE

PROJECT = Path(__file__).resolve().parent.parent.parent
PACED = ("--seconds=60", "--rate=10", "--callers=4", "--faults=3", "--outage=6", "--reload=8")
"""A minute of the clock, but little of the processors, which other tests have at the same time.
Nothing is judged by how fast it is."""


@pytest.mark.timeout(900)
def test_a_minute_of_everything() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bench.soak", *PACED, "--engine", ENGINE],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
