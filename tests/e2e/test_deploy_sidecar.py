"""Tests that a legacy server beside the gateway receives SIGTERM only after the gateway has
exited."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
import yaml

from e2e.running import started_infergate
from faults.peer import get
from faults.watch import until
from peers.support.installed import PROJECT

CONFIG = """
backends: {demo: {protocol: builtin}}
routes: [{model: "*", backend: demo}]
drain: {delay: 6s, timeout: 10s}
"""


@pytest.mark.peers
def test_the_server_stops_after_the_gateway_has_drained() -> None:
    patch = yaml.safe_load((PROJECT / "deploy/kubernetes/sidecar/trt.yaml").read_text())
    containers = patch["spec"]["template"]["spec"]["containers"]
    (server,) = (each for each in containers if each["name"] == "trtserver")
    program, flag, script = server["lifecycle"]["preStop"]["exec"]["command"]
    with started_infergate(CONFIG) as gateway:
        _, _, admin = gateway.admin.rpartition(":")
        pre_stop_hook = subprocess.Popen([program, flag, script.replace("8002", admin)])
        os.kill(gateway.pid, signal.SIGTERM)
        signalled_at = time.monotonic()
        # While the gateway drains, it is not ready, but still serves and still needs the server.
        until(lambda: get(gateway.admin, "/readyz").status == 503, "the gateway is not ready")
        assert get(gateway.http, "/v2/models/identity").status == 200
        assert pre_stop_hook.poll() is None
        assert pre_stop_hook.wait(100) == 0
        assert time.monotonic() - signalled_at >= 6  # not before the end of the drain
        with pytest.raises(ConnectionRefusedError):
            get(gateway.http, "/v2/models/identity")
