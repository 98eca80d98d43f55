"""Payload events: the attributes of CloudEvents and KServe, and data that consumers accept."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array
from infergate.recording.cloud_events import (
    CloudEvent,
    EventAttributes,
    binary_message,
    event_count,
    event_id,
    make_events,
    structured_json,
)

SHARED = EventAttributes("http://gateway", "", "models", "predictor")
X = tensor_from_array("x", Datatype.FP32, np.array([[1, 2.5], [3, 4]], np.float32))
Y = tensor_from_array("y", Datatype.INT64, np.array([7, 8]))
REQUEST = InferRequest("iris", "2", "r1", {"k": "v"}, (X,), (RequestedOutput("y"),))
RESPONSE = InferResponse("iris", "2", "r1", outputs=(Y,))
EXCHANGE = Exchange(
    REQUEST,
    Outcome((RESPONSE,), duration=0.25),
    "trtis-grpc",
    "iris*",
    "triton",
    "request-1",
    {"x-tenant": "a"},
    1_700_000_000.5,
)
TIMEOUT = GatewayError(Kind.TIMEOUT, "no response", detail="10.0.0.7:8001")
ATTRIBUTE_NAME = re.compile("[a-z0-9]{1,20}")


def events(exchange: Exchange = EXCHANGE, mode: Any = "all") -> list[CloudEvent]:
    return make_events(SHARED, exchange, mode, "id-1")


def data(event: CloudEvent) -> Any:
    return json.loads(event.data)


def test_an_inference_is_a_pair_of_events_with_kserves_attributes() -> None:
    request, response = events()
    assert request.attributes == {
        "specversion": "1.0",
        "id": "id-1",
        "source": "http://gateway",
        "type": "org.kubeflow.serving.inference.request",
        "subject": "iris",
        "time": "2023-11-14T22:13:20.500Z",
        "datacontenttype": "application/json",
        "inferenceservicename": "iris",
        "namespace": "models",
        "component": "predictor",
        "endpoint": "triton",
        "metadata": '{"X-Tenant":["a"]}',
        "route": "iris*",
        "protocol": "trtis-grpc",
        "requestid": "request-1",
    }
    assert response.attributes == {
        **request.attributes,
        "type": "org.kubeflow.serving.inference.response",
        "time": "2023-11-14T22:13:20.750Z",
        "outcome": "ok",
        "statuscode": 200,
        "durationms": 250,
    }
    assert all(ATTRIBUTE_NAME.fullmatch(name) for name in response.attributes)


def test_the_data_is_v2_json_without_the_requested_outputs() -> None:
    request, response = events()
    assert data(request) == {
        "id": "r1",
        "parameters": {"k": "v"},
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2.5, 3, 4]}],
    }
    assert data(response) == {
        "id": "r1",
        "model_name": "iris",
        "model_version": "2",
        "outputs": [{"name": "y", "datatype": "INT64", "shape": [2], "data": [7, 8]}],
    }


def test_an_error_is_a_response_with_its_status_and_public_text() -> None:
    _, response = events(replace(EXCHANGE, outcome=Outcome((), TIMEOUT, 3.0)))
    assert response.attributes["type"] == "org.kubeflow.serving.inference.response"
    assert response.attributes["statuscode"] == 504
    assert response.attributes["outcome"] == "timeout"
    assert data(response) == {"error": "no response"}


def test_each_response_of_a_stream_is_an_event() -> None:
    outcome = Outcome((RESPONSE, RESPONSE), TIMEOUT, 3.0, (0.5, 1.0))
    stream = replace(EXCHANGE, outcome=outcome, is_stream=True)
    _, *responses = events(stream)
    assert [
        (each.attributes["sequence"], each.attributes["durationms"], each.attributes["statuscode"])
        for each in responses
    ] == [("00000001", 500, 200), ("00000002", 1000, 200), ("00000003", 3000, 504)]
    assert event_count(stream, "all") == 4


@pytest.mark.parametrize(("mode", "kinds"), [("request", ["request"]), ("response", ["response"])])
def test_the_mode_selects_events(mode: Any, kinds: list[str]) -> None:
    selected = events(mode=mode)
    assert [str(each.attributes["type"]).rpartition(".")[2] for each in selected] == kinds
    assert event_count(EXCHANGE, mode) == 1


def test_data_is_always_valid_json() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.5], np.float32)
    tensors = (
        tensor_from_array("f", Datatype.FP32, values),
        tensor_from_array("h", Datatype.FP16, values.astype(np.float16)),
        tensor_from_array("b", Datatype.BF16, values),
        Tensor("text", Datatype.BYTES, (2,), pack_bytes([b"\xff\x00", "é".encode()])),
        Tensor("none", Datatype.INT8, (0, 3), b""),
    )

    def reject_constant(word: str) -> None:
        raise AssertionError(word)

    request, _ = events(replace(EXCHANGE, request=replace(REQUEST, inputs=tensors)))
    inputs = json.loads(request.data, parse_constant=reject_constant)["inputs"]
    for tensor in inputs[:3]:
        assert tensor["data"] == ["NaN", "Infinity", "-Infinity", 1.5]
        assert np.array_equal(np.array(tensor["data"], np.float32), values, equal_nan=True)
    assert inputs[3]["parameters"] == {"content_type": "base64"}
    assert inputs[3]["data"] == ["/wA=", "w6k="]
    assert inputs[4]["data"] == []


def test_events_satisfy_the_rules_of_trustyai() -> None:
    """TrustyAI's models (src/endpoints/consumer) reject requested outputs, and data whose
    size does not match the shape."""
    for event, key in zip(events(), ("inputs", "outputs"), strict=True):
        body = data(event)
        assert body.keys() <= {"id", "parameters", "model_name", "model_version", key}
        assert all(isinstance(each, str) for each in body.get("parameters", {}).values())
        for tensor in body[key]:
            raw = np.array(tensor["data"], dtype=object)
            assert raw.size == np.prod(tensor["shape"])


def test_a_parameter_that_json_cannot_express_is_an_error() -> None:
    request = replace(REQUEST, parameters={"k": float("nan")})
    with pytest.raises(GatewayError, match="parameter 'k' is nan") as caught:
        events(replace(EXCHANGE, request=request))
    assert caught.value.kind is Kind.UNSUPPORTED


def test_the_client_may_choose_the_id_of_its_events() -> None:
    assert event_id({"ce-id": "mine-1"}) == "mine-1"
    for unusable in ("", "a b", "é", "x" * 129, "a\nb"):
        first, second = event_id({"ce-id": unusable}), event_id({"ce-id": unusable})
        assert first != second
        assert re.fullmatch("[0-9a-f-]{36}", first)


def test_headers_of_binary_mode_are_percent_encoded_ascii() -> None:
    request = replace(REQUEST, model=' mod el "é%')
    for event in events(replace(EXCHANGE, request=request)):
        headers, body = binary_message(event)
        assert headers["content-type"] == "application/json"
        assert headers["ce-subject"] == '%20mod el "%C3%A9%25'
        assert headers["ce-metadata"] == '{"X-Tenant":["a"]}'
        assert all(re.fullmatch("[ -~]+", value) for value in headers.values())
        assert "ce-datacontenttype" not in headers
        assert body == event.data


def test_long_attributes_are_cut() -> None:
    long = "x" * 10_000
    exchange = replace(
        EXCHANGE,
        request=replace(REQUEST, model=long),
        headers={**EXCHANGE.headers, "x-long": long},
        request_id="\udcff",
    )
    for event in events(exchange):
        headers, _ = binary_message(event)
        assert max(map(len, headers.values())) <= 1024
        assert headers["ce-metadata"] == '{"X-Tenant":["a"]}'
        assert headers["ce-requestid"] == "?"


def test_the_json_format_holds_the_data_as_json() -> None:
    request, _ = events()
    document = json.loads(structured_json(request))
    assert document == {**request.attributes, "data": data(request)}
    assert b"\n" not in structured_json(request)
