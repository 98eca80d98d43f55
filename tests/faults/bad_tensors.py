"""Invalid tensors in the request formats of every frontend.

For each frontend, a case has a request in BAD or, in CANNOT, the reason why the format cannot
express the case."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from faults.legacy import old_message
from faults.payloads import document, message, tensor, typed
from infergate.codecs.graphpipe.flatbuffer_writer import write_request
from infergate.codecs.protos import SCHEMA
from infergate.core.datatypes import Datatype
from infergate.core.tensor import Tensor

JSON: Final = "v2-rest json"
BINARY: Final = "v2-rest binary"
RAW: Final = "v2-grpc raw"
TYPED: Final = "v2-grpc typed"
PIPE: Final = "graphpipe http"
FRAMES: Final = "graphpipe tcp"
OLD_HTTP: Final = "trtis-http"
OLD_GRPC: Final = "trtis-grpc"
TFS_RAW: Final = "tfs-grpc tensor_content"
TFS_TYPED: Final = "tfs-grpc values"
TFS: Final = (TFS_RAW, TFS_TYPED)
FRONTENDS: Final = (JSON, BINARY, RAW, TYPED, PIPE, FRAMES, OLD_HTTP, OLD_GRPC, *TFS)
V2_REST: Final = (JSON, BINARY)
V2_GRPC: Final = (RAW, TYPED)
GRAPHPIPE: Final = (PIPE, FRAMES)
OLD: Final = (OLD_HTTP, OLD_GRPC)

CASES: Final = (
    "fewer elements than announced",
    "more elements than announced",
    "a dimension of -1",
    "a dimension of 0 and an element",
    "a product that overflows to 0",
    "thousands of dimensions",
    "no name",
    "an empty name",
    "a name twice",
    "an unknown datatype",
    "raw and typed contents together",
    "data for the first of two inputs only",
    "a size below 0",
    "a size past the end",
    "bytes left over",
    "a string's length past the end",
    "a boolean for an integer",
    "an integer out of range",
    "NaN for an integer",
    "FP16 as text or as FP32",
    "an offset that leads back",
    "a thousand tensors that are one",
    "a vtable outside the message",
    "a vector of 4 GiB",
    "a line feed in a header's text",
    "a line folded into a header",
)


@dataclass(frozen=True)
class Bad:
    """A request (``body`` and the ``headers`` of HTTP) for ``model`` and its expected rejection,
    whose text matches ``names``. With ``large``, it is rejected as too large instead of as a bad
    request. With ``bare``, the text names no field, as in the legacy servers' rejections of
    unreadable requests. With ``ends``, it is not HTTP, so the connection is closed."""

    names: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    model: str = "m"
    large: bool = False
    bare: bool = False
    ends: bool = False


BAD: Final[dict[tuple[str, str], Bad]] = {}
CANNOT: Final[dict[tuple[str, str], str]] = {}


def cannot(cases: Iterable[str], frontends: Iterable[str], reason: str) -> None:
    frontends = tuple(frontends)
    CANNOT.update({(case, frontend): reason for case in cases for frontend in frontends})


# ---- how each form is written ----------------------------------------------------------------


def in_json(case: str, names: str, *inputs: Any) -> None:
    BAD[case, JSON] = Bad(names, document(*inputs))


def binary(data: bytes, blob: bytes) -> tuple[bytes, dict[str, str]]:
    return data + blob, {"Inference-Header-Content-Length": str(len(data))}


def sized(size: int, **data: Any) -> dict[str, Any]:
    """Return an input whose data is ``size`` bytes of binary data."""
    return tensor(**{"data": None, "parameters": {"binary_data_size": size}, **data})


def in_binary(case: str, names: str, blob: bytes, *inputs: Any) -> None:
    BAD[case, BINARY] = Bad(names, *binary(document(*inputs), blob))


def in_raw(case: str, names: str, data: Any) -> None:
    BAD[case, RAW] = Bad(names, data.SerializeToString())


def in_typed(case: str, names: str, data: Any) -> None:
    BAD[case, TYPED] = Bad(names, data.SerializeToString())


def ints(shape: Sequence[int], data: bytes, name: str = "INPUT0") -> Tensor:
    return Tensor(name, Datatype.INT32, tuple(shape), data)


def pipe(*tensors: Tensor) -> bytearray:
    return bytearray(b"".join(write_request(b"", tensors, ["OUTPUT0"])))


def in_graphpipe(case: str, names: str, body: bytes | bytearray, *, large: bool = False) -> None:
    for frontend in GRAPHPIPE:
        BAD[case, frontend] = Bad(names, bytes(body), large=large)


_REQ: Final = 44
_INPUT_NAMES: Final = 56
_INPUT_TENSORS: Final = 60
"""The positions of the fields that ``pipe`` writes. The fields of a tensor are in its table."""
_TYPE, _DATA, _STRINGS = 4, 12, 16


def followed(body: bytearray, position: int) -> int:
    return position + int(struct.unpack_from("<I", body, position)[0])


def tensor_table(body: bytearray, index: int = 0) -> int:
    return followed(body, followed(body, _INPUT_TENSORS) + 4 + 4 * index)


def put(body: bytearray, position: int, number: int) -> bytearray:
    struct.pack_into("<I", body, position, number)
    return body


def old(
    case: str, names: str, inputs: str, *raw: bytes, grpc: str = "", model: str = "m", **more: Any
) -> None:
    """Return the case in both legacy formats. The gRPC error matches ``grpc`` if its text
    differs."""
    old_http(case, names, inputs, *raw, model=model, **more)
    header = f'batch_size: 1 {inputs} output {{ name: "OUTPUT0" }}'
    body = old_message(model, header=header, raw=raw)
    BAD[case, OLD_GRPC] = Bad(grpc or names, body, model=model, **more)


def old_http(
    case: str, names: str, inputs: str, *raw: bytes, model: str = "m", **more: Any
) -> None:
    header = f'batch_size: 1 {inputs} output {{ name: "OUTPUT0" }}'
    BAD[case, OLD_HTTP] = Bad(
        names, b"".join(raw), {"NV-InferRequest": header}, model=model, **more
    )


def given(dims: Sequence[int], name: str = "INPUT0", more: str = "") -> str:
    return f'input {{ name: "{name}" dims: [{",".join(map(str, dims))}] {more} }}'


FOUR: Final = b"\x07\0\0\0"
_INT: Final = {"int_contents": [7]}

# ---- shapes ----------------------------------------------------------------------------------


def shaped(
    case: str, shape: Sequence[int], elements: Sequence[int], words: str, model: str = "m"
) -> None:
    """Return the case in all formats. Each error names the input, except the legacy servers'
    ``words``."""
    data = struct.pack(f"<{len(elements)}i", *elements)
    names = r"INPUT0|inputs\[0\]\.shape|shape of tensor 0|input_tensors\[0\]\.shape"
    in_json(case, names, tensor(shape=shape, data=list(elements)))
    in_binary(case, names, data, sized(len(data), shape=shape))
    in_raw(case, names, message(("INPUT0", "INT32", shape), raw=[data]))
    contents = {"int_contents": elements} if elements else {}
    in_typed(case, names, typed("INPUT0", "INT32", shape, **contents))
    in_graphpipe(case, names, pipe(ints(shape, data)))
    old(case, words, given(shape), data, model=model)


_SIZE = "size .*input 'INPUT0'"
_MORE = "additional input data|size .*input 'INPUT0'"
_SHAPE = "unexpected shape for input 'INPUT0'"
shaped("fewer elements than announced", [3], [1, 2], _SIZE)
shaped("more elements than announced", [1], [1, 2], _MORE)
shaped("a dimension of -1", [-1], [1], _SHAPE)
shaped("a dimension of 0 and an element", [0], [1], _MORE)
shaped("a product that overflows to 0", [2**32, 2**32], [], _SIZE, model="grid")
shaped("thousands of dimensions", [1] * 3000, [1], "'INPUT0' has 3000 dimensions, the limit is 64")

# ---- names -----------------------------------------------------------------------------------

_FIRST = r"inputs\[0\]\.name"
in_json("no name", _FIRST, tensor(name=None))
in_binary("no name", _FIRST, FOUR, sized(4, name=None))
_nameless = message(("", "INT32", [1]), raw=[FOUR])
_nameless.inputs[0].ClearField("name")
in_raw("no name", "input 0", _nameless)
_nameless = typed("", "INT32", [1], **_INT)
_nameless.inputs[0].ClearField("name")
in_typed("no name", "input 0", _nameless)
_pair = pipe(ints([1], FOUR), ints([1], FOUR))
in_graphpipe("no name", "input 1 has no name", put(_pair, followed(_pair, _INPUT_NAMES), 0))
old("no name", "unexpected inference input ''", "input { dims: 1 }", FOUR)

in_json("an empty name", _FIRST, tensor(name=""))
in_binary("an empty name", _FIRST, FOUR, sized(4, name=""))
# The message is bytes, because protobuf omits an empty ``name`` (field 1).
_bytes = b"\x2a\x0c\x0a\x00\x12\x05INT32\x1a\x01\x01"
BAD["an empty name", RAW] = Bad("input 0", _bytes + b"\x3a\x04" + FOUR)
BAD["an empty name", TYPED] = Bad(
    "input 0", b"\x2a\x11\x0a\x00\x12\x05INT32\x1a\x01\x01\x2a\x03\x12\x01\x07"
)
in_graphpipe("an empty name", "input 1 has no name", pipe(ints([1], FOUR), ints([1], FOUR, "")))
old("an empty name", "unexpected inference input ''", given([1], ""), FOUR)

in_json("a name twice", "INPUT0", tensor(), tensor())
in_binary("a name twice", "INPUT0", FOUR * 2, sized(4), sized(4))
in_raw("a name twice", "INPUT0", message(*[("INPUT0", "INT32", [1])] * 2, raw=[FOUR] * 2))
_twice = typed("INPUT0", "INT32", [1], **_INT)
_twice.inputs.append(_twice.inputs[0])
in_typed("a name twice", "INPUT0", _twice)
in_graphpipe("a name twice", "INPUT0", pipe(ints([1], FOUR), ints([1], FOUR)))
old("a name twice", "'INPUT0' already exists", given([1]) * 2, FOUR, FOUR, model="pair")

# ---- datatypes -------------------------------------------------------------------------------

_CASE = "an unknown datatype"
in_json(_CASE, "INPUT0", tensor(datatype="INT128"))
in_binary(_CASE, "INPUT0", FOUR, sized(4, datatype="INT128"))
in_raw(_CASE, "INPUT0", message(("INPUT0", "INT128", [1]), raw=[FOUR]))
in_typed(_CASE, "INPUT0", typed("INPUT0", "INT128", [1], **_INT))
_body = pipe(ints([1], FOUR))
_body[tensor_table(_body) + _TYPE] = 99
in_graphpipe(_CASE, "INPUT0.*99", _body)
cannot([_CASE], OLD, "a message tells no datatypes")

# ---- where data is, and how much -------------------------------------------------------------

_CASE = "raw and typed contents together"
in_json(_CASE, "INPUT0", tensor(parameters={"binary_data_size": 4}))
in_binary(_CASE, "INPUT0", FOUR, tensor(parameters={"binary_data_size": 4}))
_both = typed("INPUT0", "INT32", [1], **_INT)
_both.raw_input_contents.append(FOUR)
in_raw(_CASE, "INPUT0", _both)
_both = typed("INPUT0", "INT32", [1], **_INT)
_both.inputs.add(name="INPUT1", datatype="INT32", shape=[1])
_both.raw_input_contents.append(FOUR)
in_typed(_CASE, "INPUT0", _both)
cannot([_CASE], GRAPHPIPE, "a tensor's type says which of data and string_val counts")
cannot([_CASE], OLD, "there is raw data only")

_CASE = "data for the first of two inputs only"
_second = {"name": "INPUT1", "datatype": "INT32", "shape": [1]}
in_json(_CASE, r"INPUT1|inputs\[1\]", tensor(), _second)
in_binary(_CASE, "INPUT1", FOUR, sized(4), sized(4, name="INPUT1"))
_two = [("INPUT0", "INT32", [1]), ("INPUT1", "INT32", [1])]
in_raw(_CASE, "INPUT1", message(*_two, raw=[FOUR]))
_half = message(*_two)
_half.inputs[0].contents.int_contents.append(7)
in_typed(_CASE, "INPUT1", _half)
_body = pipe(ints([1], FOUR), ints([1], FOUR, "INPUT1"))
in_graphpipe(_CASE, "INPUT1", put(_body, followed(_body, tensor_table(_body, 1) + _DATA), 0))
_inputs = given([1]) + given([1], "INPUT1")
old(_CASE, "INPUT1", _inputs, FOUR, grpc="tensor data .* only 1 sets", model="pair")

_NO_SIZES = "no size is told beside the data"
_SIZES = ("a size below 0", "a size past the end", "bytes left over")
cannot(_SIZES, (JSON, RAW, TYPED), _NO_SIZES)
cannot(_SIZES, GRAPHPIPE, "vectors tell their length as an unsigned number before their elements")
in_binary("a size below 0", "INPUT0", FOUR, sized(-4))
in_binary("a size past the end", "INPUT0", FOUR, sized(8, shape=[2]))
in_binary("bytes left over", "binary data", FOUR + b"!", sized(4))
_STRING = b"\x03\0\0\0abc"
old_http("a size below 0", "", given([1], more="batch_byte_size: -4"), FOUR, bare=True)
cannot(["a size below 0"], [OLD_GRPC], "sizes are unsigned")
for _case, _size, _words in (("a size past the end", 9, "INPUT0"), ("bytes left over", 5, _MORE)):
    _input = given([1], more=f"batch_byte_size: {_size}")
    old(_case, _words, _input, _STRING, model="strings")

_CASE = "a string's length past the end"
_cut = b"\x05\0\0\0abc"
cannot([_CASE], (JSON, TYPED), "strings are the format's own")
in_binary(_CASE, "INPUT0", _cut, sized(7, datatype="BYTES"))
in_raw(_CASE, "INPUT0", message(("INPUT0", "BYTES", [1]), raw=[_cut]))
_body = pipe(Tensor("INPUT0", Datatype.BYTES, (1,), _STRING))
_string = followed(_body, followed(_body, tensor_table(_body) + _STRINGS) + 4)
in_graphpipe(_CASE, r"input_tensors\[0\]\.string_val", put(_body, _string, 5000))
old(_CASE, "INPUT0", given([1], more="batch_byte_size: 7"), _cut, model="strings")

# ---- elements --------------------------------------------------------------------------------

_ELEMENTS = (
    "a boolean for an integer",
    "an integer out of range",
    "NaN for an integer",
    "FP16 as text or as FP32",
)
cannot(
    _ELEMENTS,
    (BINARY, RAW, *GRAPHPIPE, *OLD),
    "elements are the bytes of their datatype, and all bytes are elements",
)
in_json("a boolean for an integer", "INPUT0", tensor(data=[True]))
in_json("an integer out of range", "INPUT0", tensor(data=[2**31]))
BAD["NaN for an integer", JSON] = Bad("INPUT0", document(tensor()).replace(b"[7]", b"[NaN]"))
in_json("FP16 as text or as FP32", "INPUT0", tensor(datatype="FP16", data=[70000]))
in_typed(
    "a boolean for an integer", "bool_contents", typed("INPUT0", "INT32", [1], bool_contents=[True])
)
in_typed("an integer out of range", "INPUT0", typed("INPUT0", "INT8", [1], int_contents=[300]))
in_typed(
    "NaN for an integer",
    "fp32_contents",
    typed("INPUT0", "INT32", [1], fp32_contents=[float("nan")]),
)
in_typed("FP16 as text or as FP32", "INPUT0", typed("INPUT0", "FP16", [1], fp32_contents=[1]))

# ---- messages --------------------------------------------------------------------------------

_OFFSETS = (
    "an offset that leads back",
    "a thousand tensors that are one",
    "a vtable outside the message",
)
cannot(_OFFSETS, (*V2_REST, *V2_GRPC, *OLD), "only flatbuffers have offsets")
_body = pipe(ints([1], FOUR))
in_graphpipe(_OFFSETS[0], r"Request\.req ", put(_body, _REQ, 2**32 - 8))
in_graphpipe(_OFFSETS[1], "refers to more than", pipe(*[ints([5000], bytes(20_000))] * 1000),
             large=True)  # fmt: skip
_body = pipe(ints([1], FOUR))
in_graphpipe(
    _OFFSETS[2], r"vtable of Request\.req\.input_tensors\[0\]",
    put(_body, tensor_table(_body), 2**31 - 1),
)  # fmt: skip

_CASE = "a vector of 4 GiB"
_LENGTH = b"\xff\xff\xff\xff\x0f"
cannot([_CASE], V2_REST, "JSON tells no lengths; those of binary data are in other cases")
cannot([_CASE], [OLD_HTTP], "sizes are in other cases")
BAD[_CASE, RAW] = Bad("ModelInferRequest", b"\x3a" + _LENGTH)
BAD[_CASE, TYPED] = Bad("ModelInferRequest", b"\x2a" + _LENGTH)
_body = pipe(ints([1], FOUR))
_vector = followed(_body, tensor_table(_body) + _DATA)
in_graphpipe(_CASE, r"input_tensors\[0\]\.data", put(_body, _vector, 2**32 - 1))
BAD[_CASE, OLD_GRPC] = Bad("", b"\x22" + _LENGTH, bare=True)

_LINES = ("a line feed in a header's text", "a line folded into a header")
cannot(_LINES, V2_GRPC + GRAPHPIPE + (OLD_GRPC,), "no header tells of tensors")
cannot(_LINES[:1], V2_REST, "the only header that tells of tensors is a number")
old_http(_LINES[0], r"'INPUT0\n'", given([1], r"INPUT0\n"), FOUR)
_with_data = document(sized(4))
_folded = {"Inference-Header-Content-Length": f"{len(_with_data)}\r\n 1"}
BAD[_LINES[1], BINARY] = Bad("not valid HTTP", _with_data + FOUR, _folded, ends=True)
cannot(_LINES[1:], [JSON], "no header tells of tensors")
old_http(_LINES[1], "not valid HTTP", given([1]).replace(" dims", "\r\n dims"), FOUR, ends=True)

# ---- TensorFlow Serving ----------------------------------------------------------------------

PredictRequest = SCHEMA.message_class("tensorflow.serving.PredictRequest")
_INT32, _STRING_TYPE, _HALF, _INT8 = 3, 7, 19, 6


def proto(shape: Sequence[int] = (1,), dtype: int = _INT32, **data: Any) -> Any:
    return {"dtype": dtype, "tensor_shape": {"dim": [{"size": size} for size in shape]}, **data}


def predict(*inputs: Any, name: str = "INPUT0") -> bytes:
    """Return a request without ModelSpec. Each input is an entry of its own."""
    entries = (PredictRequest(inputs={name: given}).SerializeToString() for given in inputs)
    return b"".join(entries)


def in_tfs(case: str, names: str, raw: Any, typed: Any, **more: Any) -> None:
    for frontend, data in ((TFS_RAW, raw), (TFS_TYPED, typed)):
        BAD[case, frontend] = Bad(names, data, **more)


BAD["fewer elements than announced", TFS_RAW] = Bad(
    "INPUT0", predict(proto([3], tensor_content=FOUR * 2))
)
BAD["more elements than announced", TFS_RAW] = Bad(
    "INPUT0", predict(proto([1], tensor_content=FOUR * 2))
)
cannot(CASES[:2], [TFS_TYPED], "the last value is repeated, and values that are too many ignored")
_CASE = "a dimension of 0 and an element"
cannot([_CASE], TFS, "contents of an empty tensor are ignored")
for _case, _dims, _names in (
    ("a dimension of -1", [-1], "INPUT0"),
    ("thousands of dimensions", [1] * 3000, "INPUT0: shape has over 64 dimensions"),
):
    in_tfs(_case, _names, predict(proto(_dims, tensor_content=FOUR)),
           predict(proto(_dims, int_val=[7])))  # fmt: skip
_dims = [2**32, 2**32]
BAD["a product that overflows to 0", TFS_RAW] = Bad(
    "INPUT0", predict(proto(_dims, tensor_content=FOUR)), model="grid"
)
BAD["a product that overflows to 0", TFS_TYPED] = Bad(
    "INPUT0", predict(proto(_dims)), model="grid", large=True
)
_one_raw, _one_typed = proto(tensor_content=FOUR), proto(int_val=[7])


def without_key(entry: Any) -> bytes:
    """Return an entry of the map without a key. Protobuf would write the key."""
    value = PredictRequest(inputs={"": entry}).inputs[""].SerializeToString()
    return bytes([0x12, len(value) + 2, 0x12, len(value)]) + value


in_tfs("no name", "input 0", without_key(_one_raw), without_key(_one_typed))
in_tfs("an empty name", "input 0", predict(_one_raw, name=""), predict(_one_typed, name=""))
in_tfs("a name twice", "INPUT0", predict(_one_raw, _one_raw), predict(_one_typed, _one_typed))
in_tfs("an unknown datatype", "INPUT0.*1000", predict(proto(dtype=1000, tensor_content=FOUR)),
       predict(proto(dtype=1000, int_val=[7])))  # fmt: skip
cannot(["raw and typed contents together"], TFS, "tensor_content counts then")
cannot(["data for the first of two inputs only"], TFS, "a tensor without contents is filled with 0")
cannot(_SIZES, TFS, _NO_SIZES)
_CASE = "a string's length past the end"
cannot([_CASE], [TFS_TYPED], "strings are the format's own")
BAD[_CASE, TFS_RAW] = Bad("INPUT0", predict(proto(dtype=_STRING_TYPE, tensor_content=b"\x05abc")))
cannot(_ELEMENTS, [TFS_RAW], "elements are the bytes of their datatype, but for booleans")
for _case, _type, _data in (
    ("a boolean for an integer", _INT32, {"bool_val": [True]}),
    ("an integer out of range", _INT8, {"int_val": [300]}),
    ("NaN for an integer", _INT32, {"float_val": [float("nan")]}),
    ("FP16 as text or as FP32", _HALF, {"float_val": [1]}),
):
    BAD[_case, TFS_TYPED] = Bad("INPUT0", predict(proto(dtype=_type, **_data)))
cannot(_OFFSETS, TFS, "only flatbuffers have offsets")
in_tfs("a vector of 4 GiB", "Predict", b"\x12" + _LENGTH, b"\x12\x0c\x0a\x00\x12\x08" + _LENGTH)
cannot(_LINES, TFS, "no header tells of tensors")

# ---- good ones -------------------------------------------------------------------------------

GOOD: Final[dict[str, Bad]] = {
    JSON: Bad("", document(tensor())),
    BINARY: Bad("", *binary(document(sized(4)), FOUR)),
    RAW: Bad("", message(("INPUT0", "INT32", [1]), raw=[FOUR]).SerializeToString()),
    TYPED: Bad("", typed("INPUT0", "INT32", [1], **_INT).SerializeToString()),
    PIPE: Bad("", bytes(pipe(ints([1], FOUR)))),
    FRAMES: Bad("", bytes(pipe(ints([1], FOUR)))),
    OLD_HTTP: Bad(
        "",
        FOUR,
        {"NV-InferRequest": f'batch_size: 1 {given([1])} output {{ name: "OUTPUT0" }}'},
    ),
    OLD_GRPC: Bad(
        "",
        old_message(
            "m", header=f'batch_size: 1 {given([1])} output {{ name: "OUTPUT0" }}', raw=[FOUR]
        ),
    ),
    TFS_RAW: Bad("", predict(_one_raw)),
    TFS_TYPED: Bad("", predict(_one_typed)),
}
"""Valid requests with one INT32 of 7 for the model ``m``."""
