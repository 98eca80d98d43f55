"""Streams of inferences with a backend controlled by its requests."""

import asyncio
import gc
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from fakes import LineCodec, Memory

from contexts import new_context
from infergate.codecs.base import ParsedRequest, Profile
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import DEFAULT_LIMITS, MIB, Limits
from infergate.core.messages import InferRequest, InferResponse, Response
from infergate.core.offload import Offload
from infergate.core.request_context import CLOCK_TOLERANCE, RequestContext
from infergate.core.wire import RpcRequest, RpcResponse, join_parts
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import RoutingGateway
from infergate.gateway.streaming import (
    MAX_CONCURRENT_REQUESTS,
    InferenceStream,
    UnaryStreamCodec,
    _StreamRequest,
)
from infergate.routing.table import Route, RouteTable
from inline_offload import InlineOffload
from reference_cycles import garbage_collector_disabled


class StreamCodec(LineCodec):
    """Requests are ``infer MODEL VERSION ID [SEQUENCE]``; responses are ``ID more|last|end``."""

    streaming_method = "/t.T/Stream"

    def parse_request(self, wire: RpcRequest, limits: Limits) -> ParsedRequest:
        parsed = super().parse_request(self.unary(wire), limits)
        assert isinstance(parsed.operation, InferRequest)
        sequence = self.unary(wire).method.split(" ")[4:]
        if "bug" in sequence:
            raise ZeroDivisionError
        parameters = {"sequence_id": sequence[0]} if sequence else {}
        return ParsedRequest(replace(parsed.operation, parameters=parameters))

    def summarize(self, wire: RpcRequest) -> Any:
        return super().summarize(self.unary(wire))

    @staticmethod
    def unary(wire: RpcRequest) -> RpcRequest:
        return RpcRequest(bytes(join_parts(wire.message)).decode()) if wire.message else wire

    def build_stream_response(self, response: InferResponse, parsed: ParsedRequest) -> RpcResponse:
        if response.model == "unwritable":
            raise GatewayError(Kind.UNSUPPORTED, "not in this format")
        return RpcResponse([f"{response.id} {'last' if response.is_last else 'more'}".encode()])

    def build_stream_end(self, parsed: ParsedRequest) -> RpcResponse | None:
        assert isinstance(parsed.operation, InferRequest)
        return RpcResponse([f"{parsed.operation.id} end".encode()])

    def build_stream_error(self, error: GatewayError, wire: RpcRequest) -> RpcResponse:
        return RpcResponse([f"{error.kind.value}: {error.public}".encode()])

    def build_stream_request(self, operation: InferRequest, profile: Profile) -> RpcRequest:
        raise NotImplementedError

    def parse_stream_response(
        self, wire: RpcResponse, operation: InferRequest, limits: Limits
    ) -> InferResponse | None:
        raise NotImplementedError


class LongCodec(StreamCodec):
    """A codec with long responses."""

    def _no_bytes(self, *_: object) -> int:
        return 0

    request_text_bytes = json_bytes = rewrite_bytes = _no_bytes
    backend_text_bytes = max_backend_text_bytes = _no_bytes

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:
        return MIB

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:
        return 0, MIB


class ControlledBackend(Memory):
    """The model's version controls this backend: a number of responses, ``one`` last response, or
    the error ``fail``, ``late`` or ``bug``. The model ``held`` waits until ``release`` is set."""

    def __init__(self) -> None:
        super().__init__("acting")
        self.release = asyncio.Event()
        self.closed: list[str] = []
        self.started: list[str] = []
        self.deadlines: list[Any] = []
        self.returned: dict[str, str] = {}

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        self.started.append(request.id)
        context.response_headers = self.returned
        try:
            if request.model == "held":
                await self.release.wait()
            if request.version == "fail":
                raise bad_request("as requested")
            if request.version == "late":
                raise GatewayError(Kind.TIMEOUT, "not in time")
            if request.version == "bug":
                raise ZeroDivisionError("secret")
            response = InferResponse(request.model, "7", "invented")
            if request.version == "one":
                yield replace(response, is_last=True)
                return
            for _ in range(int(request.version)):
                self.deadlines.append(context.deadline)
                yield response
        finally:
            self.closed.append(request.id)


class Harness:
    def __init__(
        self,
        *,
        one_at_a_time: bool = False,
        timeout: float | None = None,
        codec: StreamCodec | None = None,
        offload: Offload | None = None,
    ) -> None:
        self.backend = ControlledBackend()
        route = Route("*", "acting", timeout=timeout)
        self.gateway = gateway = RoutingGateway(RouteTable([route]), {"acting": self.backend}, {})
        self.codec = codec or StreamCodec()
        frontend = Frontend(self.codec, gateway, DEFAULT_LIMITS, offload)
        self.records: list[RequestContext] = []
        writer: Any = UnaryStreamCodec(self.codec, "/t.T/Stream") if one_at_a_time else self.codec
        self.assigned_ids = 0
        self.context = new_context(deadline=None)
        self.stream = InferenceStream(frontend, writer, self.assign_id, self.record, self.context)

    def record(self, context: RequestContext) -> None:
        self.records.append(context)
        self.gateway.own_statistics.record(context.record, 0.5, 1)

    def assign_id(self, context: RequestContext) -> None:
        self.assigned_ids += 1

    async def send_request(self, text: str, error: GatewayError | None = None) -> list[str]:
        return await self.read_all(await self.stream.handle(text.encode(), error))

    async def send_all(self, *texts: str) -> list[asyncio.Task[list[str]]]:
        """Send the requests one after the other, read all responses concurrently, and run until
        idle.
        """
        tasks = []
        for text in texts:
            responses = await self.stream.handle(text.encode(), None)
            tasks.append(asyncio.create_task(self.read_all(responses)))
        for _ in range(50):
            await asyncio.sleep(0)
        return tasks

    async def read_all(self, responses: AsyncGenerator[RpcResponse, None]) -> list[str]:
        return [bytes(join_parts(response.message)).decode() async for response in responses]


async def test_all_responses_and_the_end_are_sent_and_recorded() -> None:
    harness = Harness()
    assert await harness.send_request("infer m 3 a") == ["a more"] * 3 + ["a end"]
    assert await harness.send_request("infer m 0 b") == ["b end"]
    assert await harness.send_request("infer m one c") == ["c last"]
    assert [each.record.response_count for each in harness.records] == [4, 1, 1]
    first_record = harness.records[0].record
    assert (first_record.operation, first_record.protocol, first_record.pipeline) == (
        "stream_infer",
        "line",
        "translate",
    )
    assert (first_record.model, first_record.backend, first_record.outcome) == ("m", "acting", "ok")
    assert (first_record.bytes_in, first_record.bytes_out) == (11, 23)
    assert harness.assigned_ids == 3


async def test_a_helper_writes_long_responses() -> None:
    helper = InlineOffload()
    harness = Harness(codec=LongCodec(), offload=helper)
    assert await harness.send_request("infer m 2 a") == ["a more"] * 2 + ["a end"]
    assert len(helper.jobs) == 2


@pytest.mark.parametrize(
    ("text", "response", "outcome"),
    [
        ("infer m fail a", "bad_request: as requested", "bad_request"),
        ("infer m bug a", "internal: internal error", "internal"),
        ("infer m one a bug", "internal: internal error", "internal"),
        ("infer bad one a", "bad_request: bad tensor", "bad_request"),
        ("nonsense", "bad_request: no such verb", "bad_request"),
        ("infer unwritable one a", "unsupported: not in this format", "unsupported"),
    ],
)
async def test_an_error_ends_only_its_request(text: str, response: str, outcome: str) -> None:
    harness = Harness()
    assert await harness.send_request(text) == [response]
    assert [each.record.outcome for each in harness.records] == [outcome]
    assert await harness.send_request("infer m one b") == ["b last"]


@pytest.mark.parametrize(
    "text", ["infer m fail a", "infer bad one a", "infer unwritable one a", "infer m one a"]
)
async def test_messages_are_released_immediately(text: str) -> None:
    harness = Harness()
    with garbage_collector_disabled():
        assert len(await harness.send_request(text)) == 1
        assert held_requests() == []


def held_requests() -> list[Any]:
    """Return the requests of streams that are still in memory."""
    return [each for each in gc.get_objects() if type(each) is _StreamRequest]


@pytest.mark.parametrize("one_at_a_time", [True, False])
async def test_model_statistics_count_each_request(one_at_a_time: bool) -> None:
    harness = Harness(one_at_a_time=one_at_a_time)
    for text in ("infer m one a", "infer m 3 b", "infer m fail c"):
        await harness.send_request(text)
    (statistics,) = harness.gateway.own_statistics.statistics_of("m", "").models
    assert statistics["inference_count"] == 2
    assert statistics["inference_stats"]["success"] == {"count": 2, "ns": 1_000_000_000}
    assert statistics["inference_stats"]["fail"] == {"count": 1, "ns": 500_000_000}


async def test_messages_that_the_transport_refuses_get_an_error() -> None:
    harness = Harness()
    error = GatewayError(Kind.OVERLOADED, "full")
    assert await harness.send_request("infer m one a", error) == ["overloaded: full"]
    assert [each.record.outcome for each in harness.records] == ["overloaded"]
    assert not harness.backend.started


async def test_single_responses_and_errors_keep_the_request_order() -> None:
    harness = Harness()
    tasks = await harness.send_all(
        "infer held one a", "infer m one b", "infer m 2 c", "infer m fail d", "nonsense"
    )
    assert [task.done() for task in tasks] == [False, False, True, False, False]
    order: list[str] = []
    for name, task in zip("abcde", tasks, strict=True):
        task.add_done_callback(lambda _, name=name: order.append(name))
    harness.backend.release.set()
    assert (await asyncio.gather(*tasks))[2] == ["c more", "c more", "c end"]
    await asyncio.sleep(0)
    assert [name for name in order if name != "c"] == list("abde")


async def test_a_waiting_request_does_not_delay_later_ones() -> None:
    harness = Harness()
    first, second = [
        await harness.stream.handle(text, None) for text in (b"infer m 2 a", b"infer m one b")
    ]
    pending = asyncio.create_task(anext(second))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not pending.done()
    assert (await anext(first)).message == [b"a more"]
    assert (await pending).message == [b"b last"]
    await first.aclose()
    await second.aclose()


async def test_overlapping_requests_of_a_sequence_leave_no_state() -> None:
    harness = Harness()
    with garbage_collector_disabled():
        tasks = await harness.send_all("infer m one 0 5")
        for number in range(1, 10):
            (following,) = await harness.send_all(f"infer held one {number} 5")
            harness.backend.release.set()
            await tasks.pop()
            harness.backend.release.clear()
            tasks.append(following)
        assert len(held_requests()) <= 2
    harness.backend.release.set()
    assert await tasks[0] == ["9 last"]


async def test_requests_of_a_sequence_run_in_order() -> None:
    harness = Harness()
    tasks = await harness.send_all(
        "infer held one a 5", "infer held one b 5", "infer held one c 6", "infer held one d"
    )
    assert harness.backend.started == ["a", "c", "d"]
    harness.backend.release.set()
    await asyncio.gather(*tasks)
    assert harness.backend.started == ["a", "c", "d", "b"]
    assert not harness.stream._latest_of_sequence


async def test_returned_headers_are_those_of_the_last_request() -> None:
    harness = Harness()
    returned = {"a": {"x": "1", "y": "1"}, "b": {"x": "2"}}
    for name in ("a", "b", "c"):
        harness.backend.returned = returned.get(name, {})
        await harness.send_request(f"infer m one {name}")
    assert harness.context.response_headers == {"x": "2"}
    assert [each.response_headers for each in harness.records] == [returned["a"], returned["b"], {}]


async def test_closing_cancels_the_backend_request() -> None:
    harness = Harness()
    responses = await harness.stream.handle(b"infer m 5 a", None)
    await anext(responses)
    await responses.aclose()
    assert harness.backend.closed == ["a"]
    assert [(each.record.outcome, each.record.response_count) for each in harness.records] == [
        ("cancelled", 1)
    ]


async def test_each_response_has_the_routes_timeout() -> None:
    harness = Harness(timeout=10)
    await harness.send_request("infer m 2 a")
    first, second = harness.backend.deadlines
    assert second > first
    assert abs(second - time.monotonic() - 10) < 5


async def test_a_clients_deadline_is_never_extended() -> None:
    harness = Harness(timeout=10)
    harness.stream._context.deadline = soon = time.monotonic() + 3
    await harness.send_request("infer m 2 a")
    assert harness.backend.deadlines == [soon, soon]


async def test_only_the_clients_deadline_ends_a_late_stream() -> None:
    harness = Harness()
    codes = []
    for seconds in (30, CLOCK_TOLERANCE / 2, 0):
        harness.stream._context.deadline = time.monotonic() + seconds
        [response] = [r async for r in await harness.stream.handle(b"infer m late a", None)]
        codes.append(response.code)
    assert codes == [0, 3, 3]  # 3 is the codec's status for errors outside the stream


async def test_streams_with_unary_messages_run_one_request_at_a_time() -> None:
    assert Harness().stream.max_concurrent == MAX_CONCURRENT_REQUESTS
    harness = Harness(one_at_a_time=True)
    assert harness.stream.max_concurrent == 1
    first, second = await harness.send_request("infer m 2 a")
    assert first == second
    assert first.startswith("InferResponse(model='m'")
    responses = await harness.stream.handle(b"infer m fail a", None)
    assert [response.code async for response in responses] == [3]
