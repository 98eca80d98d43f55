"""Tests legacy servers that crash, close without a response or send invalid responses. Clients of
all four protocols get an error with the cause or the backend's name, no inference is sent twice,
and other clients are served meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from e2e.clients import client
from e2e.running import Infergate, started_infergate
from faults.legacy import (
    DIFFERENCE,
    NUMBERS,
    OLD,
    OUTPUTS,
    PROTOCOLS,
    SIMPLE,
    SUM,
    Action,
    OldRpcServer,
    Outcome,
    ProtocolClients,
    http_outcome,
    ok_header,
    ok_response,
    old_http,
    old_post,
    old_response,
    old_rpc,
    output_header,
    request_status,
    status,
    valid_message,
    valid_status,
    write,
)
from faults.payloads import document, tensor
from faults.peer import Backend, Client, Connection, post, scripted
from faults.rpc import channel
from faults.watch import HELPERS, assert_healthy, closes_descriptors, counted, unharmed, until
from legacy.running import LegacyServer, started_legacy
from peers.support.process import free_ports

CONFIG = """
backends:
  depot: {{protocol: trtis-http, endpoints: ["http://{http}"]}}
  shop: {{protocol: trtis-grpc, endpoints: ["grpc://{grpc}"]}}
  ours: {{protocol: builtin}}
routes:
  - {{model: simple, backend: ours}}
  - {{model: '/http\\.(.+)/', backend: depot, timeout: {timeout}, rewrite: {{model: '\\1'}}}}
  - {{model: '/grpc\\.(.+)/', backend: shop, timeout: {timeout}, rewrite: {{model: '\\1'}}}}
readiness: lenient
helpers: 1
"""
EXPECTED: dict[str, tuple[int, str, str]] = {
    "connect": (502, "UNAVAILABLE", "UNAVAILABLE"),
    "timeout": (504, "DEADLINE_EXCEEDED", "UNAVAILABLE"),
    "backend_garbage": (502, "INTERNAL", "INTERNAL"),
    "backend_error": (500, "INTERNAL", "INTERNAL"),
    "too_large": (413, "RESOURCE_EXHAUSTED", "INVALID_ARG"),
    "no_backend": (503, "UNAVAILABLE", "UNAVAILABLE"),
    "bad_request": (400, "INVALID_ARGUMENT", "INVALID_ARG"),
    "not_found": (404, "NOT_FOUND", "UNAVAILABLE"),
    "unsupported": (501, "UNIMPLEMENTED", "UNSUPPORTED"),
}
"""Each outcome over V2 REST, over V2 gRPC and in a legacy RequestStatus."""
SUCCESS_CODES = {"v2-rest": 200, "v2-grpc": "OK", "trtis-http": "SUCCESS", "trtis-grpc": "SUCCESS"}
RELAYED = re.compile(
    "SHAPE|it broke|busy|not that|unknown model|and no message|the backend responded"
    "|cannot parse the request"
)
"""The servers' own error texts, which are passed on."""


def code_of(protocol: str, kind: str) -> int | str:
    rest, rpc, old = EXPECTED[kind]
    return {"v2-rest": rest, "v2-grpc": rpc}.get(protocol, old)


def check_inference(clients: ProtocolClients, protocol: str, model: str) -> None:
    result = clients.send_request(protocol, model)
    assert result.code == SUCCESS_CODES[protocol], result


@dataclass(frozen=True)
class Harness:
    gateway: Infergate
    clients: ProtocolClients
    http: Backend
    rpc: OldRpcServer
    pool: ThreadPoolExecutor

    def fails(self, model: str, kind: str, *, requests: int = 1) -> None:
        """Check that ``model`` fails with the outcome ``kind`` in every protocol. The server must
        receive ``requests`` requests for each protocol."""
        backend: Any = self.http if model.startswith("http.") else self.rpc
        name = "depot" if model.startswith("http.") else "shop"
        for _ in range(10):  # on a busy machine, any request may take longer than the timeout
            before = len(backend.requests)
            outcomes = counted(self.gateway, outcome=kind, backend=name)
            late = counted(self.gateway, outcome="timeout")
            results = self.send_to_all(model)
            if kind == "timeout" or counted(self.gateway, outcome="timeout") == late:
                break
        for protocol, result in zip(PROTOCOLS, results, strict=True):
            assert result.code == code_of(protocol, kind), result
            assert RELAYED.search(result.error) or f"backend '{name}'" in result.error, result
            assert re.search("Traceback|127.0.0.1|File ", result.error) is None
        assert len(backend.requests) == before + requests * len(PROTOCOLS)
        assert counted(self.gateway, outcome=kind, backend=name) == outcomes + len(PROTOCOLS)
        check_inference(self.clients, "v2-rest", "simple")

    def send_to_all(self, model: str) -> list[Outcome]:
        return list(self.pool.map(self.clients.send_request, PROTOCOLS, [model] * len(PROTOCOLS)))

    def serves(self, model: str) -> None:
        for _ in range(10):  # on a busy machine, any request may take longer than the timeout
            late = counted(self.gateway, outcome="timeout")
            results = self.send_to_all(model)
            if counted(self.gateway, outcome="timeout") == late:
                break
        for protocol, result in zip(PROTOCOLS, results, strict=True):
            assert result.code == SUCCESS_CODES[protocol], result


def start_a_helper(gateway: Infergate) -> None:
    """Start the helper process that reads long headers, because its start may take longer than the
    timeout of the routes."""
    long = b'{"x":"%b"}' % (b"x" * 300_000)
    assert post(gateway.http, "/v2/models/simple/infer", long).status == 400


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with scripted(old_http(GOOD_HTTP)) as http, old_rpc() as rpc:
        config = CONFIG.format(http=http.address, grpc=rpc.address, timeout="1s")
        with (
            started_infergate(config) as gateway,
            channel(gateway.grpc) as rpc_channel,
            ThreadPoolExecutor(len(PROTOCOLS)) as pool,
        ):
            harness = Harness(gateway, ProtocolClients(gateway.http, rpc_channel), http, rpc, pool)
            harness.serves("http.m")
            harness.serves("grpc.m")
            start_a_helper(gateway)

            def good() -> None:
                check_inference(harness.clients, "trtis-http", "simple")

            with unharmed(gateway, good, max_new_descriptors=HELPERS):
                yield harness
                harness.serves("http.m")
                harness.serves("grpc.m")
            assert_healthy(gateway)


# ---- inferences over HTTP --------------------------------------------------------------------

WHOLE = ok_response()
GOOD_HTTP = write(WHOLE)
BODY = SUM + DIFFERENCE


def refuses(code: str, msg: str = "", line: str = "400 Bad Request") -> Action:
    return write(old_response(b"", line=line, status=request_status(code, msg), header="id: 7"))


def bare(line: str) -> Action:
    """Return an action that sends a response without NV-Status."""
    return write(old_response(b"", line=line, status=""))


def headed(header: Any, body: bytes = BODY) -> Action:
    return write(old_response(body, header=header))


MANY_LINES = {f"A{i}": "b" for i in range(300)}
HTTP: dict[str, tuple[str, Action]] = {
    # The server crashes, or closes the connection.
    "silence": ("timeout", write(then=Connection.wait_closed)),
    "half a response, then silence": ("timeout", write(WHOLE[:-99], then=Connection.wait_closed)),
    "closed before the response": ("backend_garbage", write(then=Connection.cut)),
    "reset before the response": ("backend_garbage", write(then=Connection.reset)),
    "closed in the status line": ("backend_garbage", write(b"HTTP/1.1 20", then=Connection.cut)),
    "closed in NV-InferResponse": ("backend_garbage", write(WHOLE[:90], then=Connection.cut)),
    "closed in the body": ("backend_garbage", write(WHOLE[:-99], then=Connection.cut)),
    # The server responds with an error. (unit/codecs/trtis/test_trtis_backend.py has more.)
    "400 without NV-Status": ("bad_request", bare("400 Bad Request")),
    "405 without NV-Status": ("backend_garbage", bare("405 Not Allowed")),
    "no NV-Status": ("backend_garbage", write(old_response(BODY, status="", header=ok_header()))),
    "INVALID_ARG": ("bad_request", refuses("INVALID_ARG", "SHAPE")),
    "an error without a message": ("bad_request", refuses("INVALID_ARG")),
    "INTERNAL": ("backend_error", refuses("INTERNAL", "it broke")),
    "UNAVAILABLE": ("no_backend", refuses("UNAVAILABLE", "busy")),
    "UNSUPPORTED": ("unsupported", refuses("UNSUPPORTED", "not that")),
    "an unknown model": ("not_found", refuses("UNAVAILABLE", "Request for unknown model: 'm'")),
    # The server sends an invalid response. (unit/codecs/trtis/test_trtis_backend.py has more.)
    "an empty NV-InferResponse": (
        "backend_garbage", write(old_response(BODY, more={"NV-InferResponse": " "})),
    ),
    "a deeply nested NV-InferResponse": ("backend_garbage", headed("output {" * 7500)),
    "an NV-InferResponse over 64 KiB": ("backend_garbage", headed("#" + "x" * 66_000)),
    "300 header lines": (
        "backend_garbage", write(old_response(BODY, header=ok_header(), more=MANY_LINES)),
    ),
    "no batch": ("backend_garbage", headed(ok_header(batch_size=0))),
    "dimensions whose product overflows": (
        "backend_garbage", headed(ok_header(OUTPUTS[0], output_header("OUTPUT1", [2**62, 2**62]))),
    ),
    "a size of 2^64 - 1": (
        "backend_garbage", headed(ok_header(OUTPUTS[0], output_header("OUTPUT1", [16], 2**64 - 1))),
    ),
    "a body shorter than the outputs": ("backend_garbage", headed(ok_header(), BODY[:-1])),
    "no body": ("backend_garbage", headed(ok_header(), b"")),
}  # fmt: skip


@pytest.mark.parametrize("fault", HTTP)
def test_faulty_http_responses_are_reported(harness: Harness, fault: str) -> None:
    kind, infer = HTTP[fault]
    with closes_descriptors(harness.gateway.pid):
        harness.http.use(old_http(infer))
        harness.fails("http.m", kind)
        harness.http.use(old_http(GOOD_HTTP))
    harness.serves("http.m")


def _padded_header(size: int) -> str:
    text = (
        "model_name: 'm', model_version: 1; batch_size: 1"
        " output < name: 'OUTPUT0' raw: { dims: [16] batch_byte_size: 0x40 } >"
        " output { name: 'OUTPUT1' raw { dims: 16 batch_byte_size: 64 } } #"
    )
    return text.ljust(size, "x")


CHUNKED = {"Content-Length": "", "Transfer-Encoding": "chunked"}
UNUSUAL = {
    "in another order": old_response(DIFFERENCE + SUM, header=ok_header(*OUTPUTS[::-1])),
    "without the trailer": old_response(BODY, header=ok_header()),
    "with an unreadable trailer": old_response(BODY + b"\xff" * 500, header=ok_header()),
    "with lower-case names": WHOLE.replace(b"NV-", b"nv-"),
    "with other headers": old_response(BODY, header=ok_header(), more={"X": "y", "Date": "now"}),
    "in chunks": old_response(b"", header=ok_header(), more=CHUNKED)
    + b"80\r\n%b\r\n0\r\n\r\n" % BODY,
    "with an id": old_response(BODY, header=ok_header(id=99)),
    "with the name of another model": old_response(
        BODY, header=ok_header(model_name="x", model_version=3)
    ),
    "with another text format": old_response(BODY, header=_padded_header(0)),
    "with a header of 8 KB": old_response(BODY, header=_padded_header(8_000)),
    "after an interim response": b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE,
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_valid_http_responses_are_accepted(harness: Harness, case: str) -> None:
    harness.http.use(old_http(write(UNUSUAL[case])))
    harness.serves("http.m")
    outputs = json.loads(harness.clients.send_request("v2-rest", "http.m").body)["outputs"]
    assert {each["name"]: each["data"] for each in outputs} == {
        "OUTPUT0": list(range(1, 17)),
        "OUTPUT1": list(range(-1, 15)),
    }
    for protocol in PROTOCOLS[2:]:
        assert harness.clients.send_request(protocol, "http.m").body.startswith(BODY)
    harness.http.use(old_http(GOOD_HTTP))


def test_bytes_after_an_http_response_are_not_the_next_response(harness: Harness) -> None:
    evil = old_response(b"", status=request_status("INTERNAL", "evil"))
    harness.http.use(old_http(write(WHOLE + evil, then=Connection.wait_closed)))
    harness.serves("http.m")
    harness.serves("http.m")
    harness.http.use(old_http(GOOD_HTTP))


# ---- inferences over gRPC --------------------------------------------------------------------


def rejection(code: str, msg: str = "") -> bytes:
    response = OLD.InferResponse(request_status=request_status(code, msg))
    response.meta_data.id = 7
    return bytes(response.SerializeToString())


RPC: dict[str, tuple[str, bytes]] = {
    "bytes that are not protobuf": ("backend_garbage", b"\x0b\xff"),
    "no bytes": ("backend_garbage", b""),
    "no status": ("backend_garbage", valid_message(request_status=None)),
    "an unknown code": ("backend_error", b"\x0a\x02\x08\x63"),
    "INVALID_ARG": ("bad_request", rejection("INVALID_ARG", "SHAPE")),
    "an error without a message": ("bad_request", rejection("INVALID_ARG")),
    "INTERNAL": ("backend_error", rejection("INTERNAL", "it broke")),
    "UNAVAILABLE": ("no_backend", rejection("UNAVAILABLE", "busy")),
    "an unknown model": ("not_found", rejection("UNAVAILABLE", "Request for unknown model: 'm'")),
    "no header": ("backend_garbage", valid_message(meta_data=None)),
    "no data": ("backend_garbage", valid_message(raw_output=None)),
    "data for one of two outputs": ("backend_garbage", valid_message(raw_output=[SUM])),
    "truncated data": ("backend_garbage", valid_message(raw_output=[SUM, DIFFERENCE[:-1]])),
    "another shape": (
        "backend_garbage",
        valid_message(meta_data=ok_header(OUTPUTS[0], output_header("OUTPUT1", [17]))),
    ),
}  # fmt: skip
CODES = {
    "INTERNAL": "backend_error",
    "UNAVAILABLE": "no_backend",
    "UNIMPLEMENTED": "unsupported",
    "INVALID_ARGUMENT": "bad_request",
}


@pytest.mark.parametrize("fault", RPC)
def test_faulty_grpc_responses_are_reported(harness: Harness, fault: str) -> None:
    kind, message = RPC[fault]
    harness.rpc.infer = lambda _message, _context: message
    harness.fails("grpc.m", kind)
    harness.rpc.infer = lambda _message, _context: valid_message()
    harness.serves("grpc.m")


@pytest.mark.parametrize("code", CODES)
def test_grpc_status_codes_are_translated(harness: Harness, code: str) -> None:
    """Legacy servers send only OK, but a proxy in front of them may send other codes."""

    def infer(_message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode[code], "it broke")
        return b""

    harness.rpc.infer = infer
    harness.fails("grpc.m", CODES[code])
    harness.rpc.infer = lambda _message, _context: valid_message()


def test_grpc_outputs_in_another_order_are_sorted(harness: Harness) -> None:
    message = valid_message(meta_data=ok_header(*OUTPUTS[::-1]), raw_output=[DIFFERENCE, SUM])
    harness.rpc.infer = lambda _message, _context: message
    for protocol in PROTOCOLS[2:]:
        assert harness.clients.send_request(protocol, "grpc.m").body.startswith(BODY)
    harness.rpc.infer = lambda _message, _context: valid_message()


# ---- statuses that do not describe the model -------------------------------------------------

UNKNOWN = request_status("INVALID_ARG", "no status available for unknown model 'm'")
BROKEN = request_status("INTERNAL", "it broke")
HTTP_STATUS: dict[str, tuple[str, bytes]] = {
    "bytes that are not protobuf": ("backend_garbage", old_response(b"\xff\xff\xff")),
    "an empty body": ("backend_garbage", old_response(b"")),
    "HTML": ("backend_garbage", old_response(b"<html>", status="")),
    "another model": ("backend_garbage", old_response(status("other").SerializeToString())),
    "unknown": ("not_found", old_response(b"", line="400 Bad Request", status=UNKNOWN)),
    "an error": ("backend_error", old_response(b"", line="400 Bad Request", status=BROKEN)),
}


@pytest.mark.parametrize("fault", HTTP_STATUS)
def test_faulty_http_statuses_are_reported(harness: Harness, fault: str) -> None:
    """No inference is sent, and the error is not cached."""
    kind, message = HTTP_STATUS[fault]
    model = f"http.{list(HTTP_STATUS).index(fault)}"
    harness.http.use(old_http(GOOD_HTTP, message))
    harness.fails(model, kind, requests=0)
    harness.http.use(old_http(GOOD_HTTP))
    harness.serves(model)


def status_response(**fields: Any) -> bytes:
    members = {"request_status": request_status(), **fields}
    return bytes(OLD.StatusResponse(**members).SerializeToString())


RPC_STATUS: dict[str, tuple[str, bytes]] = {
    "bytes that are not protobuf": ("backend_garbage", b"\xff\xff\xff"),
    "an empty body": ("backend_garbage", b""),
    "another model": ("backend_garbage", status_response(server_status=status("other"))),
    "unknown": ("not_found", status_response(request_status=UNKNOWN)),
    "an error": ("backend_error", status_response(request_status=BROKEN)),
}


@pytest.mark.parametrize("fault", RPC_STATUS)
def test_faulty_grpc_statuses_are_reported(harness: Harness, fault: str) -> None:
    kind, message = RPC_STATUS[fault]
    model = f"grpc.{list(RPC_STATUS).index(fault)}"
    harness.rpc.status = lambda _message, _context: message
    harness.fails(model, kind, requests=0)
    harness.rpc.status = lambda message, _context: valid_status(message)
    harness.serves(model)


def test_a_status_request_without_a_response_times_out(harness: Harness) -> None:
    def script(connection: Connection, _backend: Backend) -> None:
        connection.request()
        connection.wait_closed()

    harness.http.use(script)
    harness.fails("http.late", "timeout", requests=0)
    harness.http.use(old_http(GOOD_HTTP))
    harness.serves("http.late")


# ---- a slow request beside others ------------------------------------------------------------


def test_a_silent_server_delays_no_other_request(harness: Harness) -> None:
    harness.http.use(old_http(write(then=Connection.wait_closed)))
    with ThreadPoolExecutor(8) as pool:
        before = len(harness.http.requests)
        waiting = [
            pool.submit(harness.clients.send_request, each, "http.m") for each in PROTOCOLS * 2
        ]
        until(lambda: len(harness.http.requests) == before + 8, "all requests wait")
        harness.serves("grpc.m")
        harness.serves("simple")
        assert not any(each.done() for each in waiting)
        for protocol, each in zip(PROTOCOLS * 2, waiting, strict=True):
            assert each.result().code == code_of(protocol, "timeout")
    assert len(harness.http.requests) == before + 8
    harness.http.use(old_http(GOOD_HTTP))
    harness.serves("http.m")


# ---- the legacy test server with a hazard -----------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A legacy server, and the gateway in front of it."""

    server: LegacyServer
    gateway: Infergate
    clients: ProtocolClients

    def requests(self, part: str) -> list[dict[str, str]]:
        """Return the headers of the HTTP requests whose target contains ``part``."""
        matching = [each for each in self.server.requests() if part in each.get("target", "")]
        return [{name.lower(): value for name, value in each["headers"]} for each in matching]

    def serves(self, *models: str) -> None:
        for model in models or ("http.simple", "grpc.simple", "simple"):
            for protocol in PROTOCOLS:
                check_inference(self.clients, protocol, model)


CROWD = 9
"""Number of connections to the two servers for the concurrent requests."""


@contextlib.contextmanager
def started_gateway(
    http: str, rpc: str, max_new_descriptors: int = CROWD
) -> Iterator[tuple[Infergate, ProtocolClients]]:
    config = CONFIG.format(http=http, grpc=rpc, timeout="5s")
    with started_infergate(config) as gateway, channel(gateway.grpc) as rpc_channel:
        clients = ProtocolClients(gateway.http, rpc_channel)
        check_inference(clients, "trtis-grpc", "simple")
        with unharmed(
            gateway,
            lambda: check_inference(clients, "trtis-http", "simple"),
            max_new_descriptors=max_new_descriptors,
        ):
            yield gateway, clients
        assert_healthy(gateway)


@pytest.fixture(scope="module")
def hazardous() -> Iterator[Pair]:
    with (
        started_legacy("--hazard", "many_classes") as server,
        started_gateway(server.http, server.grpc, CROWD + HELPERS) as created,
    ):
        yield Pair(server, *created)
        assert "crashed" not in server.requests()[-1]


DOCUMENT = document(
    *(tensor(name=f"INPUT{i}", datatype="INT32", shape=[1, 16], data=[i] * 16) for i in range(2))
)


@pytest.mark.parametrize(
    ("path", "header", "body"),
    [
        ("/v2/models/http.simple/infer", "A: b", DOCUMENT),
        ("/api/infer/http.simple", f"NV-InferRequest: {SIMPLE}", NUMBERS),
    ],
)
def test_a_chunked_request_is_sent_with_its_length(
    hazardous: Pair, path: str, header: str, body: bytes
) -> None:
    """The server would crash on a chunked request."""
    lines = f"POST {path} HTTP/1.1\r\nHost: x\r\n{header}\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with Client(hazardous.gateway.http) as client:
        client.send(lines.encode() + chunks + b"0\r\n\r\n")
        assert client.answer().status == 200
    sent = hazardous.requests("/api/infer/simple")[-1]
    assert sent["content-length"] == str(len(NUMBERS))
    assert "transfer-encoding" not in sent
    assert "expect" not in sent
    hazardous.serves()


def test_a_request_without_nv_infer_request_is_not_sent(hazardous: Pair) -> None:
    before = len(hazardous.requests("/api/infer/"))
    answer = post(hazardous.gateway.http, "/api/infer/http.simple", NUMBERS)
    assert answer.status == 400
    assert answer.body == b"The request header should contain 'NV-InferRequest'"
    assert len(hazardous.requests("/api/infer/")) == before
    hazardous.serves()


@pytest.mark.parametrize("body", [NUMBERS[:-4], NUMBERS + b"more", b""])
def test_a_body_of_a_wrong_size_is_not_sent(hazardous: Pair, body: bytes) -> None:
    """The server might close the connection without a response."""
    hazardous.serves()
    before = len(hazardous.requests("/api/infer/"))
    outcome = http_outcome(old_post(hazardous.gateway.http, "http.simple", SIMPLE, body))
    assert outcome.code == "INVALID_ARG"
    assert "for model 'http.simple'" in outcome.error
    assert len(hazardous.requests("/api/infer/")) == before
    hazardous.serves()


def test_requests_to_a_legacy_server_are_never_pipelined(hazardous: Pair) -> None:
    """The server loses pipelined requests. All clients of the gateway get responses."""
    request = b"GET /v2/models/http.simple/ready HTTP/1.1\r\nHost: x\r\n\r\n"
    with Client(hazardous.gateway.http) as client, ThreadPoolExecutor(8) as pool:
        client.send(request * 20)
        crowd = [
            pool.submit(check_inference, hazardous.clients, each, "http.simple")
            for each in PROTOCOLS * 4
        ]
        assert [client.answer().status for _ in range(20)] == [200] * 20
        for each in crowd:
            each.result()


def test_a_name_that_is_too_long_for_the_server_is_not_sent(hazardous: Pair) -> None:
    """The server would close the connection without a response."""
    before = len(hazardous.server.requests())
    with Client(hazardous.gateway.http) as client:
        client.send(b"GET /v2/models/http.%b/ready HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * 9000))
        answer = client.answer()
    assert answer.status == 400
    assert "the model name is longer than 1024 bytes" in answer.error
    assert len(hazardous.server.requests()) == before
    hazardous.serves()


@pytest.mark.parametrize("backend", ["http", "grpc"])
def test_class_labels_up_to_the_header_limit_are_returned(hazardous: Pair, backend: str) -> None:
    """900 classes take 45 KB of NV-InferResponse, 1800 take as much as real clients accept, and
    2700 take more."""
    scores = np.arange(3000, dtype=np.float32).reshape(3, 1000)
    gateway = hazardous.gateway
    with client("http", gateway.http, gateway.grpc) as triton_client:
        outputs = [triton_client.output("OUTPUT0", classes=900)]
        model = f"{backend}.classify_many"
        answer = triton_client.infer(
            model, [triton_client.input("INPUT0", scores[:1], "FP32")], outputs=outputs
        )
        top = answer.as_numpy("OUTPUT0")
        assert top.shape == (1, 900)
        assert top[0][0] == b"999.000000:999:label number 0999"
        more = [triton_client.input("INPUT0", scores[:2], "FP32")]
        assert triton_client.infer(model, more, outputs=outputs).as_numpy("OUTPUT0").shape == (
            2,
            900,
        )
        many = [triton_client.input("INPUT0", scores, "FP32")]
        if backend == "grpc":
            assert triton_client.infer(model, many, outputs=outputs).as_numpy("OUTPUT0").shape == (
                3,
                900,
            )
        else:
            with pytest.raises(InferenceServerException, match="backend 'depot'") as caught:
                triton_client.infer(model, many, outputs=outputs)
            assert caught.value.status() == "502"
    hazardous.serves()


@pytest.mark.parametrize("backend", ["http", "grpc"])
@pytest.mark.parametrize("form", ["text", "binary"])
def test_legacy_clients_get_headers_up_to_their_limit(
    hazardous: Pair, backend: str, form: str
) -> None:
    """The gateway returns an error if the header would exceed the limit of the client library."""
    data = np.arange(3000, dtype=np.float32).tobytes()
    for batch in (2, 3):
        request = f'batch_size: {batch} input {{ name: "INPUT0" }} '
        request += 'output { name: "OUTPUT0" cls { count: 900 } }'
        path = f"/api/infer/{backend}.classify_many?format={form}"
        headers = {"NV-InferRequest": request}
        answer = post(hazardous.gateway.http, path, data[: 4000 * batch], headers)
        header = answer.headers["nv-inferresponse"]
        assert answer.status == (200 if batch == 2 else 400), answer.headers["nv-status"]
        assert (header.count("label: ") == 1800) == (batch == 2)
        assert (len(header) > 64 * 1024) == (batch == 2)
    if backend == "grpc":
        assert "request fewer classes" in answer.headers["nv-status"]
    hazardous.serves()


def test_requests_succeed_after_a_crashed_server_restarts() -> None:
    """Requests are sent while the server crashes, while it is down, and after its restart."""
    ports = free_ports(2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    models = [f"{backend}.simple" for backend in ("http", "grpc")]
    requests = [(protocol, model) for protocol in PROTOCOLS for model in models]
    with started_gateway(*addresses) as (_, clients):
        with started_legacy("--delay-ms", "400", ports=ports) as server:
            for model in models:
                check_inference(clients, "v2-rest", model)
            with ThreadPoolExecutor(8) as pool:
                waiting = [pool.submit(clients.send_request, *each) for each in requests]
                until(lambda: _inferences(server) == 2 + 8, "all requests are in progress")
                os.kill(server.pid, signal.SIGKILL)
                for (protocol, model), each in zip(requests, waiting, strict=True):
                    kinds = ("backend_garbage",) if model.startswith("http") else BROKEN_CALL
                    assert each.result().code in {code_of(protocol, kind) for kind in kinds}
            assert _inferences(server) == 2 + 8
        for protocol, model in requests:
            result = clients.send_request(protocol, model)
            assert result.code == code_of(protocol, "connect"), result
            check_inference(clients, protocol, "simple")
        with started_legacy(ports=ports):
            for protocol, model in requests:
                until(
                    lambda p=protocol, m=model: clients.send_request(p, m).code == SUCCESS_CODES[p],  # type: ignore[misc]
                    "the gateway is connected again",
                )


BROKEN_CALL = ("backend_garbage", "connect", "no_backend")
"""The possible outcomes of a gRPC call whose connection breaks."""


def _inferences(server: LegacyServer) -> int:
    requests = [str(each.get("target") or each.get("rpc")) for each in server.requests()]
    return sum("/api/infer/" in each or each.endswith("/Infer") for each in requests)
