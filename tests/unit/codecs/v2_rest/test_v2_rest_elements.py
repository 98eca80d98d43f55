"""Reading and writing of tensor data in JSON."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from v2_rest_kit import CODEC, body, infer, ok, parse_one, post, read_response, refused, respond

from gateway_errors import raises_kind
from infergate.codecs.base import ParsedRequest
from infergate.codecs.json_tensors.json_data import REQUEST_RULES, read_data
from infergate.codecs.json_tensors.json_document import parse_json
from infergate.codecs.json_tensors.rounding import ROUND
from infergate.codecs.v2_rest import PLUGIN
from infergate.core.datatypes import INTEGERS, NUMPY_DTYPES, Datatype
from infergate.core.errors import Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import Tensor, float32_from_bf16, tensor_from_array
from traced_memory import peak_bytes


@pytest.mark.parametrize("datatype", sorted(INTEGERS, key=lambda d: d.value), ids=lambda d: d.value)
@pytest.mark.parametrize("slow", [False, True], ids=["copied", "walked"])
def test_integer_bounds(datatype: Datatype, slow: bool) -> None:
    bounds = np.iinfo(np.dtype(NUMPY_DTYPES[datatype]))
    low, high = int(bounds.min), int(bounds.max)
    # NaN outside the tensor makes the standard library parse the document
    end = ',"other":NaN}' if slow else "}"

    def wire(data: str) -> str:
        name = datatype.value
        return f'{{"inputs":[{{"name":"X","datatype":"{name}","shape":[2],"data":{data}}}]{end}'

    parsed = CODEC.parse_request(post(wire(f"[{low},[{high}]]")), DEFAULT_LIMITS).operation
    assert parsed.inputs[0].numpy().tolist() == [low, high]
    refused(post(wire(f"[0,{high + 1}]")), "'X'", "element 1", str(high + 1), f"to {high}")
    refused(post(wire(f"[{low - 1},0]")), "'X'", "element 0", str(low - 1), f"from {low}")


@pytest.mark.parametrize(
    ("datatype", "max_value", "too_large"),
    [
        ("FP16", "65504", "65520"),
        ("BF16", "3.3895313892515355e38", "3.4e38"),
        ("FP32", "3.4028234663852886e38", "3.5e38"),
        ("FP64", "1.7976931348623157e308", "1e309"),
        ("FP64", "0", "1" + "0" * 400),
        ("FP64", "0", "1" + "0" * 5000),
    ],
)
def test_float_bounds(datatype: str, max_value: str, too_large: str) -> None:
    assert math.isfinite(float(parse_one(datatype, [1], f"[{max_value}]").numpy()[0]))
    error = refused(infer(datatype, [3], f"[0,{max_value},{too_large}]"))
    assert "element 2" in error.public or "invalid JSON" in error.public
    refused(infer(datatype, [3], f"[NaN,{max_value},-{too_large}]"))


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=1))
@example([1.00390625, 1.0039062500000002, 1.01171875, 1.0117187499999998, 1e-40, 5e-324])  # ties
def test_bf16_is_rounded_once(values: list[float]) -> None:
    bits = ROUND[Datatype.BF16](np.array(values))
    for value, actual in zip(values, float32_from_bf16(bits).tolist(), strict=True):
        assert actual == nearest_bf16(value)


def nearest_bf16(value: float) -> float:
    """Round in exact arithmetic, ties to even."""
    exact = abs(Fraction(value))
    if exact == 0:
        return value
    exponent = max(math.frexp(value)[1] - 8, -133)
    step = Fraction(2) ** exponent
    rounded = round(exact / step) * step  # Python rounds ties to even
    if rounded > Fraction(2) ** 128 - Fraction(2) ** 120:
        return math.copysign(math.inf, value)
    return math.copysign(float(rounded), value)


def test_non_finite_values_among_numbers() -> None:
    data = '[1,"NaN",NaN,-Infinity,"Infinity",2.5,null]'
    for datatype in ("FP16", "FP32", "FP64", "BF16"):
        values = parse_one(datatype, [7], data).numpy().tolist()
        assert str(values) == "[1.0, nan, nan, -inf, inf, 2.5, nan]"
    refused(infer("FP32", [1], '["nan"]'), "element 0", "a string")
    refused(infer("BYTES", [1], "[NaN]"), "element 0", "a number")
    refused(infer("BOOL", [1], "[NaN]"), "a number")
    for datatype in ("INT32", "BOOL", "BYTES"):
        refused(infer(datatype, [1], "[null]"), "element 0", "null")


@pytest.mark.parametrize("data", ["[true]", '["1"]', "[{}]"])
def test_no_value_is_coerced_to_a_number(data: str) -> None:
    refused(infer("FP32", [1], data), "'X'", "element 0")
    refused(infer("INT32", [1], data), "'X'", "element 0")


def test_bytes_and_booleans() -> None:
    assert parse_one("BYTES", [2, 1], '[["a"],["\\u00e9"]]').numpy().tolist() == [
        [b"a"],
        ["é".encode()],
    ]
    assert parse_one("BOOL", [2], "[true,[false]]").numpy().tolist() == [True, False]
    refused(infer("BYTES", [1], "[[1]]"), "BYTES takes strings", "1")
    refused(infer("BYTES", [1], "[[[{}]]]"), "an object")


def test_data_that_is_not_an_array() -> None:
    refused(infer("FP32", [1], '{"a":1}'), "an object")
    refused(infer("BYTES", [2], '"a"'), "a string")
    refused(infer("FP32", [1], '"NaN"'), "a string")
    for shape in ([], [1]):
        assert parse_one("BYTES", shape, '"a"').numpy().item() == b"a"
    refused(infer("FP32", [], "[]"), "1 elements", "holds 0")


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("BOOL", [1], "[" * 90 + "[" + "true," * 500_000 + "true]" + "]" * 90),
        ("BOOL", [1], "[[true,true," + "[true]," * 100_000 + "true]]"),
        ("BOOL", [0, 500_000], "[" + "true," * 500_000 + "true]"),
        ("BYTES", [7], "[" + '"",' * 500_000 + '""]'),
        ("BOOL", [0, 9], "[" + "[]," * 200_000 + "{}]"),
    ],
    ids=["deep", "ragged", "empty", "strings", "empty arrays"],
)
def test_elements_beyond_the_shape_are_not_read(datatype: str, shape: list[int], data: str) -> None:
    node = parse_json(data.encode())

    def read() -> None:
        with raises_kind(Kind.BAD_REQUEST, match="'X'"):
            read_data("X", Datatype(datatype), tuple(shape), node, REQUEST_RULES)

    # a list of elements or arrays would take at least 8 bytes each
    assert peak_bytes(read) < 1 << 18


def test_arrays_among_elements_keep_their_order() -> None:
    data = '[["a","b"],"c",[],["d",["e",[["f"]]],"g"],[[]],"h"]'
    strings = parse_one("BYTES", [8], data).numpy().tolist()
    assert b"".join(strings) == b"abcdefgh"
    assert parse_one("BOOL", [3, 0], "[[],[],[]]").data == b""
    with_nan = data.replace('"a"', '"a",NaN')
    refused(infer("BYTES", [9], with_nan), "element 1 is a number")
    refused(infer("BYTES", [7], data), "holds more")
    refused(infer("BYTES", [9], data), "holds 8")


def write_data(tensor: Tensor, non_finite: str = "literal") -> bytes:
    codec = PLUGIN.create({"non_finite": non_finite})
    response = codec.build_response(
        InferResponse("m", outputs=(tensor,)), ParsedRequest(InferRequest("m"))
    )
    data = body(response)
    return data[data.index(b'"data":') + 7 : -3]


@pytest.mark.parametrize(
    ("non_finite", "expected"),
    [
        ("literal", b"[1.5,NaN,Infinity,-Infinity,-0.0]"),
        ("string", b'[1.5,"NaN","Infinity","-Infinity",-0.0]'),
        ("null", b"[1.5,null,null,null,-0.0]"),
    ],
)
@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_non_finite_floats(datatype: str, non_finite: str, expected: bytes) -> None:
    array = np.array([1.5, math.nan, math.inf, -math.inf, -0.0], "f4")
    assert write_data(tensor_from_array("Y", Datatype[datatype], array), non_finite) == expected


@pytest.mark.parametrize(
    ("datatype", "array", "expected"),
    [
        (Datatype.FP32, np.array([[0.1], [1e30]], "f4"), b"[0.1,1e+30]"),
        (Datatype.BOOL, np.array([True, False]), b"[true,false]"),
        (Datatype.UINT64, np.array([2**64 - 1], "u8"), b"[18446744073709551615]"),
        (Datatype.FP64, np.empty((0, 2)), b"[]"),
    ],
)
def test_elements_are_written_in_the_fewest_digits(
    datatype: Datatype, array: Any, expected: bytes
) -> None:
    assert write_data(tensor_from_array("Y", datatype, array)) == expected


def test_unaligned_data_is_written() -> None:
    data = memoryview(b"\0" + np.array([1.5, 2.5]).tobytes())[1:]
    assert write_data(Tensor("Y", Datatype.FP64, (2,), data)) == b"[1.5,2.5]"


def test_a_tensor_with_bytes_that_are_not_utf8_is_written_as_base64() -> None:
    array = np.array([b"\xff", b"plain"], dtype=object)
    response = InferResponse(
        "m", outputs=(tensor_from_array("Y", Datatype.BYTES, array, {"k": 1}),)
    )
    wire = respond(response)
    assert b'"parameters":{"k":1,"content_type":"base64"},"data":["/w==","cGxhaW4="]' in body(wire)
    assert read_response(wire) == response


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        (b"", '[""]'),
        (b"/w==", '["/w=="]'),  # as MLServer sends over gRPC
        (b"no base64", '["bm8gYmFzZTY0"]'),  # as rest-proxy sends
    ],
)
def test_the_base64_mark_matches_the_json_data(element: bytes, expected: str) -> None:
    tensor = tensor_from_array(
        "Y", Datatype.BYTES, np.array([element], object), {"content_type": "base64"}
    )
    response = InferResponse("m", outputs=(tensor,))
    wire = respond(response)
    assert f'"parameters":{{"content_type":"base64"}},"data":{expected}'.encode() in body(wire)


def parsed_output(data: str, datatype: str = "UINT8", shape: str = "[1]") -> Tensor:
    wire = ok(
        f'{{"model_name":"m","outputs":[{{"name":"Y","datatype":"{datatype}","shape":{shape},'
        f'"data":{data}}}]}}'
    )
    return read_response(wire).outputs[0]


@pytest.mark.parametrize("data", ['"!!"', '"AQI="', '"\\u00e9"'])
def test_packed_uint8_must_be_base64_of_the_shape(data: str) -> None:
    with raises_kind(Kind.BACKEND_GARBAGE, match="'Y'"):
        parsed_output(data)


def test_a_lone_surrogate_in_a_response() -> None:
    with raises_kind(Kind.BACKEND_GARBAGE, match="element 0 is a string, with an unpaired"):
        parsed_output('["\\ud800"]', "BYTES")
