"""The small JSON reader rejects a document or returns the same request as the full reader."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from v2_rest_kit import body, post

from infergate.codecs.json_tensors import json_data
from infergate.codecs.json_tensors.json_data import NON_FINITE_SPELLINGS, write_numbers
from infergate.codecs.v2_rest import infer_request
from infergate.codecs.v2_rest.infer_request import read_body
from infergate.codecs.v2_rest.small_json_reader import MAX_BYTES, read_small
from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.sequences import sequence_id
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest
from infergate.testing import load

VECTORS = Path(__file__).parents[3] / "vectors" / "v2-rest"


def outcome_of(text: bytes, limits: Limits) -> Any:
    """Return the request ``text`` in a comparable form, in which 1, 1.0 and True differ, or the
    error."""
    try:
        parsed, response_format, features = read_body(post(text), text, "m", "", limits)
    except GatewayError as error:
        return error.kind, error.public
    request = parsed.operation
    tensors = [
        (t.name, t.datatype, t.shape, bytes(t.data), dict(t.parameters), t.shared_memory)
        for t in request.inputs
    ]
    outputs = [(o.name, dict(o.parameters), o.shared_memory) for o in request.outputs]
    options = (
        sorted(features, key=str),
        parsed.wants_stream,
        sequence_id(request.parameters),
        response_format,
        request.id,
    )
    return repr((tensors, outputs, dict(request.parameters), options))


def check(text: bytes, limits: Limits = DEFAULT_LIMITS) -> bool:
    """Return whether the small reader accepts ``text``; if so, the full reader must agree."""
    outcome = outcome_of(text, limits)
    with patch.object(infer_request, "read_small", return_value=None):
        assert outcome == outcome_of(text, limits)
    return read_small(text, limits) is not None


DEEP = "[" * 100 + "]" * 100
X = '"name":"X","datatype":"INT32","shape":[1],"data":[7]'


@pytest.mark.parametrize(
    "text",
    [
        f'{{"inputs":[{{{X}}}]}}',
        f'{{"id":"1","inputs":[{{{X}}}],"outputs":[{{"name":"Y"}},{{"name":"Z"}}]}}',
        f'{{"inputs":[{{{X},"parameters":{{"a":1,"b":-1.5,"c":null,"d":"x","e":true}}}}]}}',
        f'{{"parameters":{{"binary_data_output":true,"sequence_id":5}},"inputs":[{{{X}}}]}}',
        f'{{"parameters":{{"stream":true}},"inputs":[{{{X}}}]}}',
        f'{{"inputs":[{{{X}}}],"outputs":[{{"name":"Y","parameters":{{"binary_data":false}}}}]}}',
        '{"inputs":[{"name":"X:0","datatype":"BYTES","shape":[2,1],"data":[["a:"],["é:b"]]}]}',
        '{"inputs":[{"name":"X","datatype":"BYTES","shape":[1],"data":["a\\n\\u003a\\""]}]}',
        '{"inputs":[{"name":"X","datatype":"BOOL","shape":[1,1,2],"data":[[[true,false]]]}]}',
        '{"inputs":[{"name":"X","datatype":"FP32","shape":[4],"data":[-0,-0.0,1,16777217.1]}]}',
        '{"inputs":[{"name":"X","datatype":"FP64","shape":[2],"data":[1e-400,36893488147419103232]}]}',
        '{"inputs":[{"name":"X","datatype":"UINT64","shape":[1],"data":[18446744073709551615]}]}',
        '{"inputs":[{"name":"X","datatype":"INT8","shape":[0,3],"data":[]}]}',
        ' {"inputs" : [ ] } \n',
    ],
)
def test_documents_that_the_small_reader_accepts(text: str) -> None:
    assert check(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        # duplicate names at each level
        f'{{"inputs":[],"inputs":[{{{X}}}]}}',
        f'{{"id":"a","id":"b","inputs":[{{{X}}}]}}',
        f'{{"inputs":[{{{X},"data":[7]}}]}}',
        f'{{"inputs":[{{{X},"d\\u0061ta":[7]}}]}}',
        '{"inputs":[{"name":"X","name":"\\u003a","datatype":"INT8","shape":[0],"data":[]}]}',
        '{"inputs":[{"name":"\\u003a","name":"\\u003a","datatype":"INT8","shape":[0],"data":[]}]}',
        f'{{"inputs":[{{{X},"parameters":{{"a":1,"a":1}}}}]}}',
        f'{{"parameters":{{"a":"\\u003a","a":"\\u003a"}},"inputs":[{{{X}}}]}}',
        f'{{"inputs":[{{{X}}}],"outputs":[{{"name":"Y","name":"Y"}}]}}',
        f'{{"inputs":[{{{X}}}],"outputs":[{{"name":"Y"}},{{"name":"Y"}}]}}',
        f'{{"inputs":[{{{X}}},{{{X}}}]}}',
        # too deep, in a value that is skipped
        f'{{"inputs":[{{{X}}}],"pad":{DEEP}}}',
        f'{{"inputs":[{{{X},"pad":{DEEP}}}]}}',
        f'{{"inputs":[{{{X},"parameters":{{}},"pad":{DEEP}}}]}}',
        f'{{"inputs":[{{{X}}}],"outputs":[{{"name":"Y","pad":{DEEP}}}]}}',
        f'{{"inputs":[{{{X}}}],"outputs":[{{"name":"Y","parameters":{{}},"pad":{DEEP}}}]}}',
        # members and values that only the full reader supports
        f'{{"id":null,"inputs":[{{{X}}}]}}',
        f'{{"model":"Y","inputs":[{{{X}}}]}}',
        f'{{"inputs":[{{{X},"parameters":{{"a":36893488147419103232}}}}]}}',
        f'{{"inputs":[{{{X},"parameters":{{"a":{{}}}}}}]}}',
        f'{{"inputs":[{{{X},"parameters":{{"binary_data_size":4}}}}]}}',
        f'{{"inputs":[{{{X},"parameters":{{"shared_memory_region":"r"}}}}]}}',
        f'{{"inputs":[{{{X}}}],"outputs":[{{"name":"Y","parameters":{{"classification":2}}}}]}}',
        f'{{"inputs":[{{{X}}}],"outputs":[{{"name":"Y","parameters":{{"binary_data":1}}}}]}}',
        f'{{"inputs":[{{{X}}}],"parameters":{{"binary_data_output":true}},"outputs":[{{"name":"Y"}}]}}',
        '{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[NaN]}]}',
        '{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":["NaN"]}]}',
        '{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[3.5e38]}]}',
        '{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[true]}]}',
        '{"inputs":[{"name":"X","datatype":"FP16","shape":[1],"data":[1]}]}',
        '{"inputs":[{"name":"X","datatype":"INT8","shape":[1],"data":[128]}]}',
        '{"inputs":[{"name":"X","datatype":"INT8","shape":[1],"data":[1.0]}]}',
        '{"inputs":[{"name":"X","datatype":"INT8","shape":[1],"data":[true]}]}',
        '{"inputs":[{"name":"X","datatype":"INT8","shape":[],"data":1}]}',
        '{"inputs":[{"name":"X","datatype":"INT8","shape":[-1,-1],"data":[1]}]}',
        '{"inputs":[{"name":"X","datatype":"INT8","shape":[0,9223372036854775808],"data":[]}]}',
        '{"inputs":[{"name":"X","datatype":"INT8","shape":[true],"data":[1]}]}',
        '{"inputs":[{"name":"X","datatype":"INT8","shape":[2],"data":[[1],2]}]}',
        '{"inputs":[{"name":"X","datatype":"BYTES","shape":[2],"data":[["a"],"b"]}]}',
        '{"inputs":[{"name":"X","datatype":"BYTES","shape":[1],"data":["\\ud800"]}]}',
        '{"inputs":[{"name":"X","datatype":"INT8","shape":[1],"data":[[[[[[[[[1]]]]]]]]]}]}',
        '{"inputs":[{"name":"","datatype":"INT8","shape":[1],"data":[1]}]}',
        '{"inputs":{}}',
        "[]",
        "",
        "\ufeff{}",
    ],
)
def test_documents_that_the_small_reader_leaves_to_the_full_reader(text: str) -> None:
    if text:
        assert not check(text.encode())


def test_the_limits_apply() -> None:
    tensors = f'{{"inputs":[{{{X}}},{{{X.replace("X", "Y")}}}]}}'.encode()
    outputs = f'{{"inputs":[{{{X}}}],"outputs":[{{"name":"Y"}},{{"name":"Z"}}]}}'.encode()
    shape = f'{{"inputs":[{{{X.replace("[1]", "[1,1]")}}}]}}'.encode()
    for text, limits in (
        (tensors, Limits(tensors=1)),
        (outputs, Limits(tensors=1)),
        (shape, Limits(rank=1)),
        (shape, Limits(json=len(shape) - 1)),
    ):
        assert check(text)
        assert not check(text, limits)
    long = f'{{"inputs":[{{{X}}}]{" " * MAX_BYTES}}}'.encode()
    assert not check(long)


def test_every_vector_is_read_alike() -> None:
    messages = [vector.wire for vector in load(VECTORS) if isinstance(vector.wire, HttpRequest)]
    assert sum(check(body(wire)) for wire in messages if any(wire.body)) > 5


# ---- other requests ------------------------------------------------------------------------------

SPACE = st.sampled_from(["", "", "", " ", "\n\t"])
NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.integers(-300, 300).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["-0", "-0.0", "1e2", "1E400", "1e-400", "01", "3.4028235677973366e38", "NaN", "null"]
    ),
    st.sampled_from(
        ["true", "false", "9" * 400, "2147483648", "-128", "255", "9223372036854775808"]
    ),
)
STRINGS = st.one_of(
    st.sampled_from(["X", "", ":", "X:0", "a\\\\", "\\n", "\\u003a", "\\ud83d\\ude00", "\\ud800"]),
    st.text(st.characters(exclude_characters='"\\\\', min_codepoint=32), max_size=3),
).map('"{}"'.format)


def arrays(items: st.SearchStrategy[str], upper: int = 4) -> st.SearchStrategy[str]:
    return st.lists(items, max_size=upper).map(lambda elements: f"[{','.join(elements)}]")


def objects(names: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(st.sampled_from(names.split()), values), max_size=2)
    return pairs.map(lambda each: "{" + ",".join(f'"{name}":{value}' for name, value in each) + "}")


SCALARS = NUMBERS | STRINGS
VALUES = st.recursive(
    SCALARS, lambda inner: arrays(inner, 2) | objects("a a: \\u0061", inner), max_leaves=4
)
PARAMETERS = objects(
    "a b a:b binary_data binary_data_output binary_data_size sequence_id classification "
    "shared_memory_region shared_memory_byte_size stream",
    st.sampled_from(["true", "false", "1", "4", '"r"']) | VALUES,
)


@st.composite
def members(draw: Callable[..., Any], values: dict[str, st.SearchStrategy[str]]) -> str:
    """Draw an object with most of ``values``, some twice or mistyped, and unknown members."""
    names = [name for name in values if draw(st.integers(0, 19))]
    if not draw(st.integers(0, 9)):
        names.append(draw(st.sampled_from([*values, "other", "a:b", "n\\u0061me"])))
    fields = []
    for name in names:
        odd = not draw(st.integers(0, 29))
        value = draw(VALUES if odd or name not in values else values[name])
        fields.append(f'{draw(SPACE)}"{name}"{draw(SPACE)}:{draw(SPACE)}{value}')
    return f"{{{','.join(fields)}}}"


@st.composite
def inputs(draw: Callable[..., Any]) -> str:
    datatype = draw(st.sampled_from([*(member.value for member in Datatype), "INT3"]))
    plain = {
        "BOOL": st.sampled_from(["true", "false"]),
        "BYTES": STRINGS,
    }.get(datatype, st.integers(0, 127).map(str))
    item = draw(st.sampled_from([plain, plain, plain | NUMBERS, SCALARS]))
    data = draw(st.lists(item, max_size=4))
    shape = draw(
        st.sampled_from([f"[{len(data)}]", f"[1,{len(data)}]", f"[{len(data)},1,1]"])
        | arrays(NUMBERS, 2)
    )
    nested = draw(
        st.sampled_from(
            [",".join(data), "[" + ",".join(data) + "]", ",".join(f"[{d}]" for d in data)]
        )
    )
    values = {
        "name": st.sampled_from(['"X"', '"X"', '"Y:0"', '"Z"']),
        "datatype": st.just(f'"{datatype}"'),
        "shape": st.just(shape),
        "data": st.just(f"[{nested}]"),
    }
    if not draw(st.integers(0, 3)):
        values["parameters"] = PARAMETERS
    return draw(members(values))


@st.composite
def requests(draw: Callable[..., Any]) -> bytes:
    values: dict[str, st.SearchStrategy[str]] = {"inputs": arrays(inputs(), 2)}
    if draw(st.booleans()):
        values["id"] = STRINGS
    if not draw(st.integers(0, 3)):
        values["parameters"] = PARAMETERS
    if not draw(st.integers(0, 3)):
        name = {"name": st.sampled_from(['"Y"', '"Y"', '"Z"'])}
        values["outputs"] = arrays(members(name) | members({**name, "parameters": PARAMETERS}), 2)
    return draw(members(values)).encode("utf-8", "surrogatepass")


@given(requests())
def test_any_request_is_read_alike(text: bytes) -> None:
    check(text)


@given(requests(), st.data())
def test_any_corrupted_request_is_read_alike(text: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 3))
    pieces = [b"", *(bytes((byte,)) for byte in b':",[]{}\\0-\xff'), b"\xed\xa0\x80"]
    piece = data.draw(st.sampled_from(pieces) | st.binary(max_size=2))
    if corrupted := text[:position] + piece + text[position + length :]:
        check(corrupted)


# ---- responses -----------------------------------------------------------------------------------


@given(st.sampled_from(sorted(NUMPY_DTYPES, key=str)), st.binary(max_size=64), st.booleans())
@example(Datatype.FP32, b"\0\0\x80\x7f", False)  # infinite
@example(
    Datatype.FP64, b"\xff" * 6 + b"\xef\x7f" + b"\xff" * 6 + b"\xef\x7f", False
)  # only the sum is infinite
@example(Datatype.FP32, b"\xcd\xcc\xcc\x3d", True)  # 0.1, unaligned
def test_short_and_long_tensors_are_written_alike(
    datatype: Datatype, data: bytes, is_unaligned: bool
) -> None:
    data = data[: len(data) - len(data) % datatype.itemsize]
    if datatype is Datatype.BOOL:
        data = bytes(byte & 1 for byte in data)
    view = memoryview(b"." + data)[1:] if is_unaligned else data
    tensor = Tensor("Y", datatype, (len(data) // datatype.itemsize,), view)

    def write() -> bytes:
        return orjson.dumps(
            write_numbers(tensor, NON_FINITE_SPELLINGS["literal"]),
            option=orjson.OPT_SERIALIZE_NUMPY,
        )

    short = write()
    with patch.object(json_data, "write_small_data", return_value=None):
        assert short == write()
