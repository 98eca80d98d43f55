"""Tests the statements of docs/scaling.md with gateways that each have a network namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from bench.lan import is_possible

from peers.support.installed import PROJECT


@pytest.mark.peers
def test_a_fleet_acts_as_one_gateway() -> None:
    if not is_possible():
        pytest.skip("needs network namespaces (root, and iproute2)")
    argv = [sys.executable, "-m", "bench.fleet", "--seconds", "0", "--gateways", "3"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    completed = subprocess.run(
        argv, cwd=PROJECT, check=False, capture_output=True, text=True, timeout=280, env=env
    )
    assert completed.returncode == 0, completed.stderr
    report = json.loads(completed.stdout)
    sequences = report["sequences"]
    # Any gateway may get a step of a sequence, but all steps go to one server.
    assert sequences["right"] == 1200, report
    assert min(sequences["by_server"]) > 200  # an even share would be 400
    assert sequences["after_a_gateway_died"] == {"right": 300}  # the killed gateway had no state
    assert report["killed"].keys() <= {"200", "broken"}  # only requests in progress failed
    assert report["drained"].keys() == {"200"}  # no request failed
    joined = report["joined"]
    assert joined.keys() <= {"right", "refused"}, report  # never a wrong sum
    assert 30 < joined["refused"] < 130  # a quarter of the sequences moved
