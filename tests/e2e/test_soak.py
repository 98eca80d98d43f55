"""Runs twelve seconds of ``make soak``: all protocols, broken clients, reloads, and servers that
are killed, disconnected or hang. No request may fail unexpectedly, and no resource may leak."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.running import ENGINE

PROJECT = Path(__file__).resolve().parent.parent.parent
OPTIONS = ("--seconds=12", "--rate=10", "--callers=4", "--faults=4", "--outage=1.5", "--reload=3")
"""A low rate leaves the processors to other tests; no assertion depends on speed."""


@pytest.mark.timeout(900)
def test_twelve_seconds_of_all_traffic_and_outages_leave_no_failure() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "bench.soak", *OPTIONS, "--engine", ENGINE],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
