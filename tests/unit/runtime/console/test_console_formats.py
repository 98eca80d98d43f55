from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from infergate.codecs import wire_format
from infergate.codecs.protos import SCHEMA
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse
from infergate.runtime.console import tensor_format
from infergate.testing.strategies import tensors as any_tensor

_INFER = "/inference.GRPCInferenceService/ModelInfer"


def described_body(body: bytes, headers: dict[str, str] | None = None) -> Any:
    """Return the description of a response with ``body``."""
    return wire_format.describe_response(HttpResponse(200, headers or {}, [body], reason="OK"))


def test_an_http_request_is_described() -> None:
    body = [b'{"inputs":[{"data":[1,2]}],', b'"id":"7"}']
    request = HttpRequest("POST", "/v2/m", "a=b", {"content-type": "x"}, body)
    described = wire_format.describe_request(request)
    assert described["start"] == "POST /v2/m?a=b HTTP/1.1"
    assert described["headers"] == [["content-type", "x"]]
    assert described["size"] == 36
    assert json.loads(described["decoded"]) == {"inputs": [{"data": [1, 2]}], "id": "7"}
    assert '"data": [1, 2]' in described["decoded"], "a list of numbers is on one line"
    assert described["bytes"].startswith("000000  7b 22 69 6e")
    assert '{"inputs":[{"dat' in described["bytes"]


def test_tensors_after_json_are_shown_by_size() -> None:
    described = described_body(b"{}\x01\x02\x03", {"inference-header-content-length": "2"})
    assert described["start"] == "HTTP/1.1 200 OK"
    assert described["decoded"] == "{}\n\nand 3 bytes of tensors"


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b"{", b"plain"])
def test_a_body_that_is_not_json_is_shown_as_bytes(body: bytes) -> None:
    assert described_body(body)["decoded"] == ""


def test_a_grpc_message_is_decoded_by_its_method() -> None:
    method = "/inference.GRPCInferenceService/ModelReady"
    request = wire_format.describe_request(RpcRequest(method, [b"\x0a\x01m"], {"x": "y"}))
    assert (request["start"], request["decoded"]) == (f"gRPC {method}", 'name: "m"\n')
    response = wire_format.describe_response(RpcResponse([b"\x08\x01"]), method)
    assert (response["start"], response["decoded"]) == ("gRPC status 0", "ready: true\n")
    rejected = wire_format.describe_response(RpcResponse(code=5, details="no such model"), method)
    assert (rejected["start"], rejected["decoded"]) == ("gRPC status 5 no such model", "")


@pytest.mark.parametrize("message", [b"\xff\xff", b"\x0a\x05m"])
def test_an_invalid_message_is_shown_as_bytes(message: bytes) -> None:
    for method in ("/inference.GRPCInferenceService/ModelReady", "/no.Such/Method"):
        described = wire_format.describe_request(RpcRequest(method, [message]))
        assert described["decoded"] == ""


def test_credentials_are_not_shown() -> None:
    headers = {"authorization": "Bearer hunter2", "x-api-key": "hunter2", "set-cookie": "hunter2"}
    described = wire_format.describe_request(HttpRequest("GET", "/", headers=headers))
    assert "hunter2" not in str(described)


def test_long_json_is_shown_truncated() -> None:
    data = json.dumps({"data": list(range(10_000))}).encode()
    described = wire_format.describe_request(HttpRequest("POST", "/", body=[data]))
    assert "… 9968 more" in described["decoded"]
    assert described["bytes"].endswith("more bytes")
    assert len(str(described)) < 10_000


def test_a_long_list_of_lists_says_how_many_are_omitted() -> None:
    text = wire_format.format_json({"data": [[1, 2]] * 40})
    assert text.count("[1, 2]") == 32
    assert text.endswith("    [1, 2],\n    … 8 more\n  ]\n}")


def test_very_long_json_is_not_decoded() -> None:
    data = b'{"data": [' + b"1," * (1 << 20) + b"1]}"
    decoded = described_body(data)["decoded"]
    assert decoded.startswith('{"data": [1,1,')
    assert len(decoded) < 10_000
    assert described_body(b"\xff" * (1 << 21))["decoded"] == ""


@pytest.mark.parametrize("depth", [50, 900, 200_000])
def test_deep_json_is_shown_up_to_a_depth(depth: int) -> None:
    described = described_body(b"[" * depth + b"]" * depth)
    assert "…" in described["decoded"] or described["decoded"] == ""
    assert described["bytes"]


def test_an_invalid_json_length_is_ignored() -> None:
    headers = {"inference-header-content-length": "9" * 5000}
    assert described_body(b"{}", headers)["decoded"] == "{}"


def test_a_long_protobuf_message_is_shown_truncated() -> None:
    message = SCHEMA.method_classes(_INFER)[0]()
    message.model_name = "m" * 1000
    message.inputs.add(name="a").contents.fp32_contents.extend([1.0] * 1_000_000)
    message.raw_input_contents.append(b"\x00" * (8 << 20))
    start = time.process_time()
    described = wire_format.describe_request(RpcRequest(_INFER, [message.SerializeToString()]))
    assert time.process_time() - start < 1.0, "formatting the whole message would take seconds"
    assert described["decoded"].count("fp32_contents: 1.0") == 32
    for text in ("model_name: 744 more", "fp32_contents: 999968 more", "[0]: 8388352 more"):
        assert text in described["decoded"]


def test_long_maps_of_a_protobuf_message_are_truncated() -> None:
    message = SCHEMA.method_classes(_INFER)[1]()
    for number in range(1000):
        message.parameters[f"p{number}"].int64_param = number
    response = RpcResponse([message.SerializeToString()])
    decoded = wire_format.describe_response(response, _INFER)["decoded"]
    assert decoded.count("key:") == 32
    assert "… parameters: 968 more" in decoded


def _bool_response(elements: int) -> bytes:
    message = SCHEMA.method_classes(_INFER)[1]()
    message.outputs.add().contents.bool_contents.extend([True] * elements)
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(
    ("body", "is_decoded"),
    [
        (b"\x32\x00" * 16_384, True),
        (b"\x32\x00" * 16_385, False),
        (b"\x2a\x00" * 16_385, False),
        (_bool_response(4_000_000), True),
        (_bool_response(4_200_000), False),
    ],
    ids=["strings at limit", "strings", "outputs", "elements at limit", "elements"],
)
def test_a_protobuf_message_of_too_many_fields_is_shown_as_bytes(
    body: bytes, *, is_decoded: bool
) -> None:
    described = wire_format.describe_response(RpcResponse([body]), _INFER)
    assert (described["decoded"] != "", described["size"]) == (is_decoded, len(body))
    assert described["bytes"]


def parse_tensor(datatype: str, shape: list[int], data: Any) -> Tensor:
    fields = {"name": "a", "datatype": datatype, "shape": shape, "data": data}
    return tensor_format.parse(fields, DEFAULT_LIMITS)


def test_inputs_are_parsed() -> None:
    values = [[1, 2], [3, -4]]
    assert parse_tensor("INT16", [2, 2], values).numpy().tolist() == values
    assert parse_tensor("BF16", [3], 0.5).numpy().tolist() == [0.5] * 3
    assert tensor_format.to_json(parse_tensor("BYTES", [2], ["größe", ""]))["data"] == ["größe", ""]


@pytest.mark.parametrize(
    "invalid",
    [
        7,
        {},
        {"name": "a", "datatype": "FP31", "shape": [1], "data": [1]},
        {"name": "a", "datatype": "FP32", "shape": "1", "data": [1]},
        {"name": "a", "datatype": "FP32", "shape": [-1], "data": [1]},
        {"name": "a", "datatype": "FP32", "shape": [2], "data": [1]},
        {"name": "a", "datatype": "FP32", "shape": [2], "data": [[1], [2, 3]]},
        {"name": "a", "datatype": "INT8", "shape": [1], "data": [1000]},
        {"name": "a", "datatype": "INT8", "shape": [1], "data": ["x"]},
        {"name": "a", "datatype": "FP32", "shape": [100000, 100000], "data": 1},
        {"name": "a", "datatype": "FP32", "shape": [1], "data": [None, {}]},
        {"name": "a", "datatype": "BYTES", "shape": [1 << 20], "data": "x" * 100},
        {"name": "a", "datatype": "FP64", "shape": [2**62, 2**62], "data": 1},
    ],
)
def test_invalid_inputs_are_rejected(invalid: Any) -> None:
    with pytest.raises(GatewayError):
        tensor_format.parse(invalid, DEFAULT_LIMITS)


@given(any_tensor())
def test_a_tensor_shown_as_json_can_be_read_back(tensor: Any) -> None:
    document = tensor_format.to_json(tensor)
    json.dumps(document)
    if len(document["data"]) == np.prod(tensor.shape) and tensor.datatype is not Datatype.BYTES:
        assert bytes(tensor_format.parse(document, DEFAULT_LIMITS).data) == bytes(
            tensor.data
        ) or document["datatype"].startswith(("FP", "BF")), "NaN payloads are lost"


def test_an_example_fits_its_model() -> None:
    model = ModelMetadata(
        "m",
        inputs=(
            TensorMetadata("a", "FP32", (-1, 3)),
            TensorMetadata("b", "BYTES", (-1,)),
            TensorMetadata("c", "UINT8", (1, 224, 224, 3)),
            TensorMetadata("d", "BOOL", (2,)),
            TensorMetadata("e", "BYTES", (1000, 10)),
        ),
    )
    inputs = tensor_format.example(model)
    assert [each["shape"] for each in inputs[:4]] == [[1, 3], [4], [1, 224, 224, 3], [2]]
    assert [each["data"] for each in inputs[3:]] == [[False, True], "text 1"]
    assert inputs[2]["data"] == 1
    for each in inputs:
        tensor_format.parse(each, DEFAULT_LIMITS)


def test_long_tensors_are_shown_truncated() -> None:
    array = np.arange(1000, dtype=np.int32)
    document = tensor_format.to_json(tensor_from_array("x", Datatype.INT32, array))
    assert document["data"] == list(range(256))
    assert document["shape"] == [1000]


def test_an_example_of_a_huge_tensor_is_short() -> None:
    model = ModelMetadata("m", inputs=(TensorMetadata("a", "BYTES", (1 << 40, 1 << 20)),))
    assert tensor_format.example(model)[0]["data"] == "text 1"


def test_strings_may_be_deeply_nested() -> None:
    data: Any = ["x"]
    for _ in range(1020):
        data = [data]
    assert tensor_format.to_json(parse_tensor("BYTES", [1], data))["data"] == ["x"]


def test_long_strings_are_shown_truncated() -> None:
    document = tensor_format.to_json(parse_tensor("BYTES", [1], "x" * 1000))
    assert document["data"] == ["x" * 256 + "…"]


def test_credentials_in_a_query_are_hidden() -> None:
    query = "a=1&api_key=SECRET&x-amz-signature=SECRET&compass=n"
    line = wire_format.describe_request(HttpRequest("GET", "/p", query))["start"]
    assert line == ("GET /p?a=1&api_key=(hidden)&x-amz-signature=(hidden)&compass=n HTTP/1.1")
