"""The wire scanner agrees with the protobuf runtime, and rejects malformed messages."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from infergate.codecs.protos.wire_scanner import (
    MalformedMessageError,
    field_prefix,
    read_strings,
    remove_fields,
    scan_fields,
    split_raw_fields,
    string_field,
)

MAX_FIELDS = 1000


def test_split_does_not_copy_raw_contents() -> None:
    message = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"a" * 300, b""])
    message.outputs.add(name="o")
    data = message.SerializeToString()
    head, raw = split_raw_fields(data, 7, MAX_FIELDS)
    assert [bytes(entry) for entry in raw] == [b"a" * 300, b""]
    assert all(entry.obj is data for entry in raw)
    del message.raw_input_contents[:]
    assert pb.ModelInferRequest.FromString(bytes(head)) == message


def test_split_without_raw_contents_is_the_message_itself() -> None:
    data = pb.ModelInferRequest(model_name="m").SerializeToString()
    head, raw = split_raw_fields(data, 7, MAX_FIELDS)
    assert head is data
    assert raw == []


def test_raw_contents_between_other_fields() -> None:
    data = (
        field_prefix(7, 1)
        + b"x"
        + string_field(1, "m")
        + field_prefix(7, 1)
        + b"y"
        + string_field(3, "i")
    )
    head, raw = split_raw_fields(data, 7, MAX_FIELDS)
    assert bytes(head) == string_field(1, "m") + string_field(3, "i")
    assert [bytes(entry) for entry in raw] == [b"x", b"y"]
    assert b"".join(remove_fields(data, frozenset({7}), MAX_FIELDS)) == bytes(head)
    assert b"".join(remove_fields(data, frozenset({1, 3}), MAX_FIELDS)) == b"\x3a\x01x\x3a\x01y"
    assert remove_fields(b"", frozenset({1}), MAX_FIELDS) == []
    assert remove_fields(b"\x38\x05" + string_field(1, "m"), frozenset({7}), MAX_FIELDS) == [
        b"\x0a\x01m"
    ]


def test_a_field_of_another_wire_type_is_left_to_the_runtime() -> None:
    data = b"\x38\x05" + string_field(1, "m")  # field 7 as a varint
    assert split_raw_fields(data, 7, MAX_FIELDS) == (data, [])
    assert read_strings(data, frozenset({7}), MAX_FIELDS, 99) == {}


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16383, 16384, 2**31 - 1])
def test_a_prefix_equals_that_of_the_runtime(length: int) -> None:
    prefix = field_prefix(7, length)
    assert prefix[0] == 0x3A
    assert sum((b & 0x7F) << (7 * i) for i, b in enumerate(prefix[1:])) == length
    if length <= 16384:
        message = pb.ModelInferRequest(raw_input_contents=[bytes(length)])
        assert message.SerializeToString() == prefix + bytes(length)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x0a", "does not end"),
        (b"\x0a\x02m", "past the end"),
        (b"\x0a\xff\xff\xff\xff\x0f", "2 GiB"),
        (b"\x0a\xff\xff\xff\xff\xff\x0f", "does not end"),
        (b"\x02\x00", "field number 0"),
        (b"\xff\xff\xff\xff\xff\x0f\x00", "does not end"),
        (b"\xfa\xff\xff\xff\x7f\x00", "out of range"),
        (b"\x08" + b"\x80" * 10 + b"\x00", "does not end"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\x0f", "wire type 7"),
        (b"\x09\x00", "past the end"),
        (b"\x0d\x00\x00\x00", "past the end"),
        (b"\x2a\x00" * (MAX_FIELDS + 1), "more than 1000 fields"),
    ],
)
def test_malformed_fields_are_rejected(data: bytes, expected: str) -> None:
    with pytest.raises(MalformedMessageError, match=expected):
        list(scan_fields(data, MAX_FIELDS))


def test_every_wire_type_is_skipped() -> None:
    data = b"\x09" + bytes(8) + b"\x0d" + bytes(4) + b"\x08\x96\x01" + b"\x0a\x01m"
    assert [(f.wire_type, f.end) for f in scan_fields(data, MAX_FIELDS)] == [
        (1, 9),
        (5, 14),
        (0, 17),
        (2, 20),
    ]


def test_invalid_utf8() -> None:
    with pytest.raises(MalformedMessageError, match="field 1 is not UTF-8"):
        read_strings(b"\x0a\x01\xff", frozenset({1}), MAX_FIELDS, 99)


@given(st.binary(max_size=64))
@example(b"\x0a\x80\x00")  # an overlong length of 0, which protobuf accepts
@example(b"\x8a\x00\x01m")  # an overlong tag
def test_split_covers_all_bytes_or_raises(data: bytes) -> None:
    try:
        head, raw = split_raw_fields(data, 7, MAX_FIELDS)
    except MalformedMessageError:
        return
    assert len(head) + sum(map(len, raw)) <= len(data)
    spans = [(f.start, f.end) for f in scan_fields(data, MAX_FIELDS)]
    assert [start for start, _ in spans] == [0, *(end for _, end in spans)][:-1] or not data
    assert sum(end - start for start, end in spans) == len(data)


@given(st.binary(max_size=48))
@example(b"\x0a\x80\x00")
@example(b"\x8a\x00\x01m")
@example(b"\x0a\x80\x80\x80\x80\x00")
@example(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
def test_the_reader_agrees_with_the_runtime(data: bytes) -> None:
    try:
        expected = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return
    try:
        strings = read_strings(data, frozenset({1, 2, 3}), MAX_FIELDS, 99)
        _, raw = split_raw_fields(data, 7, MAX_FIELDS)
    except MalformedMessageError as error:
        # the scanner refuses groups, because proto3 has none
        assert "wire type" in str(error)  # noqa: PT017
        return
    assert strings.get(1, "") == expected.model_name
    assert strings.get(3, "") == expected.id
    assert [bytes(entry) for entry in raw] == list(expected.raw_input_contents)
