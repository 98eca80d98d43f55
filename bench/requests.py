"""The requests of the comparisons. Each response is verified before requests are timed."""

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
class Work:
    """A request with the FP32 tensor INPUT0 for ``model``, which returns the same numbers as
    OUTPUT0."""

    model: str
    array: npt.NDArray[np.float32]

    @cached_property
    def raw(self) -> bytes:
        """Return the numbers in memory layout."""
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
        """Return headers and a body in the binary extension, which request binary outputs."""
        tensor = {**self._tensor("INPUT0"), "parameters": {"binary_data_size": len(self.raw)}}
        wanted = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()
        headers = {"content-type": "application/octet-stream", _LENGTH_HEADER: str(len(head))}
        return headers, head + self.raw

    def message(self) -> bytes:
        model_infer_request = service_pb2.ModelInferRequest(model_name=self.model)
        model_infer_request.inputs.add(name="INPUT0", datatype="FP32", shape=self.array.shape)
        model_infer_request.raw_input_contents.append(self.raw)
        return bytes(model_infer_request.SerializeToString())

    def answer(self) -> bytes:
        """Return the expected ModelInferResponse."""
        model_infer_response = service_pb2.ModelInferResponse(
            model_name=self.model, model_version="1"
        )
        model_infer_response.outputs.add(name="OUTPUT0", datatype="FP32", shape=self.array.shape)
        model_infer_response.raw_output_contents.append(self.raw)
        return bytes(model_infer_response.SerializeToString())

    def json_answer(self) -> bytes:
        """Return the expected HTTP response to ``json``."""
        tensor = {**self._tensor("OUTPUT0"), "data": self.array.ravel().tolist()}
        return self._http_answer(tensor, b"", "application/json")

    def binary_answer(self) -> bytes:
        """Return the expected HTTP response to ``binary``."""
        tensor = {**self._tensor("OUTPUT0"), "parameters": {"binary_data_size": len(self.raw)}}
        return self._http_answer(tensor, self.raw, "application/octet-stream")

    def metadata(self) -> dict[str, list[dict[str, object]]]:
        """Return the model's inputs and outputs, as ``models`` in routes.yaml declares them."""
        metadata = {"datatype": "FP32", "shape": [-1] * self.array.ndim}
        return {
            "inputs": [{"name": "INPUT0", **metadata}],
            "outputs": [{"name": "OUTPUT0", **metadata}],
        }

    def _http_answer(self, tensor: dict[str, object], raw: bytes, kind: str) -> bytes:
        metadata = {"model_name": self.model, "model_version": "1", "outputs": [tensor]}
        text = json.dumps(metadata).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n"
        if raw:
            head += f"{_LENGTH_HEADER}: {len(text)}\r\n"
        head += f"content-length: {len(text) + len(raw)}\r\n\r\n"
        return head.encode() + text + raw

    def _tensor(self, name: str) -> dict[str, object]:
        return {"name": name, "datatype": "FP32", "shape": list(self.array.shape)}


def tiny(model: str) -> Work:
    return Work(model, np.arange(16, dtype=np.float32))


def image(model: str) -> Work:
    """Return [1,3,224,224] random numbers between 0 and 1 from a fixed seed."""
    return Work(model, _numbers(1, 3, 224, 224))


def channels_last(model: str) -> Work:
    """Return as many numbers as ``image``, in the order that TensorFlow uses, [1,224,224,3]."""
    return Work(model, _numbers(1, 224, 224, 3))


def flat(model: str, size: int) -> Work:
    """Return ``size`` bytes of random numbers between 0 and 1 from a fixed seed."""
    return Work(model, _numbers(size // 4))


def _numbers(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def json_request(work: Work, address: str) -> Request:
    """Return a POST of JSON to ``address``, whose response has been verified."""
    return _http_request(work, address, *work.json())


def binary_request(work: Work, address: str) -> Request:
    """Return a POST in the binary extension to ``address``, whose response has been verified."""
    return _http_request(work, address, *work.binary())


def grpc_request(work: Work, address: str) -> Request:
    """Return a ModelInfer call at ``address``, whose response has been verified."""
    answer, request = _call(address, INFER, work.message())
    response = service_pb2.ModelInferResponse.FromString(answer)
    _check_tensor(work, list(response.outputs[0].shape), response.raw_output_contents[0], address)
    return request


def graphpipe_request(work: Work, address: str) -> Request:
    """Return a GraphPipe inference at ``address``, whose response has been verified."""
    return _codec_request(GRAPHPIPE.create({}), work, address, f"/graphpipe/{work.model}")


def legacy_request(work: Work, address: str) -> Request:
    """Return an inference of the legacy HTTP API at ``address``, whose response has been
    verified."""
    return _codec_request(LEGACY.create({}), work, address)


def rows_request(work: Work, address: str) -> Request:
    """Return a POST of rows in TensorFlow Serving's JSON to ``address``, whose response has been
    verified."""
    path, headers = f"/v1/models/{work.model}:predict", {"content-type": "application/json"}
    body = json.dumps({"instances": work.array.tolist()}).encode()
    answer, _ = _post(address, path, headers, body)
    found = np.array(json.loads(answer)["predictions"], np.float32)
    _check_tensor(work, list(found.shape), found.tobytes(), address)
    return Request(f"http://{address}{path}", headers, body, len(answer))


def legacy_grpc_request(work: Work, address: str) -> Request:
    """Return an Infer call of the legacy gRPC API at ``address``, whose response has been
    verified."""
    # the request number in a response has at most this many bytes
    return _codec_call(LEGACY_GRPC.create({}), work, address, max_extra_bytes=MAX_VARINT_BYTES)


def predict_request(work: Work, address: str) -> Request:
    """Return a Predict call of TensorFlow Serving at ``address``, whose response has been
    verified."""
    return _codec_call(TF_SERVING_GRPC.create({}), work, address)


def _codec_call(
    codec: Codec[RpcRequest, RpcResponse], work: Work, address: str, max_extra_bytes: int = 0
) -> Request:
    """Return the call that ``codec`` writes."""
    wire = codec.build_request(_operation(work), Profile("any"), _model(work))
    answer, request = _call(address, wire.method, bytes(join_parts(wire.message)), max_extra_bytes)
    _check(codec, RpcResponse([answer]), work, address)
    return request


def _call(
    address: str, method: str, message: bytes, max_extra_bytes: int = 0
) -> tuple[bytes, Request]:
    """Return the response to a gRPC call, and the request for further calls."""
    with grpc.insecure_channel(address, options=_MAX_MESSAGE) as channel:
        answer = channel.unary_unary(method)(message, timeout=30)
    headers = {"content-type": "application/grpc", "te": "trailers"}
    framed, size = _add_prefix(message), len(_add_prefix(answer))
    url = f"http://{address}{method}"
    return answer, Request(url, headers, framed, size, grpc=True, max_extra_bytes=max_extra_bytes)


def legacy_answer(work: Work) -> bytes:
    """Return the response of a legacy HTTP server."""
    codec = LEGACY.create({})
    wire = codec.build_response(*_response_for(work, codec))
    body = bytes(join_parts(wire.body))
    headers = {**wire.headers, "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode() + body


def legacy_grpc_answer(work: Work) -> bytes:
    """Return the InferResponse of a legacy gRPC server."""
    codec = LEGACY_GRPC.create({})
    return bytes(join_parts(codec.build_response(*_response_for(work, codec)).message))


def _response_for(work: Work, codec: Codec[Any, Any]) -> tuple[InferResponse, ParsedRequest]:
    wire = codec.build_request(_operation(work), Profile("any"), _model(work))
    output = tensor_from_array("OUTPUT0", Datatype.FP32, work.array)
    parsed = completed(codec.parse_request(wire, _LIMITS), _model(work))
    return InferResponse(work.model, "1", outputs=(output,)), parsed


def _operation(work: Work) -> InferRequest:
    tensor = tensor_from_array("INPUT0", Datatype.FP32, work.array)
    return InferRequest(work.model, inputs=(tensor,), outputs=(RequestedOutput("OUTPUT0"),))


def _model(work: Work) -> ModelMetadata:
    shape = (-1,) * work.array.ndim
    return ModelMetadata(
        work.model,
        inputs=(TensorMetadata("INPUT0", "FP32", shape),),
        outputs=(TensorMetadata("OUTPUT0", "FP32", shape),),
    )


def _check(codec: Codec[Any, Any], answer: Any, work: Work, address: str) -> None:
    response = codec.parse_response(answer, _operation(work), _LIMITS, _model(work))
    assert isinstance(response, InferResponse)
    (output,) = response.outputs
    _check_tensor(work, list(output.shape), bytes(output.data), address)


def _codec_request(
    codec: Codec[HttpRequest, HttpResponse], work: Work, address: str, path: str = ""
) -> Request:
    """Return the request that ``codec`` writes. Its path is ``path`` if the codec has no paths."""
    wire = codec.build_request(_operation(work), Profile("any"), _model(work))
    target = (path or wire.path) + (f"?{wire.query}" if wire.query else "")
    body = bytes(join_parts(wire.body))
    answer, headers = _post(address, target, wire.headers, body)
    lowered = {name.lower(): value for name, value in headers.items()}
    _check(codec, HttpResponse(200, lowered, [answer]), work, address)
    return Request(f"http://{address}{target}", wire.headers, body, len(answer))


def _http_request(work: Work, address: str, headers: Mapping[str, str], body: bytes) -> Request:
    answer, head = _post(address, work.path, headers, body)
    size = int(head.get(_LENGTH_HEADER) or len(answer))
    output = json.loads(answer[:size])["outputs"][0]
    written = output.get("data")
    raw = answer[size:] if written is None else np.array(written, np.float32).tobytes()
    _check_tensor(work, output["shape"], raw, address)
    return Request(f"http://{address}{work.path}", headers, body, len(answer))


def _post(
    address: str, path: str, headers: Mapping[str, str], body: bytes
) -> tuple[bytes, http.client.HTTPMessage]:
    """Return the response's body and headers."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("POST", path, body, dict(headers))
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise LoadError(f"{address}{path} answered {response.status}: {answer[:300]!r}")
    return answer, response.headers


def _add_prefix(message: bytes) -> bytes:
    """Return a gRPC message with its prefix of five bytes."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def _check_tensor(work: Work, shape: list[int], raw: bytes, address: str) -> None:
    if shape != list(work.array.shape) or raw != work.raw:
        raise LoadError(f"{address} answered another tensor for {work.model}")
