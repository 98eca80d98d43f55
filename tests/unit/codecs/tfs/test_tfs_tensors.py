"""TensorProtos are read and written as by TensorFlow's C++ code, and their cost is limited.

``tests/data/tfserving/tensorproto.jsonl`` was obtained by running tensorflow-cpu 2.21.0
(``Tensor::FromProto``, ``Tensor::AsProtoField``, ``Tensor::AsProtoTensorContent``).
"""

import base64
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway_errors import raises_kind, refused
from infergate.codecs.protos.wire_scanner import (
    MAX_NESTED_FIELDS_ON_LOOP,
    FieldBudget,
    MalformedMessageError,
    field_budget,
)
from infergate.codecs.tfs.datatypes import TYPES
from infergate.codecs.tfs.messages import TensorProto
from infergate.codecs.tfs.model_spec import MAX_TOP_LEVEL_FIELDS
from infergate.codecs.tfs.tensor_reader import TensorProtoReader
from infergate.codecs.tfs.tensor_writer import (
    MAX_TYPED_ELEMENTS,
    tensor_parts,
    writing_cost,
    written_bytes,
)
from infergate.core.datatypes import DATATYPES_BY_NAME, NUMPY_DTYPES, Datatype
from infergate.core.errors import Kind
from infergate.core.limits import (
    DEFAULT_LIMITS,
    MAX_ELEMENTS_ON_LOOP,
    MIB,
    Limits,
    NeedsOffloadError,
    event_loop_limits,
)
from infergate.core.tensor import MAX_BYTES_ELEMENTS, Tensor, pack_bytes
from traced_memory import peak_bytes

FILE = Path(__file__).parents[3] / "data" / "tfserving" / "tensorproto.jsonl"
CASES = [json.loads(line) for line in FILE.read_text().splitlines()]
READ_CASES = [case for case in CASES if "expect" in case]
WRITTEN_CASES = [case for case in CASES if "proto_b64" in case and "tensor" in case]
REFUSED = {
    "tensorproto.range.": "is out of range for",  # TensorFlow wraps the value
    "tensorproto.wrong_field.": "belong in",  # TensorFlow reads zeros
}
"""The errors for values that TensorFlow silently changes, by the start of the case's name."""


def read(proto: bytes, limits: Limits = DEFAULT_LIMITS) -> Tensor:
    budget = field_budget(MAX_TOP_LEVEL_FIELDS, limits)
    return TensorProtoReader(limits, budget).read("x", memoryview(proto))


def encode(tensor: Tensor, contents: str) -> bytes:
    return b"".join(tensor_parts(tensor, contents))


@pytest.mark.parametrize("case", READ_CASES, ids=lambda case: case["id"])
def test_tensors_are_read_as_by_tensorflow(case: dict[str, Any]) -> None:
    proto = base64.b64decode(case["proto_b64"])
    expected = case["expect"].get("tensor")
    error_text = next((text for start, text in REFUSED.items() if case["id"].startswith(start)), "")
    if expected is None or expected["dtype"] not in DATATYPES_BY_NAME or error_text:
        try:
            error = refused(read, proto)
        except MalformedMessageError:
            assert case["expect"]["status"]["code"] == "unparsable"
            return
        assert error.kind in {Kind.BAD_REQUEST, Kind.TOO_LARGE}
        assert error.public.startswith("tensor 'x': ")
        assert error_text in error.public
        return
    tensor = read(proto)
    assert tensor.datatype.value == expected["dtype"]
    assert list(tensor.shape) == expected["shape"]
    assert bytes(tensor.data) == base64.b64decode(expected["data_b64"])


@pytest.mark.parametrize("case", WRITTEN_CASES, ids=lambda case: case["id"])
def test_tensors_are_written_as_by_tensorflow(case: dict[str, Any]) -> None:
    expected = case["tensor"]
    datatype, proto = DATATYPES_BY_NAME[expected["dtype"]], base64.b64decode(case["proto_b64"])
    data = base64.b64decode(expected["data_b64"])
    assert bytes(read(proto).data) == data
    contents = "typed" if ".field." in case["id"] else "raw"
    if datatype is Datatype.BYTES and contents == "raw":
        contents, proto = "typed", b""  # clients do not read strings in tensor_content
    encoded = encode(Tensor("x", datatype, tuple(expected["shape"]), data), contents)
    assert not proto or encoded == proto
    assert b"".join(tensor_parts(read(encoded), contents)) == encoded


@pytest.mark.parametrize("dims", [(0, 2**62, 2**62), (2**62, 2**62, 0)])
def test_the_position_of_an_empty_dimension_does_not_matter(dims: tuple[int, ...]) -> None:
    """TensorFlow refuses the second shape, whose product overflows before the 0."""
    tensor = read(proto("DT_FLOAT", *dims))
    assert (tensor.shape, len(tensor.data)) == (dims, 0)


def test_every_datatype_has_its_own_number() -> None:
    assert set(TYPES) == set(Datatype)
    assert len({entry.number for entry in TYPES.values()}) == len(Datatype)


# ---- limits


def proto(dtype: str, *dims: int, **values: Any) -> bytes:
    message = TensorProto(dtype=dtype, **values)
    for size in dims:
        message.tensor_shape.dim.add(size=size)
    message.tensor_shape.SetInParent()
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(proto("DT_FLOAT", 2**20, 2**20), id="without values"),
        pytest.param(proto("DT_FLOAT", 2**40, float_val=[1]), id="a value to repeat"),
        pytest.param(proto("DT_INT64", 2**40, int64_val=[1]), id="an integer to repeat"),
        pytest.param(proto("DT_STRING", 2**40), id="empty strings"),
        pytest.param(proto("DT_STRING", 2**40, string_val=[b"a"]), id="a string to repeat"),
        pytest.param(proto("DT_STRING", 2**20, string_val=[b"a" * 100]), id="a long string"),
        pytest.param(proto("DT_FLOAT", 2**62, 2**62), id="more elements than 64 bits can count"),
        pytest.param(proto("DT_FLOAT", 17 * MIB, float_val=[1]), id="slightly over the limit"),
    ],
)
def test_elements_are_counted_before_they_are_allocated(message: bytes) -> None:
    def check() -> None:
        with raises_kind(Kind.TOO_LARGE, r"tensor 'x': .*limit"):
            read(message)

    started = time.process_time()
    assert peak_bytes(check) < 64 * 1024
    assert time.process_time() - started < 0.5


def test_the_size_limit_is_for_all_tensors_of_a_message() -> None:
    reader = TensorProtoReader(Limits(body=1000), FieldBudget(100))
    message = memoryview(proto("DT_FLOAT", 100, float_val=[1]))
    assert len(reader.read("a", message).data) == 400
    assert len(reader.read("b", message).data) == 400
    with raises_kind(Kind.TOO_LARGE, "tensor 'c': .* of the message have 1200 bytes") as caught:
        reader.read("c", message)
    assert caught.value.limit == "body"


def test_the_last_value_is_repeated() -> None:
    assert read(proto("DT_FLOAT", 4, float_val=[1, 2])).numpy().tolist() == [1, 2, 2, 2]
    assert read(proto("DT_INT32", 2, 2, int_val=[-1])).numpy().tolist() == [[-1, -1], [-1, -1]]
    strings = read(proto("DT_STRING", 3, string_val=[b"a", b""]))
    assert strings.numpy().tolist() == [b"a", b"", b""]
    surplus = read(proto("DT_STRING", 2, string_val=[b"a", b"b", b"c"]))
    assert surplus.numpy().tolist() == [b"a", b"b"]
    assert read(proto("DT_STRING", 0, string_val=[b"a"])).data == b""


LOOP_LIMITS = event_loop_limits(DEFAULT_LIMITS)
SINGLE_READS = MAX_NESTED_FIELDS_ON_LOOP - 4
"""The number of values that the loop reads one by one, in addition to the fields of dtype and
shape."""


@pytest.mark.parametrize(
    "message",
    [
        proto("DT_STRING", MAX_ELEMENTS_ON_LOOP + 1),
        proto("DT_STRING", 1, string_val=[b""] * (MAX_ELEMENTS_ON_LOOP + 1)),
        proto("DT_INT32", 3 * MIB, int_val=[1] * (MIB + 1)),
        proto("DT_FLOAT", 3 * MIB, float_val=[1]),
        proto("DT_FLOAT", 3 * MIB),
        proto("DT_STRING", 1000, string_val=[b"a" * 10_000]),
        proto("DT_FLOAT", 1) + b"\x2d\0\0\0\0" * (SINGLE_READS + 1),
        proto("DT_FLOAT", 1) + b"\x2d\0\0\0\0\x42\0" * (SINGLE_READS // 2 + 1),
    ],
    ids=["empty", "surplus", "integers", "a float", "zeros", "a long string", "unpacked", "mixed"],
)
def test_costly_tensors_are_offloaded(message: bytes) -> None:
    with pytest.raises(NeedsOffloadError):
        read(message, LOOP_LIMITS)
    read(message)


def test_the_event_loop_reads_tensors_up_to_its_limits() -> None:
    read(proto("DT_FLOAT", 1) + b"\x2d\0\0\0\0" * SINGLE_READS, LOOP_LIMITS)
    read(proto("DT_STRING", 1, string_val=[b""] * MAX_ELEMENTS_ON_LOOP), LOOP_LIMITS)


@pytest.mark.no_cover
def test_the_number_of_unpacked_values_is_bounded() -> None:
    count = MAX_BYTES_ELEMENTS + 1
    with raises_kind(Kind.TOO_LARGE, "tensor 'x': .*the limit"):
        read(proto("DT_FLOAT", 1) + b"\x2d\0\0\0\0" * count)
    with raises_kind(Kind.TOO_LARGE, "tensor 'x': .*the limit"):
        read(proto("DT_STRING", 1) + b"\x42\0" * count)


def test_alternating_fields_do_not_multiply_the_cost() -> None:
    started = time.process_time()
    message = proto("DT_STRING", 1) + (b"\x42\0\x18\0" * 5_000) + b"\x42\xc0\x84\x3d" + b"a" * 10**6
    read(message)
    with pytest.raises(MalformedMessageError, match="more than"):
        read(proto("DT_STRING", 1) + (b"\x42\0\x18\0" * 30_000))
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\x42", "does not end"),
        (b"\x42\x05a", "runs past"),
        (b"\x42\xff\x01a", "runs past"),
        (b"\xc2\x00\x00", "does not have the tag"),
        (b"\x2a\x03abc" + proto("DT_FLOAT", 1), "cut short"),
        (b"\x3a\x0b" + b"\xff" * 10 + b"\1" + proto("DT_INT32", 1), "more than 10 bytes"),
    ],
)
def test_malformed_fields(message: bytes, text: str) -> None:
    with pytest.raises(MalformedMessageError, match=text):
        read(message)


def test_many_dimensions_are_refused_by_name() -> None:
    with raises_kind(Kind.BAD_REQUEST, "tensor 'x': shape has over 64 dimensions") as caught:
        read(proto("DT_FLOAT", *([1] * 65)))
    assert caught.value.limit == "rank"


# ---- writing


def test_auto_writes_values_unless_they_are_many() -> None:
    few = Tensor("y", Datatype.INT32, (3,), np.arange(3, dtype="<i4").tobytes())
    many = Tensor("y", Datatype.INT32, (MAX_TYPED_ELEMENTS + 1,), bytes(4 * MAX_TYPED_ELEMENTS + 4))
    floats = Tensor("y", Datatype.FP32, many.shape, many.data)
    strings = Tensor("y", Datatype.BYTES, (2,), pack_bytes((b"a", b"bc")))
    assert list(TensorProto.FromString(encode(few, "auto")).int_val) == [0, 1, 2]
    assert len(TensorProto.FromString(encode(many, "auto")).tensor_content) == len(many.data)
    assert len(TensorProto.FromString(encode(floats, "auto")).float_val) == many.shape[0]
    assert len(TensorProto.FromString(encode(few, "raw")).tensor_content) == 12
    for contents in ("auto", "raw", "typed"):
        assert list(TensorProto.FromString(encode(strings, contents)).string_val) == [b"a", b"bc"]
    assert writing_cost((many, floats), "auto") == 0
    assert writing_cost((many,), "typed") > 256 * 1024
    assert writing_cost((strings,), "raw") > 0
    assert written_bytes((few, strings), "typed") >= len(encode(few, "typed")) - 4
    assert written_bytes((many, floats), "raw") == 0


def test_floats_are_not_copied() -> None:
    data = bytearray(400)
    tensor = Tensor("y", Datatype.FP32, (100,), data)
    for contents in ("auto", "raw", "typed"):
        assert tensor_parts(tensor, contents)[1] is data
    assert read(b"".join(tensor_parts(tensor, "raw"))).data == data


def test_long_strings_are_not_copied() -> None:
    elements = [b"a", bytes(2000), b"", b"b" * 1024, b"c" * 1025]
    tensor = Tensor("y", Datatype.BYTES, (5,), pack_bytes(elements))
    parts = tensor_parts(tensor, "auto")
    assert [len(part) for part in parts if isinstance(part, memoryview)] == [2000, 1025]
    assert list(TensorProto.FromString(b"".join(parts)).string_val) == elements


def test_bools_are_written_as_0_and_1() -> None:
    tensor = Tensor("y", Datatype.BOOL, (3,), b"\0\x02\xff")
    assert TensorProto.FromString(encode(tensor, "raw")).tensor_content == b"\0\1\1"
    assert list(TensorProto.FromString(encode(tensor, "typed")).bool_val) == [False, True, True]


@pytest.mark.parametrize("datatype", sorted(Datatype, key=lambda member: member.value))
def test_all_bits_round_trip(datatype: Datatype) -> None:
    if datatype is Datatype.BYTES:
        data = pack_bytes(bytes((byte,)) * (byte % 140) for byte in range(256))
    elif datatype is Datatype.BOOL:
        data = bytes([0, 1] * 128)
    else:
        generator = np.random.default_rng(0)
        data = generator.integers(0, 256, 256 * datatype.itemsize, dtype="u1").tobytes()
        assert len(np.frombuffer(data, NUMPY_DTYPES[datatype])) == 256
    for contents in ("auto", "raw", "typed"):
        tensor = read(encode(Tensor("x", datatype, (16, 16), data), contents))
        assert bytes(tensor.data) == data


# ---- cached heads


HEAD = proto("DT_FLOAT", 2)
CONTENT = b"\x22\x08" + bytes(range(8))


def test_a_repeated_head_is_read_from_the_cache() -> None:
    for _ in range(2):
        for field in (b"\x22", b"\x2a"):
            tensor = read(HEAD + field + CONTENT[1:])
            assert (tensor.datatype, tensor.shape) == (Datatype.FP32, (2,))
            assert bytes(tensor.data) == bytes(range(8))
    first = read(proto("DT_FLOAT", 200) + b"\x22\xa0\x06" + bytes(800))
    second = read(proto("DT_FLOAT", 200) + b"\x22\xa0\x06" + bytes(800))
    assert first == second


@pytest.mark.parametrize(
    ("rest", "shape", "data"),
    [
        (b"\x2a\x04\1\2\3\4", (2,), b"\1\2\3\4" * 2),
        (b"\x25\1\2\3\4", (2,), bytes(8)),  # a field that TensorProto does not have
        (b"", (2,), bytes(8)),
        (CONTENT + b"\x12\x04\x12\x02\x08\1", (2, 1), bytes(range(8))),
        (CONTENT + b"\x08\x02\x12\x00", None, b"needs 16 bytes"),
        (b"\x22\x07" + bytes(7), None, b"needs 8 bytes"),
        (b"\x22\x88\x80\x80\x80\x00" + bytes(range(8)), (2,), bytes(range(8))),
    ],
)
def test_other_messages_with_a_cached_head(
    rest: bytes, shape: tuple[int, ...] | None, data: bytes
) -> None:
    read(HEAD + CONTENT)
    if shape is None:
        with raises_kind(Kind.BAD_REQUEST, data.decode()):
            read(HEAD + rest)
    else:
        tensor = read(HEAD + rest)
        assert (tensor.shape, bytes(tensor.data)) == (shape, data)


def test_lengths_that_do_not_end_are_refused_at_once() -> None:
    read(HEAD + CONTENT)
    started = time.process_time()
    with pytest.raises(MalformedMessageError):
        read(HEAD + b"\x22" + b"\x80" * 10_000_000)
    assert time.process_time() - started < 1


def test_a_cached_head_keeps_the_limit_of_the_rank() -> None:
    message = proto("DT_INT8", 1, 1, 1) + b"\x22\x01\7"
    assert read(message) == read(message)
    with raises_kind(Kind.BAD_REQUEST, "over 2 dimensions"):
        read(message, Limits(rank=2))
