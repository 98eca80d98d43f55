"""Building requests to GraphPipe servers, and parsing their responses."""

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from graphpipe_wire import metadata, response, verify

from gateway_errors import raises_kind, refused
from infergate.codecs.base import ParsedRequest
from infergate.codecs.graphpipe import PLUGIN
from infergate.codecs.graphpipe import metadata as metadata_module
from infergate.codecs.graphpipe.codec import MetadataFormat
from infergate.codecs.http_status import MAX_MESSAGE_CHARACTERS
from infergate.codecs.profiles import GENERIC
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import ModelMetadata, ModelMetadataRequest, Operation, TensorMetadata
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

CODEC = PLUGIN.create({})


def tensor_metadata(*names: str) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(name, "FP32", (-1,)) for name in names)


def model(outputs: tuple[str, ...], inputs: tuple[str, ...] = ("x",)) -> ModelMetadata:
    return ModelMetadata(
        "m", inputs=tensor_metadata(*inputs), outputs=tensor_metadata(*outputs), max_batch_size=0
    )


X = Tensor("x", Datatype.FP32, (1,), b"1234")


def inference(*outputs: str, **fields: Any) -> messages.InferRequest:
    return messages.InferRequest(
        "m", "3", "id", inputs=(X,), outputs=tuple(map(messages.RequestedOutput, outputs)), **fields
    )


def build_request(operation: Operation, model_metadata: ModelMetadata | None = None) -> HttpRequest:
    return CODEC.build_request(operation, GENERIC, model_metadata)


def infer_fields(operation: messages.InferRequest, model_metadata: ModelMetadata) -> dict[str, Any]:
    wire = build_request(operation, model_metadata)
    assert (wire.method, wire.path, wire.query, dict(wire.headers)) == ("POST", "", "", {})
    inner: dict[str, Any] = verify(bytes(join_parts(wire.body)), "Request")["req"]
    return inner


def parse(
    wire: HttpResponse,
    operation: Operation,
    model_metadata: ModelMetadata | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> messages.Response:
    return CODEC.parse_response(wire, operation, limits, model_metadata)


def ok(body: bytes, **headers: str) -> HttpResponse:
    return HttpResponse(200, {k.replace("_", "-"): v for k, v in headers.items()}, (body,))


# ---- requests


@pytest.mark.parametrize(
    ("requested", "model_metadata", "names"),
    [
        ((), model(("a", "b")), [b"a", b"b"]),
        (("b", "a"), model(("a", "b")), [b"a", b"b"]),  # sent in the metadata's order
        (("zzz", "y"), model(("x", "y"), ("x", "y")), [b"y", b"zzz"]),  # any node of a graph
        (("zzz",), model(()), [b"zzz"]),
        ((), model(()), []),
        ((), model(("x", "y"), ("x", "y")), []),  # the graph returns its defaults
        (("y",), model(("x", "y"), ("x", "y")), [b"y"]),
    ],
)
def test_requested_outputs(
    requested: tuple[str, ...], model_metadata: ModelMetadata, names: list[bytes]
) -> None:
    assert infer_fields(inference(*requested), model_metadata)["output_names"] == names


def test_an_unknown_output_is_not_requested() -> None:
    """A server that ignores unknown names would return its other outputs instead."""
    error = refused(infer_fields, inference("b", "zz"), model(("a", "b")))
    assert (error.kind, error.public) == (Kind.BAD_REQUEST, "model 'm' has no output 'zz'")


def test_an_inference_request() -> None:
    model_metadata = model(("a",))
    tensor = {"type": 10, "shape": [1], "data": b"1234", "string_val": []}
    assert infer_fields(inference(parameters={"scale": 2}), model_metadata) == {
        "config": b'{"scale": 2}',
        "input_names": [b"x"],
        "input_tensors": [tensor],
        "output_names": [b"a"],
    }


def test_health_and_metadata_requests_become_metadata_requests() -> None:
    for operation in (
        messages.ServerLiveRequest(),
        messages.ServerReadyRequest(),
        messages.ServerMetadataRequest(),
        messages.ModelReadyRequest("m", "1"),
        ModelMetadataRequest("m"),
    ):
        wire = build_request(operation)
        assert (wire.method, wire.path) == ("POST", "")
        assert verify(bytes(join_parts(wire.body)), "Request") == {"req_type": 2, "req": {}}
        alternative = CODEC.build_alternative_request(operation, Kind.BACKEND_GARBAGE)
        assert alternative is not None
        assert (alternative.method, alternative.path, list(alternative.body)) == ("GET", "", [])
    assert CODEC.build_alternative_request(inference(), Kind.BACKEND_GARBAGE) is None


@pytest.mark.parametrize(
    "operation",
    [
        messages.ModelIndexRequest(),
        messages.ModelConfigRequest("m"),
        messages.ServerStatusRequest(),
        messages.ModelLoadRequest("m"),
    ],
)
def test_operations_without_a_graphpipe_request(operation: Operation) -> None:
    error = refused(build_request, operation)
    assert error.kind is Kind.UNSUPPORTED
    assert error.public.endswith(messages.OPERATION_NAMES[type(operation)])


# ---- responses


def response_with(count: int) -> HttpResponse:
    return ok(response([(1, [1], bytes((n,))) for n in range(count)]))


def output_indices(
    operation: messages.InferRequest, model_metadata: ModelMetadata, count: int
) -> list[tuple[str, int]]:
    """Return each output's name and the index of its tensor in the response."""
    result = parse(response_with(count), operation, model_metadata)
    assert isinstance(result, messages.InferResponse)
    assert (result.model, result.version, result.id) == ("m", "3", "id")
    return [(tensor.name, tensor.data[0]) for tensor in result.outputs]


@pytest.mark.parametrize(
    ("requested", "model_metadata", "count", "outputs"),
    [
        ((), model(("a", "b")), 2, [("a", 0), ("b", 1)]),
        (("b", "a"), model(("a", "b")), 2, [("b", 1), ("a", 0)]),
        (("b",), model(("a", "b")), 1, [("b", 0)]),
        (("b",), model(("a", "b")), 2, [("b", 1)]),  # the backend ignores the requested output
        ((), model(("a", "b")), 3, [("output0", 0), ("output1", 1), ("output2", 2)]),
        ((), model(("a", "b")), 1, [("output0", 0)]),
        ((), model(("x", "y"), ("x", "y")), 2, [("x", 0), ("y", 1)]),
        ((), model(("x", "y"), ("x", "y")), 1, [("output0", 0)]),
        (("z",), model(("x", "y"), ("x", "y")), 1, [("z", 0)]),
        (("z",), model(()), 1, [("z", 0)]),
        ((), model(()), 1, [("output0", 0)]),
        ((), model(()), 0, []),
    ],
)
def test_outputs_are_named(
    requested: tuple[str, ...],
    model_metadata: ModelMetadata,
    count: int,
    outputs: list[tuple[str, int]],
) -> None:
    assert output_indices(inference(*requested), model_metadata, count) == outputs


@pytest.mark.parametrize(
    ("requested", "model_metadata"),
    [((), model(("a",))), (("a",), model(("a",))), ((), model(("x", "y"), ("x", "y")))],
)
def test_a_response_without_outputs_is_refused(
    requested: tuple[str, ...], model_metadata: ModelMetadata
) -> None:
    error = refused(output_indices, inference(*requested), model_metadata, 0)
    assert (error.kind, error.origin) == (Kind.BACKEND_GARBAGE, Origin.BACKEND)
    assert error.public == "the backend's response has no outputs"


def test_outputs_that_cannot_be_named_are_refused() -> None:
    error = refused(output_indices, inference("b"), model(("a", "b")), 3)
    assert error.kind is Kind.BACKEND_GARBAGE
    assert error.public == "1 outputs were requested, but the backend returned 3"
    error = refused(output_indices, inference("c"), model(("a", "b")), 2)
    assert error.public == "the backend's response has no output 'c'"
    # The outputs are ambiguous: two nodes of a graph, or its default outputs. Wrong names would be
    # worse than an error.
    error = refused(output_indices, inference("z", "y"), model(("x", "y"), ("x", "y")), 2)
    assert error.kind is Kind.BACKEND_GARBAGE
    assert error.public == "the backend's response has no output 'z'"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "0 bytes are too short"),
        (b"<html>", "InferResponse lies outside"),
        (response([(0, [1], b"1")]), "tensor 'a': type 0 is Null"),
        (response([(10, [1], b"1")]), "tensor 'a': shape [1] of FP32 needs 4 bytes"),
        (response([(1, [-1], b"")]), "tensor 'a'"),
    ],
)
def test_malformed_responses_are_refused(body: bytes, expected: str) -> None:
    error = refused(parse, ok(body), inference(), model(("a",)))
    assert (error.kind, error.origin) == (Kind.BACKEND_GARBAGE, Origin.BACKEND)
    assert expected in error.public


def test_a_response_with_too_many_strings_is_refused() -> None:
    error = refused(parse, ok(response([(12, [2**40], [])])), inference(), model(("a",)))
    assert (error.kind, error.origin) == (Kind.TOO_LARGE, Origin.BACKEND)


# ---- errors


@pytest.mark.parametrize(
    ("errors", "kind", "public"),
    [
        ([(400, b"no such input")], Kind.BAD_REQUEST, "no such input"),
        ([(404, b"x")], Kind.NOT_FOUND, "x"),
        ([(503, b"x")], Kind.NO_BACKEND, "x"),
        ([(0, b"boom"), (7, None), (400, b"bang")], Kind.BACKEND_ERROR, "boom; bang"),
        ([(200, b"x")], Kind.BACKEND_ERROR, "x"),
        ([(-(2**63), None)], Kind.BACKEND_ERROR, "an error without a message"),
        ([(500, b"y" * 9999)], Kind.BACKEND_ERROR, "y" * MAX_MESSAGE_CHARACTERS),
    ],
)
@pytest.mark.parametrize("tensors", [None, [], [(1, [1], b"1")]])
def test_errors_of_a_response(
    errors: list[tuple[int, bytes | None]], kind: Kind, public: str, tensors: Any
) -> None:
    error = refused(parse, ok(response(tensors, errors)), inference(), model(("a",)))
    assert (error.kind, error.origin) == (kind, Origin.BACKEND)
    assert public in error.public
    assert len(error.public) <= MAX_MESSAGE_CHARACTERS


def test_long_errors_are_truncated() -> None:
    wire = ok(response(None, [(400, b"x" * 4_000_000)] * 8))
    size = len(wire.body[0])
    tracemalloc.start()
    error = refused(parse, wire, inference(), model(("a",)))
    assert error.public == "x" * MAX_MESSAGE_CHARACTERS
    assert tracemalloc.get_traced_memory()[1] < size / 4
    tracemalloc.stop()


def test_unreadable_errors_next_to_outputs_are_ignored() -> None:
    body = response([(1, [1], b"1")], [(400, b"\xff")])
    result = parse(ok(body), inference(), model(("a",)))
    assert isinstance(result, messages.InferResponse)
    error = refused(parse, ok(response(None, [(400, b"\xff")])), inference(), model(("a",)))
    assert error.kind is Kind.BACKEND_GARBAGE


@pytest.mark.parametrize(
    ("status", "body", "kind", "public"),
    [
        (400, b"Could not find output 'zzz'\n", Kind.BAD_REQUEST, "Could not find output 'zzz'"),
        (400, b"Remote failed with 400: x\n\n", Kind.BAD_REQUEST, "Remote failed with 400: x"),
        (400, b"", Kind.BAD_REQUEST, "the backend responded with HTTP 400"),
        (401, b"", Kind.UNAUTHENTICATED, "HTTP 401"),
        (404, b"<!DOCTYPE HTML>\n<html>", Kind.NOT_FOUND, "the backend responded with HTTP 404"),
        (405, b"", Kind.BACKEND_GARBAGE, "HTTP 405"),
        (422, b"gr\xc3\xb6\xc3\x9fe", Kind.BAD_REQUEST, "größe"),
        (413, b"\x0c\0\0\0\0\x01", Kind.TOO_LARGE, "the backend responded with HTTP 413"),
        (500, b"Unhandled GET\n", Kind.BACKEND_ERROR, "Unhandled GET"),
        (500, b"y" * 9999, Kind.BACKEND_ERROR, "y" * MAX_MESSAGE_CHARACTERS),
        (501, b"", Kind.UNSUPPORTED, "HTTP 501"),
        (503, b"", Kind.NO_BACKEND, "HTTP 503"),
        (301, b"", Kind.BACKEND_GARBAGE, "HTTP 301"),
        (204, b"", Kind.BACKEND_GARBAGE, "HTTP 204"),
    ],
)
def test_errors_by_status(status: int, body: bytes, kind: Kind, public: str) -> None:
    wire = HttpResponse(status, {"retry-after": "7"}, (body,) if body else ())
    for operation in (inference(), ModelMetadataRequest("m"), messages.ServerMetadataRequest()):
        error = refused(parse, wire, operation, model(("a",)))
        assert (error.kind, error.origin, error.retry_after) == (kind, Origin.BACKEND, 7.0)
        assert public in error.public
        assert len(error.public) <= MAX_MESSAGE_CHARACTERS
        assert f"HTTP {status}" in error.detail


# ---- health and metadata


@pytest.mark.parametrize(
    "operation",
    [messages.ServerLiveRequest(), messages.ServerReadyRequest(), messages.ModelReadyRequest("m")],
)
def test_health(operation: Operation) -> None:
    for status in (200, 400, 500, 501, 502, 503):
        healthy = status in {200, 400, 501}  # graphpipe-py responds to a GET with 501
        assert parse(HttpResponse(status), operation) == messages.HealthStatus(ok=healthy)
    kinds = [refused(parse, HttpResponse(status), operation).kind for status in (401, 403, 404)]
    assert kinds == [Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.NOT_FOUND]


def test_metadata_as_flatbuffer() -> None:
    body = metadata([(b"x", 10), (b"s", 12), (b"odd", 0), (b"new", 200)])
    parsed = parse(ok(body), ModelMetadataRequest("m", "2"))
    assert parsed == ModelMetadata(
        "m",
        inputs=tuple(
            TensorMetadata(name, datatype, ())
            for name, datatype in (("x", "FP32"), ("s", "BYTES"), ("odd", ""), ("new", ""))
        ),
        max_batch_size=0,
        server="gpt",
        server_version="1.2",
    )
    server = messages.ServerMetadata("gpt", "1.2")
    assert parse(ok(body), messages.ServerMetadataRequest()) == server


def test_metadata_with_too_many_tensors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "MAX_TENSORS", 3)
    with raises_kind(Kind.BACKEND_GARBAGE, match="4 inputs; the limit is 3"):
        parse(ok(metadata([(b"x", 1)] * 4)), ModelMetadataRequest("m"))
    for field in ("Inputs", "Outputs"):
        fields = {field: [{"Name": "x", "Shape": [], "Type": 1}] * 4}
        with raises_kind(Kind.BACKEND_GARBAGE, match="4 inputs or outputs; the limit is 3"):
            parse(as_json(fields), ModelMetadataRequest("m"))


JSON = {
    "Name": "theirs",
    "Version": "1.2",
    "Server": "gpt",
    "Inputs": [{"Name": "x", "Description": "", "Shape": [-1, 3], "Type": 10}],
    "Outputs": [{"Name": "o", "Shape": None, "Type": 0}],
}


def test_metadata_as_json() -> None:
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        wire = ok(json.dumps(JSON).encode(), content_type=kind)
        assert parse(wire, ModelMetadataRequest("m")) == ModelMetadata(
            "m",
            inputs=(TensorMetadata("x", "FP32", (-1, 3)),),
            outputs=(TensorMetadata("o", "", ()),),
            max_batch_size=0,
            server="gpt",
            server_version="1.2",
        )
        server = messages.ServerMetadata("gpt", "1.2")
        assert parse(wire, messages.ServerMetadataRequest()) == server


@pytest.mark.parametrize("form", ["json", "flatbuffer"])
def test_metadata_in_both_formats_round_trips(form: str) -> None:
    io = TensorMetadata("x", "FP32", (-1, 3), description="pixels")
    expected = ModelMetadata("m", (), "", (io,), (io,), max_batch_size=0)
    expected = replace(expected, description="of cats", server="gpt", server_version="1.2")
    request = ModelMetadataRequest("m")
    metadata_format = MetadataFormat.JSON if form == "json" else MetadataFormat.FLATBUFFER
    wire = CODEC.build_response(expected, ParsedRequest(request, metadata_format))
    assert parse(wire, request) == expected
    assert parse(wire, ModelMetadataRequest("")) == expected  # the request has no model name


def as_json(fields: Any) -> HttpResponse:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return ok(body, content_type="application/json")


@pytest.mark.parametrize(
    "fields",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        [],
        {"Inputs": 3},
        {"Inputs": {}},
        {"Inputs": [3]},
        {"Inputs": [{"Name": "x", "Shape": [1]}]},
        {"Inputs": [{"Name": 1, "Shape": [1], "Type": 1}]},
        {"Inputs": [{"Name": "x", "Shape": ["1"], "Type": 1}]},
        {"Inputs": [{"Name": "x", "Shape": [True], "Type": 1}]},
        {"Inputs": [{"Name": "x", "Shape": [1] * 65, "Type": 1}]},
        {"Outputs": "x"},
    ],
)
def test_json_that_is_not_metadata_is_refused(fields: Any) -> None:
    with raises_kind(Kind.BACKEND_GARBAGE, match="metadata"):
        parse(as_json(fields), ModelMetadataRequest("m"))


def test_missing_or_invalid_fields_of_json_metadata_are_empty() -> None:
    assert parse(as_json({}), ModelMetadataRequest("m")) == ModelMetadata("m", max_batch_size=0)
    wire = as_json({"Server": 3, "Version": None})
    assert parse(wire, messages.ServerMetadataRequest()) == messages.ServerMetadata("", "")


def test_json_over_the_limit_is_refused() -> None:
    body = json.dumps(JSON).encode()
    exact_limit = Limits(json=len(body))
    assert parse(as_json(body), ModelMetadataRequest("m"), None, exact_limit)
    long = body + b" " * (metadata_module.MAX_JSON_BYTES + 1 - len(body))
    for wire, limits in ((as_json(body + b" "), exact_limit), (as_json(long), DEFAULT_LIMITS)):
        error = refused(parse, wire, ModelMetadataRequest("m"), None, limits)
        assert error.kind is Kind.BACKEND_GARBAGE
