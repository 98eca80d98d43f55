"""Tests generate, generate_stream and infer_stream with real servers, called directly and through a
gateway, and infer_stream with a scripted server.

The gateway serves Triton's models as ``M`` over V2 REST and as ``grpc.M``, MLServer's models as
``mlserver.M`` over V2 REST, and the embedded models as ``embedded.M``."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as tc
from tritonclient.utils import InferenceServerException

from e2e.running import Infergate, started_infergate
from e2e.test_streams import comes_before_the_last, streaming, tensor
from faults.peer import Backend, Client, Connection, good_http, post, scripted
from faults.watch import counted, limited_growth, logged_bugs, until
from peers.support.mlserver import MLServer
from peers.support.triton import Triton

SERVERS = """
drain: {{delay: 0s, timeout: 20s}}
backends:
  triton: {{protocol: v2-rest, endpoints: ["http://{triton.http}"]}}
  grpc: {{protocol: v2-grpc, endpoints: ["grpc://{triton.grpc}"]}}
  mlserver: {{protocol: v2-rest, endpoints: ["http://{mlserver.http}"]}}
  embedded: {{protocol: builtin}}
routes:
  - {{model: '/grpc\\.(.+)/', backend: grpc, rewrite: &one {{model: '\\1'}}}}
  - {{model: '/mlserver\\.(.+)/', backend: mlserver, rewrite: *one}}
  - {{model: '/embedded\\.(.+)/', backend: embedded, rewrite: *one}}
  - {{model: quick, backend: triton, timeout: 300ms, rewrite: {{model: repeat_int32}}}}
  - {{model: '*', backend: triton}}
"""
EVENT_STREAM = "text/event-stream; charset=utf-8"
ROUTES = ["", "grpc."]
"""Prefixes of Triton's models over V2 REST and over V2 gRPC."""
REPEAT_MODELS = ["repeat_int32", "grpc.repeat_int32", "embedded.repeat"]


@pytest.fixture(scope="module")
def gateway(triton: Triton, mlserver: MLServer) -> Iterator[Infergate]:
    with started_infergate(SERVERS.format(triton=triton, mlserver=mlserver)) as running:
        yield running
        assert logged_bugs(running) == ""


def send_request(address: str, model: str, verb: str, body: Any) -> tuple[int, str, bytes]:
    response = post(address, f"/v2/models/{model}/{verb}", json.dumps(body).encode())
    return response.status, response.headers["content-type"], response.body


def events(body: bytes) -> list[Any]:
    *result, rest = body.split(b"\n\n")
    assert rest == b""
    return [json.loads(each.removeprefix(b"data: ")) for each in result]


def stream_request(model: str, body: bytes, headers: str = "") -> bytes:
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: x\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def repeat_body(model: str, count: int, delay: int = 0, **more: Any) -> dict[str, Any]:
    wait = {} if model.startswith("embedded") else {"WAIT": 0}
    return {"IN": list(range(count)), "DELAY": [delay] * count, **wait, **more}


def count_body(number: int, name: str = "INPUT0") -> dict[str, Any]:
    tensor = {"name": name, "datatype": "INT32", "shape": [1], "data": [number]}
    return {"id": "q", "inputs": [tensor]}


REQUESTS: list[tuple[str, Any]] = [
    ("id_BYTES", {"INPUT0": "hi"}),
    ("id_BYTES", {"INPUT0": ["a", "b"], "id": "7"}),
    ("id_BYTES", {"INPUT0": [["a"]], "x": 1.5, "parameters": {"t": 1, "z": "q", "id": "no"}}),
    ("id_BYTES", {"parameters": {"INPUT0": "é\u0000\n"}}),
    ("id_BYTES", {"INPUT0": []}),
    ("id_FP32", {"INPUT0": 1}),
    ("id_FP32", {"INPUT0": [1.5, 2]}),
    ("id_FP64", {"INPUT0": 0.125}),
    ("id_BOOL", {"INPUT0": True}),
    ("id_UINT64", {"INPUT0": 2**64 - 1}),
    ("id_INT64", {"INPUT0": [-(2**63), 2**63 - 1]}),
    ("id_INT64", {"INPUT0": list(range(100_000))}),  # long enough for a helper process
    ("simple", {"INPUT0": list(range(16)), "INPUT1": list(range(16))}),
    ("simple", {"INPUT0": list(range(32)), "INPUT1": list(range(32))}),
    ("simple", {"INPUT0": list(range(16))}),
    ("simple_identity", {"INPUT0": ["a", "b"]}),
    ("versions/versions/3", {"INPUT0": 1}),
    ("versions/versions/9", {"INPUT0": 1}),
    ("slow", {"INPUT0": [1, 2], "SECONDS": 0.01}),
    ("nosuch", {"INPUT0": "a"}),
    ("repeat_int32", repeat_body("repeat_int32", 1, id="r")),
    ("repeat_int32", {"IN": [1], "DELAY": [0]}),
]


def without_prefix(response: tuple[int, str, bytes]) -> tuple[int, str, bytes]:
    """Return a response without the prefix ``grpc.`` of model names."""
    return *response[:2], response[2].replace(b"grpc.", b"")


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("model", "body"), REQUESTS)
def test_responses_equal_those_of_triton(
    gateway: Infergate, triton: Triton, *, route: str, verb: str, model: str, body: Any
) -> None:
    response = without_prefix(send_request(gateway.http, route + model, verb, body))
    assert response == send_request(triton.http, model, verb, body)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_decoupled_stream_equals_tritons(gateway: Infergate, triton: Triton, count: int) -> None:
    body = repeat_body("repeat_int32", count, id="r")
    direct = send_request(triton.http, "repeat_int32", "generate_stream", body)
    assert send_request(gateway.http, "repeat_int32", "generate_stream", body) == direct
    assert len(events(direct[2])) == count
    over_grpc = send_request(gateway.http, "grpc.repeat_int32", "generate_stream", body)
    assert over_grpc[2].replace(b"grpc.", b"") == direct[2]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("model", "body", "status"),
    [
        ("fail", {"INPUT0": "NOT_FOUND"}, 404),  # Triton sends 400 in an event
        ("repeat_int32", repeat_body("repeat_int32", 0), 501),  # Triton sends 200
        ("repeat_int32", repeat_body("repeat_int32", 3), 501),
    ],
)
def test_generate_errors_have_tritons_text_and_a_fitting_status(
    gateway: Infergate, triton: Triton, *, route: str, model: str, body: Any, status: int
) -> None:
    direct = send_request(triton.http, model, "generate", body)
    response = without_prefix(send_request(gateway.http, route + model, "generate", body))
    assert response == (status, direct[1], direct[2])


def incomplete_body(*names: str) -> dict[str, Any]:
    data = list(range(16))
    return {
        "id": "w",
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, 16], "data": data} for name in names
        ],
    }


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("model", "body", "status"),
    [
        ("simple", incomplete_body("INPUT0"), 400),
        ("simple", incomplete_body("INPUT0", "OTHER"), 400),
        ("nosuch", incomplete_body("INPUT0"), 404),
        ("versions/versions/9", incomplete_body("INPUT0"), 404),
        ("accumulate", count_body(1, "INPUT"), 400),
        ("accumulate", {**count_body(1, "INPUT"), "parameters": {"sequence_id": 77}}, 400),
    ],
)
def test_a_streamed_inference_is_rejected_like_a_unary_one(
    gateway: Infergate, triton: Triton, *, route: str, model: str, body: Any, status: int
) -> None:
    direct = send_request(triton.http, model, "infer", body)
    assert direct[0] == status
    for verb in ("infer", "infer_stream"):
        response = without_prefix(send_request(gateway.http, route + model, verb, body))
        assert response == (status, "application/json", direct[2])


@pytest.mark.parametrize("model", REPEAT_MODELS)
def test_generate_works_with_every_backend(gateway: Infergate, model: str) -> None:
    status, _, body = send_request(gateway.http, model, "generate", repeat_body(model, 1))
    assert status == 200
    assert json.loads(body) == {"OUT": 0, "IDX": 0, "model_name": model, "model_version": "1"}


@pytest.mark.parametrize("model", REPEAT_MODELS)
def test_responses_arrive_one_by_one(gateway: Infergate, model: str) -> None:
    body = json.dumps(repeat_body(model, 4, 150)).encode()

    def first_arrival() -> float:
        """Receive all responses, and return the seconds from the request to the first."""
        with Client(gateway.http) as client:
            start, arrivals = time.monotonic(), []
            client.send(stream_request(model, body))
            head = client.until(b"\r\n\r\n").lower()
            assert b"\r\ntransfer-encoding: chunked\r\n" in head
            for index in range(4):
                assert b'"IDX":%d,' % index in client.until(b"\n\n\r\n")
                arrivals.append(time.monotonic() - start)
                assert arrivals[index] >= 0.15 * (index + 1) - 0.01
            assert client.until(b"0\r\n\r\n") == b"0\r\n\r\n"
        return arrivals[0]

    assert comes_before_the_last(first_arrival), "the first response came with the last"


@pytest.mark.parametrize("model", REPEAT_MODELS)
@pytest.mark.parametrize("verb", ["infer", "infer_stream"])
def test_inferences_are_streamed_as_events(gateway: Infergate, model: str, verb: str) -> None:
    names = {"IN": "INT32", "DELAY": "UINT32", "WAIT": "UINT32"}
    inputs = [
        {"name": name, "datatype": names[name], "shape": [len(data)], "data": data}
        for name, data in {"IN": [7, 8], "DELAY": [0, 0], "WAIT": [0]}.items()
        if name != "WAIT" or not model.startswith("embedded")
    ]
    parameters = {"stream": True} if verb == "infer" else {}
    body = {"id": "i", "parameters": parameters, "inputs": inputs, "outputs": [{"name": "OUT"}]}
    status, content_type, content = send_request(gateway.http, model, verb, body)
    assert (status, content_type) == (200, EVENT_STREAM)
    assert events(content) == [
        {
            "id": "i",
            "model_name": model,
            "model_version": "1",
            "outputs": [{"name": "OUT", "datatype": "INT32", "shape": [1], "data": [value]}],
        }
        for value in (7, 8)
    ]


def test_infer_stream_equals_mlservers(gateway: Infergate, mlserver: MLServer) -> None:
    response = send_request(gateway.http, "mlserver.count", "infer_stream", count_body(3))
    direct = send_request(mlserver.http, "count", "infer_stream", count_body(3))
    assert response[:2] == direct[:2] == (200, EVENT_STREAM)
    parsed = events(response[2])
    for each in parsed:
        each["model_name"] = each["model_name"].removeprefix("mlserver.")
    assert parsed == events(direct[2])
    assert len(parsed) == 3


def test_a_stream_that_mlserver_breaks_off_ends_with_an_error(gateway: Infergate) -> None:
    """MLServer closes the connection without reporting the cause."""
    status, _, body = send_request(gateway.http, "mlserver.count", "infer_stream", count_body(-3))
    assert status == 200
    first, error = events(body)
    assert first["outputs"][0]["data"] == [0]
    assert "is incomplete" in error["error"]


def test_mlserver_streams_report_an_unknown_model(gateway: Infergate) -> None:
    status, content_type, body = send_request(
        gateway.http, "mlserver.nosuch", "infer_stream", count_body(1)
    )
    assert (status, content_type) == (500, "application/json")
    assert "Model nosuch not found" in json.loads(body)["error"]


def test_an_mlserver_over_rest_streams_to_grpc_clients(gateway: Infergate) -> None:
    with streaming(gateway) as stream:
        tensors = [tensor("INPUT0", np.array([3], np.int32))]
        stream.client.async_stream_infer("mlserver.count", tensors)
        assert [int(stream.next().as_numpy("OUT")[0]) for _ in range(3)] == [0, 1, 2]


def test_a_decoupled_model_over_rest_streams_to_grpc_clients(gateway: Infergate) -> None:
    names = ["IN", "DELAY", "WAIT"]
    arrays = [np.arange(3, dtype=np.int32), np.zeros(3, np.uint32), np.zeros(1, np.uint32)]
    inputs = [tensor(name, array) for name, array in zip(names, arrays, strict=True)]
    with streaming(gateway) as stream:
        stream.client.async_stream_infer(
            "repeat_int32", inputs, request_id="i", enable_empty_final_response=True
        )
        results = [stream.next() for _ in range(4)]
        assert [result.as_numpy("OUT").tolist() for result in results[:3]] == [[0], [1], [2]]
        assert results[3].get_response().outputs == []
        stream.client.async_stream_infer(
            "repeat_int32", inputs, outputs=[tc.InferRequestedOutput("IDX")]
        )
        result = stream.next()
        assert [each.name for each in result.get_response().outputs] == ["IDX"]
        for _ in range(2):
            stream.next()
        inputs[0] = tensor("IN", np.array([[1, 2]], np.int32))
        stream.client.async_stream_infer("repeat_int32", inputs)
        with pytest.raises(InferenceServerException, match="input 'IN'"):
            stream.next()


def test_the_route_timeout_bounds_the_wait_for_each_response(gateway: Infergate) -> None:
    late_body = repeat_body("quick", 2, 1)
    late_body["DELAY"][1] = 2000

    def responses(body: Any, number: int) -> list[Any]:
        """Return the events of a response. Repeat the request until there are ``number`` events,
        because on a busy machine any event may be late."""
        for _ in range(10):
            status, _, content = send_request(gateway.http, "quick", "generate_stream", body)
            if status == 200 and len(events(content)) == number:
                break
        assert status == 200
        return events(content)

    # The whole stream takes longer than the timeout of 300 ms.
    assert [each["OUT"] for each in responses(repeat_body("quick", 4, 150), 4)] == [0, 1, 2, 3]
    first, error = responses(late_body, 2)
    assert first["OUT"] == 0
    assert "in time" in error["error"]
    late_body["DELAY"] = [2000, 1]
    status, content_type, _ = send_request(gateway.http, "quick", "generate_stream", late_body)
    assert (status, content_type) == (504, "application/json")


def test_a_slow_reader_costs_bounded_memory(gateway: Infergate) -> None:
    """The stream has 20,000 responses of 60 KB, of which the client reads five."""
    body = json.dumps(repeat_body("embedded", 20_000, id="p" * 60_000)).encode()
    send_request(
        gateway.http,
        "embedded.repeat",
        "generate_stream",
        repeat_body("embedded", 5, id="p" * 60_000),
    )
    with Client(gateway.http) as client, limited_growth(gateway.pid, 64 << 20):
        client.send(stream_request("embedded.repeat", body))
        for _ in range(5):
            client.until(b"\n\n\r\n")
        time.sleep(2)  # time for the server to send ahead
    until(
        lambda: "infergate_in_flight_requests 0.0" in gateway.metrics(), "no request is in progress"
    )


@pytest.mark.parametrize("model", REPEAT_MODELS)
def test_a_disconnected_client_ends_the_stream(gateway: Infergate, model: str) -> None:
    def cancelled_count() -> float:
        return counted(gateway, operation="stream_infer", outcome="cancelled")

    before = cancelled_count()
    body = json.dumps(repeat_body(model, 3, 500)).encode()
    with Client(gateway.http) as client:
        client.send(stream_request(model, body))
        client.until(b"\n\n\r\n")
    until(lambda: cancelled_count() == before + 1, "the metrics count the cancelled stream")
    until(
        lambda: "infergate_in_flight_requests 0.0" in gateway.metrics(), "no request is in progress"
    )


def test_each_stream_is_logged_with_its_response_count(gateway: Infergate) -> None:
    body = json.dumps(repeat_body("embedded", 3)).encode()
    with Client(gateway.http) as client:
        client.send(stream_request("embedded.repeat", body, "X-Request-Id: count-test\r\n"))
        content = client.until(b"0\r\n\r\n").partition(b"\r\n\r\n")[2]

    def lines() -> list[dict[str, Any]]:
        return [line for line in gateway.logged("request") if line["request_id"] == "count-test"]

    until(lambda: len(lines()) == 1, "the request is logged")
    (line,) = lines()
    assert (line["operation"], line["outcome"], line["pipeline"]) == (
        "stream_infer",
        "ok",
        "translate",
    )
    assert line["messages"] == 3
    assert line["bytes_out"] == len(b"".join(content.split(b"\r\n")[1:-3:2]))


def test_a_stream_is_completed_when_the_gateway_stops(triton: Triton, mlserver: MLServer) -> None:
    with started_infergate(SERVERS.format(triton=triton, mlserver=mlserver)) as running:
        body = json.dumps(repeat_body("embedded", 4, 300)).encode()
        with Client(running.http) as client:
            client.send(stream_request("embedded.repeat", body))
            client.until(b"\n\n\r\n")
            os.kill(running.pid, signal.SIGTERM)
            assert client.read_to_end().endswith(b"\n\n\r\n0\r\n\r\n")


# ---- a server that misbehaves -------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
EVENT = (
    b'data: {"model_name":"m","outputs":'
    b'[{"name":"O","datatype":"INT32","shape":[1],"data":[7]}]}\n\n'
)
FAKE = """
limits: {{json: 64KiB}}
backends:
  fake: {{protocol: v2-rest, profile: mlserver, endpoints: ["http://{0}"]}}
routes:
  - {{model: late, backend: fake, timeout: 1s}}
  - {{model: '*', backend: fake, timeout: 60s}}
"""


@pytest.fixture(scope="module")
def scripted_gateway() -> Iterator[tuple[Infergate, Backend]]:
    """Run a gateway in front of a scripted server."""
    with scripted(good_http) as fake, started_infergate(FAKE.format(fake.address)) as running:
        yield running, fake
        assert logged_bugs(running) == ""


@pytest.mark.parametrize(
    ("stream", "error_text"),
    [
        (HEAD + EVENT + b"data: {}\n\n", "outputs is missing"),
        (HEAD + EVENT + b"data: [DONE]\n\n", "invalid response"),
        (HEAD + EVENT + b'data: {"error":"enough"}\n\n', "enough"),
        (HEAD + EVENT + b"data: {", "is incomplete"),
        (HEAD + EVENT + b"data: " + b"x" * 100_000, "over the limit"),
        (HEAD + EVENT + b": still here\n" * 5 + b"wait", "in time"),
    ],
)
def test_invalid_and_incomplete_server_streams_end_with_an_error(
    scripted_gateway: tuple[Infergate, Backend], stream: bytes, error_text: str
) -> None:
    def script(connection: Connection, _: Any) -> None:
        connection.request()
        connection.write(stream)
        if stream.endswith(b"wait"):
            connection.wait_closed()

    running, fake = scripted_gateway
    fake.use(script)
    model = "late" if stream.endswith(b"wait") else "m"
    status, _, body = send_request(running.http, model, "infer_stream", count_body(1))
    first, error = events(body)
    assert (status, first["outputs"][0]["data"]) == (200, [7])
    assert error_text in error["error"]
    assert fake.address not in error["error"]
