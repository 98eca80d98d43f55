"""Tests that a sink or mirror that accepts connections but never responds fails no request, and
that waiting events or copies hold at most a quarter of ``limits.in_flight_bytes``."""

from __future__ import annotations

import json
import select
import socket

import pytest

from e2e.running import Infergate, started_infergate
from faults.peer import post
from faults.watch import metric
from infergate.core.limits import MIB

BUDGET = 24 * MIB
LOG = "payload_log: {}"
MIRROR = "mirror: {backend: silent, max_requests: 1000}"
COMPARED_MIRROR = "mirror: {backend: silent, max_requests: 1000, compare: {}}"
COPIES = "infergate_mirrored_requests_total", {"outcome": "dropped"}
EVENTS = "infergate_payload_events_total", {"result": "dropped"}


CONFIG = """
backends:
  embedded: {protocol: builtin}
  silent: {protocol: v2-rest, endpoints: ["http://SILENT"], timeout: 60s}
payload_log:
  http: {url: "http://SILENT/", timeout: 60s}
routes:
  - {model: "*", backend: embedded, FEATURES}
limits: {in_flight_bytes: 24MiB}
readiness: lenient
"""


def infer(gateway: Infergate, size: int) -> int:
    """Return the status of the response to a request with a tensor of ``size`` bytes."""
    tensor = {"name": "INPUT0", "datatype": "UINT8", "shape": [size],
              "parameters": {"binary_data_size": size}}  # fmt: skip
    options = {"parameters": {"binary_data_output": True}}
    document = json.dumps({"inputs": [tensor], **options}).encode()
    headers = {"Inference-Header-Content-Length": str(len(document))}
    return post(gateway.http, "/v2/models/identity/infer", document + bytes(size), headers).status


@pytest.mark.parametrize(
    ("features", "dropped"),
    [
        (LOG, [EVENTS]),
        (MIRROR, [COPIES]),
        (COMPARED_MIRROR, [COPIES]),
        (f"{LOG}, {MIRROR}", [EVENTS, COPIES]),
    ],
    ids=["log", "mirror", "comparison", "log and mirror"],
)
def test_requests_are_served_while_a_sink_or_mirror_hangs(
    features: str, dropped: list[tuple[str, dict[str, str]]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the server never reads
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config = CONFIG.replace("SILENT", address).replace("FEATURES", features)
        with started_infergate(config) as gateway:
            statuses = [infer(gateway, MIB // 4) for _ in range(100)]
            statuses += [infer(gateway, 4 * MIB) for _ in range(5)]
            assert statuses == [200] * 105
            assert select.select([silent], [], [], 60)[0], "the gateway did not connect"
            assert all(metric(gateway, name, **labels) > 0 for name, labels in dropped)
            assert 0 < metric(gateway, "infergate_in_flight_bytes") <= BUDGET // 4
