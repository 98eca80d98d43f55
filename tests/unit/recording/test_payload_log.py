"""The payload log delivers or counts every event, and stays within its bounds."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import Exchange, Outcome
from infergate.core.memory import UNLIMITED, MemoryAccount
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.tensor import OpaqueParameters, Tensor, pack_bytes, tensor_from_array
from infergate.recording.cloud_events import CloudEvent, EventAttributes, binary_message
from infergate.recording.payload_log import (
    PayloadLog,
    PayloadLogSettings,
    WireEvent,
    encode_exchange,
)
from infergate.recording.redaction import Redaction
from inline_offload import InlineOffload
from memory_budget import Budget


def exchange(elements: int = 2, error: GatewayError | None = None, **request: Any) -> Exchange:
    tensor, output = (
        tensor_from_array("x", Datatype.FP32, np.ones(elements, np.float32)) for _ in range(2)
    )
    responses = () if error else (InferResponse("m", outputs=(output,)),)
    return Exchange(InferRequest("m", inputs=(tensor,), **request), Outcome(responses, error))


class Sink:
    """Keeps the events. If ``hangs`` is set, ``send`` waits until ``proceed`` is set."""

    encode: Callable[[CloudEvent], WireEvent] = staticmethod(binary_message)
    max_wait = 0.0
    max_concurrent = 1
    error = "no route to host"

    def __init__(self, max_batch: int = 1, result: str = "sent", hangs: bool = False) -> None:
        self.max_batch = max_batch
        self.result = result
        self.batches: list[list[WireEvent]] = []
        self.proceed = asyncio.Event()
        if not hangs:
            self.proceed.set()
        self.has_sent = asyncio.Event()
        self.is_closed = False

    async def send(self, events: Sequence[WireEvent]) -> Counter[str]:
        await self.proceed.wait()
        self.batches.append(list(events))
        self.has_sent.set()
        return Counter({self.result: len(events)})

    async def close(self) -> None:
        self.is_closed = True


class Harness:
    def __init__(self, sink: Sink, has_helpers: bool, **limits: Any) -> None:
        self.sink = sink
        self.results = Counter[str]()
        self.helpers = InlineOffload()
        settings = PayloadLogSettings(EventAttributes("s"), **limits)
        offload = self.helpers if has_helpers else None
        self.log = PayloadLog(settings, sink, offload, self.count)

    def count(self, result: str, number: int) -> None:
        self.results[result] += number

    def add(self, *exchanges: Exchange, memory: MemoryAccount = UNLIMITED) -> None:
        for each in exchanges:
            self.log.add(each, "all", memory)

    @property
    def sent(self) -> list[WireEvent]:
        return [event for batch in self.sink.batches for event in batch]


@asynccontextmanager
async def start_log(
    sink: Sink | None = None, has_helpers: bool = True, **limits: Any
) -> AsyncIterator[Harness]:
    running = Harness(sink or Sink(), has_helpers, **limits)
    yield running
    await running.log.close()


async def test_closing_sends_the_waiting_events() -> None:
    async with start_log() as running:
        running.add(exchange(), exchange())
    assert [headers["ce-type"].rpartition(".")[2] for headers, _ in running.sent] == [
        "request", "response", "request", "response",
    ]  # fmt: skip
    ids = [headers["ce-id"] for headers, _ in running.sent]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert running.results == {"sent": 4}
    assert running.sink.is_closed


async def test_a_full_queue_drops_and_counts_events() -> None:
    async with start_log(Sink(hangs=True), max_queue=3) as running:
        running.add(*[exchange()] * 10)
        assert running.results == {"dropped": 14}
        running.sink.proceed.set()
    assert running.results == {"dropped": 14, "sent": 6}


async def test_the_bytes_of_the_queue_are_bounded_while_the_sink_hangs() -> None:
    limits = {"max_queue_bytes": 100_000, "max_exchange_bytes": 50_000}
    async with start_log(Sink(hangs=True), **limits) as running:
        for _ in range(50):
            running.add(exchange(2500))  # 20 kB
            await asyncio.sleep(0)
        assert running.log._bytes <= 100_000
        assert running.results["dropped"] == 2 * 46
        running.sink.proceed.set()
    assert running.results == {"dropped": 92, "sent": 8}
    assert running.log._bytes == 0


async def test_texts_count_as_held_bytes() -> None:
    async with start_log(max_queue_bytes=100_000) as running:
        running.add(exchange(parameters={"prompt": "x" * 30_000}))
        assert running.results == {"dropped": 2}


async def test_an_inference_with_large_tensors_or_too_many_parameters_is_not_logged() -> None:
    async with start_log(max_exchange_bytes=1000) as running:
        running.add(exchange(1000), exchange(100), exchange(parameters={"list": [0] * 10_001}))
    assert running.results == {"too_large": 4, "sent": 2}


async def test_held_memory_is_charged_and_released() -> None:
    class Account(Budget):
        detached: Budget

        def detach(self, size: int) -> Budget:
            self.detached = super().detach(size)
            return self.detached

    account = Account(10**6)
    async with start_log(Sink(hangs=True)) as running:
        running.add(exchange(1000), memory=account)
        assert account.held == 0
        assert account.detached.held > 8000
        for _ in range(5):
            await asyncio.sleep(0)
        assert account.detached.peak > account.detached.held > 16_000  # tensors and JSON are held
        running.sink.proceed.set()
    assert account.detached.held == 0
    assert running.results == {"sent": 2}


async def test_without_memory_events_are_dropped() -> None:
    async with start_log() as running:
        running.add(exchange(), memory=Budget(100))
        running.add(exchange(1000), memory=Budget(20_000))  # the JSON needs more
    assert running.results == {"dropped": 4}
    assert running.sink.batches == []


async def test_only_small_tensors_are_written_by_the_event_loop() -> None:
    async with start_log() as running:
        running.add(exchange(100), exchange(100_000))
    (job,) = running.helpers.jobs
    assert job.function is encode_exchange
    assert (job.cost, job.client) == (800_000, ("payload log", ""))
    assert running.results == {"sent": 4}


async def test_large_tensors_are_logged_without_helpers() -> None:
    async with start_log(has_helpers=False) as running:
        running.log.add(exchange(100_000), "request", UNLIMITED)
    assert running.results == {"sent": 1}
    ((_, body),) = running.sent
    assert len(json.loads(body)["inputs"][0]["data"]) == 100_000


@pytest.mark.parametrize(
    ("error", "result"),
    [(Kind.OVERLOADED, "dropped"), (Kind.TIMEOUT, "dropped"), (Kind.INTERNAL, "failed")],
)
async def test_a_helpers_error_is_counted(error: Kind, result: str) -> None:
    async with start_log() as running:
        running.helpers.error = GatewayError(error, "")
        running.add(exchange(100_000), exchange())
    assert running.results == {result: 2, "sent": 2}


async def test_failures_of_the_sink_are_logged_when_they_begin_and_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with start_log(Sink(result="failed")) as running:
        running.add(exchange())
        await running.sink.has_sent.wait()
        running.sink.result = "sent"
        running.add(exchange(), exchange())
    assert [record.__dict__["event"] for record in caplog.records] == [
        "payload_log_fails", "payload_log_back",
    ]  # fmt: skip
    assert "no route to host" in caplog.text
    assert running.results == {"failed": 2, "sent": 4}


async def test_an_error_of_the_sink_fails_only_its_batch(caplog: pytest.LogCaptureFixture) -> None:
    class FailingSink(Sink):
        async def send(self, events: Sequence[WireEvent]) -> Counter[str]:
            if not self.batches:
                self.batches.append([])
                raise ZeroDivisionError
            return await super().send(events)

    async with start_log(FailingSink()) as running:
        running.add(exchange(), exchange())
    assert running.results == {"failed": 2, "sent": 2}
    assert "internal error in the payload log" in caplog.text


async def test_a_batch_is_bounded_by_number_and_bytes() -> None:
    sink = Sink(max_batch=4)
    async with start_log(sink) as running:
        running.add(*[exchange()] * 6, *[exchange(600_000)] * 3)  # 4.8 MB each
    assert [len(batch) for batch in sink.batches] == [8, 6, 2, 2]


async def test_an_incomplete_batch_is_sent_after_a_while() -> None:
    sink = Sink(max_batch=100)
    sink.max_wait = 0.001
    async with start_log(sink) as running:
        running.add(exchange())
        await sink.has_sent.wait()
        assert running.results["dropped"] == 0


async def test_a_sink_that_hangs_does_not_prevent_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infergate.recording.payload_log._CLOSE_TIMEOUT_SECONDS", 0.01)
    async with start_log(Sink(hangs=True)) as running:
        running.add(exchange(), exchange(), exchange())
        await asyncio.sleep(0)
    assert running.results == {"dropped": 6}
    running.add(exchange())
    assert running.results == {"dropped": 8}


async def test_a_redacted_body_and_the_response_to_it_are_not_logged() -> None:
    body = OpaqueParameters({"p": "PATIENT"}, ("tfs-rest",), b"classify\0PATIENT")
    response = Tensor("response", Datatype.BYTES, (1,), pack_bytes([b"PATIENT"]))
    outcome = Outcome((InferResponse("m", outputs=(response,)),))
    async with start_log(redaction=Redaction(removed=["y"])) as running:
        running.add(Exchange(InferRequest("m", parameters=body), outcome))
    assert len(running.sent) == 2
    assert "PATIENT" not in repr(running.sent)


async def test_redacted_headers_and_tensors_are_not_logged() -> None:
    redaction = Redaction(["x-tenant", "authorization"], ["x"])
    headers = {"x-tenant": "a", "authorization": "secret", "x-other": "b"}
    async with start_log(redaction=redaction) as running:
        running.add(replace(exchange(), headers=headers))
    for attributes, body in running.sent:
        assert attributes["ce-metadata"] == '{"X-Tenant":["a"]}'
        assert {"inputs", "outputs"} & json.loads(body).keys()
        assert [] in json.loads(body).values()


async def test_a_route_may_omit_errors() -> None:
    context = RequestContext("peer")
    failed = exchange(error=GatewayError(Kind.TIMEOUT, "late"))
    async with start_log() as running:
        observer = running.log.observer("m", 0, "all", errors=False)
        assert not observer.selects(failed.request, context)
        observer.observe(failed, UNLIMITED)
        running.log.observer("m", 100, "response", errors=True).observe(failed, UNLIMITED)
    ((headers, body),) = running.sent
    assert headers["ce-statuscode"] == "504"
    assert json.loads(body) == {"error": "late"}


async def test_a_stream_that_does_not_fit_into_memory_is_counted() -> None:
    async with start_log() as running:
        running.log.observer("m", 100, "all", errors=True).count_lost()
    assert running.results == {"dropped": 1}
