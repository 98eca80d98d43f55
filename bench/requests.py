"""Requests for the benchmarks. Each response is verified before requests are timed."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from infergate.codecs.base import Codec, ParsedRequest, Profile
from infergate.codecs.graphpipe import PLUGIN as GRAPHPIPE
from infergate.codecs.protos.wire_scanner import MAX_VARINT_BYTES
from infergate.codecs.tfs import GRPC as TF_SERVING_GRPC
from infergate.codecs.trtis import GRPC as LEGACY_GRPC
from infergate.codecs.trtis import HTTP as LEGACY
from infergate.core.datatypes import Datatype
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.tensor import tensor_from_array
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse, join_parts
from infergate.testing.vectors import completed

from .load import LoadError, Request

INFER = "/inference.GRPCInferenceService/ModelInfer"
_MAX_MESSAGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_LENGTH_HEADER = "Inference-Header-Content-Length"
_LIMITS = replace(DEFAULT_LIMITS, body=2**31)


@dataclass(frozen=True, eq=False)
class InferenceCase:
    """A request with the FP32 tensor INPUT0 for ``model``, which returns the same numbers as
    OUTPUT0."""

    model: str
    array: npt.NDArray[np.float32]

    @cached_property
    def raw(self) -> bytes:
        """Return the tensor's raw bytes."""
        return self.array.tobytes()

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}/infer"

    def json(self) -> tuple[Mapping[str, str], bytes]:
        """Return headers and a body with the numbers as text, as a client's json module writes
        them."""
        tensor = {**self._tensor("INPUT0"), "data": self.array.ravel().tolist()}
        return {"content-type": "application/json"}, json.dumps({"inputs": [tensor]}).encode()

    def binary(self) -> tuple[Mapping[str, str], bytes]:
        """Return headers and a body in the binary extension, with binary outputs requested."""
        tensor = {**self._tensor("INPUT0"), "parameters": {"binary_data_size": len(self.raw)}}
        output = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
        headers = {"content-type": "application/octet-stream", _LENGTH_HEADER: str(len(head))}
        return headers, head + self.raw

    def message(self) -> bytes:
        model_infer_request = service_pb2.ModelInferRequest(model_name=self.model)
        model_infer_request.inputs.add(name="INPUT0", datatype="FP32", shape=self.array.shape)
        model_infer_request.raw_input_contents.append(self.raw)
        return bytes(model_infer_request.SerializeToString())

    def response(self) -> bytes:
        """Return the expected ModelInferResponse."""
        model_infer_response = service_pb2.ModelInferResponse(
            model_name=self.model, model_version="1"
        )
        model_infer_response.outputs.add(name="OUTPUT0", datatype="FP32", shape=self.array.shape)
        model_infer_response.raw_output_contents.append(self.raw)
        return bytes(model_infer_response.SerializeToString())

    def json_response(self) -> bytes:
        """Return the expected HTTP response to ``json``."""
        tensor = {**self._tensor("OUTPUT0"), "data": self.array.ravel().tolist()}
        return self._http_response(tensor, b"", "application/json")

    def binary_response(self) -> bytes:
        """Return the expected HTTP response to ``binary``."""
        tensor = {**self._tensor("OUTPUT0"), "parameters": {"binary_data_size": len(self.raw)}}
        return self._http_response(tensor, self.raw, "application/octet-stream")

    def metadata(self) -> dict[str, list[dict[str, object]]]:
        """Return the model's inputs and outputs, as ``models`` in routes.yaml declares them."""
        metadata = {"datatype": "FP32", "shape": [-1] * self.array.ndim}
        return {
            "inputs": [{"name": "INPUT0", **metadata}],
            "outputs": [{"name": "OUTPUT0", **metadata}],
        }

    def _http_response(self, tensor: dict[str, object], raw: bytes, content_type: str) -> bytes:
        metadata = {"model_name": self.model, "model_version": "1", "outputs": [tensor]}
        text = json.dumps(metadata).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n"
        if raw:
            head += f"{_LENGTH_HEADER}: {len(text)}\r\n"
        head += f"content-length: {len(text) + len(raw)}\r\n\r\n"
        return head.encode() + text + raw

    def _tensor(self, name: str) -> dict[str, object]:
        return {"name": name, "datatype": "FP32", "shape": list(self.array.shape)}


def tiny(model: str) -> InferenceCase:
    return InferenceCase(model, np.arange(16, dtype=np.float32))


def image(model: str) -> InferenceCase:
    """Return a request whose tensor has the shape [1,3,224,224] and seeded values in [0, 1)."""
    return InferenceCase(model, _numbers(1, 3, 224, 224))


def channels_last(model: str) -> InferenceCase:
    """Return a request like ``image`` with TensorFlow's shape, [1,224,224,3]."""
    return InferenceCase(model, _numbers(1, 224, 224, 3))


def flat(model: str, size: int) -> InferenceCase:
    """Return a request whose tensor has ``size`` bytes of seeded values in [0, 1)."""
    return InferenceCase(model, _numbers(size // 4))


def _numbers(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def json_request(case: InferenceCase, address: str) -> Request:
    """Return a POST of JSON to ``address``."""
    return _http_request(case, address, *case.json())


def binary_request(case: InferenceCase, address: str) -> Request:
    """Return a POST in the binary extension to ``address``."""
    return _http_request(case, address, *case.binary())


def grpc_request(case: InferenceCase, address: str) -> Request:
    """Return a ModelInfer call to ``address``."""
    message, request = _call(address, INFER, case.message())
    response = service_pb2.ModelInferResponse.FromString(message)
    _check_tensor(case, list(response.outputs[0].shape), response.raw_output_contents[0], address)
    return request


def graphpipe_request(case: InferenceCase, address: str) -> Request:
    """Return a GraphPipe inference for ``address``."""
    return _codec_request(GRAPHPIPE.create({}), case, address, f"/graphpipe/{case.model}")


def legacy_request(case: InferenceCase, address: str) -> Request:
    """Return an inference of the legacy HTTP API for ``address``."""
    return _codec_request(LEGACY.create({}), case, address)


def rows_request(case: InferenceCase, address: str) -> Request:
    """Return a POST of rows in TensorFlow Serving's JSON to ``address``."""
    path, headers = f"/v1/models/{case.model}:predict", {"content-type": "application/json"}
    body = json.dumps({"instances": case.array.tolist()}).encode()
    content, _ = _post(address, path, headers, body)
    rows = np.array(json.loads(content)["predictions"], np.float32)
    _check_tensor(case, list(rows.shape), rows.tobytes(), address)
    return Request(f"http://{address}{path}", headers, body, len(content))


def legacy_grpc_request(case: InferenceCase, address: str) -> Request:
    """Return an Infer call of the legacy gRPC API to ``address``."""
    # A response contains a request number of variable length.
    return _codec_call(LEGACY_GRPC.create({}), case, address, max_extra_bytes=MAX_VARINT_BYTES)


def predict_request(case: InferenceCase, address: str) -> Request:
    """Return a Predict call of TensorFlow Serving to ``address``."""
    return _codec_call(TF_SERVING_GRPC.create({}), case, address)


def _codec_call(
    codec: Codec[RpcRequest, RpcResponse],
    case: InferenceCase,
    address: str,
    max_extra_bytes: int = 0,
) -> Request:
    """Return the call that ``codec`` writes."""
    wire = codec.build_request(_operation(case), Profile("any"), _model(case))
    message, request = _call(address, wire.method, bytes(join_parts(wire.message)), max_extra_bytes)
    _check(codec, RpcResponse([message]), case, address)
    return request


def _call(
    address: str, method: str, message: bytes, max_extra_bytes: int = 0
) -> tuple[bytes, Request]:
    """Return the response to a gRPC call, and the request for further calls."""
    with grpc.insecure_channel(address, options=_MAX_MESSAGE) as channel:
        response = channel.unary_unary(method)(message, timeout=30)
    headers = {"content-type": "application/grpc", "te": "trailers"}
    framed, size = _add_prefix(message), len(_add_prefix(response))
    url = f"http://{address}{method}"
    return response, Request(url, headers, framed, size, grpc=True, max_extra_bytes=max_extra_bytes)


def legacy_response(case: InferenceCase) -> bytes:
    """Return the response of a legacy HTTP server."""
    codec = LEGACY.create({})
    wire = codec.build_response(*_response_for(case, codec))
    body = bytes(join_parts(wire.body))
    headers = {**wire.headers, "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode() + body


def legacy_grpc_response(case: InferenceCase) -> bytes:
    """Return the InferResponse of a legacy gRPC server."""
    codec = LEGACY_GRPC.create({})
    return bytes(join_parts(codec.build_response(*_response_for(case, codec)).message))


def _response_for(
    case: InferenceCase, codec: Codec[Any, Any]
) -> tuple[InferResponse, ParsedRequest]:
    wire = codec.build_request(_operation(case), Profile("any"), _model(case))
    output = tensor_from_array("OUTPUT0", Datatype.FP32, case.array)
    parsed = completed(codec.parse_request(wire, _LIMITS), _model(case))
    return InferResponse(case.model, "1", outputs=(output,)), parsed


def _operation(case: InferenceCase) -> InferRequest:
    tensor = tensor_from_array("INPUT0", Datatype.FP32, case.array)
    return InferRequest(case.model, inputs=(tensor,), outputs=(RequestedOutput("OUTPUT0"),))


def _model(case: InferenceCase) -> ModelMetadata:
    shape = (-1,) * case.array.ndim
    return ModelMetadata(
        case.model,
        inputs=(TensorMetadata("INPUT0", "FP32", shape),),
        outputs=(TensorMetadata("OUTPUT0", "FP32", shape),),
    )


def _check(codec: Codec[Any, Any], wire: Any, case: InferenceCase, address: str) -> None:
    response = codec.parse_response(wire, _operation(case), _LIMITS, _model(case))
    assert isinstance(response, InferResponse)
    (output,) = response.outputs
    _check_tensor(case, list(output.shape), bytes(output.data), address)


def _codec_request(
    codec: Codec[HttpRequest, HttpResponse], case: InferenceCase, address: str, path: str = ""
) -> Request:
    """Return the request that ``codec`` writes. Its path is ``path`` if the codec has no paths."""
    wire = codec.build_request(_operation(case), Profile("any"), _model(case))
    target = (path or wire.path) + (f"?{wire.query}" if wire.query else "")
    body = bytes(join_parts(wire.body))
    content, headers = _post(address, target, wire.headers, body)
    lowered = {name.lower(): value for name, value in headers.items()}
    _check(codec, HttpResponse(200, lowered, [content]), case, address)
    return Request(f"http://{address}{target}", wire.headers, body, len(content))


def _http_request(
    case: InferenceCase, address: str, headers: Mapping[str, str], body: bytes
) -> Request:
    content, head = _post(address, case.path, headers, body)
    size = int(head.get(_LENGTH_HEADER) or len(content))
    output = json.loads(content[:size])["outputs"][0]
    data = output.get("data")
    raw = content[size:] if data is None else np.array(data, np.float32).tobytes()
    _check_tensor(case, output["shape"], raw, address)
    return Request(f"http://{address}{case.path}", headers, body, len(content))


def _post(
    address: str, path: str, headers: Mapping[str, str], body: bytes
) -> tuple[bytes, http.client.HTTPMessage]:
    """Return the response's body and headers."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("POST", path, body, dict(headers))
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise LoadError(f"{address}{path} returned HTTP {response.status}: {content[:300]!r}")
    return content, response.headers


def _add_prefix(message: bytes) -> bytes:
    """Return a gRPC message with its prefix of five bytes."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def _check_tensor(case: InferenceCase, shape: list[int], raw: bytes, address: str) -> None:
    if shape != list(case.array.shape) or raw != case.raw:
        raise LoadError(f"{address} returned an unexpected tensor for {case.model}")
