"""Tests in which order waiting inferences reach a server with one slot, and which of them a full
queue rejects, over each transport and both pipelines. The server responds when the test permits."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import grpc
import pytest

from e2e.running import Infergate, started_infergate
from faults.payloads import document
from faults.peer import post
from faults.rpc import call, channel, rpc_backend
from faults.watch import metric, until
from http_stand_in import QuietHandler, StandInServer
from infergate.codecs.v2_grpc.messages import ModelInferRequest, ModelInferResponse

NAMES = ("flood", "other", "limited")
KEYS = ", ".join(f"{{name: {each}, sha256: {sha256(each.encode()).hexdigest()}}}" for each in NAMES)
CONFIG = f"""
access:
  keys: [{KEYS}]
  rules: [{{who: ["*"]}}]
  shares:
    - {{who: ["key:limited"], highest_priority: 7}}
    - {{who: ["key:other"], weight: 2}}
backends:
  http:
    protocol: v2-rest
    profile: triton
    endpoints: ["http://HTTP"]
    limits: {{max_requests: 1, max_queue: 9}}
  grpc:
    protocol: v2-grpc
    endpoints: ["grpc://GRPC"]
    limits: {{max_requests: 1, max_queue: 9, priority_header: x-urgency}}
routes:
  - {{model: http, backend: http}}
  - {{model: batch, backend: http, priority: 8, rewrite: {{model: http}}}}
  - {{model: grpc, backend: grpc}}
models:
  http: {{inputs: [{{name: x, datatype: INT32, shape: [1]}}]}}
"""


@dataclass
class Server:
    """A V2 server. ``arrived`` lists the ids of inferences in order. Each release of ``responses``
    permits one response."""

    arrived: list[str] = field(default_factory=list)
    responses: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def serve(self, id_: str) -> None:
        self.arrived.append(id_)
        assert self.responses.acquire(timeout=60)

    def release(self, count: int) -> None:
        self.responses.release(count)


def http_handler(server: Server) -> type[QuietHandler]:
    class Handler(QuietHandler):
        def post(self) -> None:
            body = self.body()
            length = self.headers.get("inference-header-content-length")
            request = json.loads(body[: int(length)] if length else body)
            server.serve(request["id"])
            output = {"name": "y", "datatype": "INT32", "shape": [1], "data": [1]}
            self.respond(200, {"model_name": "http", "id": request["id"], "outputs": [output]})

    return Handler


def grpc_handler(server: Server) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def respond(message: bytes, _: grpc.ServicerContext) -> bytes:
        request = ModelInferRequest.FromString(message)
        server.serve(request.id)
        response = ModelInferResponse(model_name="grpc", id=request.id)
        response.outputs.add(name="y", datatype="INT32", shape=[1])
        response.raw_output_contents.append(bytes(4))
        return bytes(response.SerializeToString())

    return respond


@dataclass
class Deployment:
    """A gateway, its two servers, and clients. A request returns ``(status, retry-after)``."""

    gateway: Infergate
    servers: dict[str, Server]
    pool: ThreadPoolExecutor
    channel: grpc.Channel

    def waiting(self, backend: str) -> float:
        return metric(self.gateway, "infergate_queue_requests", backend=backend)

    def send_http(
        self, model: str, id_: str, headers: dict[str, str], priority: int
    ) -> tuple[Any, str]:
        tensor = {"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}
        parameters = {"parameters": {"priority": priority}} if priority else {}
        body = document(tensor, id=id_, **parameters)
        response = post(self.gateway.http, f"/v2/models/{model}/infer", body, headers)
        return response.status, response.headers.get("retry-after", "")

    def send_grpc(
        self, model: str, id_: str, headers: dict[str, str], priority: int
    ) -> tuple[Any, str]:
        request = ModelInferRequest(model_name=model, id=id_, raw_input_contents=[bytes(4)])
        request.inputs.add(name="x", datatype="INT32", shape=[1])
        if priority:
            request.parameters["priority"].uint64_param = priority
        metadata = tuple(headers.items())
        status = call(self.channel, request.SerializeToString(), metadata=metadata)
        return status.code.name, str(status.trailers.get("retry-after", ""))


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    servers = {"http": Server(), "grpc": Server()}
    with ExitStack() as stack:
        rpc = stack.enter_context(rpc_backend())
        rpc.respond = grpc_handler(servers["grpc"])
        http = stack.enter_context(StandInServer(http_handler(servers["http"])))
        config = CONFIG.replace("HTTP", http.address).replace("GRPC", rpc.address)
        gateway = stack.enter_context(started_infergate(config))
        pool = stack.enter_context(ThreadPoolExecutor(16))
        rpc_channel = stack.enter_context(channel(gateway.grpc))
        for server in servers.values():
            stack.callback(server.release, 100)
        yield Deployment(gateway, servers, pool, rpc_channel)


@dataclass
class Waiting:
    """Requests that are sent one after the other and wait for the only slot of a backend."""

    deployment: Deployment
    transport: str
    backend: str
    sent: dict[str, Future[tuple[Any, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = self.deployment.servers[self.backend]
        self.server.arrived.clear()
        self.add("first", "other", waits=False)
        until(lambda: self.server.arrived == ["first"], "the request has the slot")

    def add(
        self,
        name: str,
        client: str,
        model: str = "",
        header: str = "",
        priority: int = 0,
        *,
        waits: bool = True,
    ) -> None:
        """Send a request. If it ``waits``, return once it is in the queue."""
        before = self.deployment.waiting(self.backend)
        header_name = {"http": "infergate-priority", "grpc": "x-urgency"}[self.backend]
        headers = {"authorization": f"Bearer {client}"} | ({header_name: header} if header else {})
        deployment, model = self.deployment, model or self.backend
        send = deployment.send_http if self.transport == "http" else deployment.send_grpc
        self.sent[name] = deployment.pool.submit(send, model, name, headers, priority)
        if waits:
            until(lambda: self.deployment.waiting(self.backend) == before + 1, f"{name} waits")

    def finish(self) -> list[str]:
        """Let the server respond. Return the ids of the waiting requests in order of arrival."""
        self.server.release(len(self.sent))
        for request in self.sent.values():
            request.result(60)
        until(lambda: self.deployment.waiting(self.backend) == 0, "no request waits")
        while self.server.responses.acquire(blocking=False):  # drop the permits of shed requests
            pass
        return self.server.arrived[1:]


TRANSPORTS = pytest.mark.parametrize(
    ("transport", "backend"),
    [("http", "http"), ("grpc", "grpc"), ("grpc", "http")],
    ids=["http", "grpc", "translated"],
)


@TRANSPORTS
def test_requests_are_sent_by_priority_and_fairly_between_clients(
    deployment: Deployment, transport: str, backend: str
) -> None:
    waiting = Waiting(deployment, transport, backend)
    waiting.add("late", "other", header="9", priority=1)
    waiting.add("limited", "limited", priority=1)
    for number in range(3):
        waiting.add(f"flood{number}", "flood")
    for number in range(2):
        waiting.add(f"other{number}", "other", header="nonsense")
    waiting.add("urgent", "flood", priority=2)
    waiting.add("header", "flood", header="1", priority=3)
    assert waiting.finish() == [
        "header", "urgent", "other0", "flood0", "other1", "flood1", "flood2", "limited", "late",
    ]  # fmt: skip


def test_a_request_without_a_priority_has_the_priority_of_its_route(deployment: Deployment) -> None:
    waiting = Waiting(deployment, "http", "http")
    waiting.add("batch", "other", model="batch")
    waiting.add("low", "other", header="7")
    waiting.add("raised", "flood", model="batch", priority=6)
    assert waiting.finish() == ["raised", "low", "batch"]


@TRANSPORTS
def test_a_full_queue_sheds_the_flood_with_a_retry_after(
    deployment: Deployment, transport: str, backend: str
) -> None:
    shed = ("infergate_queue_shed_total", {"backend": backend, "priority": "5"})
    before = metric(deployment.gateway, shed[0], **shed[1])
    waiting = Waiting(deployment, transport, backend)
    for number in range(9):
        waiting.add(f"flood{number}", "flood")
    waiting.add("rejected", "flood", waits=False)
    waiting.add("good", "other", waits=False)
    rejected = [waiting.sent[name].result(60) for name in ("rejected", "flood8")]
    for status, retry_after in rejected:
        assert status == (503 if transport == "http" else "UNAVAILABLE")
        assert re.fullmatch("[1-9][0-9]*", retry_after)
    assert metric(deployment.gateway, shed[0], **shed[1]) == before + 2
    queued = metric(
        deployment.gateway, "infergate_queue_priority_requests", backend=backend, priority="5"
    )
    assert queued == 9
    order = waiting.finish()
    assert sorted(order) == ["flood0", *(f"flood{n}" for n in range(1, 8)), "good"]
    assert order.index("good") < 2
