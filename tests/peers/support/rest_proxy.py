"""A stand-in for kserve/rest-proxy in front of a real gRPC server.

rest-proxy is a Go program, and the tests do not install Go. Its message formats are taken from its
source (proxy/marshaler.go, request.go, bytes.go) and grpc-gateway: shapes in metadata are strings,
BYTES are base64 with a marker, UINT8 is one base64 text, errors have ``code`` and ``message``.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from http_stand_in import QuietHandler, StandInServer

NUMBERS = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
_CONTENTS = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents",
    "UINT32": "uint_contents", "UINT64": "uint64_contents", "INT8": "int_contents",
    "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
_STATUS = {grpc.StatusCode.NOT_FOUND: 404, grpc.StatusCode.INVALID_ARGUMENT: 400}


@contextmanager
def started_rest_proxy(server: str) -> Iterator[str]:
    """Run a proxy in front of the gRPC server at ``server``, and yield its ``host:port``."""
    with grpc.insecure_channel(server) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        class Handler(QuietHandler):
            def get(self) -> None:
                name = self.path.removeprefix("/v2/models/")
                if "/" in name:
                    self.respond(404, {"code": 5, "message": "Not Found"})
                    return
                request = service_pb2.ModelMetadataRequest(name=name)
                self._respond_with(lambda: json_format.MessageToDict(stub.ModelMetadata(request)))

            def post(self) -> None:
                document = json.loads(self.body())
                model = self.path.removeprefix("/v2/models/").removesuffix("/infer")
                request = service_pb2.ModelInferRequest(model_name=model, id=document.get("id", ""))
                request.inputs.extend(map(_input, document["inputs"]))
                self._respond_with(lambda: _json_response(stub.ModelInfer(request)))

            def _respond_with(self, call: Any) -> None:
                try:
                    self.respond(200, call())
                except grpc.RpcError as error:
                    body = {"code": error.code().value[0], "message": error.details()}
                    self.respond(_STATUS.get(error.code(), 500), body)

        with StandInServer(Handler) as proxy:
            yield proxy.address


def _input(fields: dict[str, Any]) -> Any:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name=fields["name"], datatype=fields["datatype"], shape=fields["shape"]
    )
    data = fields["data"]
    if fields["datatype"] == "BYTES":
        mark = fields.get("parameters", {}).get("content_type", "")
        decode = base64.b64decode if mark in {"base64", "b64", "BASE64", "B64"} else str.encode
        data = list(map(decode, data))
    getattr(tensor.contents, _CONTENTS[fields["datatype"]]).extend(data)
    return tensor


def _json_response(message: Any) -> dict[str, Any]:
    outputs = []
    for output, raw in zip(message.outputs, message.raw_output_contents, strict=True):
        fields = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        if output.datatype == "BYTES":
            fields["parameters"] = {"content_type": "base64"}
            fields["data"] = [base64.b64encode(each).decode() for each in _elements(raw)]
        elif output.datatype == "UINT8":
            fields["data"] = base64.b64encode(raw).decode()
        else:
            values = np.frombuffer(raw, NUMBERS[output.datatype])
            fields["data"] = json.loads(f"[{', '.join(map(_to_json, values))}]")
        outputs.append(fields)
    fields = {"model_name": message.model_name, "model_version": message.model_version}
    return fields | ({"id": message.id} if message.id else {}) | {"outputs": outputs}


def _to_json(value: Any) -> str:
    return str(value).lower()


def _elements(raw: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(raw):
        (length,) = struct.unpack_from("<I", raw, position)
        position += 4 + length
        yield raw[position - length : position]
