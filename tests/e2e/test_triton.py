"""Tests every form of tritonclient with a real Triton behind infergate, over both V2 protocols.

One gateway serves two names for each of Triton's models: ``rest.M`` reaches M over V2 REST, and
``grpc.M`` reaches it over V2 gRPC. Requests from http to rest and from grpc to grpc pass through;
the others are translated."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from e2e.clients import ARRAYS, Client, client
from e2e.probing import models_of, probe, run_requests, serve_config
from e2e.running import LISTENERS, Infergate, started_infergate
from faults.peer import post
from infergate.config import load
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ServerStatus, ServerStatusRequest
from infergate.core.request_context import RequestContext
from infergate.runtime.assemble import assemble
from peers.models.triton.models import LABELS
from peers.support.triton import Triton

CONFIG = """
backends:
  rest: {{protocol: v2-rest, endpoints: ["http://{http}"]}}
  grpc: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"]}}
  plain-rest: {{protocol: v2-rest, endpoints: ["http://{http}"], profile: generic}}
  plain-grpc: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"], profile: generic}}
routes:
  - model: '/plain-rest\\.(.+)/'
    backend: plain-rest
    rewrite: &original {{model: '\\1'}}
    labels: &labels {{OUTPUT0: [{labels}]}}
  - {{model: '/plain-grpc\\.(.+)/', backend: plain-grpc, rewrite: *original, labels: *labels}}
  - {{model: '/rest\\.(.+)/', backend: rest, rewrite: {{model: '\\1'}}}}
  - {{model: '/grpc\\.(.+)/', backend: grpc, rewrite: {{model: '\\1'}}}}
  - model: renamed
    backend: grpc
    rewrite: {{model: simple, inputs: {{A: INPUT0, B: INPUT1}}, outputs: {{SUM: OUTPUT0}}}}
  - {{model: versions-new, version: "2", backend: rest, rewrite: {{model: versions, version: "3"}}}}
  - {{model: '*', backend: grpc}}
"""
BACKENDS = ("rest", "grpc")


@pytest.fixture(scope="module")
def gateway(triton: Triton) -> Iterator[Infergate]:
    with started_infergate(config(triton)) as running:
        yield running


def config(triton: Triton) -> str:
    return CONFIG.format(http=triton.http, grpc=triton.grpc, labels=", ".join(LABELS))


def binary_options(triton_client: Client) -> tuple[bool, ...]:
    """Return the values of ``binary`` that the client supports."""
    return (True, False) if triton_client.http else (True,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("datatype", ARRAYS)
def test_each_datatype_round_trips_bit_for_bit(
    triton_client: Client, backend: str, datatype: str
) -> None:
    array = ARRAYS[datatype]
    for binary in binary_options(triton_client):
        if not binary and datatype in {"FP16", "BF16"}:
            continue  # tritonclient itself refuses to write them as JSON
        tensor = triton_client.input("INPUT0", array, datatype, binary=binary)
        output = triton_client.output("OUTPUT0", binary=binary)
        answer = triton_client.infer(f"{backend}.id_{datatype}", [tensor], outputs=[output])
        result = answer.as_numpy("OUTPUT0")
        assert result.dtype == array.dtype
        if datatype == "BYTES" and not binary:  # tritonclient leaves JSON strings as str
            result = np.array([text.encode() for text in result], np.object_)
        assert result.tolist() == array.tolist()
        described = answer.get_output("OUTPUT0")
        assert (described["datatype"] if triton_client.http else described.datatype) == datatype


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_binary_only_outputs_are_converted_to_json(
    gateway: Infergate, backend: str, datatype: str
) -> None:
    one = {"FP16": b"\x00\x3c", "BF16": b"\x80\x3f"}[datatype]
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": [1]}
    text = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": 2}}]}).encode()
    path, length = f"/v2/models/{backend}.id_{datatype}/infer", str(len(text))
    for _ in range(2):
        headers = {"Inference-Header-Content-Length": length}
        (output,) = post(gateway.http, path, text + one, headers).json["outputs"]
        assert output == tensor | {"name": "OUTPUT0", "data": [1.0]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_arbitrary_bytes_in_binary(triton_client: Client, backend: str) -> None:
    array = np.array([b"\xff\x00\xfe", b"", b"\x80"], np.object_)
    answer = triton_client.infer(
        f"{backend}.id_BYTES", [triton_client.input("INPUT0", array, "BYTES")]
    )
    assert answer.as_numpy("OUTPUT0").tolist() == array.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BYTES", "BOOL"])
def test_empty_tensors(triton_client: Client, backend: str, datatype: str) -> None:
    array = ARRAYS[datatype][:0]
    for binary in binary_options(triton_client):
        tensor = triton_client.input("INPUT0", array, datatype, binary=binary)
        outputs = [triton_client.output("OUTPUT0", binary=binary)]
        answer = triton_client.infer(f"{backend}.id_{datatype}", [tensor], outputs=outputs)
        result = answer.as_numpy("OUTPUT0")
        assert result.shape == (0,)


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_inputs_and_outputs_with_an_id(triton_client: Client, backend: str) -> None:
    a, b = np.arange(32, dtype=np.int32).reshape(2, 16), np.ones((2, 16), np.int32)
    inputs = [triton_client.input("INPUT0", a, "INT32"), triton_client.input("INPUT1", b, "INT32")]
    answer = triton_client.infer(f"{backend}.simple", inputs, request_id="the id")
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), a + b)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), a - b)
    response = answer.get_response()
    read = response.get if triton_client.http else lambda name: getattr(response, name)
    assert read("model_name") == f"{backend}.simple"
    assert read("model_version") == "1"
    assert read("id") == "the id"


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_requested_outputs_are_returned(triton_client: Client, backend: str) -> None:
    a = np.ones((1, 16), np.int32)
    inputs = [triton_client.input("INPUT0", a, "INT32"), triton_client.input("INPUT1", a, "INT32")]
    answer = triton_client.infer(
        f"{backend}.simple", inputs, outputs=[triton_client.output("OUTPUT1")]
    )
    assert answer.as_numpy("OUTPUT0") is None
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), a - a)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numeric_strings(triton_client: Client, backend: str) -> None:
    a = np.array([[str(i).encode() for i in range(16)]], np.object_)
    inputs = [triton_client.input(f"INPUT{i}", a, "BYTES") for i in range(2)]
    answer = triton_client.infer(f"{backend}.simple_string", inputs)
    assert [int(x) for x in answer.as_numpy("OUTPUT0")[0]] == [2 * i for i in range(16)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_server_classifies(triton_client: Client, backend: str) -> None:
    scores = np.array([0, 9, 1, 8, 2, 7, 3, 6, 4, 5], np.float32)
    tensor = triton_client.input("INPUT0", scores, "FP32")
    for binary in binary_options(triton_client):
        outputs = [triton_client.output("OUTPUT0", binary=binary, classes=2)]
        answer = triton_client.infer(f"{backend}.classify", [tensor], outputs=outputs)
        top = [str(x if isinstance(x, str) else x.decode()) for x in answer.as_numpy("OUTPUT0")]
        assert top == [f"9.000000:1:{LABELS[1]}", f"8.000000:3:{LABELS[3]}"]


def classes(answer: Any, name: str) -> Any:
    """Return the class strings of an output, which tritonclient reads as str or bytes, as str."""
    array = answer.as_numpy(name)
    return np.vectorize(lambda x: x if isinstance(x, str) else x.decode(), otypes=[object])(array)


@pytest.mark.parametrize("backend", BACKENDS)
def test_computed_classes_equal_tritons(triton_client: Client, backend: str) -> None:
    """With the profile ``generic``, the gateway requests values and ranks them itself."""
    scores = np.array([0.5, 9, -1, 8.25, 2, 7, 1e9, 6, 4, 5], np.float32)
    rows = np.arange(32, dtype=np.int32).reshape(2, 16) * 7 % 31
    for binary in binary_options(triton_client):
        requested = [triton_client.output("OUTPUT0", binary=binary, classes=3)]
        single = [triton_client.input("INPUT0", scores, "FP32")]
        native = classes(
            triton_client.infer(f"{backend}.classify", single, outputs=requested), "OUTPUT0"
        )
        computed = classes(
            triton_client.infer(f"plain-{backend}.classify", single, outputs=requested), "OUTPUT0"
        )
        assert computed.tolist() == native.tolist()
        assert computed.shape == (3,)
        requested.append(triton_client.output("OUTPUT1", binary=binary))
        batch = [triton_client.input(f"INPUT{i}", rows, "INT32") for i in range(2)]
        native_answer = triton_client.infer(f"{backend}.simple", batch, outputs=requested)
        answer = triton_client.infer(f"plain-{backend}.simple", batch, outputs=requested)
        native, computed = (classes(each, "OUTPUT0") for each in (native_answer, answer))
        assert computed.shape == native.shape == (2, 3)
        values = [[each.split(":")[:2] for each in row] for row in computed]
        assert values == [[each.split(":")[:2] for each in row] for row in native]
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), np.zeros((2, 16)))


def test_a_raw_binary_request(gateway: Infergate) -> None:
    """For servers without raw requests, infergate adds the input from the model's metadata."""
    data = np.array([1, 2.5], np.float32).tobytes()
    for backend in (*BACKENDS, "plain-rest"):
        headers = {"Inference-Header-Content-Length": "0"}
        answer = post(gateway.http, f"/v2/models/{backend}.id_FP32/infer", data, headers)
        head = int(answer.headers["inference-header-content-length"])
        assert json.loads(answer.body[:head])["model_name"] == f"{backend}.id_FP32"
        assert answer.body[head:] == data


async def test_descriptions_have_the_maximum_batch_size(triton: Triton, tmp_path: Path) -> None:
    """The value comes from Triton's model configuration, over both protocols."""
    file = tmp_path / "routes.yaml"
    file.write_text(config(triton) + LISTENERS.format(0, 0, 0))
    running = assemble(load(file, {}))
    gateway = running.gateway
    try:
        for backend in BACKENDS:
            batched = await gateway.describe(f"{backend}.simple", "", request_context())
            assert (batched.name, batched.max_batch_size) == (f"{backend}.simple", 8)
            assert batched.inputs[0].shape == (-1, 16)
            single = await gateway.describe(f"{backend}.classify", "1", request_context())
            assert single.max_batch_size == 0
            generic = await gateway.describe(f"plain-{backend}.simple", "", request_context())
            assert generic.max_batch_size is None
            with pytest.raises(GatewayError) as caught:
                await gateway.describe(f"{backend}.no-such-model", "", request_context())
            assert caught.value.kind is Kind.NOT_FOUND
        status = await gateway.perform(ServerStatusRequest("versions"), request_context())
        assert isinstance(status, ServerStatus)
        assert {each.version: each.state for each in status.models[0].versions} == {
            "1": "READY",
            "3": "READY",
        }
        all_models = await gateway.perform(ServerStatusRequest(), request_context())
        assert isinstance(all_models, ServerStatus)
        batches = {each.metadata.name: each.metadata.max_batch_size for each in all_models.models}
        assert batches["simple"] == 8
        assert batches["classify"] == 0
        assert len(batches) >= 20
    finally:
        await running.stop(0)


def request_context() -> RequestContext:
    return RequestContext("test")


@pytest.mark.parametrize("backend", BACKENDS)
def test_metadata(triton_client: Client, backend: str) -> None:
    metadata = triton_client.get_model_metadata(f"{backend}.simple", **triton_client.as_json)
    assert metadata["name"] == f"{backend}.simple"
    assert metadata["versions"] == ["1"]
    assert [t["name"] for t in metadata["inputs"]] == ["INPUT0", "INPUT1"]
    assert metadata["inputs"][0]["datatype"] == "INT32"
    assert [int(d) for d in metadata["inputs"][0]["shape"]] == [-1, 16]


def test_server_metadata_and_health(triton_client: Client) -> None:
    metadata = triton_client.get_server_metadata(**triton_client.as_json)
    assert metadata["name"] == "infergate"
    assert triton_client.is_server_live()
    assert triton_client.is_server_ready()


@pytest.mark.parametrize("backend", BACKENDS)
def test_model_readiness(triton_client: Client, backend: str) -> None:
    assert triton_client.is_model_ready(f"{backend}.simple")
    assert triton_client.is_model_ready(f"{backend}.versions", "1")
    assert not triton_client.is_model_ready(f"{backend}.versions", "2")
    assert not triton_client.is_model_ready(f"{backend}.no-such-model")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("model", "version", "error"),
    [
        ("no-such-model", "", "unknown model"),
        ("simple", "9", "version"),
        ("simple", "abc", "version|Not Found"),
    ],
)
def test_unknown_models_and_versions(
    triton_client: Client, backend: str, model: str, version: str, error: str
) -> None:
    tensor = triton_client.input("INPUT0", ARRAYS["FP32"], "FP32")
    with pytest.raises(InferenceServerException, match=error) as caught:
        triton_client.infer(f"{backend}.{model}", [tensor], model_version=version)
    assert caught.value.status() in {"404", "StatusCode.NOT_FOUND"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_servers_error_text_is_returned(triton_client: Client, backend: str) -> None:
    tensor = triton_client.input("INPUT0", np.ones((1, 16), np.int32), "INT32")
    with pytest.raises(InferenceServerException, match="expected 2 inputs but got 1") as caught:
        triton_client.infer(f"{backend}.simple", [tensor])
    assert caught.value.status() in {"400", "StatusCode.INVALID_ARGUMENT"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_failing_model(triton_client: Client, backend: str) -> None:
    tensor = triton_client.input("INPUT0", np.array([b"it broke"], np.object_), "BYTES")
    with pytest.raises(InferenceServerException) as caught:
        triton_client.infer(f"{backend}.fail", [tensor])
    assert caught.value.status() in {"500", "StatusCode.INTERNAL"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_requests_with_parameters_of_every_kind_are_served(
    triton_client: Client, backend: str
) -> None:
    tensor = triton_client.input("INPUT0", ARRAYS["FP32"], "FP32")
    parameters = {"a": 1, "b": True, "c": "text", "d": 0.5}
    answer = triton_client.infer(f"{backend}.id_FP32", [tensor], parameters=parameters, priority=1)
    assert answer.as_numpy("OUTPUT0").tolist() == ARRAYS["FP32"].tolist()


def test_tensors_are_renamed(triton_client: Client) -> None:
    a = np.ones((1, 16), np.int32)
    inputs = [triton_client.input("A", a, "INT32"), triton_client.input("B", a, "INT32")]
    answer = triton_client.infer("renamed", inputs, outputs=[triton_client.output("SUM")])
    np.testing.assert_array_equal(answer.as_numpy("SUM"), a + a)


def test_a_version_is_rewritten(triton_client: Client) -> None:
    with_version = triton_client.get_model_metadata("versions-new", "2", **triton_client.as_json)
    assert (with_version["name"], with_version["versions"]) == ("versions-new", ["2"])


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp warns
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_large_tensor(triton_client: Client, backend: str) -> None:
    image = np.random.default_rng(1).random((1, 3, 224, 224), np.float32)
    for binary in binary_options(triton_client):
        tensor = triton_client.input("INPUT0", image, "FP32", binary=binary)
        outputs = [triton_client.output("OUTPUT0", binary=binary)]
        answer = triton_client.infer(f"{backend}.id_image", [tensor], outputs=outputs)
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), image)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_http_compression_both_ways(gateway: Infergate, backend: str, algorithm: str) -> None:
    image = np.ones((1, 3, 224, 224), np.float32)
    with client("http", gateway.http, gateway.grpc) as triton_client:
        answer = triton_client.infer(
            f"{backend}.id_image",
            [triton_client.input("INPUT0", image, "FP32")],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), image)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fifty_concurrent_requests(gateway: Infergate, backend: str) -> None:
    """tritonclient's asynchronous calls send 50 requests over each protocol."""
    arrays = [np.array([i, i + 1], np.float32) for i in range(50)]
    with tritonclient.http.InferenceServerClient(gateway.http, concurrency=10) as http:
        pending = []
        for array in arrays:
            tensor = tritonclient.http.InferInput("INPUT0", [2], "FP32")
            tensor.set_data_from_numpy(array)
            pending.append(http.async_infer(f"{backend}.id_FP32", [tensor]))
        for array, answer in zip(arrays, pending, strict=True):
            assert answer.get_result().as_numpy("OUTPUT0").tolist() == array.tolist()
    with tritonclient.grpc.InferenceServerClient(gateway.grpc) as grpc:
        results: queue.Queue[tuple[int, Any, object]] = queue.Queue()
        for number, array in enumerate(arrays):
            rpc_tensor = tritonclient.grpc.InferInput("INPUT0", [2], "FP32")
            rpc_tensor.set_data_from_numpy(array)
            grpc.async_infer(
                f"{backend}.id_FP32",
                [rpc_tensor],
                lambda result, error, n=number: results.put((n, result, error)),
            )
        for _ in arrays:
            number, result, error = results.get(timeout=30)
            assert error is None
            assert result.as_numpy("OUTPUT0").tolist() == arrays[number].tolist()


def test_a_probe_finds_the_models_and_its_requests_run(triton: Triton, tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    document = probe(triton.http, triton.grpc, "--write", str(file))
    [server] = document["servers"]
    assert (server["server"], [item["protocol"] for item in server["protocols"]]) == (
        "triton",
        ["v2-grpc", "v2-rest"],
    )
    models = models_of(document)
    assert models["embed"]["max_batch_size"] == 64
    assert models["embed"]["inputs"] == [{"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]}]
    for name in ("simple", "accumulate", "id_image"):
        for response in run_requests(models[name]):
            assert response["model_name"] == name
    with serve_config(file):
        for response in run_requests(models["id_BF16"]):  # Triton does not accept BF16 as JSON
            assert response["outputs"][0]["datatype"] == "BF16"
    [metrics] = probe(triton.metrics, "--timeout", "1")["addresses"]
    assert "speaks no protocol" in metrics["problem"]
