"""Tests that the legacy, GraphPipe, TensorFlow Serving and KServe V1 frontends reject bad tensors
in the protocol's error format, before a backend receives them, and serve the next request.
(test_tensor_payloads tests V2.)"""

from __future__ import annotations

import itertools
import json
import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import grpc
import pytest
from graphpipe_schema.InferResponse import InferResponse

from e2e.running import LISTENERS, Infergate, started_infergate
from faults import legacy
from faults.bad_tensors import (
    BAD,
    CANNOT,
    CASES,
    FRAMES,
    FRONTENDS,
    LISTS,
    OLD_GRPC,
    OLD_HTTP,
    PIPE,
    TFS,
    TFS_RAW,
    TFS_TYPED,
    VALID_REQUESTS,
    Bad,
    PredictRequest,
)
from faults.frames import raw_listener
from faults.legacy import OLD, OLD_INFER, grpc_outcome, http_outcome
from faults.peer import Answer, Backend, Client, good_http, scripted
from faults.rpc import call, channel
from faults.watch import assert_healthy, counted, unharmed
from infergate.codecs.tfs.messages import PREDICT
from peers.support.process import free_ports

CONFIG = """
backends:
  rest: {{protocol: v2-rest, endpoints: ["http://{rest}"], profile: infergate}}
routes:
  - {{model: m, backend: rest}}
  - {{model: pair, backend: rest}}
  - {{model: grid, backend: rest}}
  - {{model: strings, backend: rest}}
models:
  m: &m
    inputs: [{{name: INPUT0, datatype: INT32, shape: [-1]}}]
    outputs: &outputs [{{name: OUTPUT0, datatype: INT32, shape: [-1]}}]
  pair:
    inputs:
      - {{name: INPUT0, datatype: INT32, shape: [-1]}}
      - {{name: INPUT1, datatype: INT32, shape: [-1]}}
    outputs: *outputs
  grid: {{inputs: [{{name: INPUT0, datatype: INT32, shape: [-1, -1]}}], outputs: *outputs}}
  strings: {{inputs: [{{name: INPUT0, datatype: BYTES, shape: [-1]}}], outputs: *outputs}}
limits: {{body: 128KiB}}
"""
LARGE, BROKEN, UNKNOWN = "too large", "bad request", "unknown model"
HTTP = {BROKEN: "400", LARGE: "413", UNKNOWN: "404"}
GRPC = {BROKEN: "INVALID_ARGUMENT", LARGE: "RESOURCE_EXHAUSTED", UNKNOWN: "NOT_FOUND"}
TRTIS = {BROKEN: "INVALID_ARG", LARGE: "INVALID_ARG", UNKNOWN: "UNAVAILABLE"}
CODES = {
    PIPE: {**HTTP, "": "200"},
    FRAMES: {**HTTP, "": "answered"},
    OLD_HTTP: {**TRTIS, "": "SUCCESS"},
    OLD_GRPC: {**TRTIS, "": "SUCCESS"},
    TFS_RAW: {**GRPC, "": "OK"},
    TFS_TYPED: {**GRPC, "": "OK"},
    **{each: {**HTTP, "": "200"} for each in LISTS},
}
"""Each outcome as the protocols report it. The empty string stands for success."""
BARE = {OLD_HTTP: "400", OLD_GRPC: "INTERNAL"}
"""The legacy servers' statuses for unreadable requests."""
NOT_HTTP = "400"


@dataclass(frozen=True)
class Outcome:
    """The outcome, as in CODES, and the error text."""

    code: str
    error: str = ""


@dataclass(frozen=True)
class Harness:
    gateway: Infergate
    frames: str
    v1: str
    rest: Backend
    channel: grpc.Channel
    refused: list[str] = field(default_factory=list)

    def others(self) -> None:
        with Client(self.gateway.http) as client:
            client.send(b"GET /v2/models/m HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.answer().status == 200

    def check_frontends(self) -> None:
        """Check that each frontend serves a valid request."""
        for frontend in FRONTENDS:
            with ExitStack() as stack:
                result = self.connected(frontend, stack).send_request(VALID_REQUESTS[frontend])
                assert result == Outcome(CODES[frontend][""])
        self.others()

    def connected(self, frontend: str, stack: ExitStack) -> FrontendClient:
        """Return a client with a new connection, except over gRPC, where one connection must
        survive all cases."""
        match frontend:
            case each if each in (OLD_GRPC, *TFS):
                return FrontendClient(frontend, self.channel)
            case "graphpipe tcp":
                return FrontendClient(frontend, stack.enter_context(Client(self.frames)))
            case "kserve-v1":
                return FrontendClient(frontend, stack.enter_context(Client(self.v1)))
        return FrontendClient(frontend, stack.enter_context(Client(self.gateway.http)))


@dataclass(frozen=True)
class FrontendClient:
    """A client with one connection."""

    frontend: str
    peer: Client | grpc.Channel

    def send_request(self, bad: Bad) -> Outcome:
        """Send ``bad``, check the form of the response and return its status and message."""
        match self.frontend:
            case each if each in TFS:
                head = PredictRequest(model_spec={"name": bad.model}).SerializeToString()
                status = call(self.peer, head + bad.body, PREDICT)
                return Outcome(status.code.name, status.details)
            case each if each in LISTS:
                return self._lists(bad)
            case "graphpipe http":
                return self._graphpipe(bad)
            case "graphpipe tcp":
                return self._framed(bad)
            case "trtis-http":
                return self._old_http(bad)
        status = call(self.peer, bad.body, OLD_INFER)
        if status.code is not grpc.StatusCode.OK:
            return Outcome(status.code.name, status.details)
        return self._legacy(grpc_outcome(status))

    def _posted(self, path: str, bad: Bad) -> Answer:
        assert isinstance(self.peer, Client)
        self.peer.post(path, bad.body, bad.headers)
        return self.peer.answer()

    def _graphpipe(self, bad: Bad) -> Outcome:
        answer = self._posted(f"/graphpipe/{bad.model}", bad)
        if answer.status == 200:
            assert InferResponse.GetRootAs(answer.body).OutputTensorsLength() == 1
            return Outcome("200")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.body.endswith(b"\n")
        return Outcome(str(answer.status), answer.body.decode())

    def _lists(self, bad: Bad) -> Outcome:
        answer = self._posted(f"/v1/models/{bad.model}:predict", bad)
        document = json.loads(answer.body)
        if answer.status == 200:
            assert list(document.values()) == [[7]]
            return Outcome("200")
        return Outcome(str(answer.status), document["error"])

    def _framed(self, bad: Bad) -> Outcome:
        assert isinstance(self.peer, Client)
        self.peer.send(struct.pack("<I", len(bad.body)) + bad.body)
        (length,) = struct.unpack("<I", self.peer.exactly(4))
        result = InferResponse.GetRootAs(self.peer.exactly(length))
        if result.ErrorsLength() == 0:
            assert result.OutputTensorsLength() == 1
            return Outcome("answered")
        assert (result.ErrorsLength(), result.OutputTensorsLength()) == (1, 0)
        return Outcome(str(result.Errors(0).Code()), result.Errors(0).Message().decode())

    def _old_http(self, bad: Bad) -> Outcome:
        answer = self._posted(f"/api/infer/{bad.model}", bad)
        if "nv-status" not in answer.headers:
            return Outcome(str(answer.status), answer.body.decode())
        return self._legacy(http_outcome(answer))

    def _legacy(self, outcome: legacy.Outcome) -> Outcome:
        assert bool(outcome.body) == (outcome.code == "SUCCESS")
        return Outcome(str(outcome.code), outcome.error)


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    listener, raw = raw_listener("m")
    (port,) = free_ports(1)
    v1 = f'{{{{address: "127.0.0.1:{port}", protocols: [kserve-v1]}}}}'
    listeners = f"{LISTENERS}{listener}  additional: {{{{v1: {v1}}}}}\n"
    with (
        scripted(good_http) as rest,
        started_infergate(CONFIG.format(rest=rest.address), listeners) as gateway,
        channel(gateway.grpc) as rpc_channel,
    ):
        harness = Harness(gateway, raw, f"127.0.0.1:{port}", rest, rpc_channel)
        harness.check_frontends()
        with unharmed(gateway, harness.others):
            yield harness
        wrong = sum(counted(gateway, outcome=each) for each in ("bad_request", "too_large"))
        assert wrong == len(harness.refused), "a rejected request was not counted exactly once"
        assert_healthy(gateway)


def test_every_case_is_tested() -> None:
    """If a frontend cannot express a case, there must be a reason."""
    assert not BAD.keys() & CANNOT.keys()
    assert BAD.keys() | CANNOT.keys() == set(itertools.product(CASES, FRONTENDS))


@pytest.mark.parametrize(("case", "frontend"), list(BAD))
def test_each_bad_tensor_is_rejected_with_its_name(
    harness: Harness, case: str, frontend: str
) -> None:
    bad = BAD[case, frontend]
    codes = CODES[frontend]
    code = codes[LARGE if bad.large else BROKEN]
    if bad.bare or bad.ends:
        code = BARE[frontend] if bad.bare else NOT_HTTP
    before = len(harness.rest.requests)
    with ExitStack() as stack:
        client = harness.connected(frontend, stack)
        result = client.send_request(bad)
        assert result.code == code, result
        assert re.search(bad.names, result.error), result
        harness.refused.append(case)
        assert len(harness.rest.requests) == before
        if bad.ends:
            assert isinstance(client.peer, Client)
            assert client.peer.read_to_end() == b""
            client = harness.connected(frontend, stack)
        assert client.send_request(VALID_REQUESTS[frontend]) == Outcome(codes[""])
        assert len(harness.rest.requests) == before + 1


@pytest.mark.parametrize("frontend", [each for each in FRONTENDS if each != FRAMES])
def test_unknown_models_in_bulk_make_no_series(harness: Harness, frontend: str) -> None:
    """A raw socket sends no model name, because its listener determines the model."""
    before = len(harness.rest.requests)
    with ExitStack() as stack:
        client = harness.connected(frontend, stack)

        def send_request(number: int) -> None:
            good = VALID_REQUESTS[frontend]
            name = f"unknown-{frontend[-4:].strip()}-{number}"
            body = good.body
            if frontend == OLD_GRPC:
                request = OLD.InferRequest.FromString(body)
                request.model_name = name
                body = request.SerializeToString()
            outcome = client.send_request(Bad("", body, good.headers, model=name))
            assert outcome.code == CODES[frontend][UNKNOWN], outcome
            assert name in outcome.error

        send_request(0)
        series = len(harness.gateway.metrics().splitlines())
        for number in range(1, 100):
            send_request(number)
        assert len(harness.gateway.metrics().splitlines()) == series
    assert len(harness.rest.requests) == before
