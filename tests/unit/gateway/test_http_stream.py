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


class Acting(Memory):
    """A backend whose steps ``do`` lists: ``fail``, ``bug``, ``wait``, or else a response."""

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
        self.backend = Acting()
        route = Route("m", "acting", rewrite=Rewrite("real"), timeout=timeout)
        self.gateway = RoutingGateway(RouteTable([route]), {"acting": self.backend}, {})
        frontend: Any = Frontend(plugins()["v2-rest"].create({}), self.gateway, DEFAULT_LIMITS)
        self.records: list[RequestRecord] = []
        self.app = HttpDispatch({"v2": frontend}, self.record)

    def record(self, context: RequestContext) -> None:
        self.records.append(context.record)
        self.gateway.own_statistics.record(context.record, 0.5, 1)

    async def send_request(
        self, do: str, verb: str = "generate_stream", **more: Any
    ) -> HttpResponse:
        body = json.dumps({"id": "i", "do": do, **more}).encode()
        return await self.app.respond(
            HttpRequest("POST", f"/v2/models/m/{verb}", body=(body,)), new_context()
        )

    @property
    def reported(self) -> tuple[str, str, int | None]:
        (record,) = self.records
        assert record.pipeline == "translate"
        return record.operation, record.outcome, record.response_count


async def all_of(answer: HttpResponse) -> list[bytes]:
    assert answer.body_stream is not None
    parts = [bytes(join_parts(answer.body))]
    while (body := await answer.body_stream.next()) is not None:
        parts.append(bytes(join_parts(body)))
    assert await answer.body_stream.next() is None
    await answer.body_stream.close()
    return parts


@pytest.mark.parametrize("do", ["last", "more", "more more more"])
async def test_each_response_is_an_event(do: str) -> None:
    harness = Harness()
    answer = await harness.send_request(do)
    count = len(do.split())
    assert (answer.status, answer.headers) == (200, EVENT_STREAM)
    assert not harness.records, "recorded at the end"
    assert await all_of(answer) == [EVENT] * count
    assert harness.reported == ("stream_infer", "ok", count)
    assert harness.records[0].bytes_out == count * len(EVENT)
    assert harness.backend.closed == 1


async def test_a_stream_without_responses() -> None:
    harness = Harness()
    answer = await harness.send_request("")
    assert answer.headers == EVENT_STREAM
    assert await all_of(answer) == [b""]
    assert harness.reported == ("stream_infer", "ok", 0)


@pytest.mark.parametrize(
    ("do", "status", "kind"),
    [("fail", 400, "bad_request"), ("bug", 500, "internal"), ("unwritable", 501, "unsupported")],
)
async def test_errors_instead_of_the_first_response(do: str, status: int, kind: str) -> None:
    harness = Harness()
    answer = await harness.send_request(do)
    assert (answer.status, answer.body_stream) == (status, None)
    assert answer.headers["content-type"] == "application/json"
    assert harness.reported == ("stream_infer", kind, 0)
    assert harness.backend.closed == 1


@pytest.mark.parametrize(
    ("do", "kind"), [("fail", "bad_request"), ("bug", "internal"), ("unwritable", "unsupported")]
)
async def test_errors_after_the_first_response(do: str, kind: str) -> None:
    harness = Harness()
    first, error = await all_of(await harness.send_request(f"more {do} more"))
    assert first == EVENT
    assert error.startswith(b'data: {"error":"')
    assert b"secret" not in error
    assert harness.reported == ("stream_infer", kind, 1)
    assert harness.backend.closed == 1


async def test_a_client_that_disconnects_during_the_stream() -> None:
    harness = Harness()
    answer = await harness.send_request("more wait")
    assert answer.body_stream is not None
    pulling = asyncio.create_task(answer.body_stream.next())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pulling
    await answer.body_stream.close()
    assert harness.reported == ("stream_infer", "cancelled", 1)
    assert harness.backend.closed == 1


@pytest.mark.parametrize("do", ["wait", "more more"])
async def test_a_client_that_disconnects_before_the_response(do: str) -> None:
    """The client disconnects before the first response exists, or before it is read."""
    harness = Harness()
    pending = asyncio.create_task(harness.send_request(do))
    for _ in range(20):
        await asyncio.sleep(0)
    if pending.done():
        rest = pending.result().body_stream
        assert rest is not None
        await rest.close()
    else:
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
    assert harness.reported[:2] == ("stream_infer", "cancelled")
    assert harness.backend.closed == 1


async def test_the_route_timeout_applies_to_each_response() -> None:
    harness = Harness(timeout=5)
    answer = await harness.send_request("more more more")
    assert answer.body_stream is not None
    before = time.monotonic()
    await all_of(answer)
    first, second, third = harness.backend.deadlines
    assert before - 0.1 < first - 5 < second - 5 < third - 5 <= time.monotonic()


@pytest.mark.parametrize("do", ["last", "more"])
async def test_generate_returns_the_only_response(do: str) -> None:
    harness = Harness()
    answer = await harness.send_request(do, "generate")
    assert (answer.status, answer.body_stream) == (200, None)
    assert bytes(join_parts(answer.body)) == EVENT[6:-2]
    assert harness.reported == ("infer", "ok", None)
    assert harness.backend.closed == 1


@pytest.mark.parametrize("do", ["", "more more", "more last"])
async def test_generate_rejects_other_numbers_of_responses(do: str) -> None:
    harness = Harness()
    answer = await harness.send_request(do, "generate")
    assert answer.status == 501
    assert b"exactly 1 response" in join_parts(answer.body)
    assert harness.reported[:2] == ("infer", Kind.UNSUPPORTED.value)
    assert harness.backend.closed == 1


async def test_a_streamed_infer_is_translated() -> None:
    harness = Harness()
    parameters = {"stream": True, "do": "more last"}
    body = json.dumps({"id": "i", "parameters": parameters, "inputs": []}).encode()
    wire = HttpRequest("POST", "/v2/models/m/infer", body=(body,))
    parts = await all_of(await harness.app.respond(wire, new_context()))
    assert [json.loads(part[6:]) for part in parts] == [
        {"id": "i", "model_name": "m", "model_version": "7", "outputs": []}
    ] * 2
    (requests,) = harness.backend.requests
    assert isinstance(requests, InferRequest)
    assert (requests.model, requests.parameters) == ("real", {"do": "more last"})
    assert harness.reported == ("stream_infer", "ok", 2)


@pytest.mark.parametrize("verb", ["generate", "generate_stream", "infer_stream", "infer"])
async def test_model_statistics_count_each_stream(verb: str) -> None:
    harness = Harness()
    for do in ("last", "fail", "more"):
        fields = {"do": do} | ({"stream": True} if verb == "infer" else {})
        more = {"parameters": fields, "inputs": []} if verb.startswith("infer") else {}
        body = json.dumps(more or fields).encode()
        wire = HttpRequest("POST", f"/v2/models/m/{verb}", body=(body,))
        answer = await harness.app.respond(wire, new_context())
        if answer.body_stream is not None:
            await all_of(answer)
    (statistics,) = harness.gateway.own_statistics.statistics_of("m", "").models
    assert statistics["inference_count"] == 2
    assert statistics["inference_stats"]["fail"] == {"count": 1, "ns": 500_000_000}


async def test_an_unknown_model() -> None:
    harness = Harness()
    harness.backend.description = GatewayError(Kind.NOT_FOUND, "no such model")
    answer = await harness.send_request("last")
    assert (answer.status, answer.body_stream) == (404, None)
