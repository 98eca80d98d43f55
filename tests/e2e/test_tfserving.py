"""Tests TensorFlow Serving's gRPC API on the gRPC listener, and a server with this API behind
infergate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from e2e.running import Infergate, started_infergate
from faults.payloads import document
from faults.peer import get, post
from infergate.codecs.protos import SCHEMA
from infergate.codecs.tfs import messages as pb
from peers.support.triton import Triton

EXAMPLE = Path(__file__).parents[2] / "config" / "tfserving-to-triton.yaml"
CONFIG = """
backends:
  demo: {{protocol: builtin}}
  serving: {{protocol: tfs-grpc, endpoints: ["grpc://{server}"]}}
routes:
  - {{model: simple, backend: demo}}
  - {{model: other, backend: serving, rewrite: {{model: half_plus_two, version: "3"}}}}
  - {{model: renamed, backend: serving, rewrite: {{model: half_plus_two, outputs: {{z: y}}}}}}
  - {{model: "*", backend: serving}}
"""


def message_class(name: str) -> Any:
    return SCHEMA.message_class(f"tensorflow.serving.{name}")


class Server:
    """A server for this API that records requests and returns ``x`` as ``y``."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.error: tuple[grpc.StatusCode, str] | None = None

    def _serve(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append((method, request))
        if self.error is not None:
            context.abort(*self.error)
        spec = request.model_spec
        if method == pb.METADATA:
            response = message_class("GetModelMetadataResponse")(model_spec=spec)
            signatures = pb.SignatureDefMap()
            for name in ("serving_default", "classify_x"):
                info = signatures.signature_def[name].inputs["x"]
                info.dtype = 1
                info.tensor_shape.dim.add(size=-1)
            response.metadata["signature_def"].Pack(signatures)
            return response
        if method == pb.STATUS:
            response = message_class("GetModelStatusResponse")()
            for version, state in ((3, 30), (2, 20), (1, 50)):
                if spec.version.value in (0, version):
                    response.model_version_status.add(version=version, state=state)
            if not response.model_version_status:
                context.abort(grpc.StatusCode.NOT_FOUND, f"no version of {spec.name}")
            return response
        if method == pb.PREDICT:
            response = message_class("PredictResponse")(model_spec=spec)
            response.outputs["y"].CopyFrom(request.inputs["x"])
        else:
            response = message_class("ClassificationResponse")(model_spec=spec)
            for example in request.input.example_list.examples:
                (label,) = example.features.feature["x"].bytes_list.value
                response.result.classifications.add().classes.add(label=label)
        response.model_spec.version.value = response.model_spec.version.value or 3
        return response

    def handler(self, method: str) -> grpc.RpcMethodHandler:
        request_class, _ = SCHEMA.method_classes(method)
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._serve(method, request, context),
            request_deserializer=request_class.FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )


METHODS = (pb.PREDICT, pb.METADATA, pb.CLASSIFY, pb.STATUS)


@contextmanager
def started_server(methods: Sequence[str] = METHODS) -> Iterator[tuple[Server, str]]:
    servicer = Server()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    for service in (pb.PREDICTION_SERVICE, pb.MODEL_SERVICE):
        names = [path.rpartition("/")[2] for path in methods if path.startswith(f"/{service}/")]
        handlers = {name: servicer.handler(f"/{service}/{name}") for name in names}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Server, str]]:
    with started_server() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: tuple[Server, str]) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(server=server[1])) as running:
        yield running


@pytest.fixture
def received(server: tuple[Server, str]) -> list[tuple[str, Any]]:
    server[0].error = None
    server[0].requests.clear()
    return server[0].requests


def call(running: Infergate, method: str, request: Any, **metadata: str) -> Any:
    _, response_class = SCHEMA.method_classes(method)
    with grpc.insecure_channel(running.grpc) as channel:
        send = channel.unary_unary(
            method,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response_class.FromString,
        )
        return send(request, timeout=20, metadata=tuple(metadata.items()))


def predict_request(model: str, **spec: Any) -> Any:
    request = message_class("PredictRequest")(model_spec={"name": model, **spec})
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=3)
    request.inputs["x"].float_val.append(1.5)
    return request


def test_requests_to_the_same_api_are_unchanged(
    gateway: Infergate, received: list[tuple[str, Any]]
) -> None:
    request = predict_request("half_plus_two", signature_name="sum", version_label="stable")
    response = call(gateway, pb.PREDICT, request)
    assert received == [(pb.PREDICT, request)]  # the request is unchanged
    assert response.outputs["y"].float_val == [1.5]
    assert response.model_spec.signature_name == "sum"


def test_names_are_rewritten_both_ways(gateway: Infergate, received: list[tuple[str, Any]]) -> None:
    for model, output in (("other", "y"), ("renamed", "z")):
        response = call(gateway, pb.PREDICT, predict_request(model, signature_name="sum"))
        forwarded = received.pop()[1]
        assert forwarded.model_spec.name == "half_plus_two"
        assert forwarded.model_spec.signature_name == "sum"
        assert response.model_spec.name == model
        assert list(response.outputs) == [output]
    # Translation expands the single value.
    assert forwarded.inputs["x"].tensor_content == b"\0\0\xc0\x3f" * 3


def test_invalid_tensors_do_not_reach_the_server(
    gateway: Infergate, received: list[tuple[str, Any]]
) -> None:
    request = predict_request("half_plus_two")
    request.inputs["x"].tensor_content = b"short"
    with pytest.raises(grpc.RpcError, match="tensor parsing error: x") as caught:
        call(gateway, pb.PREDICT, request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    request.inputs["x"].ClearField("tensor_content")
    request.inputs["x"].tensor_shape.dim[0].size = 2**40
    with pytest.raises(grpc.RpcError, match="tensor parsing error: x") as caught:
        call(gateway, pb.PREDICT, request)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert received == []


def test_classify_calls_are_forwarded(gateway: Infergate, received: list[tuple[str, Any]]) -> None:
    request_class = message_class("ClassificationRequest")
    for model in ("half_plus_two", "renamed"):  # passed through and translated
        request = request_class(model_spec={"name": model, "signature_name": "classify_x"})
        example = request.input.example_list.examples.add()
        example.features.feature["x"].bytes_list.value.append(b"cat")
        response = call(gateway, pb.CLASSIFY, request)
        ((label,),) = (each.classes for each in response.result.classifications)
        assert label.label == "cat"
        assert (response.model_spec.name, response.model_spec.version.value) == (model, 3)
        method, forwarded = received.pop()
        assert (method, forwarded.input) == (pb.CLASSIFY, request.input)
        assert forwarded.model_spec.name == "half_plus_two"
        assert forwarded.model_spec.signature_name == "classify_x"
    with pytest.raises(grpc.RpcError, match="Classify needs a backend") as caught:
        call(gateway, pb.CLASSIFY, request_class(model_spec={"name": "simple"}))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_signatures_are_forwarded(gateway: Infergate, received: list[tuple[str, Any]]) -> None:
    request = pb.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "half_plus_two"
    response = call(gateway, pb.METADATA, request)
    signatures = pb.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert sorted(signatures.signature_def) == ["classify_x", "serving_default"]
    assert [method for method, _ in received] == [pb.METADATA]


def states(running: Infergate, model: str, version: int = 0) -> list[tuple[int, int]]:
    request = pb.GetModelStatusRequest()
    request.model_spec.name = model
    if version:
        request.model_spec.version.value = version
    response = call(running, pb.STATUS, request)
    return [(entry.version, entry.state) for entry in response.model_version_status]


def test_the_status_of_versions(gateway: Infergate, received: list[tuple[str, Any]]) -> None:
    assert states(gateway, "half_plus_two") == [(3, 30), (2, 20), (1, 50)]
    assert states(gateway, "half_plus_two", 2) == [(2, 20)]
    assert [method for method, _ in received] == [pb.STATUS] * 2
    assert states(gateway, "other") == [(3, 30)]  # the route has one version
    assert states(gateway, "simple") == [(1, 30)]  # the backend has another protocol
    with pytest.raises(grpc.RpcError) as caught:
        states(gateway, "half_plus_two", 9)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "Could not find version 9 of model half_plus_two"


def test_a_server_with_predict_only() -> None:
    """A declared model of a server without ModelService is ready. The error about another model
    shows how to declare it."""
    with started_server([pb.PREDICT]) as (_, address):
        config = (
            CONFIG.format(server=address)
            + """models:
  declared: {inputs: [{name: x, datatype: FP32, shape: [-1]}], outputs: []}
"""
        )
        with started_infergate(config) as running:
            response = call(running, pb.PREDICT, predict_request("declared"))
            assert response.outputs["y"].float_val == [1.5]
            assert states(running, "declared") == [(1, 30)]
            assert states(running, "declared", 2) == [(2, 30)]
            assert get(running.http, "/v2/models/declared/ready").status == 200
            unknown = get(running.http, "/v2/models/nosuch/ready")
            assert unknown.status == 501
            with pytest.raises(grpc.RpcError) as caught:
                states(running, "nosuch")
        for error in (unknown.error, caught.value.details()):
            assert 'models: {"nosuch": {inputs: [{name: x, datatype: FP32' in error
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_server_errors_are_returned(gateway: Infergate, server: tuple[Server, str]) -> None:
    for code, text, expected in (
        (grpc.StatusCode.FAILED_PRECONDITION, 'Serving signature key "q" not found.', None),
        (grpc.StatusCode.INVALID_ARGUMENT, "input size does not match signature", None),
        (
            grpc.StatusCode.NOT_FOUND,
            "Servable not found for request: Specific(half_plus_two, 3)",
            "Servable not found for request: Latest(other)",
        ),
    ):
        server[0].error = (code, text)
        try:
            with pytest.raises(grpc.RpcError) as caught:
                call(gateway, pb.PREDICT, predict_request("other"))
        finally:
            server[0].error = None
        assert (caught.value.code(), caught.value.details()) == (code, expected or text)


def test_reloading_the_configuration_is_unimplemented(gateway: Infergate) -> None:
    request = pb.ReloadConfigRequest()
    request.config.model_config_list.config.add(name="simple")
    with pytest.raises(grpc.RpcError) as caught:
        call(gateway, pb.RELOAD, request)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_reflection_describes_the_services(gateway: Infergate) -> None:
    path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    request_class, response_class = SCHEMA.method_classes(path)
    with grpc.insecure_channel(gateway.grpc) as channel:
        send = channel.stream_stream(
            path,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response_class.FromString,
        )
        requests = (request_class(list_services="*"), request_class(file_containing_symbol=
                    "tensorflow.serving.PredictionService.Predict"))  # fmt: skip
        services, files = send(iter(requests), timeout=20)
    names = {service.name for service in services.list_services_response.service}
    assert {pb.PREDICTION_SERVICE, pb.MODEL_SERVICE} <= names
    descriptors = files.file_descriptor_response.file_descriptor_proto
    assert any(b"ExampleListWithContext" in file for file in descriptors)
    assert any(b"bytes_list" in file for file in descriptors)


@pytest.mark.triton
def test_the_example_with_triton(triton: Triton) -> None:
    """Test config/tfserving-to-triton.yaml with the names of the test models."""
    _, _, config = EXAMPLE.read_text().partition("\nbackends:")
    for name, value in (
        ("${TRITON_URL:-grpc://127.0.0.1:8011}", f"grpc://{triton.grpc}"),
        ("resnet50_onnx", "id_FP32"),
        ("data_0", "INPUT0"),
        ("fc6_1", "OUTPUT0"),
        ("resnet-embed", "id_FP64"),
    ):
        assert name in config
        config = config.replace(name, value)

    def request(**spec: Any) -> Any:
        built = predict_request("resnet", **spec)
        built.inputs["input_image"].CopyFrom(built.inputs["x"])
        del built.inputs["x"]
        return built

    with started_infergate(f"backends:{config}") as running:
        for signature in ("", "serving_default", "predict_images"):
            spec = {"signature_name": signature, "version_label": "stable"}
            response = call(running, pb.PREDICT, request(**spec))
            assert response.outputs["probabilities"].float_val == [1.5] * 3
            assert response.model_spec.name == "resnet"
            assert response.model_spec.version.value == 1
            assert response.model_spec.signature_name == (signature or "serving_default")
        spec = {"name": "resnet", "signature_name": "embed"}
        embed = message_class("PredictRequest")(model_spec=spec)
        embed.inputs["INPUT0"].dtype = 2
        embed.inputs["INPUT0"].double_val.append(0.5)
        embed.inputs["INPUT0"].tensor_shape.dim.add(size=1)
        response = call(running, pb.PREDICT, embed)
        assert response.outputs["OUTPUT0"].double_val == [0.5]
        assert (response.model_spec.name, response.model_spec.signature_name) == ("resnet", "embed")
        for spec, code in (
            ({"version_label": "canary"}, grpc.StatusCode.NOT_FOUND),  # the model has no version 2
            ({"version_label": "other"}, grpc.StatusCode.INVALID_ARGUMENT),
            ({"signature_name": "other"}, grpc.StatusCode.FAILED_PRECONDITION),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call(running, pb.PREDICT, request(**spec))
            assert caught.value.code() is code


SERVER = """
backends: {b: {protocol: builtin}}
routes:
  - {model: half_plus_two, backend: b, rewrite: {model: identity}}
  - model: resnet
    backend: b
    rewrite:
      model: identity
      inputs: {input_image: INPUT0}
      outputs: {probabilities: OUTPUT0}
  - {model: "*", backend: b}
"""
"""Embedded models behind TensorFlow Serving's APIs, with the names of the example."""


def test_the_configuration_example_for_tensorflow_serving() -> None:
    """Test config/v2-to-tfserving.yaml."""
    file = EXAMPLE.with_name("v2-to-tfserving.yaml")
    _, _, config = file.read_text().partition("\nbackends:")
    with started_infergate(SERVER) as server:
        for name, value in (
            ("${SERVING_URL:-grpc://127.0.0.1:8500}", f"grpc://{server.grpc}"),
            ("${SERVING_REST_URL:-http://127.0.0.1:8501}", f"http://{server.http}"),
        ):
            assert name in config
            config = config.replace(name, value)
        with started_infergate(f"backends:{config}") as running:
            for model, input_name, output_name in (
                ("half_plus_two", "INPUT0", "OUTPUT0"),
                ("resnet", "data_0", "fc6_1"),
                ("identity", "INPUT0", "OUTPUT0"),
            ):
                tensor = {"name": input_name, "datatype": "FP32", "shape": [2], "data": [1.5, -2.0]}
                response = post(running.http, f"/v2/models/{model}/infer", document(tensor))
                assert response.json["outputs"] == [tensor | {"name": output_name}]
