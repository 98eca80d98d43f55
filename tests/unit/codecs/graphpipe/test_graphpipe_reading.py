"""Malformed and unusual flatbuffers: each access is checked, and the cost is bounded."""

import struct
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from graphpipe_wire import request, response

from gateway_errors import raises_kind, refused
from infergate.codecs.graphpipe import PLUGIN, flatbuffer_reader, flatbuffer_writer
from infergate.codecs.graphpipe.fields import (
    CODE,
    DATA,
    INPUT_NAMES,
    MESSAGE,
    REQ_TYPE,
    SHAPE,
    STRING_VAL,
)
from infergate.codecs.graphpipe.flatbuffer_reader import (
    MAX_EXPANSION,
    FlatbufferMessage,
    FlatbufferTable,
    TableField,
)
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import MAX_BYTES_ELEMENTS, Tensor, pack_bytes
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.testing.vectors import completed

TENSORS = (TensorMetadata("x", "FP32", (-1,)), TensorMetadata("y", "FP32", (-1,)))
MODEL = ModelMetadata("m", inputs=TENSORS, outputs=TENSORS, max_batch_size=0)
CODEC = PLUGIN.create({"model": "m"})
OPERATION = InferRequest("m")


def parse(data: bytes, limits: Limits = DEFAULT_LIMITS) -> InferRequest:
    wire = HttpRequest("POST", "/", body=(data,))
    operation = completed(CODEC.parse_request(wire, limits), MODEL).operation
    assert isinstance(operation, InferRequest)
    return operation


def parsed_response(data: bytes, limits: Limits = DEFAULT_LIMITS) -> InferResponse:
    parsed = CODEC.parse_response(HttpResponse(200, {}, (data,)), OPERATION, limits, MODEL)
    assert isinstance(parsed, InferResponse)
    return parsed


def table(vtable: bytes, inline: bytes, *, vtable_last: bool = False) -> bytes:
    """Return a message of one table, with the vtable before the table or at the end."""
    size = len(vtable)
    if vtable_last:
        fields = struct.pack("<i", -(4 + len(inline))) + inline
        return struct.pack("<I", 4) + fields + vtable
    return struct.pack("<I", 4 + size) + vtable + struct.pack("<i", size) + inline


# ---- bounds


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "0 bytes are too short"),
        (b"\0\0\0", "3 bytes are too short"),
        (struct.pack("<I", 1), "Request lies outside"),
        (struct.pack("<I", 2**32 - 1) + bytes(60), "Request lies outside"),
        (struct.pack("<Ii", 4, 5), "the vtable of Request"),  # starts before the message
        (struct.pack("<Ii", 4, -1), "the vtable of Request"),  # starts after the message
        (struct.pack("<Ii", 4, -(2**31)), "the vtable of Request"),
        (struct.pack("<IHHi", 8, 3, 4, 4), "the vtable of Request"),  # has less than 4 bytes
        (struct.pack("<IHHi", 8, 99, 4, 4), "the vtable of Request"),  # ends after the message
        (table(struct.pack("<3H", 6, 8, 4), b""), "Request.req_type"),
        (table(struct.pack("<3H", 6, 8, 2**16 - 1), b"\1\0\0\0"), "Request.req_type"),
    ],
)
def test_an_invalid_outermost_table_is_refused(data: bytes, expected: str) -> None:
    error = refused(parse, data)
    assert error.kind is Kind.BAD_REQUEST
    assert expected in error.public


@pytest.mark.parametrize("vtable_last", [False, True])
def test_a_vtable_may_precede_or_follow_its_table(vtable_last: bool) -> None:
    data = table(struct.pack("<3H", 6, 8, 4), b"\7\0\0\0", vtable_last=vtable_last)
    assert FlatbufferMessage(data).root("Request").uint8(REQ_TYPE) == 7


Read = Callable[[FlatbufferTable, TableField], Any]
LONG: Read = FlatbufferTable.int64
TEXT: Read = FlatbufferTable.text
TABLE: Read = FlatbufferTable.table
BYTES: Read = FlatbufferTable.data
PACKED: Read = FlatbufferTable.packed_strings


def longs(table: FlatbufferTable, field: TableField) -> Any:
    return table.int64s(field, 9)


def texts(table: FlatbufferTable, field: TableField) -> Any:
    return table.texts(field, 9)


def tables(table: FlatbufferTable, field: TableField) -> Any:
    return table.tables(field, 9)


@pytest.mark.parametrize(
    ("read", "inline"),
    [
        (LONG, bytes(7)),
        (TEXT, b"\1\0\0"),
        (TEXT, struct.pack("<I", 1)),  # the length of the string is cut off
        (TEXT, struct.pack("<I", 2**32 - 1)),
        (TEXT, struct.pack("<II", 4, 1)),
        (TEXT, struct.pack("<II", 4, 2**32 - 1)),
        (BYTES, struct.pack("<II", 4, 1)),
        (longs, struct.pack("<II7x", 4, 1)),
        (texts, struct.pack("<II3x", 4, 1)),
        (texts, struct.pack("<III", 4, 1, 1)),
        (texts, struct.pack("<IIII", 4, 1, 4, 1)),
        (TABLE, struct.pack("<I", 2)),
        (tables, struct.pack("<III", 4, 1, 2**31)),
        (PACKED, struct.pack("<III", 4, 1, 1)),
        (PACKED, struct.pack("<IIII", 4, 1, 4, 1)),
        (PACKED, struct.pack("<IIII", 4, 1, 4, 2**32 - 1)),
    ],
)
def test_fields_beyond_the_end(read: Read, inline: bytes) -> None:
    parsed_table = FlatbufferMessage(table(struct.pack("<3H", 6, 8, 4), inline)).root("T")
    error = refused(read, parsed_table, TableField(4, "f"))
    assert error.kind is Kind.BAD_REQUEST
    assert "T.f" in error.public
    assert "lies outside the message" in error.public


def test_missing_fields_are_empty() -> None:
    empty = FlatbufferMessage(table(struct.pack("<HH", 4, 4), b"")).root("T")
    assert (empty.uint8(REQ_TYPE), empty.int64(CODE), empty.text(MESSAGE)) == (0, 0, "")
    assert (empty.int64s(SHAPE, 9), empty.texts(INPUT_NAMES, 9)) == ((), [])
    assert (bytes(empty.data(DATA)), empty.table(MESSAGE), empty.tables(DATA, 9)) == (b"", None, [])
    assert (empty.length(STRING_VAL), bytes(empty.packed_strings(STRING_VAL))) == (0, b"")
    with_zero_offsets = FlatbufferMessage(table(struct.pack("<4H", 8, 8, 0, 0), b"")).root("T")
    assert (with_zero_offsets.uint8(REQ_TYPE), with_zero_offsets.text(MESSAGE)) == (0, "")


def test_invalid_utf8() -> None:
    for names in ({"input_names": [b"\xff"]}, {"output_names": [b"a", b"\xff"]}):
        error = refused(parse, request([(1, [0], b"")], **names))
        (field,) = names
        assert f"Request.req.{field}[" in error.public
        assert "UTF-8" in error.public


def test_strings_may_lack_or_contain_nul() -> None:
    data = request([(12, [3], [b"", b"four", b"a\0b\xff"])])
    assert b"four\0" in data
    without_nul = data.replace(b"four\0", b"four\xee")
    expected = bytes.fromhex("00000000") + b"\4\0\0\0four" + b"\4\0\0\0a\0b\xff"
    for message in (data, without_nul):
        assert bytes(parse(message).inputs[0].data) == expected


MANY_STRINGS = [bytes([index % 7]) * (index % 11) for index in range(1000)]


@pytest.mark.parametrize(
    "strings",
    [
        MANY_STRINGS,
        [*MANY_STRINGS, b"x" * 100_000, *MANY_STRINGS],
        [b"y" * 300_000, *MANY_STRINGS],
        [bytes([index % 251]) * (index + 100) for index in range(300)],
        [b""] * 1000,
    ],
    ids=["short", "one long", "one very long", "long", "empty"],
)
@pytest.mark.parametrize("batch", [100, 1 << 14])
def test_many_strings(strings: list[bytes], batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flatbuffers Builder stores the last string first, and the codec stores it last."""
    monkeypatch.setattr(flatbuffer_reader, "_MAX_BATCH_STRINGS", batch)
    monkeypatch.setattr(flatbuffer_reader, "_MAX_BATCH_BYTES", batch)
    expected = pack_bytes(strings)
    builder_message = request([(12, [len(strings)], strings)])
    tensor = Tensor("x", Datatype.BYTES, (len(strings),), expected)
    for data in (builder_message, join_parts(flatbuffer_writer.write_request(b"", [tensor], []))):
        assert bytes(parse(data).inputs[0].data) == expected


@pytest.mark.parametrize("size", [3, 64, 1000])
@pytest.mark.parametrize("position", ["begin", "end"])
def test_one_of_many_strings_outside_the_message(size: int, position: str) -> None:
    strings = shared_strings(size, 1)
    corrupted = bytearray(strings)
    if position == "end":
        struct.pack_into("<I", corrupted, len(corrupted) - 5, 2)
    else:
        struct.pack_into("<I", corrupted, len(corrupted) - 5 - 4 * (size - size // 2), 2**32 - 1)
    parse(strings)
    error = refused(parse, bytes(corrupted))
    assert error.kind is Kind.BAD_REQUEST
    assert "a string of " in error.public
    assert "string_val lies outside the message" in error.public


@pytest.mark.parametrize("max_length", [0, 3])
def test_many_strings_are_handled_without_a_loop(max_length: int) -> None:
    """A Python loop over a million strings would hold the interpreter for seconds, so no function
    is called per string, except to locate strings of different lengths when writing."""
    strings = [b"x" * (index % (max_length + 1)) for index in range(20_000)]
    tensor = Tensor("x", Datatype.BYTES, (len(strings),), pack_bytes(strings))
    data = bytes(join_parts(flatbuffer_writer.write_request(b"", [tensor], [])))
    max_calls = len(strings) // 10
    assert 0 < _calls(lambda: parse(data)) < max_calls
    write_calls = _calls(lambda: flatbuffer_writer.write_request(b"", [tensor], []))
    assert 0 < write_calls < max_calls + (2 * len(strings) if max_length else 0)


@pytest.mark.parametrize("shift", [1, 2, 3, 4, 5])
def test_unaligned_objects_are_read(shift: int) -> None:
    plain = request([(10, [1, 2], b"12345678"), (12, [1], [b"xyz"])], config=b'{"a":1}')
    (root,) = struct.unpack_from("<I", plain)
    moved = struct.pack("<I", root + shift) + bytes(shift) + plain[4:]
    assert parse(moved) == parse(plain)
    assert parse(plain + b"garbage") == parse(plain)


# ---- counts


def test_counts_are_limited() -> None:
    limits = Limits(tensors=2, rank=2)
    assert len(parse(request([(1, [0], b"")] * 2), limits).inputs) == 2
    error = refused(parse, request([(1, [0], b"")] * 3), limits)
    assert "3 input_tensors; the limit is 2" in error.public
    error = refused(parse, request([], output_names=[b"a"] * 3), limits)
    assert "3 output_names; the limit is 2" in error.public
    assert parse(request([], input_names=[b"a"] * 3), limits).inputs == ()
    error = refused(parse, request([(1, [1, 1, 1], b"1")]), limits)
    assert "shape has 3 elements; the limit is 2" in error.public
    with raises_kind(Kind.BACKEND_GARBAGE, match="3 output_tensors"):
        parsed_response(response([(1, [0], b"")] * 3), limits)


def test_the_number_of_strings_is_limited() -> None:
    half = MAX_BYTES_ELEMENTS // 2 + 1
    error = refused(parse, request([(12, [half], None), (12, [half], None)]))
    assert error.kind is Kind.BAD_REQUEST  # the first tensor has no strings
    too_many = request([(12, [2 * half], None)])
    assert refused(parse, too_many).kind is Kind.TOO_LARGE


# ---- sharing


def shared_strings(count: int, size: int) -> bytes:
    """Return a request with ``count`` references to one string of ``size`` bytes."""
    offsets = b"".join(struct.pack("<I", 4 * (count - index)) for index in range(count))
    strings = struct.pack("<I", count) + offsets + struct.pack("<I", size) + bytes(size)
    return _request_with(12, (count,), 10, strings)


def _request_with(
    kind: int, shape: tuple[int, ...], entry: int, vector: bytes, times: int = 1
) -> bytes:
    """Return a request whose ``times`` tensors share one table, with ``vector`` at ``entry``."""
    dims = struct.pack(f"<I{len(shape)}q", len(shape), *shape)
    offsets = {10: (0, 12), 8: (12, 0)}[entry]
    tensor = struct.pack("<6H", 12, 16, 4, 8, *offsets) + struct.pack(
        "<iB3xII", 12, kind, 8, 4 + len(dims)
    )
    tensor_table = 12
    tensors = struct.pack("<I", times) + b"".join(
        struct.pack("<I", 4 * (times - index) + tensor_table) for index in range(times)
    )
    infer = struct.pack("<5H2x", 10, 8, 0, 0, 4) + struct.pack("<iI", 12, 4)
    outer = struct.pack("<4H", 8, 12, 4, 8) + struct.pack("<iB3xI", 8, 1, 4 + 12)
    return struct.pack("<I", 12) + outer + infer + tensors + tensor + dims + vector


def test_equal_strings_may_share_bytes() -> None:
    (tensor,) = parse(shared_strings(3, 2)).inputs
    assert bytes(tensor.data) == b"\2\0\0\0\0\0" * 3


def measure(work: Callable[[], Any]) -> tuple[int, GatewayError | None]:
    """Return the peak memory of ``work`` in bytes, and its error."""
    tracemalloc.start()
    try:
        work()
    except GatewayError as error:
        return tracemalloc.get_traced_memory()[1], error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak, None


HOSTILE: dict[str, Callable[[], bytes]] = {
    "shared strings": lambda: shared_strings(100_000, 500_000),
    "shared tensors": lambda: _request_with(
        1, (400_000,), 8, struct.pack("<I", 400_000) + bytes(400_000), times=1000
    ),
    "a long name": lambda: request([(1, [0], b"")], input_names=[b"n" * 300_000]),
    "one long string": lambda: shared_strings(1, 1_000_000),
    "empty strings": lambda: shared_strings(100_000, 0),
    "many strings": lambda: request([(12, [20_000], [b"ab"] * 20_000)]),
    "much data": lambda: request([(1, [1_000_000], bytes(1_000_000))]),
    "many names": lambda: request([], input_names=[b""] * 30_000, output_names=[b""] * 1000),
    "a long config": lambda: request([], config=b"x" * 1_000_000),
    "nested config": lambda: request([], config=b'{"a":' + b"[" * 60_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_is_bounded_by_the_message_size(name: str) -> None:
    data = HOSTILE[name]()
    peak, error = measure(lambda: parse(data))
    assert peak < (MAX_EXPANSION + 4) * len(data) + 200_000
    if name in ("shared strings", "shared tensors"):
        assert error is not None
        assert error.kind is Kind.TOO_LARGE
        assert f"{MAX_EXPANSION} times" in error.public


def test_time_is_linear_in_hostile_sharing() -> None:
    def cost(count: int) -> float:
        data = shared_strings(count, 4 * count)
        return min(_seconds(lambda: refused(parse, data)) for _ in range(5))

    assert cost(80_000) < 40 * cost(10_000)  # 8 times if linear, 64 times if quadratic


def _calls(work: Callable[[], Any]) -> int:
    counter: Counter[str] = Counter()
    sys.setprofile(lambda frame, event, arg: counter.update((event,)))
    try:
        work()
    finally:
        sys.setprofile(None)
    return counter["call"] + counter["c_call"]


def _seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
