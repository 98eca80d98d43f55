"""Tests the container image, which is built by the Dockerfile's own steps and run as in a cluster.

The test needs no docker (see ``peers.image_steps``). A CI workflow tests that docker executes the
Dockerfile in the same way, and that the base image has the programs of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from peers.support.installed import PROJECT

SECONDS = 800  # pip takes minutes on a busy machine


def can_unshare() -> bool:
    """Return whether this process is root and can use separate mounts, on a Debian with gcc whose
    Python has pip and headers."""
    script = (
        "mount --make-rprivate / && mount -t tmpfs t /mnt && mkdir /mnt/u /mnt/w /mnt/r"
        " && mount -t overlay o -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/r"
        " && unshare --net ip link set lo up && /usr/bin/python3 -m pip --version"
        " && setpriv --version && gcc --version && /usr/bin/python3-config --includes"
    )
    argv = ["unshare", "--mount", "sh", "-c", script]
    try:
        return subprocess.run(argv, check=False, capture_output=True, timeout=60).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.peers
@pytest.mark.timeout(900)
def test_the_image_is_built_and_serves(tmp_path: Path) -> None:
    if not can_unshare():
        pytest.skip(
            "needs root, overlays, network namespaces, and Debian's gcc, python3-pip, python3-dev"
        )
    argv = [
        "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
        sys.executable, "-m", "peers.image_steps", str(PROJECT), str(tmp_path),
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "tests")}
    completed = subprocess.run(
        argv, check=False, capture_output=True, text=True, timeout=SECONDS, env=env
    )
    assert completed.returncode == 0, completed.stderr
    reports = json.loads(completed.stdout)
    assert "infergate" in reports["programs"]
    assert not [each for each in reports["programs"] if each.startswith("pip")]
    for start_mode in ("one", "two"):
        report = reports[start_mode]
        assert report["uids"] == ["65532"] * 4, report["log"]
        assert {int(each, 16) for each in report["capabilities"]} == {0}
        assert report["answers"] == [True, True]  # a helper handles the second request
        assert report["code"] == 0, report["log"]
        assert not report["healthy_afterwards"]
        assert "(compiled engines) serves" in report["log"]
        assert "Traceback" not in report["log"]
