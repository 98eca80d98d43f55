"""Write the cases of this folder: bytes of tritonclient's own protobuf classes, and answers of a
real Triton Inference Server.

    python tests/vectors/v2-grpc/capture.py HOST:PORT

The server needs the models simple, simple_string, id_FP16 and id_BOOL. Nothing of infergate is
used: neither the bytes nor what they mean come from the code under test.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc._utils import _get_inference_request

HERE = Path(__file__).resolve().parent
SERVICE = "/inference.GRPCInferenceService/"
CLIENT = "tritonclient 2.73.0, its own protobuf classes"
TRITON = "Triton Inference Server 2.51.0, captured"
HAND = "written by hand"
BF16 = bytes.fromhex("803f00c0")  # 1.0, -2.0
ALL = (np.arange(16, dtype="<i4"), np.ones(16, dtype="<i4"))


def save(name: str, start: str, message: bytes, case: dict[str, Any]) -> None:
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    (folder / "wire.rpc").write_bytes(start.encode() + b"\r\n\r\n" + message)
    (folder / "case.json").write_text(json.dumps(case, indent=1, ensure_ascii=False) + "\n")


def request(name: str, about: str, message: Any, told: dict[str, Any], **more: Any) -> None:
    data = message if isinstance(message, bytes) else message.SerializeToString(deterministic=True)
    case = {"about": about, "source": more.pop("source", CLIENT), "side": "request", **told}
    save(name, more.pop("method", SERVICE + "ModelInfer"), data, {**case, **more})


def response(name: str, about: str, message: Any, asks: dict[str, Any], **more: Any) -> None:
    data = message if isinstance(message, bytes) else message.SerializeToString(deterministic=True)
    case = {"about": about, "source": more.pop("source", HAND), "side": "response", "asks": asks}
    save(name, more.pop("start", "code 0"), data, {**case, **more})


def infer(**fields: Any) -> dict[str, Any]:
    return {"canonical": {"type": "InferRequest", "model": "m", **fields}}


def refused(*mentions: str, kind: str = "BAD_REQUEST") -> dict[str, Any]:
    return {"error": {"kind": kind, "mentions": list(mentions)}}


def tensor(name: str, datatype: str, shape: list[int], data: bytes, **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data.hex(), **more}


def described(*tensors: dict[str, Any], raw: tuple[bytes, ...] = (), **fields: Any) -> Any:
    """A ModelInferRequest; each tensor as keywords of InferInputTensor."""
    message = pb.ModelInferRequest(model_name="m", raw_input_contents=raw, **fields)
    for one in tensors:
        message.inputs.add(**one)
    return message


def sent(model: str, arrays: dict[str, tuple[str, Any]], outputs: Any = None, **more: Any) -> Any:
    """What tritonclient's infer() puts on the wire."""
    inputs = []
    for name, (datatype, array) in arrays.items():
        inputs.append(InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array)
    settings = {
        "model_version": "", "request_id": "", "sequence_id": 0, "sequence_start": False,
        "sequence_end": False, "priority": 0, "timeout": None, "parameters": None,
    }  # fmt: skip
    return _get_inference_request(
        model_name=model, inputs=inputs, outputs=outputs, **{**settings, **more}
    )


def good_requests() -> None:
    a, b = ALL
    request(
        "infer-int32", "two inputs, a version and an id, as infer() sends them",
        sent(
            "simple",
            {"INPUT0": ("INT32", a.reshape(1, 16)), "INPUT1": ("INT32", b.reshape(1, 16))},
            model_version="1", request_id="42",
        ),
        {"canonical": {
            "type": "InferRequest", "model": "simple", "version": "1", "id": "42",
            "inputs": [
                tensor("INPUT0", "INT32", [1, 16], a.tobytes()),
                tensor("INPUT1", "INT32", [1, 16], b.tobytes()),
            ],
        }},
        both_ways=True,
    )  # fmt: skip
    words = np.array(["", "größe", "a"], dtype=np.object_)
    packed = b"".join(struct.pack("<I", len(w.encode())) + w.encode() for w in words)
    request(
        "infer-bytes", "BYTES elements: empty, not ASCII",
        sent("m", {"TEXT": ("BYTES", words)}), infer(inputs=[tensor("TEXT", "BYTES", [3], packed)]),
        both_ways=True,
    )  # fmt: skip
    half = np.array([1.5, -0.0], dtype="<f2")
    request(
        "infer-fp16", "FP16 raw",
        sent("m", {"X": ("FP16", half)}), infer(inputs=[tensor("X", "FP16", [2], half.tobytes())]),
        both_ways=True,
    )  # fmt: skip
    request(
        "infer-bf16", "BF16: the upper halves of float32",
        described({"name": "X", "datatype": "BF16", "shape": [2]}, raw=(BF16,)),
        infer(inputs=[tensor("X", "BF16", [2], BF16)]), both_ways=True,
    )  # fmt: skip
    truth = np.array([[True], [False]])
    request(
        "infer-bool", "BOOL raw",
        sent("m", {"X": ("BOOL", truth)}), infer(inputs=[tensor("X", "BOOL", [2, 1], b"\1\0")]),
        both_ways=True,
    )  # fmt: skip
    request(
        "infer-parameters", "parameters of the kinds that infer() sends",
        sent(
            "m", {"X": ("UINT8", np.array([7], dtype="u1"))},
            parameters={"flag": True, "count": -1, "real": 0.25, "text": "ü"},
        ),
        infer(
            inputs=[tensor("X", "UINT8", [1], b"\7")],
            parameters={"flag": True, "count": -1, "real": 0.25, "text": "ü"},
        ),
        both_ways=True,
    )  # fmt: skip
    message = described({"name": "X", "datatype": "INT8", "shape": [1]}, raw=(b"\1",))
    message.parameters["b"].bool_param = False
    message.parameters["i"].int64_param = -(2**63)
    message.parameters["s"].string_param = ""
    message.parameters["d"].double_param = 1e300
    message.parameters["u"].uint64_param = 2**64 - 1
    message.parameters["unset"].SetInParent()
    message.inputs[0].parameters["k"].string_param = "v"
    request(
        "infer-parameter-kinds", "all five kinds at their edges; one with no kind set is left out",
        message,
        infer(
            inputs=[tensor("X", "INT8", [1], b"\1", parameters={"k": "v"})],
            parameters={"b": False, "i": -(2**63), "s": "", "d": 1e300, "u": 2**64 - 1},
        ),
    )  # fmt: skip
    request(
        "infer-outputs", "requested outputs, one of them as classes",
        sent(
            "m", {"X": ("INT8", np.array([1], dtype="i1"))},
            outputs=[InferRequestedOutput("A"), InferRequestedOutput("B", class_count=3)],
        ),
        infer(
            inputs=[tensor("X", "INT8", [1], b"\1")],
            outputs=[{"name": "A"}, {"name": "B", "parameters": {"classification": 3}}],
        ),
        both_ways=True,
    )  # fmt: skip
    request(
        "infer-sequence", "sequence, priority (a uint64_param) and timeout",
        sent(
            "m", {"X": ("INT8", np.array([1], dtype="i1"))},
            sequence_id=9, sequence_start=True, priority=2, timeout=1000,
        ),
        infer(
            inputs=[tensor("X", "INT8", [1], b"\1")],
            parameters={
                "sequence_id": 9, "sequence_start": True, "sequence_end": False,
                "priority": 2, "timeout": 1000,
            },
        ),
    )  # fmt: skip
    request(
        "infer-empty-tensor",
        "a shape with a 0: one raw entry of no bytes",
        sent("m", {"X": ("FP32", np.zeros((0, 3), dtype="<f4"))}),
        infer(inputs=[tensor("X", "FP32", [0, 3], b"")]),
    )
    request(
        "infer-empty-tensor-no-contents", "a shape with a 0 and no contents of either kind",
        described({"name": "X", "datatype": "FP32", "shape": [0, 3]}),
        infer(inputs=[tensor("X", "FP32", [0, 3], b"")]),
    )  # fmt: skip
    request(
        "infer-scalar", "shape []: one element",
        described({"name": "X", "datatype": "FP64"}, raw=(struct.pack("<d", 2.5),)),
        infer(inputs=[tensor("X", "FP64", [], struct.pack("<d", 2.5))]), both_ways=True,
    )  # fmt: skip
    request(
        "infer-no-inputs", "a model without inputs",
        pb.ModelInferRequest(model_name="m"), infer(), both_ways=True,
    )  # fmt: skip
    request(
        "infer-empty-contents-beside-raw",
        "an empty contents message beside raw contents, as MLServer's converter emits it",
        described({"name": "X", "datatype": "INT8", "shape": [1], "contents": {}}, raw=(b"\1",)),
        infer(inputs=[tensor("X", "INT8", [1], b"\1")]),
    )
    honest = described({"name": "X", "datatype": "INT8", "shape": [1]}, raw=(b"\1",))
    request(
        "infer-unknown-fields", "fields of a later version are passed over",
        honest.SerializeToString() + b"\x7a\x03new" + b"\x80\x01\x05" + b"\x8d\x01" + b"\0" * 4,
        infer(inputs=[tensor("X", "INT8", [1], b"\1")]), source=f"{CLIENT}; fields 15-17 by hand",
    )  # fmt: skip
    request(
        "infer-name-twice", "of a field given twice the last counts",
        b"\x0a\x05first" + honest.SerializeToString(),
        infer(inputs=[tensor("X", "INT8", [1], b"\1")]), source=f"{CLIENT}; a field by hand",
    )  # fmt: skip


def typed_requests() -> None:
    forms = {
        "BOOL": ("bool_contents", [True, False], "?"),
        "INT8": ("int_contents", [-128, 127], "<i1"),
        "INT16": ("int_contents", [-32768, 32767], "<i2"),
        "INT32": ("int_contents", [-(2**31), 2**31 - 1], "<i4"),
        "INT64": ("int64_contents", [-(2**63), 2**63 - 1], "<i8"),
        "UINT8": ("uint_contents", [0, 255], "<u1"),
        "UINT16": ("uint_contents", [0, 65535], "<u2"),
        "UINT32": ("uint_contents", [0, 2**32 - 1], "<u4"),
        "UINT64": ("uint64_contents", [0, 2**64 - 1], "<u8"),
        "FP32": ("fp32_contents", [0.1, float("inf")], "<f4"),
        "FP64": ("fp64_contents", [0.1, -0.0], "<f8"),
    }
    for datatype, (field, values, dtype) in forms.items():
        request(
            f"typed-{datatype.lower()}", f"{datatype} elements in {field}",
            described(
                {"name": "X", "datatype": datatype, "shape": [2], "contents": {field: values}}
            ),
            infer(inputs=[tensor("X", datatype, [2], np.array(values, dtype).tobytes())]),
        )  # fmt: skip
    request(
        "typed-bytes", "BYTES elements in bytes_contents, one not UTF-8",
        described(
            {"name": "X", "datatype": "BYTES", "shape": [2],
             "contents": {"bytes_contents": [b"\xff", b""]}},
        ),
        infer(inputs=[tensor("X", "BYTES", [2], b"\1\0\0\0\xff\0\0\0\0")]),
    )  # fmt: skip


def bad_requests() -> None:
    def x(datatype: str = "INT32", shape: tuple[int, ...] = (2,), **more: Any) -> dict[str, Any]:
        return {"name": more.pop("name", "X"), "datatype": datatype, "shape": shape, **more}

    def typed(datatype: str, field: str, values: list[Any]) -> Any:
        return described(x(datatype, contents={field: values}))

    eight = bytes(8)
    cases: dict[str, tuple[str, Any, dict[str, Any]]] = {
        "both-contents": (
            "raw and typed contents together",
            described(x(contents={"int_contents": [1, 2]}), raw=(eight,)),
            refused("X", "raw_input_contents"),
        ),
        "raw-too-few": (
            "fewer raw entries than inputs",
            described(x(), x(name="Y"), raw=(eight,)), refused("Y"),
        ),
        "raw-too-many": (
            "more raw entries than inputs",
            described(x(), raw=(eight, eight)), refused("raw_input_contents"),
        ),
        "no-contents": ("an input without contents", described(x()), refused("X", "contents")),
        "data-short": ("too little data", described(x(), raw=(bytes(7),)), refused("X", "7")),
        "data-long": ("too much data", described(x(), raw=(bytes(9),)), refused("X", "9")),
        "bytes-length-past-end": (
            "the length of a BYTES element runs past the end",
            described(x("BYTES", (1,)), raw=(b"\xff\xff\xff\xff",)), refused("X", "4294967295"),
        ),
        "bytes-length-cut": (
            "two bytes where a 4-byte length should be",
            described(x("BYTES", (1,)), raw=(b"\0\0",)), refused("X"),
        ),
        "bytes-too-few": (
            "fewer BYTES elements than the shape announces",
            described(x("BYTES"), raw=(bytes(4),)), refused("X"),
        ),
        "datatype-unknown": (
            "a datatype nobody knows", described(x("FP8"), raw=(eight,)), refused("X", "FP8"),
        ),
        "datatype-lower-case": (
            "datatypes are case-sensitive", described(x("int32"), raw=(eight,)),
            refused("X", "int32"),
        ),
        "input-unnamed": (
            "an input without a name", described(x(name=""), raw=(eight,)), refused("input 0"),
        ),
        "input-twice": (
            "two inputs of one name", described(x(), x(), raw=(eight, eight)), refused("X"),
        ),
        "output-twice": (
            "two outputs of one name",
            described(outputs=[{"name": "O"}, {"name": "O"}]), refused("O"),
        ),
        "output-unnamed": (
            "an output without a name", described(outputs=[{}]), refused("output 0"),
        ),
        "shape-negative": (
            "a dimension of -1", described(x(shape=(-1, 2)), raw=(eight,)), refused("X", "-1"),
        ),
        "shape-overflow": (
            "a shape whose product is 2^64: 0 in 64 bits",
            described(x(shape=(2**32, 2**32)), raw=(b"",)), refused("X"),
        ),
        "shape-2-to-40-typed": (
            "a declared shape of 2^40 elements and none given",
            described(x(shape=(2**40,))), refused("X"),
        ),
        "shape-rank": (
            "65 dimensions", described(x(shape=(1,) * 65), raw=(bytes(4),)), refused("X", "65"),
        ),
        "typed-fp16": (
            "FP16 has no typed form", typed("FP16", "fp32_contents", [1.0, 2.0]),
            refused("X", "FP16"),
        ),
        "typed-wrong-field": (
            "FP32 elements in fp64_contents", typed("FP32", "fp64_contents", [1.0, 2.0]),
            refused("X", "fp64_contents", "fp32_contents"),
        ),
        "typed-int8-out-of-range": (
            "300 as INT8, which Triton wraps to 44", typed("INT8", "int_contents", [1, 300]),
            refused("X", "300", "INT8"),
        ),
        "typed-uint16-out-of-range": (
            "65536 as UINT16", typed("UINT16", "uint_contents", [65536, 1]),
            refused("X", "65536", "UINT16"),
        ),
        "typed-too-few": (
            "fewer elements than the shape announces", typed("INT64", "int64_contents", [1]),
            refused("X"),
        ),
        "model-missing": ("no model_name", pb.ModelInferRequest(), refused("model_name")),
        "cut": (
            "the message ends inside a field",
            described(x(), raw=(eight,)).SerializeToString()[:-1], refused("field 7"),
        ),
        "group": ("a group, which proto3 has not", b"\x0a\x01m\x0b\x0c", refused("wire type")),
        "field-zero": ("field number 0", b"\x0a\x01m\x02\x00", refused("field number 0")),
        "varint-endless": ("a varint of 11 bytes", b"\x08" + b"\xff" * 11, refused("varint")),
        "not-utf-8": ("a model name that is not UTF-8", b"\x0a\x01\xff", refused("UTF-8")),
        "too-many-fields": (
            "ten thousand top-level fields", b"\x0a\x01m" + b"\x2a\x00" * 10_000, refused("fields"),
        ),
    }  # fmt: skip
    for name, (about, message, told) in cases.items():
        source = HAND if isinstance(message, bytes) else CLIENT
        request(f"bad-{name}", about, message, told, source=source)
    request(
        "bad-method", "a method the service does not have", b"",
        refused("ModelTrain", kind="UNSUPPORTED"), method=SERVICE + "ModelTrain", source=HAND,
    )  # fmt: skip


def shared_memory() -> None:
    """Tensors in regions, and the regions."""
    name, at = "shared_memory_region", {"region": "r", "offset": 64, "size": 4}
    first, second = InferInput("X", [1], "INT32"), InferInput("Y", [1], "INT32")
    first.set_shared_memory("r", 4, 64)
    second.set_data_from_numpy(np.ones(1, "<i4"))
    output = InferRequestedOutput("O")
    output.set_shared_memory("r", 4)
    inputs = [
        tensor("X", "INT32", [1], b"", place=at),
        tensor("Y", "INT32", [1], b"\1\0\0\0"),
    ]
    outputs = [{"name": "O", "shared_memory": {**at, "offset": 0}}, {"name": "P"}]
    message = _get_inference_request(
        model_name="m", inputs=[first, second], model_version="", request_id="",
        outputs=[output, InferRequestedOutput("P")], sequence_id=0, sequence_start=False,
        sequence_end=False, priority=0, timeout=None, parameters=None,
    )  # fmt: skip
    request(
        "infer-shared-memory", "an input and an output in a region, as infer() sends them",
        message, infer(inputs=inputs, outputs=outputs), both_ways=True,
    )  # fmt: skip
    cases = {
        "data": (b"\0\0\0\0", {name: "r"}, "raw_input_contents"),
        "number": (None, {name: "r", "shared_memory_byte_size": "4"}, "shared_memory_byte_size"),
        "negative": (None, {name: "r", "shared_memory_offset": -1}, "shared_memory_offset"),
        "name": (None, {name: 7}, name),
        "no-name": (None, {name: ""}, name),
    }
    for key, (raw, parameters, mention) in cases.items():
        given = {"name": "X", "datatype": "INT32", "shape": [1]}
        wrong = described(given, raw=(raw,) if raw else ())
        for parameter, value in parameters.items():
            kind = "string_param" if isinstance(value, str) else "int64_param"
            setattr(wrong.inputs[0].parameters[parameter], kind, value)
        about = f"a wrong place in shared memory: {parameters}"
        request(f"bad-shared-memory-{key}", about, wrong, refused(mention))
    answered = pb.ModelInferResponse(model_name="m", raw_output_contents=[b"", b"\1\0\0\0"])
    for each in ("O", "P"):
        answered.outputs.add(name=each, datatype="INT32", shape=[1])
    response(
        "answer-shared-memory", "an output in a region, as Triton answers: an empty entry",
        answered, infer(inputs=inputs, outputs=outputs)["canonical"], source=CLIENT,
        canonical={"type": "InferResponse", "model": "m", "outputs": [
            tensor("O", "INT32", [1], b"", place={**at, "offset": 0}),
            tensor("P", "INT32", [1], b"\1\0\0\0"),
        ]},
    )  # fmt: skip
    answered.outputs[0].parameters[name].string_param = "r"
    answered.outputs[0].parameters["shared_memory_byte_size"].int64_param = 4
    response(
        "answer-shared-memory-told", "an output in a region, as infergate answers", answered,
        infer(inputs=inputs, outputs=outputs)["canonical"], source=CLIENT, both_ways=True,
        canonical={"type": "InferResponse", "model": "m", "outputs": [
            tensor("O", "INT32", [1], b"", place={**at, "offset": 0}),
            tensor("P", "INT32", [1], b"\1\0\0\0"),
        ]},
    )  # fmt: skip
    answered.raw_output_contents[0] = b"\1\0\0\0"
    response(
        "garbage-shared-memory-data", "data of an output that was to be in a region", answered,
        infer(inputs=inputs, outputs=outputs)["canonical"], source=CLIENT,
        error={"kind": "BACKEND_GARBAGE", "mentions": ["O", "shared memory"]},
    )  # fmt: skip
    asked = {
        "status": ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="r"),
                   {"type": "SharedMemoryStatusRequest", "name": "r", "cuda": False}),
        "register": ("SystemSharedMemoryRegister",
                     pb.SystemSharedMemoryRegisterRequest(
                         name="r", key="/k", offset=2**63, byte_size=2**64 - 1),
                     {"type": "SharedMemoryRegisterRequest", "name": "r", "key": "/k",
                      "offset": 2**63, "size": 2**64 - 1}),
        "unregister": ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(),
                       {"type": "SharedMemoryUnregisterRequest", "cuda": False}),
        "cuda-status": ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(),
                        {"type": "SharedMemoryStatusRequest", "cuda": True}),
        "cuda-register": ("CudaSharedMemoryRegister",
                          pb.CudaSharedMemoryRegisterRequest(
                              name="g", raw_handle=b"\0\1", device_id=1, byte_size=8),
                          {"type": "SharedMemoryRegisterRequest", "name": "g", "size": 8,
                           "device": 1, "handle": "0001"}),
        "cuda-unregister": ("CudaSharedMemoryUnregister",
                            pb.CudaSharedMemoryUnregisterRequest(name="g"),
                            {"type": "SharedMemoryUnregisterRequest", "name": "g", "cuda": True}),
    }  # fmt: skip
    for key, (method, question, operation) in asked.items():
        request(
            f"ask-memory-{key}", f"{method}", question, {"canonical": operation},
            method=SERVICE + method, both_ways=True,
        )  # fmt: skip
    request(
        "bad-memory-device", "a device below 0", pb.CudaSharedMemoryRegisterRequest(device_id=-1),
        refused("device_id"), method=SERVICE + "CudaSharedMemoryRegister",
    )  # fmt: skip
    status = pb.SystemSharedMemoryStatusResponse()
    status.regions["r"].CopyFrom(
        pb.SystemSharedMemoryStatusResponse.RegionStatus(name="r", key="/k", offset=1, byte_size=2)
    )
    told = {"type": "SharedMemoryStatus", "regions": [
        {"name": "r", "key": "/k", "offset": 1, "size": 2}
    ]}  # fmt: skip
    response(
        "answer-memory-status", "the regions of the system", status, asked["status"][2],
        canonical=told, source=CLIENT, both_ways=True,
    )  # fmt: skip
    cuda = pb.CudaSharedMemoryStatusResponse()
    cuda.regions["g"].CopyFrom(
        pb.CudaSharedMemoryStatusResponse.RegionStatus(name="g", device_id=0, byte_size=2)
    )
    response(
        "answer-memory-cuda-status", "the regions on GPUs", cuda, asked["cuda-status"][2],
        canonical={"type": "SharedMemoryStatus", "regions": [
            {"name": "g", "size": 2, "device": 0}
        ]},
        source=CLIENT, both_ways=True,
    )  # fmt: skip
    response(
        "answer-memory-registered", "registered", b"", asked["register"][2],
        canonical={"type": "Acknowledgement"}, source=CLIENT, both_ways=True,
    )  # fmt: skip


def other_requests() -> None:
    """Every method but ModelInfer."""
    asked = {
        "server-live": ("ServerLive", pb.ServerLiveRequest(), {"type": "ServerLiveRequest"}),
        "server-ready": ("ServerReady", pb.ServerReadyRequest(), {"type": "ServerReadyRequest"}),
        "server-metadata": (
            "ServerMetadata", pb.ServerMetadataRequest(), {"type": "ServerMetadataRequest"},
        ),
        "model-ready": (
            "ModelReady", pb.ModelReadyRequest(name="m"),
            {"type": "ModelReadyRequest", "model": "m"},
        ),
        "model-metadata": (
            "ModelMetadata", pb.ModelMetadataRequest(name="m", version="2"),
            {"type": "ModelMetadataRequest", "model": "m", "version": "2"},
        ),
        "repository-index": (
            "RepositoryIndex", pb.RepositoryIndexRequest(ready=True),
            {"type": "ModelIndexRequest", "ready_only": True},
        ),
    }  # fmt: skip
    for name, (method, message, canonical) in asked.items():
        request(
            f"ask-{name}", f"{method} as tritonclient asks", message,
            {"canonical": canonical}, both_ways=True, method=SERVICE + method,
        )  # fmt: skip
    request(
        "bad-repository-name", "the index of a named repository, which Triton refuses too",
        pb.RepositoryIndexRequest(repository_name="r"),
        refused("repository_name", kind="UNSUPPORTED"), method=SERVICE + "RepositoryIndex",
    )  # fmt: skip
    request(
        "bad-model-ready-unnamed", "ModelReady of no model", pb.ModelReadyRequest(),
        refused("name"), method=SERVICE + "ModelReady",
    )  # fmt: skip
    request(
        "bad-model-ready-cut", "ModelReady with a cut message", b"\x0a\x05m",
        refused("ModelReady"), method=SERVICE + "ModelReady", source=HAND,
    )  # fmt: skip


def hand_made_responses() -> None:
    asks = {"type": "InferRequest", "model": "m"}

    def answered(*outputs: dict[str, Any], raw: tuple[bytes, ...] = ()) -> Any:
        message = pb.ModelInferResponse(model_name="m", raw_output_contents=raw)
        for one in outputs:
            message.outputs.add(**one)
        return message

    def y(**more: Any) -> dict[str, Any]:
        return {"name": "Y", "datatype": "INT32", "shape": [2], **more}

    def told(*tensors: dict[str, Any]) -> dict[str, Any]:
        return {"type": "InferResponse", "model": "m", "outputs": list(tensors)}

    def broken(*mentions: str) -> dict[str, Any]:
        return {"kind": "BACKEND_GARBAGE", "mentions": list(mentions)}

    one_two = struct.pack("<2i", 1, 2)
    ints = {"int_contents": [1, 2]}
    response(
        "answer-typed", "typed contents, as KServe answers", answered(y(contents=ints)), asks,
        canonical=told(tensor("Y", "INT32", [2], one_two)), source=CLIENT,
        both_ways=True, options={"contents": "typed"},
    )  # fmt: skip
    response(
        "answer-typed-fp16-raw", "asked for typed contents, but FP16 has none: raw as a whole",
        answered(y(), {"name": "H", "datatype": "FP16", "shape": [1]}, raw=(one_two, b"\0\x3c")),
        asks,
        canonical=told(
            tensor("Y", "INT32", [2], one_two), tensor("H", "FP16", [1], b"\0\x3c")
        ),
        source=CLIENT, both_ways=True, options={"contents": "typed"},
    )  # fmt: skip
    response(
        "answer-mixed", "one output typed, one raw",
        answered(y(contents=ints), {**y(), "name": "Z"}, raw=(one_two,)), asks,
        canonical=told(tensor("Y", "INT32", [2], one_two), tensor("Z", "INT32", [2], one_two)),
        source=CLIENT,
    )  # fmt: skip
    response(
        "answer-typed-beside-empty-raw", "an empty raw entry for an output that is typed",
        answered(y(contents=ints), raw=(b"",)), asks,
        canonical=told(tensor("Y", "INT32", [2], one_two)), source=CLIENT,
    )  # fmt: skip
    response(
        "answer-empty-contents", "empty contents beside raw",
        answered(y(contents={}), raw=(one_two,)), asks,
        canonical=told(tensor("Y", "INT32", [2], one_two)), source=CLIENT,
    )  # fmt: skip
    response(
        "answer-lower-case-datatype", "a backend that spells int32",
        answered({**y(), "datatype": "int32"}, raw=(one_two,)), asks,
        canonical=told(tensor("Y", "INT32", [2], one_two)), source=CLIENT,
    )  # fmt: skip
    response(
        "garbage-data-short", "less data than the shape announces",
        answered(y(), raw=(bytes(7),)), asks, error=broken("Y", "7"), source=CLIENT,
    )  # fmt: skip
    response(
        "garbage-raw-count", "two raw entries for one output",
        answered(y(), raw=(one_two, one_two)), asks, error=broken("2 raw_output_contents"),
        source=CLIENT,
    )  # fmt: skip
    response(
        "garbage-no-contents", "an output without contents", answered(y()), asks,
        error=broken("Y"), source=CLIENT,
    )  # fmt: skip
    response(
        "garbage-datatype", "a datatype nobody knows",
        answered({**y(), "datatype": "FP8"}, raw=(one_two,)), asks, error=broken("Y", "FP8"),
        source=CLIENT,
    )  # fmt: skip
    response("garbage-cut", "no protobuf at all", b"\x0a\x7f", asks, error=broken("cannot be read"))
    response(
        "garbage-metadata-cut", "no protobuf at all", b"\x0a\x7f",
        {"type": "ServerMetadataRequest"}, error=broken("ServerMetadata"),
    )  # fmt: skip
    kinds = {3: "BAD_REQUEST", 5: "NOT_FOUND", 9: "BAD_REQUEST", 14: "NO_BACKEND"}
    for code, kind in {**kinds, 13: "BACKEND_ERROR", 99: "BACKEND_ERROR"}.items():
        response(
            f"status-{code}", f"gRPC status {code}; its message is relayed", b"", asks,
            error={"kind": kind, "mentions": ["größe"]}, start=f"code {code} the größe is wrong",
        )  # fmt: skip

    def metadata(*entries: tuple[str, bytes]) -> bytes:
        def field(number: int, value: bytes) -> bytes:
            return bytes((number << 3 | 2, len(value))) + value

        return field(1, b"m") + b"".join(
            field(6, field(1, key.encode()) + field(2, value)) for key, value in entries
        )

    asks = {"type": "ModelMetadataRequest", "model": "m"}
    response(
        "metadata-properties", "field 6 as map<string,string>, Open Inference Protocol",
        metadata(("license", b"(c) me"), ("size", b"!12345678")), asks,
        canonical={
            "type": "ModelMetadata", "name": "m",
            "properties": {"license": "(c) me", "size": "!12345678"},
        },
        both_ways=True,
    )  # fmt: skip
    response(
        "metadata-parameters", "field 6 as map<string,InferParameter>, MLServer",
        metadata(("content_type", b"\x1a\x02np"), ("flag", b"\x08\x01"), ("n", b"\x10\x05")), asks,
        canonical={
            "type": "ModelMetadata", "name": "m",
            "parameters": {"content_type": "np", "flag": True, "n": 5},
        },
        both_ways=True,
    )  # fmt: skip
    response(
        "garbage-metadata-value", "field 6 with a value that is neither",
        metadata(("odd", b"\xff\xfe")), asks, error=broken("odd"),
    )  # fmt: skip


def captured_responses(channel: grpc.Channel) -> None:
    def ask(method: str, message: Any) -> tuple[str, bytes]:
        call = channel.unary_unary(SERVICE + method)
        try:
            return "code 0", call(message.SerializeToString(), timeout=30)
        except grpc.RpcError as error:
            return f"code {error.code().value[0]} {error.details()}", b""

    def captured(name: str, about: str, method: str, message: Any, **more: Any) -> None:
        start, data = ask(method, message)
        response(
            f"triton-{name}", about, data, more.pop("asks"), start=start, source=TRITON, **more
        )

    a, b = ALL
    int32 = {"INPUT0": ("INT32", a.reshape(1, 16)), "INPUT1": ("INT32", b.reshape(1, 16))}
    asks = {"type": "InferRequest", "model": "simple"}
    told = {"type": "InferResponse", "model": "simple", "version": "1"}
    total, difference = (a + b).tobytes(), (a - b).tobytes()
    captured(
        "infer", "sums and differences", "ModelInfer", sent("simple", int32, request_id="42"),
        asks=asks, both_ways=True,
        canonical={**told, "id": "42", "outputs": [
            tensor("OUTPUT0", "INT32", [1, 16], total),
            tensor("OUTPUT1", "INT32", [1, 16], difference),
        ]},
    )  # fmt: skip
    best = b"".join(struct.pack("<I", len(text)) + text for text in (b"16:15", b"15:14"))
    captured(
        "classification", "the two best classes of an output", "ModelInfer",
        sent("simple", int32, outputs=[InferRequestedOutput("OUTPUT0", class_count=2)]),
        asks=asks, both_ways=True,
        canonical={**told, "outputs": [tensor("OUTPUT0", "BYTES", [1, 2], best)]},
    )  # fmt: skip
    half = np.array([1.5, -0.0], dtype="<f2")
    captured(
        "fp16", "FP16 out", "ModelInfer", sent("id_FP16", {"INPUT0": ("FP16", half)}),
        asks={"type": "InferRequest", "model": "id_FP16"}, both_ways=True,
        canonical={
            "type": "InferResponse", "model": "id_FP16", "version": "1",
            "outputs": [tensor("OUTPUT0", "FP16", [2], half.tobytes())],
        },
    )  # fmt: skip
    captured(
        "bool", "BOOL out", "ModelInfer",
        sent("id_BOOL", {"INPUT0": ("BOOL", np.array([True, False]))}),
        asks={"type": "InferRequest", "model": "id_BOOL"}, both_ways=True,
        canonical={
            "type": "InferResponse", "model": "id_BOOL", "version": "1",
            "outputs": [tensor("OUTPUT0", "BOOL", [2], b"\1\0")],
        },
    )  # fmt: skip
    captured(
        "unknown-model", "inference on a model that is not there", "ModelInfer",
        sent("nosuch", int32), asks={"type": "InferRequest", "model": "nosuch"},
        error={"kind": "NOT_FOUND", "mentions": ["nosuch"]},
    )  # fmt: skip
    captured(
        "wrong-shape", "a shape the model does not take", "ModelInfer",
        sent("simple", {"INPUT0": ("INT32", a), "INPUT1": ("INT32", b)}), asks=asks,
        error={"kind": "BAD_REQUEST", "mentions": ["simple"]},
    )  # fmt: skip
    captured(
        "bad-version", "a version that is no number", "ModelInfer",
        sent("simple", int32, model_version="abc"), asks=asks,
        error={"kind": "BAD_REQUEST", "mentions": ["abc"]},
    )  # fmt: skip
    ok = {"type": "HealthStatus", "ok": True}
    captured(
        "live", "live", "ServerLive", pb.ServerLiveRequest(),
        asks={"type": "ServerLiveRequest"}, canonical=ok, both_ways=True,
    )  # fmt: skip
    captured(
        "ready", "ready", "ServerReady", pb.ServerReadyRequest(),
        asks={"type": "ServerReadyRequest"}, canonical=ok, both_ways=True,
    )  # fmt: skip
    captured(
        "model-ready", "a model that serves", "ModelReady", pb.ModelReadyRequest(name="simple"),
        asks={"type": "ModelReadyRequest", "model": "simple"}, canonical=ok, both_ways=True,
    )  # fmt: skip
    captured(
        "model-ready-unknown", "an unknown model: status OK, ready false", "ModelReady",
        pb.ModelReadyRequest(name="nosuch"),
        asks={"type": "ModelReadyRequest", "model": "nosuch"},
        canonical={"type": "HealthStatus", "ok": False}, both_ways=True,
    )  # fmt: skip
    extensions = (
        "classification sequence model_repository model_repository(unload_dependents) "
        "schedule_policy model_configuration system_shared_memory cuda_shared_memory "
        "binary_tensor_data parameters statistics trace logging"
    )
    captured(
        "metadata", "name, version, extensions", "ServerMetadata", pb.ServerMetadataRequest(),
        asks={"type": "ServerMetadataRequest"}, both_ways=True,
        canonical={
            "type": "ServerMetadata", "name": "triton", "version": "2.51.0",
            "extensions": extensions.split(),
        },
    )  # fmt: skip
    described_io = [{"datatype": "INT32", "shape": [-1, 16]}] * 2
    captured(
        "model-metadata", "inputs, outputs, versions, platform", "ModelMetadata",
        pb.ModelMetadataRequest(name="simple"),
        asks={"type": "ModelMetadataRequest", "model": "simple"}, both_ways=True,
        canonical={
            "type": "ModelMetadata", "name": "simple", "versions": ["1"], "platform": "python",
            "inputs": [{"name": f"INPUT{i}", **d} for i, d in enumerate(described_io)],
            "outputs": [{"name": f"OUTPUT{i}", **d} for i, d in enumerate(described_io)],
        },
    )  # fmt: skip
    _, index = ask("RepositoryIndex", pb.RepositoryIndexRequest())
    models = sorted(pb.RepositoryIndexResponse.FromString(index).models, key=lambda m: m.name)
    response(
        "triton-index", "the models and their states (sorted)",
        pb.RepositoryIndexResponse(models=models),
        {"type": "ModelIndexRequest"}, source=TRITON, both_ways=True,
        canonical={"type": "ModelIndex", "models": [
            {key: value for key, value in
             (("name", m.name), ("version", m.version), ("state", m.state), ("reason", m.reason))
             if value or key == "name"}
            for m in models
        ]},
    )  # fmt: skip


if __name__ == "__main__":
    good_requests()
    typed_requests()
    bad_requests()
    other_requests()
    shared_memory()
    hand_made_responses()
    with grpc.insecure_channel(sys.argv[1]) as triton:
        captured_responses(triton)
