"""Tests the statements of docs/scaling.md with several gateways, each on its own machine."""

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
    done = subprocess.run(
        argv, cwd=PROJECT, check=False, capture_output=True, text=True, timeout=280, env=env
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    sequences = found["sequences"]
    assert sequences["right"] == 1200, (
        found
    )  # any gateway may get a step, but no sequence uses two servers
    assert min(sequences["by_server"]) > 200  # out of 400
    assert sequences["after_a_gateway_died"] == {"right": 300}  # the stopped gateway had no state
    assert found["killed"].keys() <= {"200", "broken"}  # only requests in progress failed
    assert found["drained"].keys() == {"200"}  # no request failed
    joined = found["joined"]
    assert joined.keys() <= {"right", "refused"}, found  # never a wrong sum
    assert 30 < joined["refused"] < 130  # a quarter of the sequences moved
