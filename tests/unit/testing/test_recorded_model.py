"""Models that return recorded responses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway_errors import raises_kind
from infergate import GatewayError, InferRequest, InferResponse, Kind
from infergate.backends.builtin import BuiltinBackend
from infergate.core.exchange import Outcome
from infergate.core.messages import TensorMetadata
from infergate.core.request_context import RequestContext
from infergate.recording.format import RecordingError
from infergate.testing import RecordedModel, recorded_models
from recordings import exchange, tensor, write_recording


async def responses(model: RecordedModel, request: InferRequest) -> list[Any]:
    return [each async for each in model.stream(request)]


async def test_an_equal_request_gets_the_recorded_response() -> None:
    model = RecordedModel([exchange(1), exchange(2)])
    request = replace(exchange(2).request, id="another")
    [response] = await responses(model, request)
    assert (response.id, response.is_last) == ("another", True)
    assert response.outputs[0].numpy().tolist() == [2]


async def test_repeated_requests_get_the_responses_in_order_and_then_the_last() -> None:
    request = exchange(1).request
    outcomes = [Outcome((InferResponse("m", outputs=(tensor("y", n),)),)) for n in (1, 2)]
    model = RecordedModel([replace(exchange(1), outcome=each) for each in outcomes])
    repeated = [await responses(model, request) for _ in range(3)]
    assert [each.outputs[0].numpy().tolist() for (each,) in repeated] == [[1], [2], [2]]


async def test_recorded_errors_and_streams_are_returned() -> None:
    error = GatewayError(Kind.OVERLOADED, "busy", retry_after=3)
    streamed = tuple(InferResponse("m", outputs=(tensor("y", n),)) for n in (1, 2))
    failed = exchange(1, outcome=Outcome((), error))
    stream = exchange(2, outcome=Outcome(streamed, error), is_stream=True)
    model = RecordedModel([failed, stream])
    with raises_kind(Kind.OVERLOADED, "busy"):
        await responses(model, exchange(1).request)
    stream_responses = model.stream(exchange(2).request)
    for value in (1, 2):
        assert (await anext(stream_responses)).outputs[0].numpy().tolist() == [value]
    with raises_kind(Kind.OVERLOADED, "busy"):
        await anext(stream_responses)
    assert model.metadata.decoupled


async def test_an_unknown_request_is_refused_and_the_difference_named() -> None:
    model = RecordedModel([exchange(1), exchange(2)])
    with raises_kind(Kind.NOT_FOUND, r"none of the 2 recorded .*'m'.* differs in input 'x'$"):
        await responses(model, exchange(3).request)
    with raises_kind(Kind.NOT_FOUND, "differs in the version, the parameters$"):
        await responses(model, replace(exchange(1).request, version="3", parameters={"a": 1}))


def test_the_metadata_is_that_of_the_recorded_tensors() -> None:
    metadata = RecordedModel([exchange(1)]).metadata
    assert metadata.inputs == (TensorMetadata("x", "FP32", (-1,)),)
    assert [each.name for each in metadata.outputs] == ["y"]
    assert metadata.versions == ("1",)


async def test_the_backend_serves_all_recorded_versions() -> None:
    recorded = [
        replace(exchange(n), request=replace(exchange(n).request, version=str(n))) for n in (2, 3)
    ]
    backend = BuiltinBackend("b", [RecordedModel(recorded)])
    for each in recorded:
        [response] = [r async for r in backend.stream(each.request, RequestContext("client"))]
        assert response.outputs == each.outcome.responses[0].outputs
    with raises_kind(Kind.NOT_FOUND, "unknown version '1' of model 'm'"):
        await anext(backend.stream(InferRequest("m", "1"), RequestContext("client")))


def test_a_folder_of_recordings_has_a_model_per_name(tmp_path: Path) -> None:
    write_recording(tmp_path / "a.igrec", [exchange(1, "a"), exchange(1, "b")])
    write_recording(tmp_path / "b.igrec", [exchange(2, "b")])
    assert [each.metadata.name for each in recorded_models([tmp_path])] == ["a", "b"]


def test_damaged_redacted_and_large_recordings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.igrec"
    [_, position] = write_recording(file, [exchange(1), exchange(2)])
    with pytest.raises(RecordingError, match="more than 100 bytes of memory"):
        recorded_models([file], 100)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RecordingError, match=f"byte {position}: the file ends 1 bytes before"):
        recorded_models([file])
    write_recording(tmp_path / "b.igrec", [exchange(1)], ("x",))
    with pytest.raises(RecordingError, match="x is redacted"):
        recorded_models([tmp_path / "b.igrec"])
