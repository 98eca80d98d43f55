"""Tests that a request in a forwarding loop is rejected after eight hops."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton

from e2e.running import LISTENERS, Infergate, started_infergate
from faults.peer import post as post_bytes
from infergate.core.hops import HOPS_HEADER
from infergate.observe.request_counters import CLIENT_OUTCOMES

BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
).encode()


LISTENERS_AND_BACKENDS = (
    LISTENERS
    + """
backends:
  rest: {{protocol: v2-rest, endpoints: ["http://[::ffff:127.0.0.1]:{2}"]}}
  rpc: {{protocol: v2-grpc, endpoints: ["grpc://[::ffff:127.0.0.1]:{1}"]}}
"""
)
"""A gateway whose backends are its own ports. ``--check`` finds only the loops whose addresses it
recognizes."""
ROUTES = """
routes:
  - {model: "rest*", backend: rest}
  - {model: "rpc*", backend: rpc, idempotent: true, retry: {times: 3}}
  - {model: hops, backend: rest}
"""
ONE_LOOP = {"loop_detected": 1, "too_many_hops": 8}
"""The outcomes of one client's request: a failure of its first pass through the gateway, and client
errors of the next eight passes."""


@pytest.fixture(scope="module")
def loop() -> Iterator[Infergate]:
    with started_infergate(ROUTES, LISTENERS_AND_BACKENDS) as running:
        yield running


def post(address: str, model: str, hops: str | None = None) -> tuple[int, str]:
    headers = {} if hops is None else {HOPS_HEADER: hops}
    response = post_bytes(address, f"/v2/models/{model}/infer", BODY, headers)
    return response.status, response.body.decode()


def outcomes(loop: Infergate, route: str) -> dict[str, int]:
    """Return the number of requests of a route by outcome."""
    counts: dict[str, int] = {}
    for line in loop.metrics().splitlines():
        if line.startswith("infergate_requests_total{") and f'route="{route}"' in line:
            outcome = line.partition('outcome="')[2].partition('"')[0]
            counts[outcome] = counts.get(outcome, 0) + int(float(line.rpartition(" ")[2]))
    return counts


def test_rest_clients_of_a_loop_get_508_after_eight_gateways(loop: Infergate) -> None:
    status, text = post(loop.http, "rest")
    assert status == 508
    assert "forwarding loop: the request has passed 8 gateways" in text
    assert outcomes(loop, "rest*") == ONE_LOOP


def test_grpc_clients_of_a_loop_get_failed_precondition_and_nothing_is_retried(
    loop: Infergate,
) -> None:
    tensor = triton.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    expected_error = pytest.raises(triton.InferenceServerException, match="has passed 8 gateways")
    with triton.InferenceServerClient(loop.grpc) as client, expected_error as caught:
        client.infer("rpc", [tensor])
    assert caught.value.status() == "StatusCode.FAILED_PRECONDITION"
    assert outcomes(loop, "rpc*") == ONE_LOOP


def test_a_translated_request_in_a_loop_gets_the_same_text(loop: Infergate) -> None:
    status, text = post(loop.http, "rpc")
    assert (status, "has passed 8 gateways" in text) == (508, True)


def test_hops_that_a_client_sends_never_make_a_route_look_failing(loop: Infergate) -> None:
    for hops in ("8", "7", "0"):
        status, text = post(loop.http, "hops", hops)
        assert (status, "forwarding loop" in text) == (508, True)
    assert outcomes(loop, "hops") == {"too_many_hops": 1 + 2 + 9}
    assert "too_many_hops" in CLIENT_OUTCOMES
