"""Requests with invalid tensors in each of the four formats of V2: JSON, JSON followed by binary
data, protobuf with raw contents, and protobuf with typed contents.

Each case has a pattern that the error must match. It has no request in a format that cannot express
the mistake."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
_PACKED = {"FP32": "f", "INT32": "i", "INT8": "b", "INT64": "q", "UINT8": "B", "FP16": "e"}
_FIELDS = {
    "FP32": "fp32_contents",
    "INT32": "int_contents",
    "INT8": "int_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "INT64": "int64_contents",
    "BYTES": "bytes_contents",
}


@dataclass(frozen=True)
class InvalidRequest:
    """A request in one format and its rejection: a pattern that the error text matches, and both
    statuses. ``head`` is the length header of a body with binary data."""

    names: str
    body: bytes
    head: str | None = None
    headers: Mapping[str, str] | None = None
    http: tuple[int, ...] = (400,)
    grpc: grpc.StatusCode = INVALID


REST: dict[str, InvalidRequest] = {}
RPC: dict[str, InvalidRequest] = {}
"""The requests, keyed by case and format: ``an empty name, raw``."""


# ---- JSON ------------------------------------------------------------------------------------


def tensor(**fields: Any) -> dict[str, Any]:
    """Return INPUT0 as an INT32 of one element, 7. A member that is None is removed."""
    members = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [7], **fields}
    return {key: value for key, value in members.items() if value is not None}


def document(*inputs: Any, **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def in_json(case: str, names: str, body: bytes, **more: Any) -> None:
    REST[f"{case}, json"] = InvalidRequest(names, body, **more)


def in_binary(
    case: str, names: str, json_part: bytes, blob: bytes, head: str | None = "", **more: Any
) -> None:
    """Add a request with binary data. If ``head`` is empty, the length header is correct."""
    head = str(len(json_part)) if head == "" else head
    REST[f"{case}, binary"] = InvalidRequest(names, json_part + blob, head, **more)


def in_raw(case: str, names: str, message: Any, **more: Any) -> None:
    RPC[f"{case}, raw"] = InvalidRequest(names, message.SerializeToString(), **more)


def in_typed(case: str, names: str, message: Any, **more: Any) -> None:
    RPC[f"{case}, typed"] = InvalidRequest(names, message.SerializeToString(), **more)


def message(*tensors: tuple[str, str, Sequence[int]], raw: Sequence[bytes] = ()) -> Any:
    """Return a request without a model name, which is added later."""
    request = pb.ModelInferRequest(raw_input_contents=raw)
    for name, datatype, shape in tensors:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
    return request


def typed(name: str, datatype: str, shape: Sequence[int], **contents: Any) -> Any:
    request = message((name, datatype, shape))
    for key, values in contents.items():
        getattr(request.inputs[0].contents, key).extend(values)
    return request


def packed(datatype: str, elements: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(e)) + e for e in elements)
    return struct.pack(f"<{len(elements)}{_PACKED[datatype]}", *elements)


def everywhere(
    case: str,
    shape: Sequence[int],
    elements: Sequence[Any],
    datatype: str = "INT32",
    *,
    http: tuple[int, ...] = (400,),
    grpc: grpc.StatusCode = INVALID,
) -> None:
    """Add the same mistake in all four formats. Each error names the tensor."""
    blob = packed(datatype, elements)
    names = r"INPUT0|inputs\[0\]\.shape|shape of tensor 0"
    texts = [e.decode() for e in elements] if datatype == "BYTES" else list(elements)
    common = {"datatype": datatype, "shape": shape}
    in_json(case, names, document(tensor(**common, data=texts)), http=http)
    sized = tensor(**common, data=None, parameters={"binary_data_size": len(blob)})
    in_binary(case, names, document(sized), blob, http=http)
    in_raw(case, names, message(("INPUT0", datatype, shape), raw=[blob]), grpc=grpc)
    contents = {_FIELDS[datatype]: elements} if elements else {}
    in_typed(case, names, typed("INPUT0", datatype, shape, **contents), grpc=grpc)


# ---- shape and data --------------------------------------------------------------------------

everywhere("fewer elements than announced", [3], [1, 2])
everywhere("more elements than announced", [1], [1, 2])
everywhere("no elements where one is announced", [1], [])
everywhere("an element where none is announced", [0], [1])
everywhere("a dimension of -1", [-1], [1])
everywhere("a dimension of -1 beside 0", [-1, 0], [])
everywhere("a product that overflows to 0", [2**32, 2**32], [])
everywhere("a product that overflows to 1", [2**32 + 1, 2**32 + 1, 1], [1])
everywhere("a trillion elements announced", [2**40], [1])
everywhere("a dimension of 2^63 - 1", [2**63 - 1], [1])
everywhere("thousands of dimensions", [1] * 3000, [1])
everywhere("65 dimensions", [1] * 65, [1])
everywhere("fewer strings than announced", [2], [b"one"], "BYTES")
everywhere("more strings than announced", [1], [b"one", b"two"], "BYTES")
everywhere(
    "more strings announced than the limit",
    [2**20 + 1],
    [b"one"],
    "BYTES",
    http=(400, 413),  # too few strings, or too many: the first check decides
    grpc=grpc.StatusCode.RESOURCE_EXHAUSTED,
)

for _case, _shape in {
    "a dimension over 63 bits": [2**63],
    "a dimension over 64 bits": [2**64 + 1],
    "a fraction for a dimension": [1.0],
    "a string for a dimension": ["1"],
    "a boolean for a dimension": [True],
    "null for a dimension": [None],
    "an array for a dimension": [[1]],
}.items():
    in_json(_case, r"INPUT0|inputs\[0\]\.shape", document(tensor(shape=_shape)))
in_json("a number for a shape", r"inputs\[0\]\.shape", document(tensor(shape=1)))
in_json("no shape", r"inputs\[0\]\.shape", document(tensor(shape=None)))

# ---- names -----------------------------------------------------------------------------------

_SIZED = {"data": None, "parameters": {"binary_data_size": 4}}
_SEVEN = b"\x07\0\0\0"
in_json("no name", r"inputs\[0\]\.name", document(tensor(name=None)))
in_binary("no name", r"inputs\[0\]\.name", document(tensor(name=None, **_SIZED)), _SEVEN)
in_json("an empty name", r"inputs\[0\]\.name", document(tensor(name="")))
in_binary("an empty name", r"inputs\[0\]\.name", document(tensor(name="", **_SIZED)), _SEVEN)
in_raw("an empty name", "input 0", message(("", "INT32", [1]), raw=[_SEVEN]))
in_typed("an empty name", "input 0", typed("", "INT32", [1], int_contents=[7]))
# The protobuf library would omit an empty ``name`` (field 1).
_nameless = b"\x0a\x00\x12\x05INT32\x1a\x01\x01"
RPC["a name of no bytes, raw"] = InvalidRequest(
    "input 0", b"\x2a\x0c" + _nameless + b"\x3a\x04" + _SEVEN
)
RPC["a name of no bytes, typed"] = InvalidRequest(
    "input 0", b"\x2a\x11" + _nameless + b"\x2a\x03\x12\x01\x07"
)
in_json("a number for a name", r"inputs\[0\]\.name", document(tensor(name=5)))
in_json("a duplicate name", "INPUT0", document(tensor(), tensor()))
in_binary("a duplicate name", "INPUT0", document(tensor(**_SIZED), tensor(**_SIZED)), _SEVEN * 2)
in_raw("a duplicate name", "INPUT0", message(*[("INPUT0", "INT32", [1])] * 2, raw=[_SEVEN] * 2))
_duplicate = typed("INPUT0", "INT32", [1], int_contents=[7])
_duplicate.inputs.append(_duplicate.inputs[0])
in_typed("a duplicate name", "INPUT0", _duplicate)
in_json("an output without a name", r"outputs\[0\]", document(tensor(), outputs=[{}]))
in_json("a duplicate output", "O", document(tensor(), outputs=[{"name": "O"}, {"name": "O"}]))
_outputs = message(("INPUT0", "INT32", [1]), raw=[_SEVEN])
_outputs.outputs.add(name="O")
_outputs.outputs.add(name="O")
in_raw("a duplicate output", "'O'", _outputs)
_outputs.outputs[0].name = ""
in_raw("an output without a name", "output 0", _outputs)

# ---- datatypes -------------------------------------------------------------------------------

for _datatype in ("FLOAT", "int32", "INT128", "", " INT32", "TYPE_INT32", "INT32\n", "É" * 50):
    _case = f"datatype {_datatype[:12]!r}"
    in_json(_case, "INPUT0", document(tensor(datatype=_datatype)))
    in_binary(_case, "INPUT0", document(tensor(datatype=_datatype, **_SIZED)), _SEVEN)
    in_raw(_case, "INPUT0", message(("INPUT0", _datatype, [1]), raw=[_SEVEN]))
    in_typed(_case, "INPUT0", typed("INPUT0", _datatype, [1], int_contents=[7]))
in_json("no datatype", r"inputs\[0\]\.datatype", document(tensor(datatype=None)))
in_json("a number for a datatype", r"inputs\[0\]\.datatype", document(tensor(datatype=7)))

# ---- elements in JSON ------------------------------------------------------------------------

for _case, _datatype, _element in (
    ("a boolean for an integer", "INT32", "true"),
    ("an integer for a boolean", "BOOL", "1"),
    ("a fraction for an integer", "INT32", "1.5"),
    ("1.0 for an integer", "INT32", "1.0"),
    ("a string for an integer", "INT32", '"5"'),
    ("null for an integer", "INT32", "null"),
    ("an object for an integer", "INT32", "{}"),
    ("NaN for an integer", "INT32", "NaN"),
    ("a text for a float", "FP32", '"nan"'),
    ("a boolean for a float", "FP64", "false"),
    ("300 for an INT8", "INT8", "300"),
    ("-1 for a UINT8", "UINT8", "-1"),
    ("2^16 for a UINT16", "UINT16", "65536"),
    ("2^31 for an INT32", "INT32", "2147483648"),
    ("2^63 for an INT64", "INT64", "9223372036854775808"),
    ("2^64 for a UINT64", "UINT64", "18446744073709551616"),
    ("a thousand digits for an INT64", "INT64", "1" * 1000),
    ("1e39 for an FP32", "FP32", "1e39"),
    ("70000 for an FP16", "FP16", "70000"),
    ("3.4e38 rounds up for a BF16", "BF16", "3.4e38"),
    ("1e400 for an FP64", "FP64", "1e400"),
    ("a number for a string", "BYTES", "65"),
    ("an array of codes for a string", "BYTES", "[65,66]"),
    ("half a surrogate pair", "BYTES", '"\\ud800"'),
):
    in_json(
        _case,
        "INPUT0|surrogate",
        b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"%b","data":[%b]}]}'
        % (_datatype.encode(), _element.encode()),
    )
for _case, _data in {
    "a number for data": 7,
    "a string for data": "7",
    "an object for data": {},
    "true for data": True,
}.items():
    in_json(_case, "INPUT0", document(tensor(data=_data)))
in_json("no data", "INPUT0", document(tensor(data=None)))

# ---- binary data -----------------------------------------------------------------------------

for _size in (-1, 2**63, 1.5, "4", True, [4]):
    in_binary(
        f"binary_data_size {_size!r}",
        "INPUT0",
        document(tensor(data=None, parameters={"binary_data_size": _size})),
        _SEVEN,
    )
in_binary("a size past the end", "INPUT0", document(tensor(**_SIZED)), _SEVEN[:3])
in_binary("surplus bytes", "binary data", document(tensor(**_SIZED)), _SEVEN + b"!")
in_binary("data and a size", "INPUT0", document(tensor(parameters={"binary_data_size": 4})), _SEVEN)
in_binary("no length header", "INPUT0|JSON", document(tensor(**_SIZED)), _SEVEN, head=None)
in_json("a size and no bytes", "Inference-Header", document(tensor(**_SIZED)))
in_json("data, a size and no bytes", "INPUT0", document(tensor(parameters=_SIZED["parameters"])))
_second = {"name": "INPUT1", "datatype": "INT32", "shape": [1]}
in_json("data for the first of two", r"INPUT1|inputs\[1\]", document(tensor(), _second))
in_binary("data for the first of two", "INPUT1",
          document(tensor(**_SIZED), tensor(**_SIZED, name="INPUT1")), _SEVEN)  # fmt: skip
for _head in ("-1", "+5", "1e3", "0x10", "five", "9" * 40, "1 2", ""):
    in_binary(
        f"length header {_head[:9]!r}",
        "Inference-Header-Content-Length",
        document(tensor(**_SIZED)),
        _SEVEN,
        head=_head or " ",
    )
in_binary("a length past the end", "Inference-Header", document(tensor(**_SIZED)), _SEVEN, "5000")
in_binary("a length inside the JSON", "JSON", document(tensor(**_SIZED)), _SEVEN, "20")
in_binary("a length after the JSON", "JSON", document(tensor(**_SIZED)), _SEVEN,
          str(len(document(tensor(**_SIZED))) + 2))  # fmt: skip
for _case, _blob in {
    "a string's length past the end": b"\x05\0\0\0abc",
    "a string's length of 4 GiB": b"\xff\xff\xff\xffabc",
    "a string's length cut short": b"\x01\0",
    "a string after the last": b"\x03\0\0\0abc\0\0\0\0",
    "no string": b"",
}.items():
    _with_parameters = tensor(
        datatype="BYTES", data=None, parameters={"binary_data_size": len(_blob)}
    )
    in_binary(_case, "INPUT0", document(_with_parameters), _blob)
    in_raw(_case, "INPUT0", message(("INPUT0", "BYTES", [1]), raw=[_blob]))

# ---- protobuf contents -----------------------------------------------------------------------

_both_contents = typed("INPUT0", "INT32", [1], int_contents=[7])
_both_contents.raw_input_contents.append(_SEVEN)
in_raw("raw and typed contents", "INPUT0", _both_contents)
_pair = [("INPUT0", "INT32", [1]), ("INPUT1", "INT32", [1])]
in_raw("fewer raw entries than inputs", "INPUT1", message(*_pair, raw=[_SEVEN]))
in_raw("more raw entries than inputs", "raw_input_contents", message(*_pair, raw=[_SEVEN] * 3))
in_raw("raw entries and no inputs", "raw_input_contents", message(raw=[_SEVEN]))
in_typed("300 for an INT8", "INPUT0", typed("INPUT0", "INT8", [1], int_contents=[300]))
in_typed("70000 for a UINT16", "INPUT0", typed("INPUT0", "UINT16", [1], uint_contents=[70000]))
_both_contents.inputs.add(name="INPUT1", datatype="INT32", shape=[1])
in_typed("one of two in raw_input_contents", "INPUT0", _both_contents)
in_typed("a boolean", "bool_contents", typed("INPUT0", "INT32", [1], bool_contents=[True]))
in_typed("NaN", "fp32_contents", typed("INPUT0", "INT32", [1], fp32_contents=[math.nan]))
in_typed("FP16 as fp32_contents", "INPUT0", typed("INPUT0", "FP16", [1], fp32_contents=[1]))
in_typed("BF16 as bytes_contents", "INPUT0", typed("INPUT0", "BF16", [1], bytes_contents=[b"ab"]))
in_typed("the wrong field", "int64_contents", typed("INPUT0", "INT32", [1], int64_contents=[7]))
in_typed(
    "two fields", "fp32_contents",
    typed("INPUT0", "INT32", [1], int_contents=[7], fp32_contents=[7]),
)  # fmt: skip
_pair_typed = message(*_pair)
_pair_typed.inputs[0].contents.int_contents.append(7)
in_typed("the second of two without contents", "INPUT1", _pair_typed)

_OVER_1024 = range(1025)

# ---- documents and messages ------------------------------------------------------------------

for _case, _names, _body in (
    ("incomplete JSON", "character", b"{"),
    ("an empty body", "empty", b""),
    ("an array", "body", b"[]"),
    ("a string", "body", b'"x"'),
    ("null", "body", b"null"),
    ("no inputs", "inputs", b"{}"),
    ("null inputs", "inputs", b'{"inputs":null}'),
    ("an object of inputs", "inputs", b'{"inputs":{}}'),
    ("a number for an input", r"inputs\[0\]", b'{"inputs":[5]}'),
    ("two inputs members", "inputs", b'{"inputs":[],"inputs":[]}'),
    ("two data members", "data", document(tensor()).replace(b'"data"', b'"data":[8],"data"')),
    ("1025 inputs", "inputs", document(*[tensor(name=f"I{i}") for i in _OVER_1024])),
    ("1025 outputs", "outputs", document(outputs=[{"name": str(i)} for i in _OVER_1024])),
    ("a number for an id", "id", document(tensor(), id=1)),
    ("an array of parameters", "parameters", document(tensor(), parameters=[])),
    ("a string for outputs", "outputs", document(tensor(), outputs="O")),
    ("a number for binary_data_output", "binary_data_output",
     document(tensor(), parameters={"binary_data_output": 1})),
    ("a number for binary_data", "binary_data",
     document(tensor(), outputs=[{"name": "O", "parameters": {"binary_data": 1}}])),
    ("NaN for a parameter", "parameters",
     b'{"parameters":{"p":NaN},"inputs":[' + json.dumps(tensor()).encode() + b"]}"),
    ("5000 levels", "nested", b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    ("101 levels that never end", "nested", b"[" * 101),
    ("not UTF-8", "UTF-8", b'{"inputs":[],"id":"\xff"}'),
    ("a BOM of UTF-16", "UTF-8", b"\xff\xfe{\0}\0"),
    ("text after the document", "character", document(tensor()) + b" x"),
    ("binary after the document", "character|UTF-8", document(tensor()) + _SEVEN),
):  # fmt: skip
    in_json(_case, _names, _body)
in_json(
    "an unknown encoding", "br", document(tensor()), headers={"Content-Encoding": "br"}, http=(415,)
)
in_json("a body that is not gzip", "gzip", document(tensor()), headers={"Content-Encoding": "gzip"})
in_json(
    "a body that is not deflate",
    "deflate",
    b"\x78\x9cxxxx",
    headers={"Content-Encoding": "deflate"},
)
in_json("a body over the limit", "limit", b" " * 140_000 + document(tensor()), http=(413,))

_LARGE = message(("INPUT0", "UINT8", [200_000]), raw=[b"x" * 200_000])
for _case, _names, _message in (
    ("a message cut short", "ModelInferRequest", b"\x2a\x05\x0a\x06INPUT0"),
    ("a field number of 0", "ModelInferRequest", b"\x02\x00"),
    ("a group", "ModelInferRequest", b"\x0b\x0c"),
    ("a varint that never ends", "ModelInferRequest", b"\x08" + b"\xff" * 11),
    ("a length past the end", "ModelInferRequest", b"\x2a\x7fxx"),
    ("a length of 4 GiB", "ModelInferRequest", b"\x3a\xff\xff\xff\xff\x0f"),
    ("an input cut short", "ModelInferRequest", b"\x2a\x02\x0a\x7f"),
    ("a name that is not UTF-8", "ModelInferRequest", b"\x2a\x03\x0a\x01\xff"),
    ("tens of thousands of fields", "ModelInferRequest", b"\x08\x00" * 60_000),
):
    RPC[_case] = InvalidRequest(_names, _message)
in_typed("1025 inputs", "inputs", message(*[(str(i), "INT32", [0]) for i in _OVER_1024]))
in_raw("a message over the limit", "larger", _LARGE, grpc=grpc.StatusCode.RESOURCE_EXHAUSTED)
