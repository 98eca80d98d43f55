"""Tests that the test server reproduces the hazards of the real servers v1.9 and v1.15, and the
differences between these versions."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from legacy.messages import SERVICE, Messages
from legacy.replay import HTTP, Response
from legacy.running import LegacyServer, started_legacy

INPUTS = 'input { name: "INPUT0" } input { name: "INPUT1" }'
SIMPLE = f'batch_size: 1 {INPUTS} output {{ name: "OUTPUT0" }} output {{ name: "OUTPUT1" }}'
NUMBERS = struct.pack("<32i", *range(16), *[1] * 16)
SUMS = struct.pack("<16i", *range(1, 17))
DIFFERENCES = struct.pack("<16i", *range(-1, 15))


@pytest.fixture(scope="module")
def old() -> Iterator[LegacyServer]:
    with started_legacy() as running:
        yield running


@pytest.fixture(scope="module")
def new() -> Iterator[LegacyServer]:
    with started_legacy("--level", "1.15") as running:
        yield running


def response_to(server: LegacyServer, request: bytes) -> Response | None:
    with HTTP(server.http) as connection:
        connection.send(request)
        return connection.response()


def get(server: LegacyServer, target: str, *headers: str) -> Response:
    lines = [f"GET {target} HTTP/1.1", "Host: x", *headers, "", ""]
    response = response_to(server, "\r\n".join(lines).encode())
    assert response
    return response


def infer(
    server: LegacyServer, header: str, body: bytes = NUMBERS, model: str = "simple"
) -> Response | None:
    request = (
        f"POST /api/infer/{model} HTTP/1.1\r\nHost: x\r\nNV-InferRequest:{header}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return response_to(server, request.encode() + body)


def infer_response(server: LegacyServer, *request: Any) -> Response:
    response = infer(server, *request)
    assert response
    return response


def nv_status(response: Response) -> str:
    return response.header("NV-Status") or ""


def has_exited(server: LegacyServer) -> bool:
    """Return whether the process ends within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


CHUNKED = (
    f"POST /api/infer/simple HTTP/1.1\r\nHost: x\r\nNV-InferRequest: {SIMPLE}\r\n"
    "Transfer-Encoding: chunked\r\n\r\n80\r\n"
).encode() + NUMBERS
WITHOUT_HEADER = b"POST /api/infer/simple HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("level", ["1.9", "1.15"])
def test_a_chunked_body_crashes_the_server(level: str) -> None:
    with started_legacy("--level", level) as server:
        assert response_to(server, CHUNKED) is None
        assert has_exited(server)
        assert server.requests()[-1] == {"crashed": "a chunked body without Content-Length"}


def test_a_request_without_nv_inferrequest_crashes_v1_9() -> None:
    with started_legacy() as server:
        assert response_to(server, WITHOUT_HEADER) is None
        assert has_exited(server)


def test_v1_15_rejects_a_request_without_nv_inferrequest(new: LegacyServer) -> None:
    response = response_to(new, WITHOUT_HEADER)
    assert response
    assert response.raw == (
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 51\r\nContent-Type: text/plain\r\n\r\n"
        b"The request header should contain 'NV-InferRequest'"
    )


@pytest.mark.parametrize(
    ("model", "header", "body"),
    [
        ("simple", SIMPLE, NUMBERS[:-4]),
        ("simple", SIMPLE, NUMBERS + b"more"),
        ("simple", SIMPLE.replace("} input", 'shared_memory { name: "x" } } input', 1), NUMBERS),
        ("identity_string", 'batch_size: 1 input { name: "INPUT0" dims: 1 }', b"\1\0\0\0a"),
    ],
    ids=["short", "long", "unknown region", "string without size"],
)
def test_v1_15_closes_the_connection_where_v1_9_returns_an_error(
    old: LegacyServer, new: LegacyServer, model: str, header: str, body: bytes
) -> None:
    assert infer(new, header, body, model) is None
    assert "code: SUCCESS" in nv_status(infer_response(new, SIMPLE))
    response = infer_response(old, header, body, model)
    assert response.code == 400
    assert "code: SUCCESS" not in nv_status(response)


def test_each_header_value_is_limited_to_8190_bytes(old: LegacyServer) -> None:
    def header_of_size(size: int) -> str:
        return f"{SIMPLE} #".ljust(size, "x")

    assert "code: SUCCESS" in nv_status(infer_response(old, header_of_size(8190)))
    assert infer(old, header_of_size(8191)) is None
    long_headers = "\r\n".join(f"X-{i}: {'y' * 1000}" for i in range(16))
    assert "code: SUCCESS" in nv_status(infer_response(old, f"{SIMPLE}\r\n{long_headers}"))


def test_pipelined_requests_are_lost(old: LegacyServer) -> None:
    with HTTP(old.http) as connection:
        connection.send(b"GET /api/health/live HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        assert connection.response()
        assert connection.rest() == b""


def test_v1_15_reorders_outputs_over_http(new: LegacyServer) -> None:
    response = infer_response(new, SIMPLE)
    header = response.header("NV-InferResponse") or ""
    assert header.index("OUTPUT1") < header.index("OUTPUT0")
    assert response.body.startswith(DIFFERENCES + SUMS + b"model_name")


def test_v1_15_reorders_outputs_over_grpc(new: LegacyServer) -> None:
    messages = Messages("1.15")
    names = [{"name": "INPUT0"}, {"name": "INPUT1"}]
    header = messages.InferRequestHeader(
        batch_size=1, input=names, output=[{"name": "OUTPUT0"}, {"name": "OUTPUT1"}]
    )
    request = messages.InferRequest(
        model_name="simple",
        model_version=-1,
        meta_data=header,
        raw_input=[NUMBERS[:64], NUMBERS[64:]],
    )
    with grpc.insecure_channel(new.grpc) as channel:
        data = channel.unary_unary(f"/{SERVICE}/Infer")(request.SerializeToString(), timeout=20)
    response = messages.InferResponse.FromString(data)
    assert [output.name for output in response.meta_data.output] == ["OUTPUT1", "OUTPUT0"]
    assert list(response.raw_output) == [DIFFERENCES, SUMS]


@pytest.mark.parametrize(
    ("model", "message_of_1_9", "message_of_1_15"),
    [
        ("nosuch", r"\'nosuch\'", r"\'nosuch\' is not found"),
        ("simple/99", r"\'simple\'", r"\'simple\' version 99 is not found"),
        ("broken", r"\'broken\'", r"\'broken\' has no available versions"),
    ],
)
def test_each_version_has_its_error_for_an_unknown_model(
    old: LegacyServer, new: LegacyServer, model: str, message_of_1_9: str, message_of_1_15: str
) -> None:
    for server, message in (
        (old, f"Inference request for unknown model {message_of_1_9}"),
        (new, f"Request for unknown model: {message_of_1_15}"),
    ):
        status = nv_status(infer_response(server, SIMPLE, NUMBERS, model))
        assert f'code: UNAVAILABLE msg: "{message}"' in status


def test_v1_15_rejects_duplicate_outputs(new: LegacyServer) -> None:
    duplicates = f'batch_size: 1 {INPUTS} output {{ name: "OUTPUT0" }} output {{ name: "OUTPUT0" }}'
    status = nv_status(infer_response(new, duplicates))
    assert r'code: INVALID_ARG msg: "output \'OUTPUT0\' already requested"' in status


def test_v1_9_rejects_fields_of_v1_15(old: LegacyServer, new: LegacyServer) -> None:
    request = f"{SIMPLE} priority: 1 timeout_microseconds: 5"
    assert "code: SUCCESS" in nv_status(infer_response(new, request))
    response = infer_response(old, request)
    assert response.headers == (("Content-Length", "0"), ("Content-Type", "text/plain"))


def test_v1_15_returns_status_as_json_if_requested(old: LegacyServer, new: LegacyServer) -> None:
    for response in (
        get(new, "/api/status/simple?format=json"),
        get(new, "/api/status/simple", "Accept: application/json"),
    ):
        config = json.loads(response.body)["model_status"]["simple"]["config"]
        assert config["max_batch_size"] == 8
        assert config["input"][0] == {"name": "INPUT0", "data_type": "TYPE_INT32", "dims": ["16"]}
    assert get(old, "/api/status/simple?format=json").body.startswith(b"id: ")


def test_an_unready_server_returns_400_with_status_success() -> None:
    with started_legacy("--hazard", "not_ready") as server:
        response = get(server, "/api/health/ready")
        assert response.code == 400
        assert nv_status(response).startswith("code: SUCCESS server_id:")
        assert b"ready_state: SERVER_INITIALIZING" in get(server, "/api/status").body
        messages = Messages("1.9")
        with grpc.insecure_channel(server.grpc) as channel:
            request = messages.HealthRequest(mode="ready").SerializeToString()
            data = channel.unary_unary(f"/{SERVICE}/Health")(request, timeout=20)
        assert not messages.HealthResponse.FromString(data).health


def test_the_silent_hazard_closes_connections_of_inferences_only() -> None:
    with started_legacy("--hazard", "silent") as server:
        assert infer(server, SIMPLE) is None
        assert get(server, "/api/health/ready").code == 200


def test_many_classes_make_a_long_header_and_inferences_are_delayed() -> None:
    request = (
        'batch_size: 1 input { name: "INPUT0" } output { name: "OUTPUT0" cls { count: 1000 } }'
    )
    scores = struct.pack("<1000f", *range(1000))
    with started_legacy("--hazard", "many_classes", "--delay-ms", "200") as server:
        began = time.monotonic()
        response = infer_response(server, request, scores, "classify_many")
        assert time.monotonic() - began >= 0.2
    header = response.header("NV-InferResponse") or ""
    assert header.count('label: "label number ') == 1000
    assert len(header) > 40_000
