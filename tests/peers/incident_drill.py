"""An incident drill: slow, failing and flapping backends, clients that send invalid requests, and a
bad reload, under load in seven protocols. The drill records each step."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import grpc
import numpy as np

from e2e.running import Infergate
from e2e.several import until
from infergate.codecs.base import Profile
from infergate.codecs.profiles import GENERIC, TRTSERVER
from infergate.codecs.registry import plugins
from infergate.core.datatypes import Datatype
from infergate.core.errors import CLIENT_ERRORS
from infergate.core.messages import InferRequest, ModelMetadata, TensorMetadata
from infergate.core.tensor import tensor_from_array
from infergate.core.wire import HttpRequest, join_parts
from peers.incident_site import Incident, run_incident

CONFIG = """
log: {{access: true}}
reload: {{watch: false}}
backends:
  idle: {{protocol: v2-rest, endpoints: ["http://{good}"], health: {{checks: never}}}}
  good: {{protocol: v2-rest, endpoints: ["http://{good}"], health: {{checks: never}}}}
  slow: {{protocol: v2-rest, endpoints: ["http://{slow}"], health: {{checks: never}}}}
  flapping:
    protocol: v2-rest
    endpoints: ["http://{good}", "http://{flapping}"]
    balance: {{policy: round-robin}}
    health: {{checks: never}}
    outliers: {{consecutive_errors: 2, base_ejection_time: 1s, max_ejection_time: 1s}}
  failing: {{protocol: v2-rest, endpoints: ["http://{failing}"], health: {{checks: never}}}}
routes:
  - {{model: idle, backend: idle}}
  - {{model: good, backend: good}}
  - {{model: slow, backend: slow}}
  - {{model: impatient, backend: slow, timeout: 100ms}}
  - {{model: flapping, backend: flapping}}
  - {{model: failing, backend: failing, timeout: 30s}}
models:
  good: &model
    inputs: [{{name: pixels, datatype: FP32, shape: [2, 2]}}]
    outputs: [{{name: y, datatype: FP32, shape: [1]}}]
  slow: *model
  impatient: *model
  failing: *model
"""
SLOW_SECONDS = 0.5
PROTOCOLS: Mapping[str, Profile] = {
    "v2-rest": GENERIC, "v2-grpc": GENERIC, "tfs-rest": GENERIC, "tfs-grpc": GENERIC,
    "trtis-http": TRTSERVER, "trtis-grpc": TRTSERVER, "graphpipe": GENERIC,
}  # fmt: skip
LEGACY = "/nvidia.inferenceserver."
LEGACY_SUCCESS = b"\x08\x01"
"""The first field of a legacy response's ``RequestStatus``: the code SUCCESS."""


@dataclass
class Sent:
    """The requests that were sent, and when the flaps and the reloads took place."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The requests by route and by ``ok``, ``failed`` or ``client error``."""
    flaps: list[tuple[float, float]] = field(default_factory=list)
    """When a server of ``flapping`` stopped, and when it received requests again."""
    reloads: list[tuple[float, float]] = field(default_factory=list)
    """The start and the end of each reload."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, route: str, result: str) -> None:
        with self._lock:
            self.counts[route, result] += 1

    def traffic(self, *routes: str) -> tuple[int, int, int]:
        """Return the numbers of requests, of failures and of client errors."""
        totals = [sum(self.counts[each, kind] for each in routes) for kind in KINDS]
        return sum(totals), totals[1], totals[2]


CLIENT_KINDS = {kind.value for kind in CLIENT_ERRORS}
KINDS = ("ok", "failed", "client error")
TENSOR = tensor_from_array("pixels", Datatype.FP32, np.ones((2, 2), "f4"))
MODEL = ModelMetadata(
    "m", inputs=(TensorMetadata("pixels", "FP32", (2, 2)),),
    outputs=(TensorMetadata("y", "FP32", (1,)),),
)  # fmt: skip


class Clients:
    """Clients of ``PROTOCOLS``, which send only inference requests."""

    def __init__(self, gateway: Infergate, sent: Sent) -> None:
        self._gateway = gateway
        self._channel = grpc.insecure_channel(gateway.grpc)
        self._sent = sent

    def close(self) -> None:
        self._channel.close()

    def infer(self, protocol: str, model: str, expected: str, request_id: str = "") -> None:
        """Send a valid inference request. Only HTTP requests have the ``request_id``."""
        codec = plugins()[protocol].create({})
        request = InferRequest(model, inputs=(TENSOR,))
        wire = codec.build_request(request, PROTOCOLS[protocol], MODEL)
        if isinstance(wire, HttpRequest):
            path = f"/graphpipe/{model}" if protocol == "graphpipe" else wire.path
            body = bytes(join_parts(wire.body))
            headers = {**wire.headers, **({"x-request-id": request_id} if request_id else {})}
            self.post(path, body, model, expected, headers)
        else:
            self.call(wire.method, bytes(join_parts(wire.message)), model, expected)

    def post(
        self, path: str, body: bytes, route: str, expected: str, headers: Mapping[str, str] = {}
    ) -> None:
        """Send a POST, check that it has the ``expected`` result, and record it."""
        request = urllib.request.Request(f"http://{self._gateway.http}{path}", body, {**headers})
        try:
            with urllib.request.urlopen(request) as response:
                status = int(response.status)
                response.read()
        except urllib.error.HTTPError as error:
            status = int(error.code)
            error.close()
        assert (status == HTTPStatus.OK) == (expected == "ok"), (path, status)
        if path.startswith("/v2/"):  # other protocols have no status for a failed backend
            is_failure = status >= HTTPStatus.INTERNAL_SERVER_ERROR
            assert is_failure == (expected == "failed"), (path, status)
        self._sent.add(route, expected)

    def call(self, method: str, message: bytes, route: str, expected: str) -> None:
        """Make a gRPC call, check that it has the ``expected`` result, and record it."""
        try:
            response = self._channel.unary_unary(method)(message)
            has_failed = method.startswith(LEGACY) and response[2:4] != LEGACY_SUCCESS
            result = "failed" if has_failed else "ok"
        except grpc.RpcError as error:
            is_invalid = error.code() is grpc.StatusCode.INVALID_ARGUMENT
            result = "client error" if is_invalid else "failed"
        assert result == expected, method
        self._sent.add(route, expected)


@dataclass
class Drill(Incident):
    """A gateway after an incident, and the record of the incident."""

    sent: Sent
    clients: Clients

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.gateway.admin}{path}") as response:
            return json.load(response)

    def command(self, *arguments: str, status: int = 0) -> str:
        """Run a command of infergate against the gateway, and return its output."""
        argv = [sys.executable, "-m", "infergate", *arguments]
        argv += ["--admin", f"http://{self.gateway.admin}"]
        environment = os.environ | {"COLUMNS": "100"}
        process = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
        assert process.returncode == status, process.stderr
        return process.stdout

    def traffic_load(self) -> list[tuple[Any, ...]]:
        """Return functions of ``clients`` and their arguments, in random order."""
        clients = self.clients
        load: list[tuple[Any, ...]] = []
        for protocol in PROTOCOLS:
            load += [(clients.infer, protocol, "good", "ok")] * 5
            load += [(clients.infer, protocol, "failing", "failed")] * 3
        load += [(clients.infer, each, "slow", "ok") for each in ("v2-rest", "trtis-grpc")]
        load += [(clients.infer, each, "impatient", "failed") for each in ("v2-rest", "v2-grpc")]
        good, missing = "/v2/models/good/infer", "/v2/models/missing/infer"
        method = "/inference.GRPCInferenceService/ModelInfer"
        text = b'{"inputs": [{"name": "%s", "datatype": "FP32", "shape": [1], "data": [1]}]}'
        load += [(clients.post, good, b"{", "good", "client error")] * 120
        load += [(clients.post, good, text % b"rejected", "good", "client error")] * 4
        load += [(clients.post, missing, text % b"pixels", "", "client error")] * 3
        load += [(clients.call, method, b"\x0a\x04good\x2a\x01\xff", "good", "client error")] * 3
        random.Random(7).shuffle(load)
        return load

    def flap(self) -> None:
        """Stop a server of ``flapping`` until it is ejected, start it again, and wait until it
        gets requests."""
        server, started = self.servers["flapping"], time.time()
        ejections = self.ejections()
        server.close()
        while self.ejections() == ejections:
            self.clients.infer("v2-rest", "flapping", "ok")
        server.open()
        before = server.requests
        while server.requests == before:
            self.clients.infer("v2-rest", "flapping", "ok")
        until(
            lambda: len(self.events("ejected")) > len(self.sent.flaps),
            "the ejection is listed",
        )
        self.sent.flaps.append((started, time.time()))

    def ejections(self) -> list[str]:
        lines = self.gateway.metrics().splitlines()
        return [each for each in lines if each.startswith("infergate_endpoint_ejections_total")]

    @property
    def bad_line(self) -> int:
        """The number of the line that made the gateway reject the configuration."""
        lines = self.file.read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if "timeout: soon" in line)

    def events(self, kind: str, query: str = "minutes=15") -> list[Any]:
        return [each for each in self.history(query)["events"] if each["kind"] == kind]

    def change(self, old: str, new: str) -> None:
        started, text = time.time(), self.file.read_text()
        assert text.count(old) == 1
        self.file.write_text(text.replace(old, new))
        self.reload()
        self.sent.reloads.append((started, time.time()))


MODELS = ("idle", "good", "slow", "impatient", "flapping", "failing")
ROUTES = {f"route={route}": (route,) for route in MODELS}
BACKENDS = {f"backend={name}": (name,) for name in ("idle", "good", "flapping", "failing")}
BACKENDS["backend=slow"] = ("slow", "impatient")
"""The routes of each backend."""
FIRST_FAILURE_ID = "drill-first-failure"


@contextmanager
def started_drill() -> Iterator[Drill]:
    """Yield a gateway after the incident."""
    sent = Sent()
    with (
        run_incident(CONFIG) as site,
        closing(Clients(site.gateway, sent)) as clients,
    ):
        drill = Drill(site.gateway, site.file, site.servers, sent, clients)
        drill.history()  # the counters start here
        perform_incident(drill)
        yield drill


def perform_incident(drill: Drill) -> None:
    servers = drill.servers
    servers["slow"].delay = SLOW_SECONDS
    servers["failing"].is_broken = True
    servers["good"].rejects = b"rejected"
    drill.clients.infer("v2-rest", "failing", "failed", FIRST_FAILURE_ID)
    with ThreadPoolExecutor(6) as pool:
        load = [pool.submit(*each) for each in drill.traffic_load()]
        drill.flap()
        drill.change("timeout: 30s", "timeout: 20s")
        drill.change("timeout: 20s", "timeout: soon")
        drill.flap()
        for each in load:
            each.result()
    total = sum(drill.sent.counts.values())
    until(lambda: sums(drill.history())["requests"] >= total, "the history is complete")


def sums(history: Mapping[str, Any]) -> dict[str, int]:
    return {name: sum(numbers) for name, numbers in history["counts"].items()}
