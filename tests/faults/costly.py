"""The most expensive known messages, at least one for each loop that runs over input.
``faults.costs`` measures them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

from tritonclient.grpc import service_pb2 as pb

from faults.costs import Worst, called, framed, posted, predicted, zipped
from faults.frames import CODEC as GRAPHPIPE
from faults.legacy import OLD, OLD_INFER
from faults.watch import MIB
from infergate.codecs.base import Profile
from infergate.codecs.envelopes.frames import MAX_CELLS
from infergate.codecs.protos.wire_scanner import MAX_NESTED_FIELDS_ON_LOOP, field_prefix
from infergate.core.datatypes import Datatype
from infergate.core.limits import MAX_ELEMENTS_ON_LOOP
from infergate.core.messages import InferRequest, ModelMetadata, TensorMetadata
from infergate.core.tensor import MAX_BYTES_ELEMENTS, Tensor, pack_bytes
from infergate.core.wire import join_parts
from searching import WHOLE

KIB = 1024
INLINE = 256 * KIB
"""The maximum number of JSON bytes that the event loop reads."""
VERY_MANY: Final = MAX_BYTES_ELEMENTS if WHOLE else MAX_BYTES_ELEMENTS // 2
"""Half as many elements as a tensor may have, or all of them in ``make test-peers``. Even half of
them would block the event loop for over 50 ms."""
EMPTY: Final = bytes(4 * VERY_MANY)
MANY: Final = MAX_ELEMENTS_ON_LOOP
"""The maximum number of elements that the event loop reads itself."""
TWO_LENGTHS: Final = pack_bytes([b"", b"a"] * (MANY // 2))
SINGLE: Final = MAX_NESTED_FIELDS_ON_LOOP - 8
"""The maximum number of fields inside an input that the event loop reads, beside dtype and shape.
"""
DEEP: Final = (16_000, *[1] * 63)
"""A shape whose nested lists almost reach their maximum number."""
TENSORS = 1024
LONG_INTEGER: Final = "9" * 20
MINUS_ONE: Final = b"\xff" * 9 + b"\1"
"""The varint of -1."""


def rest(model: str) -> str:
    return f"/v2/models/{model}/infer"


def binary(data: bytes, *shape: int, datatype: str = "BYTES") -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of a tensor in the binary extension."""
    fields = {"name": "INPUT0", "datatype": datatype, "shape": shape,
            "parameters": {"binary_data_size": len(data)}}  # fmt: skip
    parameters = {"binary_data_output": datatype != "BYTES"}
    head = json.dumps({"parameters": parameters, "inputs": [fields]}).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def one_input(datatype: str, elements: Iterable[str]) -> bytes:
    """Return JSON with one input. ``elements`` are the texts of its elements."""
    listed = list(elements)
    head = '{"inputs":[{"name":"INPUT0","datatype":"%s","shape":[%d],"data":[%s]}]}'
    return (head % (datatype, len(listed), ",".join(listed))).encode()


def inputs(template: str, count: int = TENSORS) -> bytes:
    """Return JSON with ``count`` inputs. The text of each input is ``template``, with its number in
    place of ``%d``."""
    return ('{"inputs":[' + ",".join(template % each for each in range(count)) + "]}").encode()


def raw(model: str, data: bytes, elements: int, datatype: str = "BYTES") -> bytes:
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="INPUT0", datatype=datatype, shape=[elements])
    message.raw_input_contents.append(data)
    return bytes(message.SerializeToString())


def typed(datatype: str, elements: int, contents: bytes) -> bytes:
    """Return a request. ``contents`` is an InferTensorContents, encoded by hand because protobuf
    would take seconds."""
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="INPUT0", datatype=datatype, shape=[elements]
    )
    head = pb.ModelInferRequest(model_name="identity").SerializeToString()
    return bytes(head) + delimited(5, tensor.SerializeToString() + delimited(5, contents))


def delimited(number: int, value: bytes) -> bytes:
    return field_prefix(number, len(value)) + value


PREDICT: Final = "/tensorflow.serving.PredictionService/Predict"


def rows(row: bytes, size: int, model: str = "texts", end: bytes = b'""') -> tuple[str, bytes]:
    """Return the path and the body of a request of ``size`` bytes that repeats ``row``."""
    body = b'{"instances":[' + (row + b",") * (size // (len(row) + 1) - 3) + end + b"]}"
    return f"/v1/models/{model}:predict", body


def columns(item: bytes, size: int) -> tuple[str, bytes]:
    """Return the path and the body of a request of ``size`` bytes: a number, then repetitions of
    ``item``."""
    items = (b"," + item) * ((size - 20) // (len(item) + 1))
    return "/v1/models/numbers:predict", b'{"inputs":[1%b]}' % items


DIMENSIONS: Final = b"\x12\x85\1" + b"\x08\1\x12\x80\1" + b"\x12\0" * 64
"""A TensorProto with 64 dimensions of 0, as the value of a map entry."""


def predict(model: str, dtype: int, elements: int, values: bytes = b"") -> bytes:
    """Return a PredictRequest with a tensor of one dimension."""
    size = bytearray()
    remaining = elements
    while remaining > 0x7F:
        size.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    size.append(remaining)
    shape = delimited(2, delimited(2, b"\x08" + bytes(size)))
    proto = b"\x08" + bytes((dtype,)) + shape + values
    entry = delimited(1, b"INPUT0") + delimited(2, proto)
    return delimited(1, delimited(1, model.encode())) + delimited(2, entry)


def instances(row: str, size: int) -> bytes:
    """Return a KServe request of ``size`` bytes of JSON that repeats ``row``."""
    return b'{"instances":[' + b",".join([row.encode()] * ((size - 20) // (len(row) + 1))) + b"]}"


def many_inputs(rank: int, **parameters: int) -> bytes:
    message = pb.ModelInferRequest(model_name="identity")
    for index in range(TENSORS):
        created = message.inputs.add(name=f"INPUT{index}", datatype="UINT8", shape=[1] * rank)
        for key, value in parameters.items():
            created.parameters[key].int64_param = value
        message.raw_input_contents.append(b"\0")
    return bytes(message.SerializeToString())


def many_parameters(count: int) -> bytes:
    message = pb.ModelInferRequest(model_name="identity")
    created = message.inputs.add(name="INPUT0", datatype="UINT8", shape=[0])
    for index in range(count):
        created.parameters[f"{index:x}"].int64_param = 1
    message.raw_input_contents.append(b"")
    return bytes(message.SerializeToString())


METADATA = ModelMetadata(
    "texts",
    inputs=(TensorMetadata("INPUT0", "BYTES", (-1,)),),
    outputs=(TensorMetadata("OUTPUT0", "BYTES", (-1,)),),
)


def flatbuffer(data: bytes, elements: int, model: str = "texts") -> bytes:
    tensor = Tensor("INPUT0", Datatype.BYTES, (elements,), data)
    request = InferRequest(model, inputs=(tensor,))
    return bytes(join_parts(GRAPHPIPE.build_request(request, Profile("any"), METADATA).body))


def old_header(body: str, data: bytes = b"", model: str = "texts") -> Worst:
    return posted(f"/api/infer/{model}", data, {"NV-InferRequest": body})


def old_strings(model: str, data: bytes, elements: int) -> bytes:
    request = OLD.InferRequest(model_name=model, model_version=-1)
    request.meta_data.batch_size = 1
    created = request.meta_data.input.add(name="INPUT0", dims=[elements])
    created.batch_byte_size = len(data)
    request.meta_data.output.add(name="OUTPUT0")
    request.raw_input.append(data)
    return bytes(request.SerializeToString())


def _old_text(elements: int, size: int) -> str:
    return (
        f'batch_size: 1 input {{ name: "INPUT0" dims: {elements} batch_byte_size: {size} }} '
        'output { name: "OUTPUT0" }'
    )


NAN_AND_PARAMETERS = inputs(
    '{"name":"INPUT%d","datatype":"FP32","shape":[1],"parameters":{"a":1,"b":"c","d":true,'
    '"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee":[{},{}]},"data":[NaN],"x":{"y":[[],[],[]]}}'
)
JSON_TYPE: Final = {"Content-Type": "application/json"}
LONG: Final = bytes(12 * MIB)
LONG_LINES = {f"x-{index}": "v" * 600 for index in range(90)}

WORST: dict[str, Callable[[], Worst]] = {
    "v2-rest, very many empty BYTES": lambda: zipped(rest("identity"), *binary(EMPTY, VERY_MANY)),
    "v2-rest, forwarded": lambda: zipped(rest("fwd.v2-rest"), *binary(EMPTY, VERY_MANY)),
    "v2-rest, translated": lambda: zipped(rest("tr.v2-rest"), *binary(EMPTY, VERY_MANY)),
    "v2-rest, to JSON": lambda: zipped(rest("tr.v2-json"), *binary(EMPTY[: 4 * 200_000], 200_000)),
    "v2-rest, to GraphPipe": lambda: zipped(rest("tr.graphpipe"), *binary(EMPTY, VERY_MANY)),
    "v2-rest, to trtis-http": lambda: zipped(rest("tr.trtis-http"), *binary(EMPTY, VERY_MANY)),
    "v2-rest, to trtis-grpc": lambda: zipped(rest("tr.trtis-grpc"), *binary(EMPTY, VERY_MANY)),
    "v2-rest, as many BYTES as the loop reads": lambda: posted(
        rest("tr.v2-rest"), *binary(TWO_LENGTHS, MANY)
    ),
    "v2-rest, as many BYTES as the loop reads, to JSON": lambda: posted(
        rest("tr.v2-json"), *binary(TWO_LENGTHS, MANY)
    ),
    "v2-rest, as many BYTES as the loop reads, to GraphPipe": lambda: posted(
        rest("tr.graphpipe"), *binary(TWO_LENGTHS, MANY)
    ),
    "v2-rest, 1024 inputs with parameters and NaN": lambda: posted(
        rest("identity"), NAN_AND_PARAMETERS[:INLINE]
    ),
    "v2-rest, 1000 inputs with NaN below 64 KiB": lambda: posted(
        rest("identity"),
        inputs('{"name":"INPUT%d","datatype":"FP16","shape":[1],"data":[NaN]}', 1000),
    ),
    "v2-rest, 1024 inputs with parameters": lambda: posted(
        rest("identity"),
        inputs(
            '{"name":"INPUT%d","datatype":"FP32","shape":[1],'
            '"parameters":{"a":1,"b":{"c":[1,2]},"d":true},"data":[[[1]]]}'
        ),
    ),
    "v2-rest, empty texts": lambda: posted(
        rest("identity"), one_input("BYTES", ['""'] * (INLINE // 3 - 40))
    ),
    "v2-rest, texts, forwarded": lambda: posted(
        rest("fwd.v2-rest"), one_input("BYTES", ['""'] * (MANY - 1))
    ),
    "v2-rest, booleans": lambda: posted(rest("identity"), one_input("BOOL", ["true"] * 52_000)),
    "v2-rest, NaN among numbers": lambda: posted(
        rest("identity"), one_input("FP32", ["NaN", *["0"] * 130_000])
    ),
    "v2-rest, NaN in texts": lambda: posted(
        rest("identity"), one_input("FP16", ['"NaN"', *["1"] * 130_000])
    ),
    "v2-rest, rows of one": lambda: posted(
        rest("identity"), one_input("BOOL", ["[true]"] * 37_000)
    ),
    "v2-rest, parameters": lambda: posted(
        rest("identity"),
        b'{"inputs":[],"parameters":{' + b",".join(b'"%x":1' % i for i in range(16_384)) + b"}}",
    ),
    "v2-rest, parameters, to gRPC": lambda: posted(
        rest("tr.v2-grpc"),
        one_input("BYTES", ['"a"'])[:-1]
        + b',"parameters":{'
        + b",".join(b'"%x":1' % i for i in range(16_384))
        + b"}}",
    ),
    "v2-rest, a long id": lambda: zipped(
        rest("identity"), one_input("UINT8", "1")[:-1] + b',"id":"' + b"a" * (4 * MIB) + b'"}'
    ),
    "v2-rest, a long text in parameters": lambda: zipped(
        rest("identity"),
        one_input("UINT8", "1")[:-1] + b',"parameters":{"a":"' + b"a" * (4 * MIB - 1) + b'"}}',
    ),
    "v2-rest, unknown members": lambda: posted(
        rest("identity"),
        b'{"inputs":[],' + b",".join(b'"%x":1' % i for i in range(28_000)) + b',"id":NaN}',
    ),
    "v2-rest, long lines": lambda: posted(rest("identity"), b"{}", LONG_LINES),
    "v2-rest, a long path": lambda: posted("/v2/models/" + "%41" * 5000 + "/infer", b"{}"),
    "v2-rest, a repository index": lambda: posted(
        "/v2/repository/index", b'{"ready":NaN' + b" " * INLINE + b"}"
    ),
    "v2-rest, log settings": lambda: posted(
        "/v2/logging", b"{" + b",".join(b'"%x":NaN' % i for i in range(22_000)) + b"}"
    ),
    "v2-rest, classes": lambda: posted(
        rest("identity"),
        one_input("FP32", ["0"] * 60_000)[:-2]
        + b'],"outputs":[{"name":"OUTPUT0","parameters":{"classification":16000}}]}',
    ),
    "embeddings, empty texts": lambda: posted(
        "/v1/embeddings", b'{"model":"embed","input":[' + b'"",' * 63 + b'""]}'
    ),
    "embeddings, tokens": lambda: posted(
        "/v1/embeddings", b'{"model":"embed","input":[' + b"[1]," * 2047 + b"[1]]}"
    ),
    "embeddings, many tokens": lambda: posted(
        "/v1/embeddings", b'{"model":"embed","input":[' + b"1," * (INLINE // 2 - 40) + b"1]}"
    ),
    "embeddings, members": lambda: posted(
        "/v1/embeddings",
        b'{"model":"embed",' + b",".join(b'"%x":NaN' % i for i in range(22_000)) + b"}",
    ),
    "mlflow, a CSV": lambda: posted(
        "/invocations", b"INPUT0\n" + b"a\n" * (INLINE // 2 - 8), {"Content-Type": "text/csv"}
    ),
    "mlflow, as many cells as the loop reads": lambda: posted(
        "/invocations", b"INPUT0\n" + b"a\n" * 8000, {"Content-Type": "text/csv"}
    ),
    "mlflow, the longest CSV": lambda: posted(
        "/invocations", b"INPUT0\n" + b"abcdefg\n" * (MAX_CELLS - 8), {"Content-Type": "text/csv"}
    ),
    "mlflow, records": lambda: posted(
        "/invocations",
        b'{"dataframe_records":[' + b'{"INPUT0":""},' * 16_000 + b'{"INPUT0":""}]}',
        JSON_TYPE,
    ),
    "mlflow, a split table": lambda: posted(
        "/invocations",
        b'{"dataframe_split":{"columns":["INPUT0"],"data":[' + b'[""],' * 16_000 + b'[""]]}}',
        JSON_TYPE,
    ),
    "mlflow, params": lambda: posted(
        "/invocations",
        b'{"inputs":[],"params":{' + b",".join(b'"%x":1' % i for i in range(16_384)) + b"}}",
        JSON_TYPE,
    ),
    "vertex, instances": lambda: posted(
        "/predict", b'{"instances":[' + b'"",' * (INLINE // 3 - 40) + b'""]}'
    ),
    "v2-grpc, very many empty BYTES": lambda: called(raw("identity", EMPTY, VERY_MANY), gzip=True),
    "v2-grpc, forwarded": lambda: called(raw("fwd.v2-grpc", EMPTY, VERY_MANY), gzip=True),
    "v2-grpc, translated": lambda: called(raw("tr.v2-grpc", EMPTY, VERY_MANY), gzip=True),
    "v2-grpc, as many BYTES as the loop reads": lambda: called(
        raw("tr.v2-grpc", TWO_LENGTHS, MANY)
    ),
    "v2-grpc, typed BYTES": lambda: called(typed("BYTES", MANY, b"\x42\0\x42\1a" * (MANY // 2))),
    "v2-grpc, very many typed": lambda: called(typed("BYTES", VERY_MANY, b"\x42\0" * VERY_MANY)),
    "v2-grpc, typed integers": lambda: called(
        typed("INT32", 2 * MIB, delimited(2, MINUS_ONE * (2 * MIB)))
    ),
    "v2-grpc, typed booleans": lambda: called(
        typed("BOOL", 60 * MIB, delimited(1, b"\1" * (60 * MIB)))
    ),
    "v2-grpc, 1024 inputs of many dimensions": lambda: called(many_inputs(64)),
    "v2-grpc, 1024 inputs with parameters": lambda: called(many_inputs(1, a=1, b=2, c=3, d=4)),
    "v2-grpc, parameters": lambda: called(many_parameters(8000)),
    "inflated, over HTTP": lambda: zipped(
        rest("identity"), *binary(LONG, len(LONG), datatype="UINT8")
    ),
    "inflated, over gRPC": lambda: called(raw("identity", LONG, len(LONG), "UINT8"), gzip=True),
    "graphpipe, very many empty texts": lambda: framed(flatbuffer(EMPTY, VERY_MANY)),
    "graphpipe, as many texts as the loop reads": lambda: framed(flatbuffer(TWO_LENGTHS, MANY)),
    "graphpipe, over HTTP": lambda: posted("/graphpipe/texts", flatbuffer(TWO_LENGTHS, MANY)),
    "trtis-http, dimensions": lambda: old_header(
        'batch_size: 1 input { name: "INPUT0" dims: [' + "1," * 30_000 + "1] }"
    ),
    "trtis-http, inputs": lambda: old_header("input{}" * 8000),
    "trtis-http, an unreadable header": lambda: old_header("input{dims:[" + "1," * 30_000),
    "trtis-http, dimensions in 8 KiB": lambda: old_header(
        'batch_size: 1 input { name: "INPUT0" dims: [' + "1," * 4000
    ),
    "trtis-http, very many empty BYTES": lambda: old_header(
        _old_text(VERY_MANY, len(EMPTY)), EMPTY
    ),
    "trtis-http, forwarded": lambda: old_header(
        _old_text(VERY_MANY, len(EMPTY)), EMPTY, "fwd.trtis-http"
    ),
    "trtis-http, as many BYTES as the loop reads": lambda: old_header(
        _old_text(MANY, len(TWO_LENGTHS)), TWO_LENGTHS, "fwd.trtis-http"
    ),
    "v2-rest, to kserve-v1": lambda: zipped(
        rest("tr.kserve-v1"), *binary(EMPTY[: 4 * 200_000], 200_000)
    ),
    "v2-rest, many dimensions, to kserve-v1": lambda: posted(
        rest("tr.kserve-v1"), *binary(EMPTY[:16_000], *DEEP, datatype="INT8")
    ),
    "v2-rest, many dimensions, to tfs-rest": lambda: posted(
        rest("tr.tfs-rest"), *binary(EMPTY[:16_000], *DEEP, datatype="INT8")
    ),
    "v2-rest, as many BYTES as the loop reads, to kserve-v1": lambda: posted(
        rest("tr.kserve-v1"), *binary(TWO_LENGTHS, MANY)
    ),
    "kserve-v1, empty texts": lambda: predicted("texts", instances('""', INLINE)),
    "kserve-v1, very many texts": lambda: predicted("texts", instances('""', 3 * MIB)),
    "kserve-v1, named rows": lambda: predicted("texts", instances('{"INPUT0":""}', INLINE)),
    "kserve-v1, other names in rows": lambda: predicted(
        "texts", instances('{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}', INLINE)
    ),
    "kserve-v1, base64": lambda: predicted("texts", instances('{"b64":""}', INLINE)),
    "kserve-v1, lists of one": lambda: predicted("texts", instances('[""]', INLINE)),
    "kserve-v1, long integers": lambda: predicted("texts", instances(LONG_INTEGER, INLINE)),
    "kserve-v1, forwarded": lambda: predicted("fwd.kserve-v1", instances('""', INLINE)),
    "kserve-v1, translated": lambda: predicted("tr.kserve-v1", instances('""', INLINE)),
    "kserve-v1, long integers, forwarded": lambda: predicted(
        "fwd.kserve-v1", instances(LONG_INTEGER, INLINE)
    ),
    "kserve-v1, a long integer and lists, forwarded": lambda: predicted(
        "fwd.kserve-v1", instances("[]", INLINE).replace(b"[[]", b"[" + LONG_INTEGER.encode(), 1)
    ),
    "kserve-v1, a structured event": lambda: predicted(
        "texts",
        b'{"specversion":"1.0","id":"a","source":"s","type":"t","time":"t",'
        + b"".join(b'"%x":[],' % i for i in range(16_384))
        + b'"data":'
        + instances('""', INLINE // 4)
        + b"}",
        {"Content-Type": "application/cloudevents+json"},
    ),
    "v2-rest, to tfs-grpc": lambda: zipped(rest("tr.tfs-grpc"), *binary(EMPTY, VERY_MANY)),
    "tfs-grpc, very many empty BYTES": lambda: called(
        predict("texts", 7, VERY_MANY, b"\x42\0" * VERY_MANY), PREDICT
    ),
    "tfs-grpc, a shape without its strings": lambda: called(
        predict("texts", 7, VERY_MANY), PREDICT
    ),
    "tfs-grpc, forwarded": lambda: called(
        predict("fwd.tfs-grpc", 7, VERY_MANY, b"\x42\0" * VERY_MANY), PREDICT
    ),
    "tfs-grpc, as many BYTES as the loop reads": lambda: called(
        predict("fwd.tfs-grpc", 7, MANY, b"\x42\0\x42\1a" * (MANY // 2)), PREDICT
    ),
    "tfs-grpc, a repeated float": lambda: called(
        predict("identity", 1, 4 * MIB, b"\x2a\4\0\0\0\1"), PREDICT
    ),
    "tfs-grpc, a repeated string": lambda: called(
        predict("texts", 7, 1000, delimited(8, bytes(16_000))), PREDICT
    ),
    "tfs-grpc, integers": lambda: called(
        predict("identity", 3, 2 * MIB, delimited(7, MINUS_ONE * (2 * MIB))), PREDICT
    ),
    "tfs-grpc, integers that are not packed": lambda: called(
        predict("identity", 23, SINGLE, b"\x88\1\1" * SINGLE), PREDICT
    ),
    "tfs-grpc, strings among integers": lambda: called(
        predict("texts", 7, SINGLE, b"\x42\0\x38\1" * (SINGLE // 2)), PREDICT
    ),
    "tfs-grpc, the maximum number of typed integers": lambda: called(
        predict("identity", 3, 65536, delimited(4, b"\xff" * 262_144)), PREDICT
    ),
    "tfs-grpc, 1024 inputs of many dimensions": lambda: called(
        predict("identity", 1, 0)
        + b"".join(delimited(2, delimited(1, b"%d" % index) + DIMENSIONS) for index in range(1023)),
        PREDICT,
    ),
    "v2-rest, to tfs-rest": lambda: zipped(
        rest("tr.tfs-rest"), *binary(EMPTY[: 4 * 200_000], 200_000)
    ),
    "tfs-rest, very many strings": lambda: zipped(*rows(b'""', 3 * VERY_MANY)),
    "tfs-rest, forwarded": lambda: zipped(*rows(b'""', 3 * VERY_MANY, "fwd.tfs-rest")),
    "tfs-rest, as many strings as the loop reads": lambda: posted(*rows(b'""', 3 * MANY)),
    "tfs-rest, very many rows of a number": lambda: zipped(
        *rows(b"[1]", 4 * VERY_MANY, "numbers", b"[1]")
    ),
    "tfs-rest, short rows of numbers": lambda: posted(*rows(b"[1]", INLINE, "numbers", b"[1]")),
    "tfs-rest, rows of strings": lambda: zipped(*rows(b'[""]', MIB)),
    "tfs-rest, short rows of strings": lambda: posted(*rows(b'[""]', INLINE, end=b'[""]')),
    "tfs-rest, objects": lambda: zipped(*rows(b'{"INPUT0":""}', MIB, end=b'{"INPUT0":""}')),
    "tfs-rest, as many objects as the loop reads": lambda: posted(
        *rows(b'{"INPUT0":""}', 5000 * 14, end=b'{"INPUT0":""}')
    ),
    "tfs-rest, objects with arrays": lambda: posted(
        *rows(b'{"INPUT0":[0]}', 5000 * 15, "numbers", b'{"INPUT0":[0]}')
    ),
    "tfs-rest, objects with other names": lambda: posted(*rows(b'{"a":0}', INLINE, end=b"{}")),
    "tfs-rest, NaN": lambda: posted(*rows(b"[NaN]", 32 * KIB, "numbers", b"[0]")),
    "tfs-rest, more NaN": lambda: posted(*rows(b"[NaN]", INLINE, "numbers", b"[0]")),
    "tfs-rest, booleans for numbers": lambda: posted(*rows(b"true", INLINE, "numbers", b"0")),
    "tfs-rest, a mixed row": lambda: posted(*rows(b"[1]", INLINE, "numbers", b"[1,2]")),
    "tfs-rest, objects without members": lambda: posted(*columns(b"{}", INLINE)),
    "tfs-rest, very many objects without members": lambda: zipped(*columns(b"{}", 8 * MIB)),
    "tfs-rest, empty lists": lambda: posted(*columns(b"[]", INLINE)),
    "tfs-rest, nesting": lambda: posted(
        "/v1/models/numbers:predict", b'{"instances":' + b"[" * INLINE
    ),
    "tfs-rest, commas in strings": lambda: posted(*rows(b'",:"', INLINE)),
    "tfs-rest, examples": lambda: posted(
        "/v1/models/fwd.tfs-rest:classify", b'{"examples":[' + b'{"a":1},' * 30_000 + b"{}]}"
    ),
    "trtis-grpc, very many empty BYTES": lambda: called(
        old_strings("texts", EMPTY, VERY_MANY), OLD_INFER
    ),
    "trtis-grpc, forwarded": lambda: called(
        old_strings("fwd.trtis-grpc", EMPTY, VERY_MANY), OLD_INFER
    ),
    "trtis-grpc, as many BYTES as the loop reads": lambda: called(
        old_strings("fwd.trtis-grpc", TWO_LENGTHS, MANY), OLD_INFER
    ),
}
