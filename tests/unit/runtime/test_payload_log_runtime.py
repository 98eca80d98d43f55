"""The payload log of a running gateway: delivery over HTTP, sampling, reloads and metrics."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from http_stand_in import QuietHandler, StandInServer
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.core.tensor import tensor_from_array
from infergate.runtime.assemble import assemble
from infergate.runtime.observers import make_observers, make_payload_log
from infergate.runtime.running import RunningGateway
from infergate.runtime.worker_group import WorkerGroup
from running_gateways import quiet_config, serving
from tls_kit import Authority

ONES = np.ones((1, 16), np.int32)
REQUEST = InferRequest(
    "simple", inputs=tuple(tensor_from_array(f"INPUT{i}", Datatype.INT32, ONES) for i in (0, 1))
)


class Receiver(StandInServer):
    """A server that keeps the events that it receives. ``statuses`` are the statuses of the next
    responses; later responses have status 202."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(Handler, context)
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.paths: list[str] = []
        self.statuses: list[int] = []
        self.url = f"{'http' if context is None else 'https'}://{self.address}"

    def kinds(self) -> list[str]:
        return sorted(headers["ce-type"].rpartition(".")[2] for headers, _ in self.received)


class Handler(QuietHandler):
    server: Receiver

    def post(self) -> None:
        self.server.paths.append(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.append((headers, self.body()))
        self.respond(self.server.statuses.pop(0) if self.server.statuses else 202)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        yield server


@pytest.fixture(autouse=True)
def delivery_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infergate.runtime.payload_log._FIRST_DELAY_SECONDS", 0.0)
    for module in ("recording.payload_log", "runtime.running"):  # closing drops no event
        monkeypatch.setattr(f"infergate.{module}._CLOSE_TIMEOUT_SECONDS", 60.0)


def config_with(url: str, route: Any = None, file: Any = None, **http: Any) -> Config:
    return quiet_config(
        routes=(
            {"model": "simple", "backend": "demo", "payload_log": route or {}},
            {"model": "*", "backend": "demo"},
        ),
        payload_log={"file": file} if file else {"http": {"url": url, **http}},
    )


def payload_files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@dataclass
class Harness:
    gateway: RunningGateway
    group: WorkerGroup

    async def infer(self, request: InferRequest = REQUEST, request_id: str = "r") -> None:
        context = RequestContext("test", request_id=request_id)
        gateway = self.gateway.gateway
        await gateway.infer(request, gateway.bind(request.model, "", context), context)

    def count(self, result: str) -> float:
        sample = {"result": result}
        registry = self.group.metrics.registry
        return registry.get_sample_value("infergate_payload_events_total", sample) or 0


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Harness]:
    group = WorkerGroup()
    async with serving(config, group=group) as gateway:
        yield Harness(gateway, group)


async def test_inferences_and_errors_of_the_route_are_sent(receiver: Receiver) -> None:
    async with running(config_with(f"{receiver.url}/ns/broker")) as gateway:
        await gateway.infer()
        with pytest.raises(GatewayError):
            await gateway.infer(InferRequest("simple"))
        await gateway.infer(InferRequest("identity", inputs=(REQUEST.inputs[0],)))  # not logged
    assert receiver.kinds() == ["request", "request", "response", "response"]
    assert set(receiver.paths) == {"/ns/broker"}
    statuses = {headers.get("ce-statuscode") for headers, _ in receiver.received}
    assert statuses == {None, "200", "400"}
    data = [json.loads(body) for headers, body in receiver.received if "ce-statuscode" in headers]
    assert sorted(key for body in data for key in body if key in {"outputs", "error"}) == [
        "error",
        "outputs",
    ]
    assert gateway.count("sent") == 4


@pytest.mark.parametrize("encoding", ["structured", "batch"])
async def test_events_are_sent_as_json(receiver: Receiver, encoding: str) -> None:
    async with running(config_with(receiver.url, encoding=encoding)) as gateway:
        await gateway.infer()
        await gateway.infer()
    bodies = [json.loads(body) for _, body in receiver.received]
    types = {headers["content-type"] for headers, _ in receiver.received}
    if encoding == "batch":
        assert types == {"application/cloudevents-batch+json"}
        (bodies,) = bodies
    else:
        assert types == {"application/cloudevents+json"}
    assert len(bodies) == 4
    assert {body["data"].keys() & {"inputs", "outputs"} == set() for body in bodies} == {False}
    assert gateway.count("sent") == 4


async def test_a_busy_server_gets_the_event_again(receiver: Receiver) -> None:
    receiver.statuses = [503, 429]
    async with running(config_with(receiver.url, {"mode": "request"}, retries=2)) as gateway:
        await gateway.infer()
    assert receiver.kinds() == ["request"] * 3
    assert gateway.count("sent") == 1


@pytest.mark.parametrize(
    ("statuses", "result", "attempts"), [([500] * 2, "failed", 2), ([404], "rejected", 1)]
)
async def test_events_that_cannot_be_delivered_are_counted(
    receiver: Receiver, statuses: list[int], result: str, attempts: int
) -> None:
    receiver.statuses = statuses
    async with running(config_with(receiver.url, {"mode": "request"}, retries=1)) as gateway:
        await gateway.infer()
    assert len(receiver.received) == attempts
    assert gateway.count(result) == 1


async def test_an_unreachable_server_does_not_fail_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Receiver() as receiver:
        pass  # nothing listens at its address any more
    async with running(config_with(receiver.url)) as gateway:
        await gateway.infer()
    assert gateway.count("failed") == 2
    assert f"cannot send events to {receiver.url.removeprefix('http://')}" in caplog.text


async def test_tls_verifies_the_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with Receiver(context) as server:
        async with running(config_with(server.url, tls={"ca": str(authority.file)})) as trusting:
            await trusting.infer()
        async with running(config_with(server.url, retries=0)) as distrusting:
            await distrusting.infer()
    assert (trusting.count("sent"), distrusting.count("failed")) == (2, 2)
    assert server.kinds() == ["request", "response"]


async def test_sequences_are_sampled_as_a_whole(receiver: Receiver) -> None:
    def request(sequence: int) -> InferRequest:
        return InferRequest("simple", parameters={"sequence_id": sequence})

    config = config_with(receiver.url, {"percent": 50})
    log = make_payload_log(config, DEFAULT_LIMITS, None, WorkerGroup(), None)
    table = compiled.routing_table(config)
    ((observer,),) = make_observers(config, table, None, log).values()

    def selects(request: InferRequest, number: int) -> bool:
        return observer.selects(request, RequestContext("test", request_id=str(number)))

    selections = [
        {selects(request(sequence), number) for number in range(20)} for sequence in range(1, 100)
    ]
    assert all(len(decisions) == 1 for decisions in selections)
    assert 25 < sum(True in decisions for decisions in selections) < 75
    assert 60 < sum(selects(REQUEST, number) for number in range(200)) < 140


async def test_a_reload_keeps_the_queue_unless_the_section_changes(receiver: Receiver) -> None:
    async with running(config_with(receiver.url)) as gateway:
        (first,) = gateway.gateway.all_parts
        await gateway.gateway.reload(config_with(receiver.url, {"mode": "request"}))
        second = next(iter(gateway.gateway.all_parts))
        assert second.payload_log is first.payload_log
        await gateway.infer()
        await gateway.gateway.reload(config_with(f"{receiver.url}/new"))
        third = next(iter(gateway.gateway.all_parts))
        assert third.payload_log is not first.payload_log
        await gateway.infer()
    assert sorted(receiver.paths) == ["/", "/new", "/new"]
    assert gateway.count("sent") == 3


async def test_a_configuration_with_an_unusable_folder_is_rejected(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    changed = config_with("", file={"path": str(occupied)})
    with pytest.raises(OSError, match="file"):
        assemble(changed)


async def test_events_go_to_files_of_the_configured_size(tmp_path: Path) -> None:
    file = {"path": str(tmp_path), "file_bytes": 2000, "total_bytes": 6000}
    async with running(config_with("", file=file)) as gateway:
        for _ in range(20):
            await gateway.infer()
    assert gateway.count("sent") == 40
    sizes = [len(file.read_bytes()) for file in payload_files(tmp_path)]
    assert 2000 < sum(sizes) <= 6000
