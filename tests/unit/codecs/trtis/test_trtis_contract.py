"""The legacy codecs over HTTP and gRPC: contract checks, round trips and corrupted messages."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_errors import error_of, raises_kind
from infergate.codecs.base import CodecPlugin, RequestSummary
from infergate.codecs.profiles import GENERIC
from infergate.codecs.trtis import GRPC, HTTP
from infergate.codecs.trtis.datatypes import CLASSIFIABLE, DATATYPE_NUMBERS
from infergate.core import messages
from infergate.core.datatypes import INTEGERS, Datatype
from infergate.core.errors import Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelIndexEntry, ModelMetadata
from infergate.core.tensor import Tensor, pack_bytes
from infergate.core.wire import HttpResponse, RpcResponse, join_parts
from infergate.testing import strategies
from infergate.testing.canonical import is_same
from infergate.testing.codec_check import check_codec
from infergate.testing.vectors import body_of, completed, with_body

PLUGINS = pytest.mark.parametrize("plugin", [HTTP, GRPC], ids=lambda plugin: plugin.name)


def round_trip(value: Any) -> Any:
    """Return ``value`` after a round trip over the legacy API, which lacks some of the fields."""
    match value:
        case messages.ServerMetadataRequest() | messages.ModelIndexRequest():
            return messages.ServerStatusRequest()
        case messages.ModelReadyRequest() | messages.ModelMetadataRequest():
            return messages.ServerStatusRequest(value.model)
        case messages.ServerMetadata():
            return replace(value, name="inference:0", extensions=())
        case ModelMetadata():
            return replace(value, max_batch_size=0)
        case InferRequest():
            # a request for all outputs lists each output
            outputs = value.outputs or (messages.RequestedOutput("VECTOR"),)
            return replace(value, id="", parameters={}, outputs=outputs)
        case InferResponse():
            # the sample request names two of the three outputs
            return replace(value, parameters={}, outputs=value.outputs[:2])
    return value


def status_response(
    operation: messages.Operation, response: messages.Response
) -> messages.Response:
    """Return a server's response, which is a status for every request about servers or models."""
    match operation, response:
        case messages.ServerMetadataRequest(), messages.ServerMetadata(name, version):
            return messages.ServerStatus(name, version, ready=True)
        case messages.ModelReadyRequest(model, version), messages.HealthStatus(ok):
            state = "READY" if ok else "UNAVAILABLE"
            return status(ModelMetadata(model), ModelIndexEntry(model, version or "1", state))
        case _, ModelMetadata(name, versions):
            return status(response, *(ModelIndexEntry(name, v, "READY") for v in versions))
        case messages.ModelIndexRequest(), messages.ModelIndex(models):
            statuses = tuple(
                messages.ModelStatus(ModelMetadata(entry.name), (entry,) if entry.version else ())
                for entry in models
            )
            return messages.ServerStatus("", "", ready=True, models=statuses)
    return response


def status(model: ModelMetadata, *versions: ModelIndexEntry) -> messages.ServerStatus:
    models = (messages.ModelStatus(model, versions),)
    return messages.ServerStatus("", "", ready=True, models=models)


@pytest.mark.no_cover
@PLUGINS
@pytest.mark.parametrize(
    "options", [{}, {"level": "1.15", "server_id": "inference:0", "data_type": True}], ids=str
)
def test_contract(plugin: CodecPlugin, options: dict[str, Any]) -> None:
    check_codec(plugin, options=options, round_trip=round_trip, server_response=status_response)


@PLUGINS
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"level": "2.0"}, "level is '2.0'"),
        ({"level": 1.9}, "level is 1.9"),
        ({"server_id": "a\nb"}, "server_id is"),
        ({"server_id": 3}, "server_id is 3"),
        ({"data_type": "yes"}, "data_type is 'yes'"),
        ({"levels": "1.9"}, "'levels' is not an option"),
    ],
)
def test_invalid_options(plugin: CodecPlugin, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        plugin.create(options)


# ---- round trips

UINT64 = st.integers(0, 2**64 - 1)
names = st.text("abcXYZ019._-~", min_size=1, max_size=8).filter(lambda n: n not in (".", ".."))


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, Any]:
    choices = {
        "sequence_id": st.integers(1, 2**64 - 1),
        "priority": st.integers(1, 2**32 - 1),
        "timeout": st.integers(1, 2**64 - 1),
        "sequence_start": st.just(value=True),
        "sequence_end": st.just(value=True),
    }
    return {name: draw(value) for name, value in choices.items() if draw(st.booleans())}


@st.composite
def inferences(draw: st.DrawFn) -> tuple[InferRequest, InferResponse, ModelMetadata]:
    """Draw a request, the model's response, and the model's metadata."""
    batch = draw(st.none() | st.integers(1, 3))

    def tensors(prefix: str) -> list[Tensor]:
        drawn = []
        for index in range(draw(st.integers(1, 3))):
            tensor = draw(strategies.tensors(frozenset(DATATYPE_NUMBERS)))
            tensor = replace(tensor, name=f"{prefix}{index}", parameters={})
            if batch is not None:
                tensor = replace(
                    tensor, shape=(batch, *tensor.shape), data=bytes(tensor.data) * batch
                )
            drawn.append(tensor)
        return drawn

    def metadata_of(tensor: Tensor) -> messages.TensorMetadata:
        dims = [draw(st.sampled_from((dim, -1))) for dim in tensor.shape]
        return messages.TensorMetadata(tensor.name, tensor.datatype.value, tuple(dims))

    inputs, outputs = tensors("IN"), tensors("OUT")
    model = ModelMetadata(
        draw(names),
        inputs=tuple(map(metadata_of, draw(st.permutations(inputs)))),
        outputs=tuple(map(metadata_of, outputs)),
        max_batch_size=0 if batch is None else draw(st.integers(batch, 9)),
        supports_scheduling=True,
    )
    requests = []
    for index, output in enumerate(outputs):
        if output.datatype in CLASSIFIABLE and draw(st.booleans()):
            count = draw(st.integers(1, 4))
            requests.append(messages.RequestedOutput(output.name, {"classification": count}))
            rows = 1 if batch is None else batch
            kind = INTEGER_CLASSES if output.datatype in INTEGERS else FLOAT_CLASSES
            classes = pack_bytes(draw(st.lists(kind, min_size=rows, max_size=rows)))
            shape = (1,) if batch is None else (batch, 1)
            outputs[index] = Tensor(output.name, Datatype.BYTES, shape, classes)
        else:
            requests.append(messages.RequestedOutput(output.name))
    version = draw(st.sampled_from(("", "1", "9223372036854775807")))
    request = InferRequest(
        model.name,
        version,
        draw(st.just("") | st.integers(1, 2**64 - 1).map(str)),
        draw(parameters()),
        tuple(inputs),
        tuple(requests),
    )
    return request, InferResponse(model.name, "7", request.id, outputs=tuple(outputs)), model


def classes(*values: str) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda value, index, label: f"{value}:{index}{label}".encode(),
        st.sampled_from(values),
        st.integers(0, 2**31 - 1),
        st.sampled_from(["", ":dog", ":a:b", ":größe"]),
    )


INTEGER_CLASSES = classes("0", "-3", "16777216", "10000000000")
FLOAT_CLASSES = classes("0.500000", "-3.000000", "1e-10", "0.33333334", "nan", "inf")


@PLUGINS
@given(inferences())
def test_an_inference_round_trips(
    plugin: CodecPlugin, case: tuple[InferRequest, InferResponse, ModelMetadata]
) -> None:
    request, response, model = case
    codec = plugin.create({})
    wire = codec.build_request(request, GENERIC, model)
    assert codec.summarize(wire) == RequestSummary(InferRequest, model.name, request.version)
    parsed = completed(codec.parse_request(wire, DEFAULT_LIMITS), model)
    assert is_same(parsed.operation, request)
    response_wire = codec.build_response(response, parsed)
    assert is_same(codec.parse_response(response_wire, request, DEFAULT_LIMITS, model), response)


def read_errors(
    codec: Any, wire: Any, model: ModelMetadata | None = None
) -> list[HttpResponse | RpcResponse]:
    """Summarize and parse ``wire``, and return a response for each error."""
    errors = (
        error_of(lambda: codec.summarize(wire)),
        error_of(
            lambda: completed(
                codec.parse_request(wire, DEFAULT_LIMITS), model or ModelMetadata("m")
            )
        ),
    )
    return [codec.build_error(error, wire) for error in errors if error is not None]


@PLUGINS
@given(inferences(), st.data())
def test_corrupted_messages(
    plugin: CodecPlugin,
    case: tuple[InferRequest, InferResponse, ModelMetadata],
    data: st.DataObject,
) -> None:
    request, response, model = case
    codec = plugin.create({})
    wire = codec.build_request(request, GENERIC, model)
    response_wire = codec.build_response(
        response, completed(codec.parse_request(wire, DEFAULT_LIMITS), model)
    )
    corrupted = with_body(
        wire, (data.draw(strategies.corrupted_bytes(bytes(join_parts(body_of(wire))))),)
    )
    if plugin is HTTP:
        header = wire.headers["nv-inferrequest"].encode()
        text = data.draw(strategies.corrupted_bytes(header)).decode("latin-1")
        corrupted = replace(corrupted, headers={**wire.headers, "nv-inferrequest": text})
    read_errors(codec, corrupted, model)
    broken = with_body(
        response_wire,
        (data.draw(strategies.corrupted_bytes(bytes(join_parts(body_of(response_wire))))),),
    )
    if plugin is HTTP:
        headers = {
            name: data.draw(strategies.corrupted_bytes(value.encode())).decode("latin-1")
            for name, value in response_wire.headers.items()
        }
        broken = replace(
            broken, headers=headers, status=data.draw(st.sampled_from((200, 400, 502)))
        )
    error = error_of(lambda: codec.parse_response(broken, request, DEFAULT_LIMITS, model))
    assert error is None or error.public


@PLUGINS
@given(st.binary(max_size=60), st.sampled_from(["Status", "Health", "Infer", "X", "Repository"]))
def test_any_bytes_are_parsed_or_refused(plugin: CodecPlugin, data: bytes, method: str) -> None:
    codec = plugin.create({})
    operation = messages.ServerStatusRequest()
    wire = with_body(codec.build_request(operation, GENERIC), (data,))
    if plugin is GRPC:
        wire = replace(wire, method=f"/nvidia.inferenceserver.GRPCService/{method}")
    read_errors(codec, wire)


SEGMENTS = [
    *("api", "infer", "status", "health", "live", "repository", "index", "sharedmemorycontrol"),
    *("register", "cudaregister", "m", "1", "-1", "", "é", "%", "\n", "9" * 5000),
]


@given(
    st.sampled_from(["GET", "POST", "HEAD", ""]),
    st.lists(st.sampled_from(SEGMENTS), max_size=7),
    st.dictionaries(st.sampled_from(["nv-inferrequest", "accept"]), st.text(max_size=20)),
)
def test_errors_for_any_path(method: str, segments: list[str], headers: dict[str, str]) -> None:
    codec = HTTP.create({})
    wire = replace(
        codec.build_request(messages.ServerStatusRequest(), GENERIC),
        method=method,
        path="/" + "/".join(segments),
        headers=headers,
    )
    assert all(response.status in (400, 405) for response in read_errors(codec, wire))


# ---- other operations


@PLUGINS
@pytest.mark.parametrize("kind", [messages.ModelLoadRequest, messages.ModelUnloadRequest])
def test_a_model_is_loaded_or_unloaded_by_its_name_alone(plugin: CodecPlugin, kind: Any) -> None:
    codec = plugin.create({})
    wire = codec.build_request(kind("m"), GENERIC)
    parsed = completed(codec.parse_request(wire, DEFAULT_LIMITS), None)
    assert parsed.operation == kind("m")
    success = codec.build_response(messages.Acknowledgement(), parsed)
    assert codec.parse_response(success, kind("m"), DEFAULT_LIMITS) == messages.Acknowledgement()
    assert codec.build_request(kind("m", "", {"unload_dependents": False}), GENERIC) == wire
    for operation in (kind("m", "r"), kind("m", "", {"config": "{}"})):
        with raises_kind(Kind.UNSUPPORTED):
            codec.build_request(operation, GENERIC)


@PLUGINS
@given(st.sampled_from(("", "m")), st.booleans())
def test_status_round_trips(plugin: CodecPlugin, model: str, ready: bool) -> None:
    codec = plugin.create({"server_id": "s"})
    inputs = (messages.TensorMetadata("I", "FP32", (-1, 3)),)
    outputs = (
        messages.TensorMetadata("O", "BYTES", (-1,)),
        messages.TensorMetadata("B", "TYPE_INVALID", (-1,)),
    )
    metadata = ModelMetadata("m", ("2",), "p", inputs, outputs, max_batch_size=4)
    versions = (
        ModelIndexEntry("m", "1", "UNAVAILABLE", "it failed"),
        ModelIndexEntry("m", "2", "READY"),
        ModelIndexEntry("m", "3", "LOADING"),
        ModelIndexEntry("m", "10", "UNLOADING"),
    )
    models = (messages.ModelStatus(metadata, versions),)
    server_status = messages.ServerStatus("s", "1.2", ready, models)
    operation = messages.ServerStatusRequest(model)
    parsed = completed(
        codec.parse_request(codec.build_request(operation, GENERIC), DEFAULT_LIMITS), None
    )
    assert parsed.operation == operation
    response_wire = codec.build_response(server_status, parsed)
    assert codec.parse_response(response_wire, operation, DEFAULT_LIMITS) == server_status
    model_ready = messages.ModelReadyRequest("m", "3")
    assert codec.parse_response(
        response_wire, model_ready, DEFAULT_LIMITS
    ) == messages.HealthStatus(ok=False)
    index = codec.parse_response(
        response_wire, messages.ModelIndexRequest(ready_only=True), DEFAULT_LIMITS
    )
    assert index == messages.ModelIndex((ModelIndexEntry("m", "2", "READY"),))
