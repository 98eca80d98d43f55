"""Tests that malformed tensors and wrong models, versions and paths are rejected before a backend
receives them, for each pair of V2 protocols. The next request and other clients are served."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from e2e.running import ENGINE, Infergate, started_infergate
from faults.low_limits import message
from faults.payloads import REST, RPC, InvalidRequest, document, tensor
from faults.peer import Backend, Client, good_http, post, scripted
from faults.rpc import RpcBackend, call, channel, infer_message, rpc_backend
from faults.watch import alive, assert_healthy, counted, unharmed

CONFIG = """
backends:
  rest: {{protocol: v2-rest, endpoints: ["http://{rest}"], profile: infergate}}
  grpc: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"]}}
  ours: {{protocol: builtin}}
routes:
  - {{model: fwd.rest, backend: rest, rewrite: {{model: m}}}}
  - {{model: fwd.grpc, backend: grpc, rewrite: {{model: m}}}}
  - {{model: tr.rest, backend: rest, rewrite: {{model: m, inputs: {{no: none}}}}}}
  - {{model: tr.grpc, backend: grpc, rewrite: {{model: m, inputs: {{no: none}}}}}}
  - {{model: versioned, version: "1", backend: grpc, rewrite: {{model: m}}}}
  - {{model: identity, backend: ours}}
models:
  tr.rest: &model {{inputs: [{{name: INPUT0, datatype: INT32, shape: [4]}}]}}
  tr.grpc: *model
  fwd.grpc: *model
limits: {{body: 128KiB}}
"""
ROUTES = ("fwd.rest", "tr.rest", "fwd.grpc", "tr.grpc")
"""The backend of the frontend's own protocol gets requests that are passed through; the other
backend gets translated requests."""
VALID_BODY = document(tensor(), tensor(name="INPUT1"))
WRONG = (
    "bad_request", "too_large", "not_found", "unsupported", "unsupported_encoding",
    "method_not_allowed",
)  # fmt: skip


@dataclass(frozen=True)
class Harness:
    """The gateway, its backends, and another client that sends valid requests."""

    gateway: Infergate
    rest: Backend
    rpc: RpcBackend
    channel: grpc.Channel
    others: ThreadPoolExecutor
    refused: list[str] = field(default_factory=list)

    def check_success(self, route: str) -> None:
        path = f"/v2/models/{route}/infer"
        assert post(self.gateway.http, path, document(tensor())).status == 200
        assert call(self.channel, infer_message(route)).code is grpc.StatusCode.OK

    def reached(self) -> int:
        """Return the number of requests that reached any backend."""
        return len(self.rest.requests) + len(self.rpc.requests)

    def good(self) -> bool:
        """Send another client's requests over both protocols, and return whether they succeed."""
        answer = post(self.gateway.http, "/v2/models/identity/infer", VALID_BODY)
        status = call(self.channel, message())
        return answer.status == 200 and status.code is grpc.StatusCode.OK


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with scripted(good_http) as rest, rpc_backend() as rpc:
        config = CONFIG.format(rest=rest.address, grpc=rpc.address)
        with (
            started_infergate(config) as gateway,
            channel(gateway.grpc) as rpc_channel,
            ThreadPoolExecutor(1) as others,
        ):
            harness = Harness(gateway, rest, rpc, rpc_channel, others)
            assert harness.good()
            for route in ROUTES:  # connects to each backend
                harness.check_success(route)
            with unharmed(gateway, harness.good):
                yield harness
            assert sum(counted(gateway, outcome=each) for each in WRONG) >= len(harness.refused)
            assert_healthy(gateway)


def check_http_rejection(harness: Harness, path: str, invalid: InvalidRequest) -> None:
    headers = dict(invalid.headers or {})
    if invalid.head is not None:
        headers["Inference-Header-Content-Length"] = invalid.head
    with Client(harness.gateway.http) as client:
        client.post(path, invalid.body, headers)
        answer = client.answer()
        if answer.headers.get("connection") != "close":
            client.post("/v2/models/identity/infer", VALID_BODY)
            assert client.answer().status == 200
    assert answer.status in invalid.http, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert re.search(invalid.names, answer.error), answer.error
    harness.refused.append(path)


def check_grpc_rejection(harness: Harness, model: str, invalid: InvalidRequest) -> None:
    status = call(
        harness.channel, pb.ModelInferRequest(model_name=model).SerializeToString() + invalid.body
    )
    assert status.code is invalid.grpc, status
    assert re.search(invalid.names, status.details), status.details
    if ENGINE == "own" or invalid.grpc is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        harness.refused.append(model)


@pytest.mark.parametrize("route", ROUTES)
def test_good_requests_reach_the_backend(harness: Harness, route: str) -> None:
    """The other tests rely on the counters that this test checks."""
    before = harness.reached()
    harness.check_success(route)
    assert harness.reached() == before + 2


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", REST)
def test_rest_requests_with_malformed_tensors_are_rejected(
    harness: Harness, route: str, case: str
) -> None:
    before, other = harness.reached(), harness.others.submit(harness.good)
    check_http_rejection(harness, f"/v2/models/{route}/infer", REST[case])
    assert harness.reached() == before
    assert other.result()
    assert alive(harness.gateway)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", RPC)
def test_grpc_requests_with_malformed_tensors_are_rejected(
    harness: Harness, route: str, case: str
) -> None:
    before, other = harness.reached(), harness.others.submit(harness.good)
    check_grpc_rejection(harness, route, RPC[case])
    assert harness.reached() == before
    assert other.result()
    assert alive(harness.gateway)


RAW = {"Inference-Header-Content-Length": "0"}


@pytest.mark.parametrize("route", [route for route in ROUTES if route != "fwd.rest"])
@pytest.mark.parametrize("body", [b"", b"x" * 15, b"x" * 17])
def test_a_raw_request_that_does_not_fit_the_model_is_rejected(
    harness: Harness, route: str, body: bytes
) -> None:
    before = harness.reached()
    path = f"/v2/models/{route}/infer"
    check_http_rejection(harness, path, InvalidRequest("INPUT0", body, headers=RAW))
    assert harness.reached() == before
    assert post(harness.gateway.http, path, b"x" * 16, RAW).status == 200


def test_passed_through_raw_requests_are_not_validated(harness: Harness) -> None:
    """A raw request has no shape that the gateway could check."""
    before = harness.reached()
    post(harness.gateway.http, "/v2/models/fwd.rest/infer", b"x" * 15, RAW)
    assert harness.reached() == before + 1


@pytest.mark.parametrize("route", ROUTES)
def test_shared_memory_of_another_host_is_unsupported(harness: Harness, route: str) -> None:
    """The gateway returns 501 and UNIMPLEMENTED, because the request is valid but shared memory
    belongs to another host."""
    before = harness.reached()
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    body = document(tensor(data=None, parameters=region))
    check_http_rejection(
        harness, f"/v2/models/{route}/infer", InvalidRequest("INPUT0", body, http=(501,))
    )
    request = pb.ModelInferRequest()
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"
    invalid = InvalidRequest(
        "INPUT0", request.SerializeToString(), grpc=grpc.StatusCode.UNIMPLEMENTED
    )
    check_grpc_rejection(harness, route, invalid)
    assert harness.reached() == before


@pytest.mark.parametrize(
    ("path", "status", "names"),
    [
        ("/v2/models/unknown/infer", 404, "unknown"),
        ("/v2/models/versioned/versions/2/infer", 404, "'2'"),
        ("/v2/models/versioned/infer", 404, "versioned"),
        ("/v2/models//infer", 404, "path"),
        ("/v2/models/fwd.rest/versions//infer", 404, "path"),
        ("/v2/models/fwd.rest/infer/", 404, "path"),
        ("/v2/models/%zz/infer", 400, "model name"),
        ("/v2/models/%ff/infer", 400, "model name"),
        ("/v2/models/../infer", 400, "model name"),
        ("/v2/models/fwd.rest/versions/%2e%2e/infer", 400, "model version"),
        ("/v2/models/fwd.rest", 405, "POST"),
        ("/nothing", 404, "/nothing"),
    ],
)
def test_wrong_models_versions_and_paths_are_rejected(
    harness: Harness, path: str, status: int, names: str
) -> None:
    before = harness.reached()
    check_http_rejection(harness, path, InvalidRequest(names, document(tensor()), http=(status,)))
    assert harness.reached() == before
    assert harness.good()


@pytest.mark.parametrize(
    ("message", "method", "code", "names"),
    [
        (infer_message("unknown"), "ModelInfer", "NOT_FOUND", "unknown"),
        (infer_message("versioned", model_version="2"), "ModelInfer", "NOT_FOUND", "'2'"),
        (infer_message(""), "ModelInfer", "INVALID_ARGUMENT", "model_name"),
        (b"\x0a\x01\xff", "ModelInfer", "INVALID_ARGUMENT", "ModelInferRequest"),
        (b"\x0a\x05", "ModelMetadata", "INVALID_ARGUMENT", "ModelMetadata"),
        (b"", "ModelReady", "INVALID_ARGUMENT", "name"),
        (b"", "NoSuchMethod", "UNIMPLEMENTED", "NoSuchMethod"),
    ],
)
def test_wrong_models_versions_and_methods_are_rejected(
    harness: Harness, message: bytes, method: str, code: str, names: str
) -> None:
    before = harness.reached()
    status = call(harness.channel, message, f"/inference.GRPCInferenceService/{method}")
    assert status.code is grpc.StatusCode[code]
    assert names in status.details
    assert harness.reached() == before
    assert harness.good()


def test_unknown_models_in_bulk_make_no_series(harness: Harness) -> None:
    def send_request(number: int) -> None:
        name = f"unknown-{number}"
        assert post(harness.gateway.http, f"/v2/models/{name}/infer", b"{}").status == 404
        assert call(harness.channel, infer_message(name)).code is grpc.StatusCode.NOT_FOUND

    send_request(0)
    before = len(harness.gateway.metrics().splitlines())
    for number in range(1, 200):
        send_request(number)
    assert len(harness.gateway.metrics().splitlines()) == before
    assert counted(harness.gateway, outcome="not_found") >= 400
