"""Invalid tensors in the request formats of the legacy, GraphPipe, TensorFlow Serving and KServe V1
frontends.

``faults.payloads`` has the cases for V2.

For each frontend, a case has a request in BAD or, in CANNOT, the reason why the format cannot
express the case."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from faults.legacy import old_message
from infergate.codecs.graphpipe.flatbuffer_writer import write_request
from infergate.codecs.protos import SCHEMA
from infergate.core.datatypes import Datatype
from infergate.core.tensor import Tensor

PIPE: Final = "graphpipe http"
FRAMES: Final = "graphpipe tcp"
OLD_HTTP: Final = "trtis-http"
OLD_GRPC: Final = "trtis-grpc"
TFS_RAW: Final = "tfs-grpc tensor_content"
TFS_TYPED: Final = "tfs-grpc values"
TFS: Final = (TFS_RAW, TFS_TYPED)
TFS_ROWS: Final = "tfs-rest rows"
TFS_COLUMNS: Final = "tfs-rest columns"
V1: Final = "kserve-v1"
ROWS: Final = (TFS_ROWS, V1)
LISTS: Final = (*ROWS, TFS_COLUMNS)
FRONTENDS: Final = (PIPE, FRAMES, OLD_HTTP, OLD_GRPC, *TFS, *LISTS)
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
    "a duplicate name",
    "an unknown datatype",
    "data for the first of two inputs only",
    "a size below 0",
    "a size past the end",
    "surplus bytes",
    "a string length past the end",
    "a boolean for an integer",
    "an integer out of range",
    "NaN for an integer",
    "FP16 as text or as FP32",
    "an offset that points backward",
    "a thousand references to one tensor",
    "a vtable outside the message",
    "a vector of 4 GiB",
    "a line feed in a header value",
    "a folded header line",
)


@dataclass(frozen=True)
class Bad:
    """A request (``body`` and the ``headers`` of HTTP) for ``model`` and its expected rejection,
    whose text matches ``names``. With ``large``, it is rejected as too large instead of as a bad
    request. With ``bare``, the text names no field, as in the legacy servers' rejections of
    unreadable requests. With ``ends``, the gateway closes the connection."""

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


# ---- writers of each format ------------------------------------------------------------------


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
"""The positions of these fields in a request from ``pipe``."""
_TYPE, _DATA, _STRINGS = 4, 12, 16  # offsets in the table of a tensor


def follow_offset(body: bytearray, position: int) -> int:
    return position + int(struct.unpack_from("<I", body, position)[0])


def tensor_table(body: bytearray, index: int = 0) -> int:
    return follow_offset(body, follow_offset(body, _INPUT_TENSORS) + 4 + 4 * index)


def put(body: bytearray, position: int, number: int) -> bytearray:
    struct.pack_into("<I", body, position, number)
    return body


def in_legacy(
    case: str, names: str, inputs: str, *raw: bytes, grpc: str = "", model: str = "m", **more: Any
) -> None:
    """Add the case in both legacy formats. The gRPC error matches ``grpc``, or ``names`` by
    default."""
    in_legacy_http(case, names, inputs, *raw, model=model, **more)
    header = f'batch_size: 1 {inputs} output {{ name: "OUTPUT0" }}'
    body = old_message(model, header=header, raw=raw)
    BAD[case, OLD_GRPC] = Bad(grpc or names, body, model=model, **more)


def in_legacy_http(
    case: str, names: str, inputs: str, *raw: bytes, model: str = "m", **more: Any
) -> None:
    header = f'batch_size: 1 {inputs} output {{ name: "OUTPUT0" }}'
    BAD[case, OLD_HTTP] = Bad(
        names, b"".join(raw), {"NV-InferRequest": header}, model=model, **more
    )


def input_text(dims: Sequence[int], name: str = "INPUT0", more: str = "") -> str:
    return f'input {{ name: "{name}" dims: [{",".join(map(str, dims))}] {more} }}'


SEVEN: Final = b"\x07\0\0\0"

# ---- shapes ----------------------------------------------------------------------------------


def in_raw(
    case: str, shape: Sequence[int], elements: Sequence[int], words: str, model: str = "m"
) -> None:
    """Add the case in the GraphPipe and legacy formats. GraphPipe errors name the input; legacy
    errors match ``words``."""
    data = struct.pack(f"<{len(elements)}i", *elements)
    names = r"INPUT0|input_tensors\[0\]\.shape"
    in_graphpipe(case, names, pipe(ints(shape, data)))
    in_legacy(case, words, input_text(shape), data, model=model)


_SIZE = "size .*input 'INPUT0'"
_MORE = "additional input data|size .*input 'INPUT0'"
_SHAPE = "unexpected shape for input 'INPUT0'"
in_raw("fewer elements than announced", [3], [1, 2], _SIZE)
in_raw("more elements than announced", [1], [1, 2], _MORE)
in_raw("a dimension of -1", [-1], [1], _SHAPE)
in_raw("a dimension of 0 and an element", [0], [1], _MORE)
in_raw("a product that overflows to 0", [2**32, 2**32], [], _SIZE, model="grid")
in_raw("thousands of dimensions", [1] * 3000, [1], "'INPUT0' has 3000 dimensions; the limit is 64")

# ---- names -----------------------------------------------------------------------------------

_pair = pipe(ints([1], SEVEN), ints([1], SEVEN))
in_graphpipe("no name", "input 1 has no name", put(_pair, follow_offset(_pair, _INPUT_NAMES), 0))
in_legacy("no name", "unexpected inference input ''", "input { dims: 1 }", SEVEN)

in_graphpipe("an empty name", "input 1 has no name", pipe(ints([1], SEVEN), ints([1], SEVEN, "")))
in_legacy("an empty name", "unexpected inference input ''", input_text([1], ""), SEVEN)

in_graphpipe("a duplicate name", "INPUT0", pipe(ints([1], SEVEN), ints([1], SEVEN)))
in_legacy(
    "a duplicate name", "'INPUT0' already exists", input_text([1]) * 2, SEVEN, SEVEN, model="pair"
)

# ---- datatypes -------------------------------------------------------------------------------

_CASE = "an unknown datatype"
_body = pipe(ints([1], SEVEN))
_body[tensor_table(_body) + _TYPE] = 99
in_graphpipe(_CASE, "INPUT0.*99", _body)
cannot([_CASE], OLD, "a message contains no datatypes")

# ---- the position and the size of data -------------------------------------------------------

_CASE = "data for the first of two inputs only"
_body = pipe(ints([1], SEVEN), ints([1], SEVEN, "INPUT1"))
in_graphpipe(_CASE, "INPUT1", put(_body, follow_offset(_body, tensor_table(_body, 1) + _DATA), 0))
_inputs = input_text([1]) + input_text([1], "INPUT1")
in_legacy(_CASE, "INPUT1", _inputs, SEVEN, grpc="tensor data .* only 1 sets", model="pair")

_NO_SIZES = "the request has no separate size field"
_SIZES = ("a size below 0", "a size past the end", "surplus bytes")
cannot(_SIZES, GRAPHPIPE, "an unsigned length precedes the elements of a vector")
_STRING = b"\x03\0\0\0abc"
in_legacy_http("a size below 0", "", input_text([1], more="batch_byte_size: -4"), SEVEN, bare=True)
cannot(["a size below 0"], [OLD_GRPC], "sizes are unsigned")
for _case, _size, _words in (("a size past the end", 9, "INPUT0"), ("surplus bytes", 5, _MORE)):
    _input = input_text([1], more=f"batch_byte_size: {_size}")
    in_legacy(_case, _words, _input, _STRING, model="strings")

_CASE = "a string length past the end"
_cut = b"\x05\0\0\0abc"
_body = pipe(Tensor("INPUT0", Datatype.BYTES, (1,), _STRING))
_string = follow_offset(_body, follow_offset(_body, tensor_table(_body) + _STRINGS) + 4)
in_graphpipe(_CASE, r"input_tensors\[0\]\.string_val", put(_body, _string, 5000))
in_legacy(_CASE, "INPUT0", input_text([1], more="batch_byte_size: 7"), _cut, model="strings")

# ---- elements --------------------------------------------------------------------------------

_ELEMENTS = (
    "a boolean for an integer",
    "an integer out of range",
    "NaN for an integer",
    "FP16 as text or as FP32",
)
cannot(
    _ELEMENTS,
    (*GRAPHPIPE, *OLD),
    "elements are raw bytes, and every bit pattern is a valid element",
)

# ---- messages --------------------------------------------------------------------------------

_OFFSETS = (
    "an offset that points backward",
    "a thousand references to one tensor",
    "a vtable outside the message",
)
cannot(_OFFSETS, OLD, "only flatbuffers have offsets")
_body = pipe(ints([1], SEVEN))
in_graphpipe(_OFFSETS[0], r"Request\.req ", put(_body, _REQ, 2**32 - 8))
in_graphpipe(_OFFSETS[1], "refers to more than", pipe(*[ints([5000], bytes(20_000))] * 1000),
             large=True)  # fmt: skip
_body = pipe(ints([1], SEVEN))
in_graphpipe(
    _OFFSETS[2], r"vtable of Request\.req\.input_tensors\[0\]",
    put(_body, tensor_table(_body), 2**31 - 1),
)  # fmt: skip

_CASE = "a vector of 4 GiB"
_LENGTH = b"\xff\xff\xff\xff\x0f"
cannot([_CASE], [OLD_HTTP], "the cases of sizes cover this format")
_body = pipe(ints([1], SEVEN))
_vector = follow_offset(_body, tensor_table(_body) + _DATA)
in_graphpipe(_CASE, r"input_tensors\[0\]\.data", put(_body, _vector, 2**32 - 1))
BAD[_CASE, OLD_GRPC] = Bad("", b"\x22" + _LENGTH, bare=True)

_LINES = ("a line feed in a header value", "a folded header line")
cannot(_LINES, (*GRAPHPIPE, OLD_GRPC), "no header describes the tensors")
in_legacy_http(_LINES[0], r"'INPUT0\n'", input_text([1], r"INPUT0\n"), SEVEN)
in_legacy_http(
    _LINES[1], "not valid HTTP", input_text([1]).replace(" dims", "\r\n dims"), SEVEN, ends=True
)

# ---- TensorFlow Serving ----------------------------------------------------------------------

PredictRequest = SCHEMA.message_class("tensorflow.serving.PredictRequest")
_INT32, _STRING_TYPE, _HALF, _INT8 = 3, 7, 19, 6


def proto(shape: Sequence[int] = (1,), dtype: int = _INT32, **data: Any) -> Any:
    return {"dtype": dtype, "tensor_shape": {"dim": [{"size": size} for size in shape]}, **data}


def predict(*inputs: Any, name: str = "INPUT0") -> bytes:
    """Return a request without ModelSpec. Each input is a separate entry."""
    entries = (PredictRequest(inputs={name: each}).SerializeToString() for each in inputs)
    return b"".join(entries)


def in_tfs(case: str, names: str, raw: Any, typed: Any, **more: Any) -> None:
    for frontend, data in ((TFS_RAW, raw), (TFS_TYPED, typed)):
        BAD[case, frontend] = Bad(names, data, **more)


BAD["fewer elements than announced", TFS_RAW] = Bad(
    "INPUT0", predict(proto([3], tensor_content=SEVEN * 2))
)
BAD["more elements than announced", TFS_RAW] = Bad(
    "INPUT0", predict(proto([1], tensor_content=SEVEN * 2))
)
cannot(CASES[:2], [TFS_TYPED], "missing values repeat the last value, and extra values are ignored")
_CASE = "a dimension of 0 and an element"
cannot([_CASE], TFS, "contents of an empty tensor are ignored")
for _case, _dims, _names in (
    ("a dimension of -1", [-1], "INPUT0"),
    ("thousands of dimensions", [1] * 3000, "INPUT0: shape has over 64 dimensions"),
):
    in_tfs(_case, _names, predict(proto(_dims, tensor_content=SEVEN)),
           predict(proto(_dims, int_val=[7])))  # fmt: skip
_dims = [2**32, 2**32]
BAD["a product that overflows to 0", TFS_RAW] = Bad(
    "INPUT0", predict(proto(_dims, tensor_content=SEVEN)), model="grid"
)
BAD["a product that overflows to 0", TFS_TYPED] = Bad(
    "INPUT0", predict(proto(_dims)), model="grid", large=True
)
_one_raw, _one_typed = proto(tensor_content=SEVEN), proto(int_val=[7])


def without_key(entry: Any) -> bytes:
    """Return a map entry that has no key. Protobuf would write the empty key."""
    value = PredictRequest(inputs={"": entry}).inputs[""].SerializeToString()
    return bytes([0x12, len(value) + 2, 0x12, len(value)]) + value


in_tfs("no name", "input 0", without_key(_one_raw), without_key(_one_typed))
in_tfs("an empty name", "input 0", predict(_one_raw, name=""), predict(_one_typed, name=""))
in_tfs("a duplicate name", "INPUT0", predict(_one_raw, _one_raw), predict(_one_typed, _one_typed))
in_tfs("an unknown datatype", "INPUT0.*1000", predict(proto(dtype=1000, tensor_content=SEVEN)),
       predict(proto(dtype=1000, int_val=[7])))  # fmt: skip
cannot(["data for the first of two inputs only"], TFS, "a tensor without contents is filled with 0")
cannot(_SIZES, TFS, _NO_SIZES)
_CASE = "a string length past the end"
cannot([_CASE], [TFS_TYPED], "protobuf delimits each string")
BAD[_CASE, TFS_RAW] = Bad("INPUT0", predict(proto(dtype=_STRING_TYPE, tensor_content=b"\x05abc")))
cannot(_ELEMENTS, [TFS_RAW], "elements are raw bytes: only booleans have invalid ones")
for _case, _type, _data in (
    ("a boolean for an integer", _INT32, {"bool_val": [True]}),
    ("an integer out of range", _INT8, {"int_val": [300]}),
    ("NaN for an integer", _INT32, {"float_val": [float("nan")]}),
    ("FP16 as text or as FP32", _HALF, {"float_val": [1]}),
):
    BAD[_case, TFS_TYPED] = Bad("INPUT0", predict(proto(dtype=_type, **_data)))
cannot(_OFFSETS, TFS, "only flatbuffers have offsets")
in_tfs("a vector of 4 GiB", "Predict", b"\x12" + _LENGTH, b"\x12\x0c\x0a\x00\x12\x08" + _LENGTH)
cannot(_LINES, TFS, "no header describes the tensors")

# ---- nested lists ----------------------------------------------------------------------------


def in_lists(
    case: str, names: str, rows: str, columns: str = "", *, v1: str = "", model: str = "m"
) -> None:
    """Add the case in rows, and in ``columns``, which are the same lists by default. KServe's
    error matches ``v1``, or ``names`` by default."""
    for frontend in ROWS:
        text = v1 if v1 and frontend == V1 else names
        BAD[case, frontend] = Bad(text, b'{"instances": %b}' % rows.encode(), model=model)
    body = b'{"inputs": %b}' % (columns or rows).encode()
    BAD[case, TFS_COLUMNS] = Bad(names, body, model=model)


in_lists(CASES[0], r"'INPUT0'\[1\]: .* unexpected size: 1", "[[1, 2], [3]]", model="grid")
in_lists(CASES[1], r"'INPUT0'\[1\]: .* unexpected size: 3", "[[1, 2], [3, 4, 5]]", model="grid")
cannot(CASES[2:5], LISTS, "the lists determine the shape")
in_lists(
    "thousands of dimensions", "'INPUT0': shape has .* dimensions", "[" * 900 + "7" + "]" * 900
)
in_lists("no name", "INPUT0, INPUT1", "[7]", model="pair")
in_lists("an empty name", r"INPUT0|named input: $", '[{"": 7}]', '{"": [7]}')
in_lists("a duplicate name", "'INPUT0' twice", '[{"INPUT0": 7, "INPUT0": 7}]',
         '{"INPUT0": [7], "INPUT0": [7]}')  # fmt: skip
cannot(["an unknown datatype"], LISTS, "a message contains no datatypes")
in_lists("data for the first of two inputs only", "INPUT1", '[{"INPUT0": 7}]', '{"INPUT0": [7]}',
         model="pair")  # fmt: skip
cannot([*_SIZES, "a string length past the end", "a vector of 4 GiB"], LISTS, "no size is sent")
for _case, _element in zip(_ELEMENTS, ("true", "2147483648", "NaN", '"7"'), strict=True):
    in_lists(_case, "'INPUT0': element 1 is", f"[7, {_element}]", v1="'INPUT0': element 1|char 18")
cannot(_OFFSETS, LISTS, "only flatbuffers have offsets")
cannot(_LINES, LISTS, "no header describes the tensors")

# ---- valid requests --------------------------------------------------------------------------

VALID_REQUESTS: Final[dict[str, Bad]] = {
    PIPE: Bad("", bytes(pipe(ints([1], SEVEN)))),
    FRAMES: Bad("", bytes(pipe(ints([1], SEVEN)))),
    OLD_HTTP: Bad(
        "",
        SEVEN,
        {"NV-InferRequest": f'batch_size: 1 {input_text([1])} output {{ name: "OUTPUT0" }}'},
    ),
    OLD_GRPC: Bad(
        "",
        old_message(
            "m", header=f'batch_size: 1 {input_text([1])} output {{ name: "OUTPUT0" }}', raw=[SEVEN]
        ),
    ),
    TFS_RAW: Bad("", predict(_one_raw)),
    TFS_TYPED: Bad("", predict(_one_typed)),
    **{each: Bad("", b'{"instances": [7]}') for each in ROWS},
    TFS_COLUMNS: Bad("", b'{"inputs": [7]}'),
}
"""Valid requests with one INT32 of 7 for the model ``m``."""
