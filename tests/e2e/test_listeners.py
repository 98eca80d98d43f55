"""Tests additional listeners on ports and Unix sockets, and ``infergate rest-proxy``."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient

from e2e.clients import client
from e2e.running import started_infergate
from faults.peer import get
from peers.support.process import Launch, free_ports, started
from tls_kit import Authority

CONFIG = """
backends: {demo: {protocol: builtin}}
routes: [{model: "*", backend: demo}]
"""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("sockets")
    port = free_ports(1)[0]
    listeners = f"""
listeners:
  http: {{{{address: "127.0.0.1:{{2}}"}}}}
  grpc: {{{{address: "127.0.0.1:{{1}}"}}}}
  admin: {{{{address: "127.0.0.1:{{0}}"}}}}
  additional:
    graphpipe: {{{{address: "127.0.0.1:{port}", protocols: [graphpipe]}}}}
    v2: {{{{address: "unix:{folder}/v2.sock", protocols: [v2-rest], mode: "600"}}}}
    tfs: {{{{address: "unix:{folder}/tfs.sock", protocols: [tfs-grpc, v2-grpc], mode: "600"}}}}
"""
    with started_infergate(CONFIG, listeners, engine="own") as running:
        yield {
            "http": running.http,
            "graphpipe": f"127.0.0.1:{port}",
            "v2": f"{folder}/v2.sock",
            "tfs": f"{folder}/tfs.sock",
            "metrics": running.metrics(),
        }


def test_an_additional_listener_serves_only_its_protocols(addresses: dict[str, str]) -> None:
    for path, expected in (("/graphpipe/simple", 200), ("/v2/models/simple", 404)):
        assert get(addresses["graphpipe"], path).status == expected
        assert get(addresses["http"], path).status == 200
    assert 'listener="additional.graphpipe"' in addresses["metrics"]


def test_unix_sockets_serve_their_protocols_with_the_configured_mode(
    addresses: dict[str, str],
) -> None:
    assert get(f"unix:{addresses['v2']}", "/v2/models/simple").json["name"] == "simple"
    with grpc.insecure_channel(f"unix:{addresses['tfs']}") as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/GetModelMetadata")
        with pytest.raises(grpc.RpcError, match="Missing ModelSpec"):
            call(b"")
    with InferenceServerClient(f"unix:{addresses['tfs']}") as triton:
        assert triton.is_server_ready()
    for name in ("v2", "tfs"):
        assert stat.S_IMODE(Path(addresses[name]).stat().st_mode) == 0o600


@pytest.mark.parametrize("over_tls", [False, True])
def test_rest_proxy_serves_a_grpc_server(tmp_path: Path, over_tls: bool) -> None:
    listeners = """
listeners:
  http: {{address: "127.0.0.1:{2}"}}
  grpc: {{address: "127.0.0.1:{1}"TLS}}
  admin: {{address: "127.0.0.1:{0}"}}
"""
    environ: dict[str, str] = {}
    tls = ""
    if over_tls:
        pair = Authority(tmp_path).issue("other.example")
        tls = f", tls: {{{{certificate: {pair.certificate}, key: {pair.key}}}}}"
        environ = {"REST_PROXY_USE_TLS": "true", "REST_PROXY_SKIP_VERIFY": "true"}
    with started_infergate(CONFIG, listeners.replace("TLS", tls), engine="own") as server:

        def prepare(_folder: Path) -> Launch:
            (port,) = free_ports(1)
            environ["REST_PROXY_LISTEN_PORT"] = str(port)
            environ["REST_PROXY_GRPC_PORT"] = server.grpc.rpartition(":")[2]
            argv = [sys.executable, "-m", "infergate", "rest-proxy", "--log-format", "json"]
            return Launch("rest-proxy", argv, {**os.environ, **environ}, [port])

        with started(prepare) as proxy:
            address = proxy.addresses[0]
            array: Any = np.arange(6, dtype=np.float32).reshape(2, 3)
            with client("http", address, "") as triton:
                result = triton.infer("identity", [triton.input("INPUT0", array, "FP32")])
                assert (result.as_numpy("OUTPUT0") == array).all()
