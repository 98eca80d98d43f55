"""Conversion of nested JSON lists to tensors and back: shapes, datatypes and errors. Arrays whose
shape is read from the outline and arrays that are walked give the same result.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_errors import raises_kind
from infergate.codecs.json_tensors import row_reader
from infergate.codecs.json_tensors.json_document import MAX_CONTAINERS_ON_LOOP
from infergate.codecs.json_tensors.outline import outline_of, read_shape
from infergate.codecs.json_tensors.row_document import parse_document
from infergate.codecs.json_tensors.row_reader import UNNAMED, RowReader
from infergate.codecs.json_tensors.row_writer import (
    nesting_cost,
    row_cost,
    row_size_bounds,
    write_columns,
    write_rows,
)
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, NeedsOffloadError, event_loop_limits
from infergate.core.tensor import Tensor, tensor_from_array

KEYS = ("instances", "inputs")
FP32, INT64, BYTES = Datatype.FP32, Datatype.INT64, Datatype.BYTES
INPUT = {"x": FP32}
SMALL_LIMIT = 10_000
"""Replaces the limits on containers and objects, because documents at these limits take seconds."""


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_CONTAINERS", "MAX_BYTES_ELEMENTS"):
        monkeypatch.setattr(row_reader, name, SMALL_LIMIT)


def read(
    text: bytes, types: Mapping[str, Datatype | None] | None = INPUT, limits: Any = DEFAULT_LIMITS
) -> dict[str, tuple[Datatype, tuple[int, ...], Any]]:
    """Return the datatype, shape and elements of each tensor in ``text``."""
    members = parse_document(text, KEYS, limits)
    reader = RowReader(types, limits)
    if "instances" in members:
        tensors = reader.read_instances(members["instances"])
    else:
        tensors = reader.read_inputs(members["inputs"])
    return {t.name: (t.datatype, t.shape, t.numpy().tolist()) for t in tensors}


def error_of(text: bytes, types: Mapping[str, Datatype | None] | None = INPUT) -> GatewayError:
    with pytest.raises(GatewayError) as raised:
        read(text, types)
    return raised.value


# ---- outlines


def test_the_outline_has_no_strings_and_no_numbers() -> None:
    assert outline_of(rb'{"a, \"[": [1.5, "x]\\", {"b64": ""}], "c": "{"}') == b"{:[,,{:}],:}"


@pytest.mark.parametrize(
    ("outline", "shape"),
    [
        (b"[,,]", (3,)),
        (b"[[,],[,],[,]]", (3, 2)),
        (b"[[[]]]", (1, 1, 1)),
        (b"{:}", ()),
        (b",", ()),
        (b"[[,],[]]", None),
        (b"[,[]]", None),
        (b"[[],]", None),
        (b"[{:}]", None),
        (b"{:,:}", None),
        (b"[[,],[,]", None),
    ],
)
def test_shapes_of_outlines(outline: bytes, shape: tuple[int, ...] | None) -> None:
    shape_and_end = read_shape(b":" + outline + b",", 1)
    assert (shape_and_end and shape_and_end[0]) == shape
    if shape:
        assert shape_and_end[1] == 1 + len(outline)


def test_text_with_too_much_structure_in_strings_has_no_outline() -> None:
    text = b'{"instances": [' + b'",",' * 40_000 + b'""]}'
    assert outline_of(text) is None
    assert read(text, {"x": BYTES})["x"][1] == (40_001,)


# ---- reading


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"instances": [1, 2.5]}', (FP32, (2,), [1.0, 2.5])),
        (b'{"instances": [[1, 2], [3, 4]]}', (FP32, (2, 2), [[1, 2], [3, 4]])),
        (b'{"instances": [[[]]]}', (FP32, (1, 1, 0), [[[]]])),
        (b'{"instances": [{"x": [1]}, {"x": [2]}]}', (FP32, (2, 1), [[1], [2]])),
        (b'{"instances": [{"x": 1}, {"x": 2}]}', (FP32, (2,), [1, 2])),
        (b'{"instances": [{"x": [[1], [2]]}]}', (FP32, (1, 2, 1), [[[1], [2]]])),
        (b'{"instances": [{"x": []}]}', (FP32, (1, 0), [[]])),
        (b'{"inputs": 7}', (FP32, (), 7.0)),
        (b'{"inputs": {"x": [[1, 2]]}}', (FP32, (1, 2), [[1, 2]])),
        (b'{"inputs": {"y": [[1], 2], "x": [3]}}', (FP32, (1,), [3])),
        (b'{"inputs": []}', (FP32, (0,), [])),
        (b'{"a": {"b": [1]}, "inputs": [[1, 2]]}', (FP32, (1, 2), [[1, 2]])),
        (b'\xef\xbb\xbf{"inputs": [1]} and text', (FP32, (1,), [1])),
        (b'{"inputs": [Infinity, -Infinity, Inf]}', (FP32, (3,), [np.inf, -np.inf, np.inf])),
    ],
)
def test_rows_and_columns_are_read(body: bytes, expected: Any) -> None:
    assert read(body) == {"x": expected}


def test_several_inputs() -> None:
    types = {"a": INT64, "b": BYTES}
    expected = {"a": (INT64, (2,), [1, 2]), "b": (BYTES, (2, 1), [[b"p"], [b"\xff"]])}
    rows = b'{"instances": [{"b": ["p"], "a": 1}, {"a": 2, "b": [{"b64": "/w=="}]}]}'
    columns = b'{"inputs": {"b": [["p"], [{"b64": "/w"}]], "a": [1, 2]}}'
    assert read(rows, types) == read(columns, types) == expected


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        ("[true]", Datatype.BOOL),
        ("[1, -2]", INT64),
        ("[1, 0.5]", Datatype.FP64),
        ("[9223372036854775808]", Datatype.FP64),
        ("[]", Datatype.FP64),
        ('["a", {"b64": "YQ=="}]', BYTES),
        ("[NaN]", Datatype.FP64),
    ],
)
def test_inferred_datatypes(value: str, datatype: Datatype) -> None:
    assert read(b'{"inputs": %b}' % value.encode(), {"x": None})["x"][0] is datatype
    assert read(b'{"inputs": %b}' % value.encode(), None)[UNNAMED][0] is datatype
    rows = b'{"instances": [{"x": %b}, {"x": %b}]}' % (value.encode(), value.encode())
    assert read(rows, None)["x"][0] is datatype


def test_rows_of_integers_and_floats_are_floats() -> None:
    ones = ", ".join(["1"] * 100)
    text = f'{{"instances": [{{"x": [{ones}]}}, {{"x": [{ones[:-1]}1.5]}}]}}'.encode()
    datatype, shape, values = read(text, None)["x"]
    assert (datatype, shape) == (Datatype.FP64, (2, 100))
    assert values[0][-1] == 1.0
    assert values[1][-1] == 1.5


@pytest.mark.parametrize("text", ["QQ==", "QQ", "QQ..", "Q Q\n=="])
def test_base64_spellings(text: str) -> None:
    body = orjson.dumps({"inputs": [{"b64": text}]})
    assert read(body, {"x": BYTES})["x"][2] == [b"A"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"instances": 5}', "instances"),
        (b'{"instances": []}', "instances"),
        (b'{"instances": [[1], [2, 3]]}', "tensor 'x'[1]: Encountered list at unexpected size: 2"),
        (b'{"instances": [1, [2]]}', "tensor 'x'[1]: Encountered list at unexpected level: 1"),
        (b'{"inputs": [[1], 2]}', "tensor 'x'[1]: a number found at incorrect level"),
        (b'{"instances": [[[1], []], [[1], [1]]]}', "tensor 'x'[0][1]"),
        (b'{"instances": [{"x": [1]}, [2]]}', "got an array at item 1"),
        (b'{"instances": [1, {"x": 1}]}', "tensor 'x': element 1 is an object"),
        (b'{"instances": [{"x": 1}, {"y": 1}]}', "instances[1]: JSON object: does not have named"),
        (b'{"instances": [{"x": 1}, {}]}', "instances[1]: its keys must be equal to: x"),
        (b'{"instances": [{"x": 1}, {"x": 1, "x": 2}]}', "instances[1] has 'x' twice"),
        (
            b'{"instances": [{"x": [1]}, {"x": [1, 2]}]}',
            "instances[1]: tensor 'x': Expecting shape",
        ),
        (b'{"instances": [{"x": [[1], []]}]}', "instances[0]: tensor 'x'[1]"),
        (b'{"instances": [{"x\\u0000y": 1}]}', "instances[0]: JSON object"),
        (b'{"inputs": {"y": 1}}', "Missing named input: x in 'inputs'"),
        (b'{"inputs": {"x": 1, "x": 2}}', "inputs has 'x' twice"),
        (b'{"inputs": [1], "inputs": [2]}', "the body has 'inputs' twice"),
        (b'{"inputs": [null]}', "tensor 'x': element 0 is null"),
        (b'{"inputs": ["1"]}', "tensor 'x': element 0 is a string"),
        (b'{"inputs": ["NaN"]}', "tensor 'x': element 0 is a string"),
        (b'{"inputs": [1e39]}', "tensor 'x': element 0 is 1e+39, beyond FP32"),
        (b'{"inputs": [1e309]}', "beyond FP32"),
        (b'{"inputs": [{"b64": "QQ=="}]}', "tensor 'x': element 0 is an object"),
        (b'{"inputs": ' + b"[" * 70 + b"]" * 70 + b"}", "tensor 'x': shape has 70 dimensions"),
        (b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested over 100 levels"),
        (b'{"inputs": ["\\ud800"]}', "an unpaired surrogate"),
        (b"[1]", "the body must be an object"),
        (b"", "JSON Parse error: The document is empty. at offset: 0"),
        (b'{"inputs": [1,]}', "JSON Parse error"),
        (b'{"inputs": [nan]}', "JSON Parse error"),
    ],
)
def test_errors_name_the_tensor_or_instance(body: bytes, expected: str) -> None:
    error = error_of(body)
    assert error.kind is Kind.BAD_REQUEST
    assert expected in error.public
    assert len(error.public) < 400


NUMBERS = b"[" + b"1, " * 99 + b"1]"
"""A row that is copied in one piece."""


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([b"[1, 2]", b'[3, "a"]'], "instances[1]: tensor 'x': element 1 is a string"),
        ([b"1", b"2", b"1e39"], "instances[2]: tensor 'x': element 0 is 1e+39, beyond FP32"),
        (
            [NUMBERS, NUMBERS.replace(b"1]", b"null]"), NUMBERS],
            "instances[1]: tensor 'x': element 99 is null",
        ),
        (
            [NUMBERS.replace(b"1]", b"NaN]"), NUMBERS, NUMBERS.replace(b"1]", b"{}]")],
            "instances[2]: tensor 'x': element 99 is an object",
        ),
    ],
)
def test_errors_name_the_instance_and_its_element(rows: list[bytes], expected: str) -> None:
    body = b'{"instances": [%b]}' % b", ".join(b'{"x": %b}' % row for row in rows)
    assert error_of(body).public.startswith(expected)


def test_errors_of_strings_name_the_instance_and_its_element() -> None:
    body = b'{"instances": [{"x": ["a", {"b64": ""}]}, {"x": ["a", 1]}]}'
    error = error_of(body, {"x": BYTES})
    assert error.public.startswith("instances[1]: tensor 'x': element 1 is a number; BYTES")


def test_strings_that_are_not_base64() -> None:
    for text in ("Q*==", "QQ==QQ==", "Q===", "Q", "_-8="):
        body = orjson.dumps({"inputs": ["a", {"b64": text}]})
        assert "tensor 'x': element 1 is an object" in error_of(body, {"x": BYTES}).public
    error = error_of(b'{"inputs": [{"b64": "QQ"}, 1]}', {"x": BYTES})
    assert "element 1 is a number" in error.public


def test_bytes_that_are_not_utf8_are_kept() -> None:
    for items, expected in (
        (b'"\xff\xfe", "a"', [b"\xff\xfe", b"a"]),
        (b'"\xff", {"b64": "/w=="}', [b"\xff", b"\xff"]),
    ):
        assert read(b'{"inputs": [%b]}' % items, {"x": BYTES})["x"][2] == expected


def test_several_inputs_need_names() -> None:
    types = {"a": FP32, "b": FP32}
    for body in (b'{"instances": [1]}', b'{"inputs": [1]}', b'{"inputs": {"b64": "QQ=="}}'):
        assert "a, b" in error_of(body, types).public


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("row", "datatype"),
    [(b'["a"]', BYTES), (b"[true]", Datatype.BOOL), (b'{"x": 1}', FP32), (b'{"x": [1]}', FP32)],
)
def test_rows_of_strings_booleans_or_objects_are_limited(row: bytes, datatype: Datatype) -> None:
    body = b'{"instances": [' + b",".join([row] * (SMALL_LIMIT + 1)) + b"]}"
    assert error_of(body, {"x": datatype}).kind is Kind.TOO_LARGE


@pytest.mark.parametrize("item", [b"{}", b"[]", b'{"b64":""}'])
def test_the_event_loop_offloads_many_containers(item: bytes) -> None:
    limits = event_loop_limits(DEFAULT_LIMITS)
    many = b'{"inputs": [%b, 1]}' % b",".join([item] * (MAX_CONTAINERS_ON_LOOP + 1))
    with pytest.raises(NeedsOffloadError):
        read(many, {"x": BYTES}, limits)


@pytest.mark.parametrize(
    ("item", "constant"), [(b"{}", "MAX_BYTES_ELEMENTS"), (b"[]", "MAX_CONTAINERS")]
)
def test_empty_objects_and_lists_are_limited(
    item: bytes, constant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_reader, constant, SMALL_LIMIT)
    body = b'{"inputs": [1, %b]}' % b",".join([item] * (SMALL_LIMIT + 1))
    error = error_of(body)
    assert error.kind is Kind.TOO_LARGE
    assert f"over {SMALL_LIMIT} " in error.public


def test_base64_elements_are_not_limited_as_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_reader, "MAX_CONTAINERS", SMALL_LIMIT)
    count = SMALL_LIMIT + 1
    body = b'{"instances": [%b]}' % b",".join([b'{"b64":""}'] * count)
    assert read(body, {"x": BYTES})["x"][1] == (count,)


@pytest.mark.no_cover
def test_many_different_rows_are_read_in_linear_time() -> None:
    """Each row has a different outline from the previous row."""
    rows = [b'{"x": [[1, 2]], "y": [[[3]]]}', b'{"y": [[[3]]], "x": [[1, 2]]}'] * 10_000
    body = b'{"instances": [' + b",".join(rows) + b"]}"
    began = time.process_time()
    tensors = read(body, {"x": FP32, "y": FP32})
    assert tensors["x"][1] == (20_000, 1, 2)
    assert time.process_time() - began < 5  # 0.3 s if linear, minutes if quadratic


def test_a_million_rows_of_numbers() -> None:
    body = b'{"instances": [' + b",".join([b"[1]"] * 1_000_000) + b"]}"
    members = parse_document(body, KEYS, DEFAULT_LIMITS)
    (tensor,) = RowReader(INPUT, DEFAULT_LIMITS).read_instances(members["instances"])
    assert tensor.shape == (1_000_000, 1)


@pytest.mark.usefixtures("small_limits")
def test_wide_rows_are_limited() -> None:
    """Each look-up of a member walks the row."""
    row = b"{" + b",".join(b'"%d": [%b]' % (i, b"1, " * 64 + b"1") for i in range(1000)) + b"}"
    body = b'{"instances": [' + b",".join([row] * 12) + b"]}"
    assert error_of(body, None).kind is Kind.TOO_LARGE


def test_the_event_loop_offloads_many_rows() -> None:
    limits = event_loop_limits(DEFAULT_LIMITS)
    few, many = (b",".join([b'{"x": 1}'] * n) for n in (100, 10_000))
    assert read(b'{"instances": [%b]}' % few, limits=limits)["x"][1] == (100,)
    with pytest.raises(NeedsOffloadError):
        read(b'{"instances": [%b]}' % many, limits=limits)


# ---- regular and walked values


def _shaped(draw: Any, element: Any, depth: int) -> Any:
    if not depth:
        return draw(element)
    return [_shaped(draw, element, depth - 1) for _ in range(draw(st.integers(0, 3)))]


@st.composite
def nested(draw: Any) -> Any:
    """Draw an element, or lists that are regular, ragged, or of different depths."""
    element = st.sampled_from([0, 1, -2, 1.5, 300, True, "a", "[,", None])
    if draw(st.booleans()):
        shape = draw(st.lists(st.integers(0, 3), max_size=4))
        value: Any = draw(element)
        for size in shape:
            value = [value] * size
        return value
    return _shaped(draw, element, draw(st.integers(0, 3)))


@given(nested(), st.sampled_from([*Datatype, None]), st.sampled_from(["rows", "named", "columns"]))
def test_regular_and_walked_values_are_read_alike(
    value: Any, datatype: Datatype | None, form: str
) -> None:
    document = {
        "rows": {"instances": [value, value]},
        "named": {"instances": [{"x": value}, {"x": value}]},
        "columns": {"inputs": {"x": value}},
    }[form]
    text = json.dumps(document).encode()
    outcomes = []
    for body in (text, text + b" x"):  # the second body has no outline
        try:
            outcomes.append(repr(read(body, {"x": datatype})))
        except GatewayError as error:
            outcomes.append(error.public)
    assert outcomes[0] == outcomes[1]


@given(
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(sorted(set(Datatype) - {BYTES}, key=str)),
    st.integers(0, 2**32),
)
def test_tensors_round_trip(shape: tuple[int, ...], datatype: Datatype, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2, shape)
    tensor = tensor_from_array("x", datatype, values)
    for text in (
        b'{"inputs": %b}' % write_columns([tensor]),
        b'{"inputs": %b}' % write_columns([tensor], is_named=True),
    ):
        result_datatype, result_shape, elements = read(text, {"x": datatype})["x"]
        expected_shape = shape[: shape.index(0) + 1] if 0 in shape else shape
        assert (result_datatype, result_shape) == (datatype, expected_shape)
        assert 0 in shape or elements == values.tolist()


# ---- writing


def tensor(name: str, datatype: Datatype, values: Any) -> Tensor:
    return tensor_from_array(
        name, datatype, np.array(values, np.object_ if datatype is BYTES else None)
    )


def test_columns_are_written() -> None:
    x = tensor("x", FP32, [[1, 0.1], [np.nan, -np.inf]])
    y = tensor("y", INT64, 5)
    assert write_columns([x]) == b"[[1.0,0.1],[NaN,-Infinity]]"
    assert write_columns([y]) == b"5"
    assert write_columns([x, y]) == b'{"x":[[1.0,0.1],[NaN,-Infinity]],"y":5}'
    assert write_columns([y], is_named=True) == b'{"y":5}'


def test_rows_are_written() -> None:
    x = tensor("x", FP32, [[1, 0.1], [np.nan, 2]])
    y = tensor("y", Datatype.BOOL, [True, False])
    z = tensor("z", BYTES, [b"a", b"\xff"])
    assert write_rows([x]) == b"[[1.0,0.1],[NaN,2.0]]"
    text = b'[{"x":[1.0,0.1],"y":true,"z":"a"},{"x":[NaN,2.0],"y":false,"z":{"b64":"/w=="}}]'
    assert write_rows([x, y, z]) == text
    assert write_rows([tensor("n", FP32, [np.inf, 1]), y]) == (
        b'[{"n":Infinity,"y":true},{"n":1.0,"y":false}]'
    )


def test_many_rows_are_written_completely() -> None:
    x = tensor_from_array("x", INT64, np.arange(10_000))
    y = tensor_from_array("y", Datatype.FP16, np.arange(10_000) % 2)
    rows = orjson.loads(write_rows([x, y]))
    assert len(rows) == 10_000
    assert rows[9_999] == {"x": 9_999, "y": 1.0}


def test_elements_of_tensors_with_the_suffix_bytes_are_base64() -> None:
    assert write_columns([tensor("x_bytes", BYTES, [b"ab"])]) == (
        b'[{"b64":"%b"}]' % base64.b64encode(b"ab")
    )


def test_rows_need_a_common_dimension() -> None:
    x, y = tensor("x", FP32, [1]), tensor("y", FP32, [1, 2])
    with pytest.raises(GatewayError, match="y has inconsistent batch size: 2 expecting: 1"):
        write_rows([x, y])
    with pytest.raises(GatewayError, match="s has no shape information"):
        write_rows([tensor("s", FP32, 1)])


def test_the_brackets_of_many_dimensions_are_counted() -> None:
    deep = Tensor("x", Datatype.UINT8, (1000, *[1] * 63), bytes(1000))
    text = write_columns([deep])
    assert len(text) <= row_size_bounds([deep])[1]
    assert nesting_cost([deep]) == 1000 + 10 * 63_000
    assert nesting_cost([replace(deep, shape=(10, 100))]) == 1000 + 2 * 10
    assert nesting_cost([replace(deep, shape=(1000,))]) == 1000


def test_names_in_rows_are_counted() -> None:
    first, second = (Tensor(name, Datatype.INT8, (1000,), bytes(1000)) for name in ("abc", "y"))
    assert row_cost([first]) == 1000
    assert row_cost([first, second]) == 2 * 1000 + 1000 * (7 + 5)
    assert row_cost([first, replace(second, shape=(10, 100))]) == 2 * 1000 + 2 * 10
    assert row_cost([]) == 0


@pytest.mark.parametrize("datatype", [Datatype.INT8, BYTES])
def test_the_lists_of_a_tensor_are_limited(datatype: Datatype) -> None:
    size = 4 if datatype is BYTES else 1
    many = Tensor("x", datatype, (29_000, *[1] * 63), bytes(29_000 * size))
    for write in (write_columns, write_rows):
        with raises_kind(Kind.TOO_LARGE, "'x': shape .* needs too many nested lists"):
            write([many])


@pytest.mark.parametrize("shape", [(1, 0, 2**63 - 1), (0, 2**40), (2, 0)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    empty = Tensor("x", FP32, shape, b"")
    assert write_columns([empty]) == {1: b"[[]]", 0: b"[]", 2: b"[[],[]]"}[shape[0]]
    with raises_kind(Kind.TOO_LARGE, "over 65536 empty lists"):
        write_columns([replace(empty, shape=(2**63 - 1, 0))])
