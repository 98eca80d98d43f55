"""Tests the gRPC listener's contents, parameters, metadata, health and reflection.

Clients use the messages of tritonclient or, for health and reflection, of the published protos.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from e2e.running import Infergate, started_infergate
from infergate.codecs.protos import SCHEMA

CONFIG = """
readiness: strict
backends:
  demo: {{protocol: builtin}}
  echo:
    protocol: v2-grpc
    endpoints: ["grpc://{echo}"]
    forward_headers: [traceparent, "x-team-*"]
    return_headers: ["x-load"]
routes:
  - {{model: echo, backend: echo}}
  - {{model: "*", backend: demo}}
"""
TYPED = """
listeners:
  http: {{address: "127.0.0.1:{2}"}}
  grpc: {{address: "127.0.0.1:{1}", v2: {{contents: typed}}}}
  admin: {{address: "127.0.0.1:{0}"}}
"""


class Echo(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Records requests, and returns the inputs as outputs."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str]] = []

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's name
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        context.set_trailing_metadata((("x-load", "7"), ("x-secret", "no")))
        response = service_pb2.ModelInferResponse(
            model_name=request.model_name, model_version="3", id=request.id
        )
        for name, value in request.parameters.items():
            response.parameters[name].CopyFrom(value)
        for tensor in request.inputs:
            response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.extend(request.raw_input_contents)
        return response


@pytest.fixture(scope="module")
def echo() -> Iterator[tuple[Echo, str]]:
    servicer = Echo()
    server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.fixture(scope="module")
def gateway(echo: tuple[Echo, str]) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(echo=echo[1])) as running:
        yield running


@pytest.fixture
def channel(gateway: Infergate) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(gateway.grpc) as rpc_channel:
        yield rpc_channel


@pytest.fixture
def stub(channel: grpc.Channel) -> Any:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


def typed_request(model: str) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id="t")
    tensor = request.inputs.add(name="INPUT0", datatype="INT8", shape=[3])
    tensor.contents.int_contents.extend([-1, 0, 5])
    return request


def raw_request(model: str) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id="r")
    request.inputs.add(name="INPUT0", datatype="INT8", shape=[3])
    request.raw_input_contents.append(b"\xff\x00\x05")
    return request


@pytest.mark.parametrize("model", ["identity", "echo"])
def test_raw_contents_in_and_out(stub: Any, model: str) -> None:
    response = stub.ModelInfer(raw_request(model))
    assert response.raw_output_contents == [b"\xff\x00\x05"]
    assert not response.outputs[0].HasField("contents")


def test_typed_requests_get_raw_responses(stub: Any) -> None:
    response = stub.ModelInfer(typed_request("identity"))
    assert response.raw_output_contents == [b"\xff\x00\x05"]


def test_typed_responses_are_optional(echo: tuple[Echo, str]) -> None:
    with (
        started_infergate(CONFIG.format(echo=echo[1]), TYPED) as running,
        grpc.insecure_channel(running.grpc) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for model in ("identity", "echo"):
            response = stub.ModelInfer(raw_request(model))
            assert list(response.outputs[0].contents.int_contents) == [-1, 0, 5]
            assert not response.raw_output_contents


def test_parameters_of_all_five_kinds_round_trip(stub: Any, echo: tuple[Echo, str]) -> None:
    request = raw_request("echo")
    request.parameters["b"].bool_param = True
    request.parameters["i"].int64_param = -(2**62)
    request.parameters["s"].string_param = "é"
    request.parameters["d"].double_param = 0.25
    request.parameters["u"].uint64_param = 2**64 - 1
    response = stub.ModelInfer(request)
    assert dict(echo[0].requests[-1].parameters) == dict(request.parameters)
    assert dict(response.parameters) == dict(request.parameters)


def test_metadata_is_forwarded_by_rule(stub: Any, echo: tuple[Echo, str]) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    metadata = (("traceparent", parent), ("x-team-id", "7"), ("authorization", "secret"))
    response, rpc = stub.ModelInfer.with_call(raw_request("echo"), metadata=metadata)
    assert response.id == "r"
    received = echo[0].metadata[-1]
    assert (received["traceparent"], received["x-team-id"]) == (parent, "7")
    assert "authorization" not in received
    trailing = dict(rpc.trailing_metadata())
    assert trailing["x-load"] == "7"
    assert "x-secret" not in trailing


def rpc(channel: grpc.Channel, path: str, request: str, response: str) -> Any:
    return channel.unary_unary(
        path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=SCHEMA.message_class(response).FromString,
    )(SCHEMA.message_class(request)())


def test_health_reports_the_readiness_of_all_backends(
    channel: grpc.Channel, echo: tuple[Echo, str]
) -> None:
    response = rpc(
        channel,
        "/grpc.health.v1.Health/Check",
        "grpc.health.v1.HealthCheckRequest",
        "grpc.health.v1.HealthCheckResponse",
    )
    # The echo server has no ServerReady, so not every backend is ready.
    assert response.status == 2


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_lists_the_served_services(channel: grpc.Channel, version: str) -> None:
    package = f"grpc.reflection.{version}"
    request = SCHEMA.message_class(f"{package}.ServerReflectionRequest")
    call = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=SCHEMA.message_class(
            f"{package}.ServerReflectionResponse"
        ).FromString,
    )
    requests = [
        request(list_services="*"),
        request(file_containing_symbol="inference.GRPCInferenceService"),
        request(file_by_filename="no-such.proto"),
    ]
    services, file, missing = call(iter(requests), timeout=10)
    names = {service.name for service in services.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names
    assert file.file_descriptor_response.file_descriptor_proto
    assert missing.error_response.error_code == 5
