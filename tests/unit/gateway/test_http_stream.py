"""V2 REST streams over HTTP, with a backend controlled by its requests."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fakes import Memory

from contexts import new_context
from infergate.codecs.registry import plugins
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.request_context import RequestContext
from infergate.core.request_record import RequestRecord
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.gateway.dispatch import HttpDispatch
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import RoutingGateway
from infergate.routing.table import Rewrite, Route, RouteTable

EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8"}
EVENT = b'data: {"id":"i","model_name":"m","model_version":"7"}\n\n'


class ScriptedBackend(Memory):
    """The parameter ``do`` lists the steps: ``fail``, ``bug``, ``wait``, or else a response."""

    def __init__(self) -> None:
        super().__init__("acting")
        self.description = ModelMetadata("real")
        self.closed = 0
        self.deadlines: list[Any] = []

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        self.requests.append(request)
        try:
            for step in request.parameters["do"].split():
                self.deadlines.append(context.deadline)
                match step:
                    case "fail":
                        raise bad_request("as requested")
                    case "bug":
                        raise ZeroDivisionError("secret")
                    case "wait":
                        await asyncio.Event().wait()
                    case _:
                        parameters = {"l": [b""]} if step == "unwritable" else {}
                        last = step == "last"
                        yield InferResponse("real", "7", request.id, parameters, is_last=last)
        finally:
            self.closed += 1


class Harness:
    def __init__(self, timeout: float | None = None) -> None:
        self.backend = ScriptedBackend()
        route = Route("m", "acting", rewrite=Rewrite("real"), timeout=timeout)
        self.gateway = RoutingGateway(RouteTable([route]), {"acting": self.backend}, {})
        frontend: Any = Frontend(plugins()["v2-rest"].create({}), self.gateway, DEFAULT_LIMITS)
        self.records: list[RequestRecord] = []
        self.app = HttpDispatch({"v2": frontend}, self.record)

    def record(self, context: RequestContext) -> None:
        self.records.append(context.record)
        self.gateway.own_statistics.record(context.record, 0.5, 1)

    async def send_request(
        self, steps: str, verb: str = "generate_stream", **fields: Any
    ) -> HttpResponse:
        body = json.dumps({"id": "i", "do": steps, **fields}).encode()
        return await self.app.respond(
            HttpRequest("POST", f"/v2/models/m/{verb}", body=(body,)), new_context()
        )

    @property
    def recorded_outcome(self) -> tuple[str, str, int | None]:
        (record,) = self.records
        assert record.pipeline == "translate"
        return record.operation, record.outcome, record.response_count


async def read_parts(response: HttpResponse) -> list[bytes]:
    assert response.body_stream is not None
    parts = [bytes(join_parts(response.body))]
    while (body := await response.body_stream.next()) is not None:
        parts.append(bytes(join_parts(body)))
    assert await response.body_stream.next() is None
    await response.body_stream.close()
    return parts


@pytest.mark.parametrize("steps", ["last", "more", "more more more"])
async def test_each_response_is_an_event(steps: str) -> None:
    harness = Harness()
    response = await harness.send_request(steps)
    count = len(steps.split())
    assert (response.status, response.headers) == (200, EVENT_STREAM)
    assert not harness.records, "the request is recorded when its stream ends"
    assert await read_parts(response) == [EVENT] * count
    assert harness.recorded_outcome == ("stream_infer", "ok", count)
    assert harness.records[0].bytes_out == count * len(EVENT)
    assert harness.backend.closed == 1


async def test_a_stream_without_responses_succeeds() -> None:
    harness = Harness()
    response = await harness.send_request("")
    assert response.headers == EVENT_STREAM
    assert await read_parts(response) == [b""]
    assert harness.recorded_outcome == ("stream_infer", "ok", 0)


@pytest.mark.parametrize(
    ("steps", "status", "kind"),
    [("fail", 400, "bad_request"), ("bug", 500, "internal"), ("unwritable", 501, "unsupported")],
)
async def test_early_errors_set_the_status_of_the_response(
    steps: str, status: int, kind: str
) -> None:
    harness = Harness()
    response = await harness.send_request(steps)
    assert (response.status, response.body_stream) == (status, None)
    assert response.headers["content-type"] == "application/json"
    assert harness.recorded_outcome == ("stream_infer", kind, 0)
    assert harness.backend.closed == 1


@pytest.mark.parametrize(
    ("steps", "kind"), [("fail", "bad_request"), ("bug", "internal"), ("unwritable", "unsupported")]
)
async def test_an_error_after_the_first_response_is_an_event(steps: str, kind: str) -> None:
    harness = Harness()
    first, error = await read_parts(await harness.send_request(f"more {steps} more"))
    assert first == EVENT
    assert error.startswith(b'data: {"error":"')
    assert b"secret" not in error
    assert harness.recorded_outcome == ("stream_infer", kind, 1)
    assert harness.backend.closed == 1


async def test_a_disconnect_during_the_stream_cancels_it() -> None:
    harness = Harness()
    response = await harness.send_request("more wait")
    assert response.body_stream is not None
    reading = asyncio.create_task(response.body_stream.next())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await response.body_stream.close()
    assert harness.recorded_outcome == ("stream_infer", "cancelled", 1)
    assert harness.backend.closed == 1


@pytest.mark.parametrize("steps", ["wait", "more more"])
async def test_a_disconnect_before_the_response_cancels_the_stream(steps: str) -> None:
    """The client disconnects before the first response exists, or before it is read."""
    harness = Harness()
    pending = asyncio.create_task(harness.send_request(steps))
    for _ in range(20):
        await asyncio.sleep(0)
    if pending.done():
        stream = pending.result().body_stream
        assert stream is not None
        await stream.close()
    else:
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
    assert harness.recorded_outcome[:2] == ("stream_infer", "cancelled")
    assert harness.backend.closed == 1


async def test_the_route_timeout_applies_to_each_response() -> None:
    harness = Harness(timeout=5)
    response = await harness.send_request("more more more")
    assert response.body_stream is not None
    before = time.monotonic()
    await read_parts(response)
    first, second, third = harness.backend.deadlines
    assert before - 0.1 < first - 5 < second - 5 < third - 5 <= time.monotonic()


@pytest.mark.parametrize("steps", ["last", "more"])
async def test_generate_returns_the_only_response(steps: str) -> None:
    harness = Harness()
    response = await harness.send_request(steps, "generate")
    assert (response.status, response.body_stream) == (200, None)
    assert bytes(join_parts(response.body)) == EVENT[6:-2]
    assert harness.recorded_outcome == ("infer", "ok", None)
    assert harness.backend.closed == 1


@pytest.mark.parametrize("steps", ["", "more more", "more last"])
async def test_generate_rejects_other_numbers_of_responses(steps: str) -> None:
    harness = Harness()
    response = await harness.send_request(steps, "generate")
    assert response.status == 501
    assert b"exactly 1 response" in join_parts(response.body)
    assert harness.recorded_outcome[:2] == ("infer", Kind.UNSUPPORTED.value)
    assert harness.backend.closed == 1


async def test_a_streamed_infer_is_translated() -> None:
    harness = Harness()
    parameters = {"stream": True, "do": "more last"}
    body = json.dumps({"id": "i", "parameters": parameters, "inputs": []}).encode()
    wire = HttpRequest("POST", "/v2/models/m/infer", body=(body,))
    parts = await read_parts(await harness.app.respond(wire, new_context()))
    assert [json.loads(part[6:]) for part in parts] == [
        {"id": "i", "model_name": "m", "model_version": "7", "outputs": []}
    ] * 2
    (request,) = harness.backend.requests
    assert isinstance(request, InferRequest)
    assert (request.model, request.parameters) == ("real", {"do": "more last"})
    assert harness.recorded_outcome == ("stream_infer", "ok", 2)


@pytest.mark.parametrize("verb", ["generate", "generate_stream", "infer_stream", "infer"])
async def test_model_statistics_count_each_stream(verb: str) -> None:
    harness = Harness()
    for steps in ("last", "fail", "more"):
        fields = {"do": steps} | ({"stream": True} if verb == "infer" else {})
        infer_body = {"parameters": fields, "inputs": []} if verb.startswith("infer") else {}
        body = json.dumps(infer_body or fields).encode()
        wire = HttpRequest("POST", f"/v2/models/m/{verb}", body=(body,))
        response = await harness.app.respond(wire, new_context())
        if response.body_stream is not None:
            await read_parts(response)
    (statistics,) = harness.gateway.own_statistics.statistics_of("m", "").models
    assert statistics["inference_count"] == 2
    assert statistics["inference_stats"]["fail"] == {"count": 1, "ns": 500_000_000}


async def test_an_unknown_model_is_not_found() -> None:
    harness = Harness()
    harness.backend.description = GatewayError(Kind.NOT_FOUND, "no such model")
    response = await harness.send_request("last")
    assert (response.status, response.body_stream) == (404, None)
