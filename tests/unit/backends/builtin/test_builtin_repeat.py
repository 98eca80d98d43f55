import asyncio
import time
from typing import Any

import numpy as np
import pytest
from builtin_requests import CONTEXT, int32, rejection, requested_outputs

from gateway_errors import raises_kind
from infergate.backends.builtin import BuiltinBackend
from infergate.backends.builtin.repeat import Repeat
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.core.route_policy import RoutePolicy
from infergate.core.tensor import tensor_from_array


def request_message(values: list[int], delays: list[int], **fields: Any) -> InferRequest:
    delay = tensor_from_array("DELAY", Datatype.UINT32, np.array(delays, np.uint32))
    return InferRequest("repeat", inputs=(int32("IN", values), delay), **fields)


class RecordedSleep:
    """A sleep that records its duration and returns immediately."""

    def __init__(self) -> None:
        self.durations: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.durations.append(seconds)


async def test_one_response_per_element_after_its_delay() -> None:
    sleep = RecordedSleep()
    backend = BuiltinBackend("demo", [Repeat(sleep)])
    pairs = []
    request = request_message([4, -2, 0], [0, 1500, 7], id="r")
    async for response in backend.stream(request, CONTEXT):
        values, idx = response.outputs
        assert (values.name, values.datatype, values.shape) == ("OUT", Datatype.INT32, (1,))
        assert (idx.name, idx.datatype, idx.shape) == ("IDX", Datatype.UINT32, (1,))
        assert (response.model, response.version, response.id) == ("repeat", "1", "r")
        pairs.append((*values.numpy().tolist(), *idx.numpy().tolist()))
        assert len(sleep.durations) == len(pairs), "responses are computed on demand"
    assert pairs == [(4, 0), (-2, 1), (0, 2)]
    assert sleep.durations == [0.0, 1.5, 0.007]


async def test_an_empty_tensor_has_no_responses(backend: BuiltinBackend) -> None:
    assert [r async for r in backend.stream(request_message([], []), CONTEXT)] == []


async def test_only_requested_outputs_are_sent(backend: BuiltinBackend) -> None:
    request = request_message([9], [0], outputs=requested_outputs("IDX"))
    (response,) = [r async for r in backend.stream(request, CONTEXT)]
    assert [output.name for output in response.outputs] == ["IDX"]


async def test_a_unary_call_is_unsupported(backend: BuiltinBackend) -> None:
    error = await rejection(backend, request_message([1], [0]), Kind.UNSUPPORTED)
    assert error == "model 'repeat' sends several responses per request: use a stream"


async def test_inputs_must_have_the_same_length(backend: BuiltinBackend) -> None:
    with raises_kind(Kind.BAD_REQUEST, match=r"input 'DELAY'.* expected 2, got 1"):
        await anext(backend.stream(request_message([1, 2], [0]), CONTEXT))


async def test_the_deadline_ends_a_stream(backend: BuiltinBackend) -> None:
    context = RequestContext("test")
    stream = backend.stream(request_message([1, 2], [0, 4_000_000_000]), context)
    await anext(stream)
    context.deadline = time.monotonic()
    with raises_kind(Kind.TIMEOUT):
        await anext(stream)


@pytest.mark.parametrize(("backend_timeout", "route_timeout"), [(0.05, None), (3600.0, 0.05)])
async def test_late_responses_fail(backend_timeout: float, route_timeout: float | None) -> None:
    backend = BuiltinBackend("demo", timeout=backend_timeout)
    context = RequestContext("test", policy=RoutePolicy(route_timeout))
    stream = backend.stream(request_message([1], [4_000_000_000]), context)
    with raises_kind(Kind.TIMEOUT):
        await anext(stream)


async def test_cancelling_a_stream_cancels_the_model() -> None:
    asleep, ended = asyncio.Event(), asyncio.Event()

    async def forever(_: float) -> None:
        asleep.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    stream = BuiltinBackend("demo", [Repeat(forever)]).stream(request_message([1], [0]), CONTEXT)
    pull = asyncio.ensure_future(anext(stream))
    await asleep.wait()
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    assert ended.is_set()
    assert [r async for r in stream] == []
