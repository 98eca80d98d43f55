"""``python api.py ADDRESS``: run every scenario with the stubs of tensorflow-serving-api, without
TensorFlow. The protobuf messages come from tensorflow-protobuf.

Each printed line is JSON, ``[name, outcome]``; an outcome is ``{"ok": value}`` or
``{"error": [code, text]}``.
"""

import json
import sys

import grpc
import numpy as np
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

SECONDS = 20
NUMBERS = {
    "UINT8": ("DT_UINT8", "int_val", [0, 255]),
    "UINT16": ("DT_UINT16", "int_val", [0, 65535]),
    "UINT32": ("DT_UINT32", "uint32_val", [0, 2**32 - 1]),
    "UINT64": ("DT_UINT64", "uint64_val", [0, 2**64 - 1]),
    "INT8": ("DT_INT8", "int_val", [-128, 127]),
    "INT16": ("DT_INT16", "int_val", [-32768, 32767]),
    "INT32": ("DT_INT32", "int_val", [-(2**31), 2**31 - 1]),
    "INT64": ("DT_INT64", "int64_val", [-(2**63), 2**63 - 1]),
    "FP32": ("DT_FLOAT", "float_val", [1.5, -2.0]),
    "FP64": ("DT_DOUBLE", "double_val", [0.1, -2.0]),
    "BOOL": ("DT_BOOL", "bool_val", [True, False]),
    "FP16": ("DT_HALF", "half_val", [0x3E00, 0xC000]),
    "BF16": ("DT_BFLOAT16", "half_val", [0x3FC0, 0xC000]),
    "BYTES": ("DT_STRING", "string_val", [b"a", b"\xff\0"]),
}


def tensor(dtype, shape, field, values):
    message = tensor_pb2.TensorProto(dtype=types_pb2.DataType.Value(dtype))
    for size in shape:
        message.tensor_shape.dim.add(size=size)
    getattr(message, field).extend(values)
    return message


def content(array, dtype="DT_INT32"):
    message = tensor(dtype, array.shape, "int_val", [])
    message.tensor_content = array.tobytes()
    return message


def plain(message):
    """Return the datatype, the shape, the field that holds the values, and the values."""
    fields = [name for _, name, _ in NUMBERS.values() if len(getattr(message, name))]
    (field,) = set(fields) or {"tensor_content"}
    values = list(getattr(message, field))
    shape = [dim.size for dim in message.tensor_shape.dim]
    if field == "string_val":
        values = [value.decode("latin-1") for value in values]
    return [types_pb2.DataType.Name(message.dtype), shape, field, values]


class Scenarios:
    def __init__(self, address):
        self.stub = prediction_service_pb2_grpc.PredictionServiceStub(
            grpc.insecure_channel(address)
        )

    def predict(self, model, inputs, outputs=(), **spec):
        request = predict_pb2.PredictRequest(output_filter=outputs)
        request.model_spec.name = model
        for name, value in spec.items():
            if name == "version":
                request.model_spec.version.value = value
            else:
                setattr(request.model_spec, name, value)
        for name, message in inputs.items():
            request.inputs[name].CopyFrom(message)
        response = self.stub.Predict(request, timeout=SECONDS)
        spec = response.model_spec
        return [
            [spec.name, spec.version.value, spec.signature_name],
            {name: plain(response.outputs[name]) for name in sorted(response.outputs)},
        ]

    def simple_inputs(self):
        return {
            "INPUT0": content(np.arange(16, dtype="<i4").reshape(1, 16)),
            "INPUT1": tensor("DT_INT32", (1, 16), "int_val", [1]),  # one value for all elements
        }

    def simple(self):
        return self.predict("simple", self.simple_inputs())

    def one_output(self):
        return self.predict("simple", self.simple_inputs(), ["OUTPUT1"], version=1)

    def a_label(self):
        return self.predict("simple", self.simple_inputs(), version_label="stable")

    def an_unknown_label(self):
        return self.predict("simple", self.simple_inputs(), version_label="canary")

    def a_signature(self):
        return self.predict("simple", self.simple_inputs(), signature_name="add")

    def an_unknown_signature(self):
        return self.predict("simple", self.simple_inputs(), signature_name="other")

    def an_unknown_model(self):
        return self.predict("nosuch", self.simple_inputs(), version=7)

    def a_wrong_shape(self):
        return self.predict("simple", {"INPUT0": tensor("DT_INT32", (1, 3), "int_val", [1])})

    def too_many_elements(self):
        return self.predict("simple", {"INPUT0": tensor("DT_INT32", (2**40,), "int_val", [1])})

    def complex_numbers(self):
        return self.predict("simple", {"INPUT0": tensor("DT_COMPLEX64", (1,), "scomplex_val", [])})

    def metadata(self):
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = "simple"
        response = self.stub.GetModelMetadata(request, timeout=SECONDS)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        assert response.metadata["signature_def"].Unpack(signatures)
        return {
            name: [
                signature.method_name,
                {
                    alias: [
                        types_pb2.DataType.Name(info.dtype),
                        [dim.size for dim in info.tensor_shape.dim],
                    ]
                    for alias, info in sorted(signature.inputs.items())
                },
                sorted(signature.outputs),
            ]
            for name, signature in signatures.signature_def.items()
        }

    def all_types(self):
        return {
            name: self.predict(f"id_{name}", {"INPUT0": tensor(dtype, (2,), field, values)})[1]
            for name, (dtype, field, values) in NUMBERS.items()
        }


def outcome(scenario):
    try:
        return {"ok": scenario()}
    except grpc.RpcError as error:
        return {"error": [error.code().name, error.details()]}


scenarios = Scenarios(sys.argv[1])
helpers = {"predict", "simple_inputs"}
for name in vars(Scenarios):
    if not name.startswith("_") and name not in helpers:
        print(json.dumps([name, outcome(getattr(scenarios, name))]))  # noqa: T201
