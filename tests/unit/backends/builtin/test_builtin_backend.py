"""The embedded backend: health, metadata, validation, outputs, streams and timeouts."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from builtin_requests import CONTEXT, fp32, infer, int32, rejection, requested_outputs, strings

import infergate
from gateway_errors import raises_kind
from infergate.backends.base import Backend
from infergate.backends.builtin import BuiltinBackend, Model
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.messages import InferRequest, ModelMetadataRequest, TensorMetadata
from infergate.core.request_context import RequestContext
from infergate.core.route_policy import RoutePolicy
from infergate.core.tensor import Tensor, tensor_from_array

MODELS = ["simple", "simple_string", "identity", "repeat", "accumulate", "digits", "embed"]
ONES = [[1] * 16]


def test_name_and_protocol() -> None:
    backend: Backend = BuiltinBackend("demo")
    assert (backend.name, backend.protocol) == ("demo", "builtin")


@pytest.mark.parametrize(
    "operation",
    [
        messages.ServerLiveRequest(),
        messages.ServerReadyRequest(),
        *(messages.ModelReadyRequest(name) for name in MODELS),
        messages.ModelReadyRequest("simple", "1"),
    ],
)
async def test_all_health_requests_succeed(backend: BuiltinBackend, operation: object) -> None:
    assert await backend.perform(operation, CONTEXT) == messages.HealthStatus(ok=True)  # type: ignore[arg-type]


async def test_server_metadata(backend: BuiltinBackend) -> None:
    response = await backend.perform(messages.ServerMetadataRequest(), CONTEXT)
    assert response == messages.ServerMetadata(
        "infergate", infergate.__version__, ("classification", "sequence")
    )


@pytest.mark.parametrize("ready_only", [True, False])
async def test_index_lists_every_model(backend: BuiltinBackend, ready_only: bool) -> None:
    response = await backend.perform(messages.ModelIndexRequest(ready_only), CONTEXT)
    assert isinstance(response, messages.ModelIndex)
    assert [entry.name for entry in response.models] == MODELS
    assert {(entry.version, entry.state) for entry in response.models} == {("1", "READY")}


async def test_metadata_of_simple(backend: BuiltinBackend) -> None:
    response = await backend.perform(ModelMetadataRequest("simple", "1"), CONTEXT)
    assert response == messages.ModelMetadata(
        name="simple",
        versions=("1",),
        platform="builtin_numpy",
        inputs=(
            TensorMetadata("INPUT0", "INT32", (-1, 16)),
            TensorMetadata("INPUT1", "INT32", (-1, 16)),
        ),
        outputs=(
            TensorMetadata("OUTPUT0", "INT32", (-1, 16)),
            TensorMetadata("OUTPUT1", "INT32", (-1, 16)),
        ),
        properties={"max_batch_size": "8"},
        max_batch_size=8,
        decoupled=False,
    )


@pytest.mark.parametrize("name", MODELS)
async def test_metadata_names_the_model_and_real_datatypes(
    backend: BuiltinBackend, name: str
) -> None:
    response = await backend.perform(ModelMetadataRequest(name), CONTEXT)
    assert isinstance(response, messages.ModelMetadata)
    assert (response.name, response.versions) == (name, ("1",))
    assert response.inputs
    assert response.outputs
    for tensor in response.inputs + response.outputs:
        Datatype(tensor.datatype)
    assert all(isinstance(value, str) for value in response.properties.values())


@pytest.mark.parametrize("kind", [messages.ModelReadyRequest, ModelMetadataRequest, InferRequest])
async def test_unknown_models_are_not_found(backend: BuiltinBackend, kind: type) -> None:
    assert await rejection(backend, kind("nope"), Kind.NOT_FOUND) == "unknown model 'nope'"
    for version in ("2", "01", "x"):
        error = await rejection(backend, kind("simple", version), Kind.NOT_FOUND)
        assert error == f"unknown version '{version}' of model 'simple'"


async def test_embedded_models_report_no_configuration(backend: BuiltinBackend) -> None:
    error = await rejection(backend, messages.ModelConfigRequest("simple"), Kind.UNSUPPORTED)
    assert "model_config" in error


async def test_models_are_described(backend: BuiltinBackend) -> None:
    assert (await backend.describe("simple", "", CONTEXT)).max_batch_size == 8
    assert (await backend.describe("identity", "1", CONTEXT, refresh=True)).max_batch_size == 0
    with raises_kind(Kind.NOT_FOUND, match="unknown model 'nope'"):
        await backend.describe("nope", "", CONTEXT)
    assert await backend.supports_classification(CONTEXT)


VALID_INPUTS = (int32("INPUT0", ONES), int32("INPUT1", ONES))
REJECTED = [
    ("no input", (), "expected 2 inputs but got 0 inputs for model 'simple'"),
    (
        "one input missing",
        VALID_INPUTS[:1],
        "Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']",
    ),
    ("additional input", (*VALID_INPUTS, int32("MORE", ONES)), "unexpected inference input 'MORE'"),
    ("wrong name", (VALID_INPUTS[0], int32("", ONES)), "unexpected inference input ''"),
    ("duplicate", (*VALID_INPUTS, VALID_INPUTS[0]), "input 'INPUT0' already exists in request"),
    (
        "wrong datatype",
        (VALID_INPUTS[0], fp32("INPUT1", ONES)),
        "inference input 'INPUT1' data-type is 'FP32', but model 'simple' expects 'INT32'",
    ),
    (
        "row too short",
        (VALID_INPUTS[0], int32("INPUT1", [[1] * 15])),
        "unexpected shape for input 'INPUT1' for model 'simple'. Expected [-1,16], got [1,15]",
    ),
    ("rank too low", (int32("INPUT0", [1] * 16), VALID_INPUTS[1]), "Expected [-1,16], got [16]"),
    ("rank too high", (int32("INPUT0", [ONES]), VALID_INPUTS[1]), "Expected [-1,16], got [1,1,16]"),
    ("scalar", (int32("INPUT0", 1), VALID_INPUTS[1]), "Expected [-1,16], got []"),
    (
        "batch too large",
        (int32("INPUT0", ONES * 9), int32("INPUT1", ONES * 9)),
        "inference request batch-size must be <= 8 for 'simple', input 'INPUT0' has 9",
    ),
    (
        "batches differ",
        (VALID_INPUTS[0], int32("INPUT1", ONES * 2)),
        "input 'INPUT1' batch size does not match other inputs for 'simple': expected 1, got 2",
    ),
]


@pytest.mark.parametrize(
    ("inputs", "expected"), [c[1:] for c in REJECTED], ids=[c[0] for c in REJECTED]
)
async def test_invalid_inputs_are_rejected(
    backend: BuiltinBackend, inputs: tuple[Tensor, ...], expected: str
) -> None:
    assert expected in await rejection(backend, InferRequest("simple", inputs=inputs))


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (requested_outputs("OUTPUT2"), "unexpected inference output 'OUTPUT2' for model 'simple'"),
        (
            requested_outputs("OUTPUT0", "OUTPUT0"),
            "output 'OUTPUT0' is requested twice from model 'simple'",
        ),
        (
            requested_outputs("OUTPUT0", classification=0),
            "output 'OUTPUT0': parameter 'classification' must be an integer from 1 to 2^32-1",
        ),
    ],
)
async def test_invalid_requested_outputs_are_rejected(
    backend: BuiltinBackend, outputs: tuple[object, ...], expected: str
) -> None:
    request = InferRequest("simple", inputs=VALID_INPUTS, outputs=outputs)  # type: ignore[arg-type]
    assert await rejection(backend, request) == expected


async def test_rejections_come_from_the_backend(backend: BuiltinBackend) -> None:
    with pytest.raises(GatewayError) as caught:
        await backend.perform(InferRequest("simple"), CONTEXT)
    assert caught.value.origin is Origin.BACKEND


async def test_responses_have_model_version_and_id(backend: BuiltinBackend) -> None:
    response = await infer(backend, InferRequest("simple", id="seven", inputs=VALID_INPUTS))
    assert (response.model, response.version, response.id) == ("simple", "1", "seven")


async def test_outputs_have_the_requested_order(backend: BuiltinBackend) -> None:
    for names in (["OUTPUT1", "OUTPUT0"], ["OUTPUT1"], ["OUTPUT0", "OUTPUT1"]):
        request = InferRequest("simple", inputs=VALID_INPUTS, outputs=requested_outputs(*names))
        response = await infer(backend, request)
        assert [output.name for output in response.outputs] == names
    response = await infer(backend, InferRequest("simple", inputs=VALID_INPUTS))
    assert [output.name for output in response.outputs] == ["OUTPUT0", "OUTPUT1"]


async def test_classification_ranks_each_row_of_a_batch(backend: BuiltinBackend) -> None:
    rows = [list(range(16)), list(range(16, 0, -1))]
    request = InferRequest(
        "simple",
        inputs=(int32("INPUT0", rows), int32("INPUT1", np.zeros((2, 16)))),
        outputs=requested_outputs("OUTPUT0", classification=2),
    )
    (output,) = (await infer(backend, request)).outputs
    assert (output.datatype, output.shape) == (Datatype.BYTES, (2, 2))
    assert output.numpy().tolist() == [[b"15:15", b"14:14"], [b"16:0", b"15:1"]]


async def test_classification_of_text_is_refused(backend: BuiltinBackend) -> None:
    row = [[b"1"] * 16]
    request = InferRequest(
        "simple_string",
        inputs=(strings("INPUT0", row), strings("INPUT1", row)),
        outputs=requested_outputs("OUTPUT0", classification=1),
    )
    assert "output 'OUTPUT0'" in await rejection(backend, request)


async def test_a_stream_of_a_unary_model_has_one_response(backend: BuiltinBackend) -> None:
    request = InferRequest("simple", id="x", inputs=VALID_INPUTS)
    responses = [response async for response in backend.stream(request, CONTEXT)]
    assert responses == [replace(await infer(backend, request), is_last=True)]


async def test_streams_reject_invalid_requests(backend: BuiltinBackend) -> None:
    for request, kind in [
        (InferRequest("nope"), Kind.NOT_FOUND),
        (InferRequest("simple"), Kind.BAD_REQUEST),
    ]:
        with raises_kind(kind):
            await anext(backend.stream(request, CONTEXT))


@pytest.mark.parametrize("route_timeout", [None, 1e-9, 30.0])
@pytest.mark.parametrize("backend_timeout", [1e-9, 30.0])
async def test_the_routes_timeout_replaces_the_backends(
    backend_timeout: float, route_timeout: float | None
) -> None:
    backend = BuiltinBackend("demo", timeout=backend_timeout)
    request = InferRequest("simple", inputs=VALID_INPUTS)
    context = RequestContext("test", policy=RoutePolicy(route_timeout))
    if (route_timeout or backend_timeout) == 30.0:
        assert isinstance(await backend.perform(request, context), messages.InferResponse)
        return
    with raises_kind(Kind.TIMEOUT):
        await backend.perform(request, context)


async def test_only_configured_models_are_served() -> None:
    models: tuple[Model, ...] = tuple(
        m for m in BuiltinBackend("all")._models.values() if m.metadata.name == "identity"
    )
    backend = BuiltinBackend("one", models)
    await infer(backend, InferRequest("identity", inputs=(fp32("INPUT0", [1.0]),)))
    await rejection(backend, InferRequest("simple", inputs=VALID_INPUTS), Kind.NOT_FOUND)
    await backend.close()


async def test_an_empty_batch_gets_a_response(backend: BuiltinBackend) -> None:
    empty = tensor_from_array("INPUT0", Datatype.INT32, np.zeros((0, 16)))
    other = tensor_from_array("INPUT1", Datatype.INT32, np.zeros((0, 16)))
    response = await infer(backend, InferRequest("simple", inputs=(empty, other)))
    assert [output.shape for output in response.outputs] == [(0, 16), (0, 16)]


def test_weights_are_not_loaded_with_the_backend() -> None:
    code = (
        "from infergate.backends.builtin import BuiltinBackend, digits; BuiltinBackend('demo'); "
        "print(digits.load_weights.cache_info().currsize)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "0"
