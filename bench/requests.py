"""The requests of the comparison, and the proof that each is answered right before it is timed."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from infergate.codecs.base import Profile
from infergate.codecs.graphpipe import PLUGIN as GRAPHPIPE
from infergate.core.datatypes import Datatype
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import tensor_of
from infergate.core.wire import HttpResponse, joined

from .load import LoadError, Request

INFER = "/inference.GRPCInferenceService/ModelInfer"
_MAX_MESSAGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_LENGTH_HEADER = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Work:
    """An FP32 tensor INPUT0 for ``model``, which answers the same numbers as OUTPUT0."""

    model: str
    array: npt.NDArray[np.float32]

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}/infer"

    def json(self) -> tuple[Mapping[str, str], bytes]:
        """Headers and body with the numbers written out, as a client's json module would."""
        tensor = {**self._tensor("INPUT0"), "data": self.array.ravel().tolist()}
        return {"content-type": "application/json"}, json.dumps({"inputs": [tensor]}).encode()

    def binary(self) -> tuple[Mapping[str, str], bytes]:
        """Headers and body in the binary extension, asking for a binary answer."""
        raw = self.array.tobytes()
        tensor = {**self._tensor("INPUT0"), "parameters": {"binary_data_size": len(raw)}}
        wanted = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()
        headers = {"content-type": "application/octet-stream", _LENGTH_HEADER: str(len(head))}
        return headers, head + raw

    def message(self) -> bytes:
        """The ModelInferRequest."""
        made = service_pb2.ModelInferRequest(model_name=self.model)
        made.inputs.add(name="INPUT0", datatype="FP32", shape=self.array.shape)
        made.raw_input_contents.append(self.array.tobytes())
        return bytes(made.SerializeToString())

    def answer(self) -> bytes:
        """The ModelInferResponse that is due."""
        made = service_pb2.ModelInferResponse(model_name=self.model, model_version="1")
        made.outputs.add(name="OUTPUT0", datatype="FP32", shape=self.array.shape)
        made.raw_output_contents.append(self.array.tobytes())
        return bytes(made.SerializeToString())

    def _tensor(self, name: str) -> dict[str, object]:
        return {"name": name, "datatype": "FP32", "shape": list(self.array.shape)}


def tiny(model: str) -> Work:
    """16 numbers."""
    return Work(model, np.arange(16, dtype=np.float32))


def image(model: str) -> Work:
    """[1,3,224,224] numbers between 0 and 1, seeded."""
    numbers = np.random.default_rng(0).random((1, 3, 224, 224), dtype=np.float32)
    return Work(model, numbers)


def json_request(work: Work, address: str) -> Request:
    """POST of JSON to ``address``, answered right once."""
    return _http_request(work, address, *work.json())


def binary_request(work: Work, address: str) -> Request:
    """POST in the binary extension to ``address``, answered right once."""
    return _http_request(work, address, *work.binary())


def grpc_request(work: Work, address: str) -> Request:
    """A ModelInfer call at ``address``, answered right once."""
    message = work.message()
    with grpc.insecure_channel(address, options=_MAX_MESSAGE) as channel:
        answer = channel.unary_unary(INFER)(message, timeout=30)
    told = service_pb2.ModelInferResponse.FromString(answer)
    _same(work, list(told.outputs[0].shape), told.raw_output_contents[0], address)
    headers = {"content-type": "application/grpc", "te": "trailers"}
    return Request(
        f"http://{address}{INFER}", headers, _framed(message), len(_framed(answer)), grpc=True
    )


def graphpipe_request(work: Work, address: str) -> Request:
    """A GraphPipe inference at ``address``, answered right once."""
    codec = GRAPHPIPE.make({})
    model = ModelMetadata(
        work.model,
        inputs=(TensorMetadata("INPUT0", "FP32", (-1,)),),
        outputs=(TensorMetadata("OUTPUT0", "FP32", (-1,)),),
    )
    asked = InferRequest(work.model, inputs=(tensor_of("INPUT0", Datatype.FP32, work.array),))
    body = bytes(joined(codec.build_request(asked, Profile("any"), model).body))
    path = f"/graphpipe/{work.model}"
    answer = _exchanged(address, path, {}, body)[0]
    told = codec.parse_response(HttpResponse(200, {}, [answer]), asked, DEFAULT_LIMITS, model)
    assert isinstance(told, InferResponse)
    (output,) = told.outputs
    _same(work, list(output.shape), bytes(output.data), address)
    return Request(f"http://{address}{path}", {}, body, len(answer))


def _http_request(work: Work, address: str, headers: Mapping[str, str], body: bytes) -> Request:
    answer, length = _exchanged(address, work.path, headers, body)
    size = int(length or len(answer))
    output = json.loads(answer[:size])["outputs"][0]
    written = output.get("data")
    raw = answer[size:] if written is None else np.array(written, np.float32).tobytes()
    _same(work, output["shape"], raw, address)
    return Request(f"http://{address}{work.path}", headers, body, len(answer))


def _exchanged(
    address: str, path: str, headers: Mapping[str, str], body: bytes
) -> tuple[bytes, str | None]:
    """The body of the answer, and the length of the JSON in it where that is told."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("POST", path, body, dict(headers))
        came = connection.getresponse()
        answer = came.read()
    finally:
        connection.close()
    if came.status != http.HTTPStatus.OK:
        raise LoadError(f"{address}{path} answered {came.status}: {answer[:300]!r}")
    return answer, came.getheader(_LENGTH_HEADER)


def _framed(message: bytes) -> bytes:
    """A gRPC message behind its five-byte prefix."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def _same(work: Work, shape: list[int], raw: bytes, address: str) -> None:
    if shape != list(work.array.shape) or raw != work.array.tobytes():
        raise LoadError(f"{address} answered another tensor for {work.model}")
